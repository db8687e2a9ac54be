// The dialogs of tools: what a program asks, in front of everything else.

import { html, useState } from '../vendor/htm-preact/standalone.module.js'
import { minutes } from '../format.js'
import { answer, refuse } from '../store/calls.js'
import { state } from '../store/state.js'
import { Modal, useNow } from './parts.js'

const mostBytes = 60_000 // of an answer, whose frame may have 64 KiB

/** The question that came first, if there is one. */
export function Calls() {
  const [call] = state.calls
  if (!call) return null
  const { title, body: Body } = dialogs[call.tool]
  return html`
    <${Modal} key=${call.id} id="call" title=${title(call.args)} close=${() => refuse(call)} data-tool=${call.tool}
      data-call=${call.id}>
      <${Body} call=${call} />
      <div role="alert">${call.error && html`<p class="form-error">${call.error}</p>`}</div>
      <${TimeLeft} until=${call.until} />
    <//>`
}

const dialogs = {
  confirm: { title: () => 'A question for you', body: Confirm },
  form: { title: ({ title }) => title || 'Please fill this in', body: Form },
  pick: { title: ({ title }) => title || 'Please choose', body: Pick },
  'clipboard.read': { title: () => 'A program asks for your clipboard', body: Clipboard },
}

function TimeLeft({ until }) {
  const left = Math.max(0, Math.ceil((until - useNow()) / 1_000))
  return html`<p class="hint time-left" role="timer">Time to answer: ${minutes(left)}</p>`
}

const Refuse = ({ call }) => html`
  <button type="button" class="button" id="call-refuse" disabled=${call.busy} onClick=${() => refuse(call)}>
    Refuse</button>`

function Confirm({ call }) {
  return html`
    <p class="question">${call.args.text}</p>
    <div class="modal-actions">
      <button type="button" class="button" id="call-no" disabled=${call.busy}
        onClick=${() => answer(call, { ok: false })}>No</button>
      <button type="button" class="button primary" id="call-yes" disabled=${call.busy}
        onClick=${() => answer(call, { ok: true })}>Yes</button>
    </div>`
}

function Form({ call }) {
  const { fields } = call.args
  const [error, setError] = useState('')
  const submit = (event) => {
    event.preventDefault()
    const { elements } = event.currentTarget
    const values = Object.fromEntries(fields.map((field, i) => [field.name, valueOf(field, elements[`field-${i}`])]))
    if (tooLong(values)) setError('This is too long.')
    else answer(call, { values })
  }
  return html`
    <form class="stack" onSubmit=${submit}>
      ${fields.map((field, i) => html`<${FormField} key=${field.name} field=${field} name="field-${i}" />`)}
      <div role="alert">${error && html`<p class="form-error">${error}</p>`}</div>
      <div class="modal-actions">
        <${Refuse} call=${call} />
        <button class="button primary" id="call-submit" disabled=${call.busy}>Send</button>
      </div>
    </form>`
}

function valueOf({ type }, control) {
  if (type === 'checkbox') return control.checked
  if (type === 'number') return control.value === '' ? null : Number(control.value)
  return control.value
}

function FormField({ field, name }) {
  const { label = field.name, type = 'text', required = false, options } = field
  const props = { id: `call-${name}`, name, required, 'data-field': field.name }
  if (type === 'checkbox') {
    return html`<label class="check"><input type="checkbox" ...${props} /><b>${label}</b></label>`
  }
  return html`
    <div class="field">
      <label for=${props.id}>${label}${!required && html` <span class="optional">(optional)</span>`}</label>
      ${type === 'textarea' && html`<textarea rows="4" ...${props}></textarea>`}
      ${type === 'select' && html`
        <select ...${props}><option value="">${required ? 'Choose…' : 'None'}</option>
          ${options.map((o) => html`<option key=${o} value=${o}>${o}</option>`)}</select>`}
      ${!['textarea', 'select'].includes(type) && html`
        <input type=${type} step=${type === 'number' ? 'any' : undefined} autocomplete="off" ...${props} />`}
    </div>`
}

function Pick({ call }) {
  const { options } = call.args
  const submit = (event) => {
    event.preventDefault()
    answer(call, { option: options[Number(new FormData(event.currentTarget).get('option'))] })
  }
  return html`
    <form class="stack" onSubmit=${submit}>
      <fieldset class="options">
        <legend class="sr-only">The choices</legend>
        ${options.map((option, i) => html`
          <label class="option" key=${i}><input type="radio" name="option" value=${i} required />
            <span>${option}</span></label>`)}
      </fieldset>
      <div class="modal-actions">
        <${Refuse} call=${call} />
        <button class="button primary" id="call-submit" disabled=${call.busy}>Choose</button>
      </div>
    </form>`
}

function Clipboard({ call }) {
  const [error, setError] = useState('')
  const share = async () => {
    if (!navigator.clipboard?.readText) return refuse(call, 'this browser gives no access to the clipboard')
    try {
      const text = await navigator.clipboard.readText()
      if (tooLong(text)) refuse(call, 'the clipboard holds too much')
      else answer(call, { text })
    } catch {
      setError('The browser did not allow it. Allow this page to see the clipboard and try again, or refuse.')
    }
  }
  return html`
    <p class="question">It would get the text that you copied last. Look at what that is before you share it.</p>
    <div role="alert">${error && html`<p class="form-error">${error}</p>`}</div>
    <div class="modal-actions">
      <${Refuse} call=${call} />
      <button type="button" class="button primary" id="call-share" disabled=${call.busy} onClick=${share}>
        Share the clipboard</button>
    </div>`
}

const tooLong = (value) => new Blob([JSON.stringify(value)]).size > mostBytes
