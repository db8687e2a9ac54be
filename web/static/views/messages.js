// The messages of a room.

import {
  Component, html, useEffect, useLayoutEffect, useRef, useState,
} from '../vendor/htm-preact/standalone.module.js'
import { clockTime, dayName, fullTime, hue, initials, plural, richText, sameDay, sentence } from '../format.js'
import { icon } from '../icons.js'
import { failed } from '../store/live.js'
import { deleteMessage, edit, loadOlder, loadRoom, saveEdit, seen, stopEditing } from '../store/messages.js'
import { discard, retry } from '../store/sending.js'
import { isAdmin, state } from '../store/state.js'
import { AskButton, RoomIcon } from './parts.js'

const groupWithin = 5 * 60_000

export function Messages({ room, outbox }) {
  const box = useRef(null)
  const place = useRef({ stick: true, height: 0, first: 0 })
  const [away, setAway] = useState(false) // scrolled up
  const [missed, setMissed] = useState(0) // messages that came meanwhile
  const count = room.messages.length + outbox.length
  const last = useRef(count)

  // Stay at the end, or where one was reading when earlier messages come in above.
  useLayoutEffect(() => {
    const el = box.current
    const p = place.current
    const first = room.messages[0]?.id ?? 0
    if (p.stick) el.scrollTop = el.scrollHeight
    else if (p.first && first < p.first) el.scrollTop += el.scrollHeight - p.height
    else if (count > last.current) setMissed((n) => n + count - last.current)
    p.height = el.scrollHeight
    p.first = first
    last.current = count
    lookedAt()
  })

  useEffect(() => {
    if (outbox.length) toEnd()
  }, [outbox.length && outbox.at(-1).client_id])

  useEffect(() => {
    const watcher = new ResizeObserver(() => {
      if (place.current.stick) box.current.scrollTop = box.current.scrollHeight
    })
    watcher.observe(box.current)
    return () => watcher.disconnect()
  }, [])

  // What is at the end has been seen by who is there.
  function lookedAt() {
    room.atEnd = place.current.stick
    if (room.atEnd) seen()
  }

  function toEnd() {
    place.current.stick = true
    box.current.scrollTop = box.current.scrollHeight
    setAway(false)
    setMissed(0)
    lookedAt()
  }

  function onScroll() {
    const el = box.current
    const rest = el.scrollHeight - el.scrollTop - el.clientHeight
    place.current.stick = rest < 48
    setAway(rest > 240)
    if (place.current.stick) setMissed(0)
    lookedAt()
    if (el.scrollTop < 200 && room.more) loadOlder(room)
  }

  const busy = room.loading && !room.messages.length
  const empty = room.loaded && !count
  return html`
    <div class="messages-frame">
      <div class="messages" id="messages" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-live="off"
        aria-label="Messages in ${room.name}" aria-busy=${busy}>
        <div class="messages-column">
          ${room.more && html`
            <button class="button quiet small load-older" id="load-older" disabled=${room.loadingMore}
              onClick=${() => loadOlder(room)}>${room.loadingMore ? 'Loading…' : 'Earlier messages'}</button>`}
          ${room.loaded && !room.more && html`<${Beginning} room=${room} empty=${empty} />`}
          ${busy && html`<${Skeleton} />`}
          ${room.error && html`
            <div class="room-error" role="alert">${icon.alert()}<span>${room.error}</span>
              <button class="button small" onClick=${() => loadRoom(room)}>Try again</button></div>`}
          ${rows(room, outbox)}
        </div>
      </div>
      ${(away || missed > 0) && html`
        <button class="jump" id="jump-latest" onClick=${toEnd}>
          ${icon.down()}${missed > 0 ? plural(missed, 'new message') : 'Latest messages'}</button>`}
    </div>`
}

const begin = {
  public: 'Say hello, or let a task report here.',
  private: 'Only its members see what is said here. Add some, and say hello.',
  direct: 'Only you two see what is said here.',
}

const Beginning = ({ room, empty }) => html`
  <div class="beginning">
    <span class="blank-icon"><${RoomIcon} room=${room} /></span>
    <h2>${room.kind === 'direct' ? `You and ${room.name}` : `This is where ${room.name} begins`}</h2>
    ${room.description && html`<p>${room.description}</p>`}
    <p>${empty ? begin[room.kind] : 'Everything that was said here is below.'}</p>
  </div>`

const Skeleton = () => html`
  <div class="skeleton" aria-hidden="true">
    ${[0, 1, 2, 3].map(() => html`<div class="skeleton-row"><i></i><div><b></b><b></b></div></div>`)}
  </div>`

// The messages with a line before each new day and before what is new, grouped by author.
function rows(room, outbox) {
  const mayDelete = room.kind !== 'direct' && (room.member === 'owner' || isAdmin())
  const own = outbox.map((entry) => ({ ...entry, user_id: state.me.id, author: state.me.name, entry }))
  const list = []
  let before = null
  let lineDrawn = false
  for (const message of [...room.messages, ...own]) {
    const newDay = !before || !sameDay(before.created_at, message.created_at)
    const firstNew = room.line !== null && !lineDrawn && message.id > room.line && message.user_id !== state.me.id &&
      (before || !room.more)
    lineDrawn ||= firstNew
    if (newDay) {
      const day = dayName(message.created_at)
      list.push(html`
        <div class="day" role="separator" aria-label=${day} key="day-${message.id ?? message.client_id}">
          <span>${day}</span></div>`)
    }
    if (firstNew) {
      list.push(html`
        <div class="new-line" role="separator" aria-label="New messages" key="new"><span>New</span></div>`)
    }
    const grouped = !newDay && !firstNew && before.author === message.author &&
      before.user_id === message.user_id && new Date(message.created_at) - new Date(before.created_at) < groupWithin
    const mine = message.user_id === state.me.id
    const key = (mine && message.client_id) || message.id // the same before and after the server's answer
    const status = message.entry ? message.state : 'sent'
    list.push(html`
      <${Message} key=${key} message=${message} grouped=${grouped} status=${status} error=${message.error}
        mine=${mine} mayDelete=${mine || mayDelete} editing=${state.editing > 0 && state.editing === message.id} />`)
    before = message
  }
  return list
}

class Message extends Component {
  // A long list is drawn anew whenever anything changes; most of it is the same as before.
  shouldComponentUpdate(next) {
    const p = this.props
    return ['grouped', 'status', 'error', 'mine', 'mayDelete', 'editing'].some((name) => p[name] !== next[name]) ||
      ['id', 'text', 'edited_at', 'deleted'].some((name) => p.message[name] !== next.message[name])
  }

  render({ message, grouped, status, error, mine, mayDelete, editing }) {
    const { author, created_at: at, entry, deleted } = message
    const robot = !message.user_id
    const time = html`<time class="message-time" datetime=${at} title=${fullTime(at)}>${clockTime(at)}</time>`
    return html`
      <article class="message" data-testid="message" data-state=${status} data-message-id=${message.id} tabindex="-1"
        data-grouped=${grouped ? '' : undefined} data-mine=${mine ? '' : undefined}
        data-deleted=${deleted ? '' : undefined}>
        <div class="message-gutter">
          ${grouped ? time : html`
            <span class="avatar ${robot ? 'robot' : ''}" data-hue=${hue(author)} aria-hidden="true">
              ${robot ? icon.clock() : initials(author)}</span>`}
        </div>
        <div class="message-body">
          <div class=${grouped ? 'sr-only' : 'message-head'}>
            <span class="message-author">${author}</span>
            ${robot && html`<span class="badge">task</span>`}
            ${!grouped && time}
          </div>
          ${editing ? html`<${Editor} message=${message} />` : html`<${Text} message=${message} />`}
          ${status === 'pending' && html`<p class="message-note pending">Sending…</p>`}
          ${status === 'failed' && html`
            <p class="message-note failed" role="alert">${icon.alert()}<span>Not sent. ${sentence(error)}</span>
              <button class="link-button message-retry" onClick=${() => retry(original(entry))}>Try again</button>
              <button class="link-button message-discard" onClick=${() => discard(entry)}>Discard</button></p>`}
        </div>
        ${!entry && !deleted && !editing && (mine || mayDelete) && html`
          <div class="message-actions">
            ${mine && html`
              <button class="icon-button small message-edit" aria-label="Edit this message" title="Edit"
                onClick=${() => edit(message)}>${icon.edit()}</button>`}
            <${AskButton} name="message-delete" kind="icon-button small" symbol=${icon.bin()} what="this message"
              question="Delete this message?" yes="Delete" act=${() => deleteMessage(message)} />
          </div>`}
      </article>`
  }
}

const Text = ({ message: { text, deleted, edited_at: edited } }) => (deleted
  ? html`<div class="message-text message-deleted">This message was deleted.</div>`
  : html`<div class="message-text">${richText(text)}</div>
      ${edited && html`<span class="message-edited" title="Edited ${fullTime(edited)}">edited</span>`}`)

function Editor({ message }) {
  const field = useRef(null)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState('')

  useLayoutEffect(() => { // before the next key is typed
    const el = field.current
    grow(el)
    el.focus()
    el.setSelectionRange(el.value.length, el.value.length)
    el.scrollIntoView({ block: 'nearest' })
    return () => setTimeout(() => document.activeElement === document.body &&
      document.getElementById('composer-text')?.focus({ preventScroll: true }))
  }, [])

  async function save(event) {
    event.preventDefault()
    const text = field.current.value.trim()
    if (!text) return setError('A message can’t be empty. You can delete it.')
    if (busy) return
    setBusy(true)
    try {
      await saveEdit(message, text)
    } catch (e) {
      setError(sentence(failed(e)))
      setBusy(false)
    }
  }

  function onKeyDown(event) {
    if (event.key === 'Escape') {
      event.stopPropagation()
      stopEditing()
    } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) save(event)
  }

  return html`
    <form class="message-editor" onSubmit=${save}>
      <label class="sr-only" for="message-editor-text">The text of the message</label>
      <textarea id="message-editor-text" ref=${field} rows="1" onKeyDown=${onKeyDown}
        onInput=${(e) => grow(e.currentTarget)} aria-invalid=${error ? 'true' : undefined}>${message.text}</textarea>
      <div role="alert">${error && html`<p class="field-error">${error}</p>`}</div>
      <div class="modal-actions">
        <button type="button" class="button small" id="message-editor-cancel" onClick=${stopEditing}>Cancel</button>
        <button class="button small primary" id="message-editor-save" disabled=${busy}>Save</button>
      </div>
    </form>`
}

/** Makes a field as high as its text. */
export function grow(el) {
  el.style.height = 'auto'
  el.style.height = `${el.scrollHeight}px`
}

const original = (entry) => state.outbox.find((e) => e.client_id === entry.client_id)
