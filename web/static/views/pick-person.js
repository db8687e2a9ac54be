// A dialog to pick a person from everybody.

import { html, useEffect, useState } from '../vendor/htm-preact/standalone.module.js'
import { sentence } from '../format.js'
import { failed } from '../store/live.js'
import { loadPeople } from '../store/people.js'
import { state } from '../store/state.js'
import { Modal, Person } from './parts.js'

const mostShown = 50

/** pick(person) may reject, which is shown; `without` are ids of people who are not to be picked. */
export function PickPerson({ title, without = [], close, pick }) {
  const [text, setText] = useState('')
  const [error, setError] = useState('')
  const [busy, setBusy] = useState(false)

  const load = async () => {
    setError('')
    try {
      await loadPeople()
    } catch (e) {
      setError(sentence(failed(e)))
    }
  }
  useEffect(load, [])

  async function choose(person) {
    if (busy) return
    setBusy(true)
    try {
      await pick(person)
      close()
    } catch (e) {
      setError(sentence(failed(e)))
      setBusy(false)
    }
  }

  const wanted = text.trim().toLocaleLowerCase()
  const people = (state.people ?? []).filter((p) =>
    !without.includes(p.id) && p.name.toLocaleLowerCase().includes(wanted))
  const shown = people.slice(0, mostShown)
  const submit = (event) => {
    event.preventDefault()
    if (shown.length === 1) choose(shown[0])
  }
  return html`
    <${Modal} id="pick-person" title=${title} close=${close}>
      <form onSubmit=${submit} role="search">
        <label class="sr-only" for="pick-person-name">Name</label>
        <input id="pick-person-name" data-focus placeholder="Name" autocomplete="off" value=${text}
          onInput=${(e) => setText(e.currentTarget.value)} aria-controls="pick-person-list" />
      </form>
      <div role="alert">${error && html`<p class="form-error">${error}
        ${!state.people && html` <button class="link-button" onClick=${load}>Try again</button>`}</p>`}</div>
      <ul class="people" id="pick-person-list" aria-label="People" aria-busy=${!state.people && !error}>
        ${shown.map((person) => html`
          <li key=${person.id}><button type="button" class="person-button" data-user-id=${person.id} disabled=${busy}
            onClick=${() => choose(person)}><${Person} id=${person.id} name=${person.name} /></button></li>`)}
      </ul>
      <p class="hint" role="status">
        ${state.people && !people.length && (wanted ? 'Nobody has such a name.' : 'There is nobody else.')}
        ${people.length > mostShown && `And ${people.length - mostShown} more: type a part of the name.`}</p>
      <div class="modal-actions"><button type="button" class="button" onClick=${close}>Cancel</button></div>
    <//>`
}
