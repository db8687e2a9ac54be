// One room: its head, its messages and the field to write in.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { icon } from '../icons.js'
import { edit, lastOwn, writing } from '../store/messages.js'
import { presenceOf } from '../store/people.js'
import { showPanel } from '../store/places.js'
import { join } from '../store/rooms.js'
import { send } from '../store/sending.js'
import { draftOf, isGuest, keepDraft, state } from '../store/state.js'
import { grow, Messages } from './messages.js'
import { Dot, RoomIcon } from './parts.js'

export function Room({ room }) {
  const outbox = state.outbox.filter((entry) => entry.room_id === room.id)
  const tasks = state.tasks.filter((task) => task.room_id === room.id)
  const { panel } = state.route
  const toggle = (which) => showPanel(panel === which ? '' : which)
  const direct = room.kind === 'direct'
  return html`
    <header class="room-head">
      <a class="icon-button narrow-only" href="#/" aria-label="All rooms">${icon.back()}</a>
      <div class="room-names">
        <h1 id="room-title" tabindex="-1"><span class="hash" aria-hidden="true"><${RoomIcon} room=${room} /></span>
          <span class="page-title">${room.name}</span></h1>
        ${direct && html`
          <p class="room-about"><${Dot} id=${room.user_id} />
            <span aria-hidden="true">${presenceOf(room.user_id).state}</span></p>`}
        ${room.description && html`<p class="room-about" id="room-about" title=${room.description}>
          ${room.description}</p>`}
      </div>
      <button class="button quiet" id="members-toggle" aria-expanded=${panel === 'members'} aria-controls="members"
        aria-label="Members" onClick=${() => toggle('members')}>
        ${icon.people()}<span class="wide-only">Members</span></button>
      ${!isGuest() && html`
        <button class="button quiet" id="tasks-toggle" aria-expanded=${panel === 'tasks'} aria-controls="tasks"
          aria-label=${tasks.length ? `Tasks, ${tasks.length}` : 'Tasks'} onClick=${() => toggle('tasks')}>
          ${icon.clock()}<span class="wide-only">Tasks</span>
          ${tasks.length > 0 && html`<span class="count">${tasks.length}</span>`}
        </button>`}
    </header>
    <${Messages} room=${room} outbox=${outbox} />
    <${Writers} room=${room} />
    <${Composer} room=${room} />
    ${!room.member && html`
      <p class="not-joined">You have not joined ${room.name}: what is new here is not counted.${' '}
        <button class="link-button" id="room-join-here" onClick=${() => join(room)}>Join</button></p>`}`
}

// The line is there also while it is empty, so that nothing jumps.
function Writers({ room }) {
  const names = room.writers.map((w) => w.name)
  const text = names.length > 3 ? 'Several people are typing…'
    : names.length > 1 ? `${names.slice(0, -1).join(', ')} and ${names.at(-1)} are typing…`
    : names.length ? `${names[0]} is typing…` : ''
  return html`<p class="writers" id="writers" aria-live="polite">${text}</p>`
}

const touch = matchMedia('(pointer: coarse)')

function Composer({ room }) {
  const field = useRef(null)
  const [empty, setEmpty] = useState(!draftOf(room))

  useEffect(() => {
    if (!touch.matches) field.current.focus({ preventScroll: true })
    grow(field.current)
  }, [])

  function onInput() {
    const text = field.current.value
    keepDraft(room, text)
    setEmpty(!text.trim())
    grow(field.current)
    if (text.trim()) writing(room)
  }

  function submit(event) {
    event.preventDefault()
    const text = field.current.value.trim()
    field.current.focus()
    if (!text) return
    send(room, text)
    field.current.value = ''
    onInput()
  }

  function onKeyDown(event) {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && !touch.matches) submit(event)
    const own = event.key === 'ArrowUp' && !field.current.value && !event.altKey && lastOwn(room)
    if (own) {
      event.preventDefault()
      edit(own)
    }
  }

  return html`
    <form class="composer" onSubmit=${submit} aria-label="New message">
      <div class="composer-box">
        <label class="sr-only" for="composer-text">Message to ${room.name}</label>
        <textarea id="composer-text" ref=${field} rows="1" placeholder="Message ${room.name}" autocomplete="off"
          enterkeyhint=${touch.matches ? 'enter' : 'send'} onInput=${onInput} onKeyDown=${onKeyDown}
          aria-describedby="composer-hint">${draftOf(room)}</textarea>
        <button class="send" id="composer-send" aria-label="Send" title="Send" disabled=${empty}>${icon.send()}</button>
      </div>
      <p class="composer-hint" id="composer-hint">
        <kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> begins a new line.
        <span class="composer-marks"> **bold**, \`code\`</span></p>
    </form>`
}
