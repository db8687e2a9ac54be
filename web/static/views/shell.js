// The frame: rooms on the left, a room, a task or a run in the middle, the room's tasks on the right.

import { html, useEffect, useRef } from '../vendor/htm-preact/standalone.module.js'
import {
  createRoom, currentRoom, go, reconnectNow, roomHref, showTasks, signOut, state, taskOf,
} from '../store.js'
import { hue, initials, plural } from '../format.js'
import { icon, logo } from '../icons.js'
import { FormError, useForm } from './parts.js'
import { Room } from './room.js'
import { RunPage } from './run.js'
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
  const { room: id, tasks, task, run } = state.route
  const place = room && tasks ? 'tasks' : id ? 'room' : task || run ? 'page' : 'rooms'
  return html`
    <div class="shell" id="app" data-place=${place} data-connection=${state.connection}>
      ${room && html`<a class="skip" href="#composer-text" onClick=${skip}>Skip to the message field</a>`}
      <${Connection} />
      <${Sidebar} showHelp=${() => help.current.showModal()} />
      <main class="main">
        ${room && html`<${Room} key=${room.id} room=${room} />`}
        ${task && html`<${TaskPage} key=${`task ${task} ${state.route.edit}`} name=${task} />`}
        ${run > 0 && html`<${RunPage} key=${`run ${run}`} id=${run} />`}
        ${!room && !task && !run && html`<${NoRoom} />`}
      </main>
      ${room && tasks && html`<${Tasks} key=${room.id} room=${room} />`}
      <${Help} dialog=${help} />
      <p id="toast" class="toast" role="status" data-shown=${state.toast ? '' : undefined}>${state.toast}</p>
      <p class="sr-only" aria-live="polite">${state.announcement}</p>
    </div>`
}

function skip(event) {
  event.preventDefault()
  document.getElementById('composer-text')?.focus()
}

function shortcut(event, help) {
  const { key, target } = event
  const typing = target.closest?.('input, textarea, select, dialog')
  if (event.altKey && (key === 'ArrowUp' || key === 'ArrowDown') && state.rooms.length) {
    event.preventDefault()
    const i = state.rooms.indexOf(currentRoom()) + (key === 'ArrowDown' ? 1 : -1)
    go(state.rooms.at(i % state.rooms.length).id)
  } else if (event.altKey && event.code === 'KeyT' && currentRoom()) {
    event.preventDefault()
    showTasks(!state.route.tasks)
  } else if (event.ctrlKey || event.metaKey || event.altKey || typing) {
    return
  } else if (key === '?') {
    event.preventDefault()
    help.showModal()
  } else if (key.length === 1 && key !== ' ') {
    document.getElementById('composer-text')?.focus() // where the letter then goes
  }
}

function Sidebar({ showHelp }) {
  const form = useForm(({ name }) => createRoom(name))
  const online = state.connection === 'online'
  return html`
    <aside class="sidebar" aria-label="Rooms and account">
      <header class="sidebar-head">
        <div class="brand">${logo()}<span>Tandem</span></div>
      </header>
      <nav class="rooms" id="rooms" aria-label="Rooms">
        <h2 class="label" id="rooms-label">Rooms</h2>
        ${state.roomsError && html`<p class="side-note">${state.roomsError}</p>`}
        ${state.roomsLoaded && !state.rooms.length && html`
          <p class="side-note">No room yet. Name the first one below.</p>`}
        <ul aria-labelledby="rooms-label">
          ${state.rooms.map((room) => html`<li key=${room.id}><${RoomLink} room=${room} /></li>`)}
        </ul>
        <form class="room-new" onSubmit=${form.submit} aria-label="New room">
          <div class="room-new-row">
            <label class="sr-only" for="room-new-name">Name of a new room</label>
            <input id="room-new-name" name="name" placeholder="New room" required maxlength="80" autocomplete="off"
              onInput=${form.error ? form.clear : undefined} aria-invalid=${form.error ? 'true' : undefined} />
            <button class="icon-button" id="room-new-submit" aria-label="Create the room" title="Create the room"
              disabled=${form.busy}>${icon.plus()}</button>
          </div>
          <${FormError} error=${form.error} />
        </form>
      </nav>
      <footer class="account">
        <span class="avatar" data-hue=${hue(state.me.name)} aria-hidden="true">${initials(state.me.name)}
          <i class="presence" data-online=${online ? '' : undefined}></i></span>
        <div class="account-text">
          <strong>${state.me.name}</strong>
          <span title="The replica ${state.node} with the ${state.driver} driver">
            ${[state.driver, state.node].filter(Boolean).join(' · ')}</span>
        </div>
        <button class="icon-button keyboard-only" onClick=${showHelp} aria-label="Keyboard shortcuts"
          title="Keyboard shortcuts (?)">${icon.keyboard()}</button>
        <button class="icon-button" id="signout" onClick=${signOut} aria-label="Sign out" title="Sign out">
          ${icon.leave()}</button>
      </footer>
    </aside>`
}

function RoomLink({ room }) {
  const current = room === currentRoom()
  const holds = taskOf(state.route.task)?.room_id === room.id // the task that is shown
  return html`
    <a class="room-link" href=${roomHref(room.id)} data-room-id=${room.id} data-unread=${room.unread ? '' : undefined}
      aria-current=${current ? 'page' : holds ? 'true' : undefined}>
      ${icon.hash()}
      <span class="room-link-name">${room.name}</span>
      ${room.unread > 0 && html`
        <span class="unread"><span aria-hidden="true">${room.unread > 99 ? '99+' : room.unread}</span>
          <span class="sr-only">, ${plural(room.unread, 'new message')}</span></span>`}
    </a>`
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
        <h1>${state.rooms.length ? 'Choose a room' : 'Name your first room'}</h1>
        <p>A room holds a conversation and the tasks that report into it. “General” is a good start.</p>
        ${!state.rooms.length && html`
          <button class="button primary" onClick=${() => document.getElementById('room-new-name').focus()}>
            New room</button>`}
      </div>
    </div>`
}

const keys = [
  [['Enter'], 'Send the message'],
  [['Shift', 'Enter'], 'Begin a new line'],
  [['Alt', '↑'], 'Previous room'],
  [['Alt', '↓'], 'Next room'],
  [['Alt', 'T'], 'Show or hide the tasks'],
  [['Esc'], 'Close the tasks'],
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
