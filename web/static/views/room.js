// One room: its messages and the field to write in.

import {
  Component, html, useEffect, useLayoutEffect, useRef, useState,
} from '../vendor/htm-preact/standalone.module.js'
import { discard, loadOlder, loadRoom, retry, seen, send, showTasks, state } from '../store.js'
import { clockTime, dayName, fullTime, hue, initials, plural, richText, sameDay, sentence } from '../format.js'
import { icon } from '../icons.js'

const groupWithin = 5 * 60_000

export function Room({ room }) {
  const outbox = state.outbox.filter((entry) => entry.room_id === room.id)
  const tasks = state.tasks.filter((task) => task.room_id === room.id)
  return html`
    <header class="room-head">
      <a class="icon-button narrow-only" href="#/" aria-label="All rooms">${icon.back()}</a>
      <h1 id="room-title" tabindex="-1"><span class="hash" aria-hidden="true">${icon.hash()}</span>${room.name}</h1>
      <button class="button quiet" id="tasks-toggle" aria-expanded=${state.route.tasks} aria-controls="tasks"
        onClick=${() => showTasks(!state.route.tasks)}>
        ${icon.clock()}<span>Tasks</span>${tasks.length > 0 && html`<span class="count">${tasks.length}</span>`}
      </button>
    </header>
    <${Messages} room=${room} outbox=${outbox} />
    <${Composer} room=${room} />`
}

function Messages({ room, outbox }) {
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

  function toEnd() {
    place.current.stick = true
    box.current.scrollTop = box.current.scrollHeight
    setAway(false)
    setMissed(0)
  }

  function onScroll() {
    const el = box.current
    const rest = el.scrollHeight - el.scrollTop - el.clientHeight
    place.current.stick = rest < 48
    setAway(rest > 240)
    if (place.current.stick) {
      setMissed(0)
      seen()
    }
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

const Beginning = ({ room, empty }) => html`
  <div class="beginning">
    <span class="blank-icon">${icon.hash()}</span>
    <h2>This is where ${room.name} begins</h2>
    <p>${empty ? 'Say hello, or let a task report here.' : 'Everything that was said here is below.'}</p>
  </div>`

const Skeleton = () => html`
  <div class="skeleton" aria-hidden="true">
    ${[0, 1, 2, 3].map(() => html`<div class="skeleton-row"><i></i><div><b></b><b></b></div></div>`)}
  </div>`

// The messages with a line before each new day and before what is new, grouped by author.
function rows(room, outbox) {
  const own = outbox.map((entry) => ({ ...entry, user_id: state.me.id, author: state.me.name, entry }))
  const list = []
  let before = null
  for (const message of [...room.messages, ...own]) {
    const newDay = !before || !sameDay(before.created_at, message.created_at)
    const firstNew = room.firstUnread && message.id === room.firstUnread
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
        mine=${mine} />`)
    before = message
  }
  return list
}

class Message extends Component {
  // A long list is drawn anew whenever anything changes; most of it is the same as before.
  shouldComponentUpdate(next) {
    const p = this.props
    return ['grouped', 'status', 'error', 'mine'].some((name) => p[name] !== next[name]) ||
      p.message.id !== next.message.id || p.message.text !== next.message.text
  }

  render({ message, grouped, status, error, mine }) {
    const { author, created_at: at, text, entry } = message
    const robot = !message.user_id
    const time = html`<time class="message-time" datetime=${at} title=${fullTime(at)}>${clockTime(at)}</time>`
    return html`
      <article class="message" data-testid="message" data-state=${status} data-message-id=${message.id}
        data-grouped=${grouped ? '' : undefined} data-mine=${mine ? '' : undefined}>
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
          <div class="message-text">${richText(text)}</div>
          ${status === 'pending' && html`<p class="message-note pending">Sending…</p>`}
          ${status === 'failed' && html`
            <p class="message-note failed" role="alert">${icon.alert()}<span>Not sent. ${sentence(error)}</span>
              <button class="link-button message-retry" onClick=${() => retry(original(entry))}>Try again</button>
              <button class="link-button message-discard" onClick=${() => discard(entry)}>Discard</button></p>`}
        </div>
      </article>`
  }
}

const original = (entry) => state.outbox.find((e) => e.client_id === entry.client_id)

const touch = matchMedia('(pointer: coarse)')

function Composer({ room }) {
  const field = useRef(null)
  const [empty, setEmpty] = useState(!room.draft)

  useEffect(() => {
    if (!touch.matches) field.current.focus({ preventScroll: true })
    grow()
  }, [])

  function grow() {
    const el = field.current
    el.style.height = 'auto'
    el.style.height = `${el.scrollHeight}px`
  }

  function onInput() {
    room.draft = field.current.value
    setEmpty(!room.draft.trim())
    grow()
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
  }

  return html`
    <form class="composer" onSubmit=${submit} aria-label="New message">
      <div class="composer-box">
        <label class="sr-only" for="composer-text">Message to ${room.name}</label>
        <textarea id="composer-text" ref=${field} rows="1" placeholder="Message ${room.name}" autocomplete="off"
          enterkeyhint=${touch.matches ? 'enter' : 'send'} onInput=${onInput} onKeyDown=${onKeyDown}
          aria-describedby="composer-hint">${room.draft}</textarea>
        <button class="send" id="composer-send" aria-label="Send" title="Send" disabled=${empty}>${icon.send()}</button>
      </div>
      <p class="composer-hint" id="composer-hint">
        <kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> begins a new line.
        <span class="composer-marks"> **bold**, \`code\`</span></p>
    </form>`
}
