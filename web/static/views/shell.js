// The frame: rooms on the left, a room, a task or a run in the middle, the room's tasks or members on the right.

import { html, useEffect, useRef } from '../vendor/htm-preact/standalone.module.js'
import { icon } from '../icons.js'
import { reconnectNow } from '../store/live.js'
import { go, showPanel } from '../store/places.js'
import { currentRoom, isGuest, may, state } from '../store/state.js'
import { AccountPage } from './account.js'
import { AuditPage } from './audit.js'
import { Calls } from './calls.js'
import { Members } from './members.js'
import { PeoplePage } from './people.js'
import { Room } from './room.js'
import { RunPage } from './run.js'
import { Sidebar } from './sidebar.js'
import { TaskPage } from './task.js'
import { Tasks } from './tasks.js'

export function Shell() {
  const room = currentRoom()
  const help = useRef(null)
  useEffect(() => {
    const onKey = (event) => shortcut(event, help.current)
    addEventListener('keydown', onKey)
    return () => removeEventListener('keydown', onKey)
  }, [])
  const { room: id, panel } = state.route
  const page = pageOf(state.route)
  const place = room && panel ? 'panel' : id ? 'room' : page ? 'page' : 'rooms'
  return html`
    <div class="shell" id="app" data-place=${place} data-connection=${state.connection}>
      ${room && html`<a class="skip" href="#composer-text" onClick=${skip}>Skip to the message field</a>`}
      <${Connection} />
      <${Sidebar} showHelp=${() => help.current.showModal()} />
      <main class="main">
        ${room && html`<${Room} key=${room.id} room=${room} />`}
        ${page}
        ${!room && !page && (state.closed ? html`<${Closed} room=${state.closed} />` : html`<${NoRoom} />`)}
      </main>
      ${room && panel === 'tasks' && !isGuest() && html`<${Tasks} key=${room.id} room=${room} />`}
      ${room && panel === 'members' && html`<${Members} key=${room.id} room=${room} />`}
      <${Help} dialog=${help} />
      <${Calls} />
      <p id="toast" class="toast" role="status" data-shown=${state.toast ? '' : undefined}>${state.toast}</p>
      <p class="sr-only" aria-live="polite">${state.announcement}</p>
    </div>`
}

// A page in the middle, for who may see it.
function pageOf({ task, edit, run, page }) {
  if (task || run) {
    if (isGuest()) return html`<${NotForYou}>Guests see no tasks and no runs of them.<//>`
    return task ? html`<${TaskPage} key=${`task ${task} ${edit}`} name=${task} />`
      : html`<${RunPage} key=${`run ${run}`} id=${run} />`
  }
  if (!page) return null
  const [right, Page] = pages[page]
  return may(right) ? html`<${Page} key=${page} />`
    : html`<${NotForYou}>Only administrators may look at it.<//>`
}

const pages = {
  account: ['own_account', AccountPage], people: ['manage_people', PeoplePage], audit: ['read_audit', AuditPage],
}

const NotForYou = ({ children }) => html`
  <div class="blank">
    <div class="blank-card" id="not-for-you">
      <span class="blank-icon">${icon.lock()}</span>
      <h1>This page is not for you</h1>
      <p>${children}</p>
      <a class="button" href="#/">To the rooms</a>
    </div>
  </div>`

function skip(event) {
  event.preventDefault()
  document.getElementById('composer-text')?.focus()
}

function shortcut(event, help) {
  const { key, target } = event
  if (document.querySelector('dialog[open]')) return
  const typing = target.closest?.('input, textarea, select, dialog')
  if (event.altKey && (key === 'ArrowUp' || key === 'ArrowDown') && state.rooms.length) {
    event.preventDefault()
    const i = state.rooms.indexOf(currentRoom()) + (key === 'ArrowDown' ? 1 : -1)
    go(state.rooms.at(i % state.rooms.length).id)
  } else if (event.altKey && event.code === 'KeyT' && currentRoom() && !isGuest()) {
    event.preventDefault()
    showPanel(state.route.panel === 'tasks' ? '' : 'tasks')
  } else if (event.altKey && event.code === 'KeyM' && currentRoom()) {
    event.preventDefault()
    showPanel(state.route.panel === 'members' ? '' : 'members')
  } else if (event.altKey && event.code === 'KeyA') {
    event.preventDefault()
    location.hash = '#/account'
  } else if (event.ctrlKey || event.metaKey || event.altKey || typing) {
    return
  } else if (key === '?') {
    event.preventDefault()
    help.showModal()
  } else if (key.length === 1 && key !== ' ') {
    document.getElementById('composer-text')?.focus() // where the letter then goes
  }
}

function Connection() {
  const lost = state.connection !== 'online'
  return html`
    <div id="connection-state" class="connection" data-state=${state.connection} role="status">
      ${lost && html`
        <div class="connection-bar">
          <span class="connection-dot"></span>
          <span>Not connected. What you write is kept.</span>
          <button class="link-button" id="reconnect-now" onClick=${reconnectNow}>Try now</button>
        </div>`}
    </div>`
}

function NoRoom() {
  if (!state.roomsLoaded) return html`<div class="blank" aria-busy="true"></div>`
  return html`
    <div class="blank">
      <div class="blank-card">
        <span class="blank-icon">${icon.hash()}</span>
        <h1>${state.rooms.length ? 'Choose a room' : isGuest() ? 'No room yet' : 'Name your first room'}</h1>
        <p>${isGuest()
          ? 'A room appears here as soon as somebody adds you to one.'
          : 'A room holds a conversation and the tasks that report into it. “General” is a good start.'}</p>
        ${!state.rooms.length && !isGuest() && html`
          <button class="button primary" onClick=${() => document.getElementById('room-new-name').focus()}>
            New room</button>`}
      </div>
    </div>`
}

// The room was taken from us while we were in it.
const Closed = ({ room }) => html`
  <div class="blank">
    <div class="blank-card" id="room-closed" role="status">
      <span class="blank-icon">${icon.lock()}</span>
      <h1>You are no longer in ${room.name}</h1>
      <p>You are not one of its members any more, so what is said there is not shown to you.</p>
      <a class="button" href="#/">To the rooms</a>
    </div>
  </div>`

const keys = [
  [['Enter'], 'Send the message'],
  [['Shift', 'Enter'], 'Begin a new line'],
  [['Alt', '↑'], 'Previous room'],
  [['Alt', '↓'], 'Next room'],
  [['Alt', 'T'], 'Show or hide the tasks'],
  [['Alt', 'M'], 'Show or hide the members'],
  [['Alt', 'A'], 'Your account'],
  [['Esc'], 'Close the tasks or members'],
  [['↑'], 'Edit your last message, if nothing is written'],
  [['?'], 'Show this list'],
]

const Help = ({ dialog }) => html`
  <dialog class="help" ref=${dialog} aria-labelledby="help-title">
    <h2 id="help-title">Keyboard</h2>
    <dl>
      ${keys.map(([combination, what]) => html`
        <div><dt>${what}</dt><dd>${combination.map((key) => html`<kbd>${key}</kbd>`)}</dd></div>`)}
    </dl>
    <p class="hint">Begin to type anywhere, and it goes into the message field.</p>
    <form method="dialog"><button class="button">Close</button></form>
  </dialog>`
