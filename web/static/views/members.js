// Who is in a room, and what it is about.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { plural } from '../format.js'
import { icon } from '../icons.js'
import { showPanel } from '../store/places.js'
import { addMember, describe, join, leave, loadMembers, removeMember, setRole } from '../store/rooms.js'
import { isAdmin, isGuest, state } from '../store/state.js'
import { Ask } from './ask.js'
import { AskButton, FormError, Person, useForm, useNow } from './parts.js'
import { PickPerson } from './pick-person.js'

// Owners, and administrators who may read the room.
const owns = (room) => room.kind !== 'direct' && (room.member === 'owner' || isAdmin())

const mayAdd = (room) => room.kind !== 'direct' && (isAdmin() || (room.member && !isGuest()))

export function Members({ room }) {
  const heading = useRef(null)
  const [adding, setAdding] = useState(false)
  const [asked, setAsked] = useState(null)
  useNow(30_000) // for when people were seen
  const { members } = room

  useEffect(() => { loadMembers(room) }, [])

  // Over the messages, on a smaller screen, the panel takes the focus and gives it back.
  useEffect(() => {
    if (matchMedia('(min-width: 1200px)').matches) return
    heading.current.focus()
    return () => document.getElementById('members-toggle')?.focus()
  }, [])

  const hide = () => {
    document.getElementById('members-toggle').focus()
    showPanel('')
  }
  return html`
    <section class="side" id="members" aria-labelledby="members-title" aria-busy=${!members && !room.membersError}
      onKeyDown=${(e) => e.key === 'Escape' && hide()}>
      <header class="panel-head">
        <h2 id="members-title" ref=${heading} tabindex="-1">Members</h2>
        <button class="icon-button" id="members-close" aria-label="Close the members" title="Close (Esc)"
          onClick=${hide}>${icon.close()}</button>
      </header>
      <div class="panel-body">
        ${room.kind !== 'direct' && html`<${About} room=${room} />`}
        ${room.membersError && html`<p class="form-error" role="alert">${room.membersError}${' '}
          <button class="link-button" onClick=${() => loadMembers(room)}>Try again</button></p>`}
        ${members && html`
          <p class="label" id="members-label">${plural(members.length, 'person', 'people')}</p>
          <ul class="people" aria-labelledby="members-label">
            ${members.map((m) => html`<${Member} key=${m.user_id} room=${room} member=${m} ask=${setAsked} />`)}
          </ul>`}
        <div class="panel-actions">
          ${mayAdd(room) && html`
            <button class="button wide" id="member-add" onClick=${() => setAdding(true)}>
              ${icon.plus()}<span>Add somebody</span></button>`}
          ${!room.member && html`
            <button class="button wide primary" id="room-join" onClick=${() => join(room)}>Join ${room.name}</button>`}
          ${room.member && room.kind !== 'direct' && html`
            <${AskButton} name="room-leave" kind="button quiet wide" label="Leave" what=${room.name} no="Stay"
              symbol=${icon.leave()} question="Leave ${room.name}?" yes="Leave" act=${() => leave(room)} />`}
        </div>
      </div>
      ${adding && html`
        <${PickPerson} title="Add somebody to ${room.name}" without=${(members ?? []).map((m) => m.user_id)}
          close=${() => setAdding(false)} pick=${(person) => addMember(room, person)} />`}
      ${asked && html`<${Ask} key=${asked.user_id} person=${asked} close=${() => setAsked(null)} />`}
    </section>`
}

const whoReads = {
  public: 'Public: everybody may read and join it.',
  private: 'Private: only its members may read it.',
}

function About({ room }) {
  const [editing, setEditing] = useState(false)
  const opener = useRef(null)
  const close = () => {
    setEditing(false)
    setTimeout(() => opener.current?.focus())
  }
  if (editing) return html`<${Description} room=${room} close=${close} />`
  return html`
    <div class="about">
      ${room.description && html`<p class="about-text" id="room-description">${room.description}</p>`}
      <p class="hint">${whoReads[room.kind]}</p>
      ${owns(room) && html`
        <button class="link-button about-edit" id="description-edit" ref=${opener} onClick=${() => setEditing(true)}>
          ${room.description ? 'Change the description' : 'Say what it is about'}</button>`}
    </div>`
}

function Description({ room, close }) {
  const form = useForm(async ({ description }) => {
    await describe(room, description)
    close()
  }, { reset: false })
  const field = useRef(null)
  useEffect(() => field.current.focus(), [])
  return html`
    <form class="about" onSubmit=${form.submit}
      onKeyDown=${(e) => e.key === 'Escape' && (e.stopPropagation(), close())}>
      <label class="label" for="description-text">What ${room.name} is about</label>
      <textarea id="description-text" name="description" ref=${field} rows="3" maxlength="500"
        aria-invalid=${form.error ? 'true' : undefined}>${room.description}</textarea>
      <${FormError} error=${form.error} />
      <div class="modal-actions">
        <button type="button" class="button small" onClick=${close}>Cancel</button>
        <button class="button small primary" id="description-save" disabled=${form.busy}>Save</button>
      </div>
    </form>`
}

function Member({ room, member, ask }) {
  const { user_id: id, name, role } = member
  const me = id === state.me.id
  const mayAsk = isAdmin() || me
  const owner = role === 'owner' && room.kind !== 'direct'
  return html`
    <li class="member" data-user-id=${id} data-role=${role}>
      <${Person} id=${id} name=${name}>
        ${me && html`<span class="badge quiet">you</span>`}
        ${owner && html`<span class="badge">owner</span>`}
      <//>
      <div class="member-actions">
        ${mayAsk && html`
          <button class="button small member-ask" onClick=${() => ask(member)}>Ask…<span class="sr-only"> ${name}</span>
          </button>`}
        ${owns(room) && html`
          <button class="button small member-role"
            onClick=${() => setRole(room, member, owner ? 'member' : 'owner')}>
            ${owner ? 'Not an owner' : 'Make an owner'}<span class="sr-only">: ${name}</span></button>`}
        ${owns(room) && !me && html`
          <${AskButton} name="member-remove" kind="icon-button small" symbol=${icon.close()} what=${name} no="Keep"
            question="Remove ${name}?" yes="Remove" act=${() => removeMember(room, member)} />`}
      </div>
    </li>`
}
