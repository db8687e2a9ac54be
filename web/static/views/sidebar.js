// The left side: the rooms, new ones, and oneself.

import { html, useState } from '../vendor/htm-preact/standalone.module.js'
import { hue, initials, plural } from '../format.js'
import { icon, logo } from '../icons.js'
import { isAway, presenceOf } from '../store/people.js'
import { roomHref } from '../store/places.js'
import { createRoom, writeTo } from '../store/rooms.js'
import { signOut } from '../store/session.js'
import { currentRoom, isGuest, may, state, taskOf } from '../store/state.js'
import { Dot, FormError, RoomIcon, useForm } from './parts.js'
import { PickPerson } from './pick-person.js'

const sections = [['public', 'Rooms'], ['private', 'Private rooms'], ['direct', 'Direct messages']]

export function Sidebar({ showHelp }) {
  return html`
    <aside class="sidebar" aria-label="Rooms and account">
      <header class="sidebar-head">
        <div class="brand">${logo()}<span>Tandem</span></div>
      </header>
      <nav class="rooms" id="rooms" aria-label="Rooms">
        ${state.roomsError && html`<p class="side-note">${state.roomsError}</p>`}
        ${sections.map(([kind, title]) => html`<${Section} key=${kind} kind=${kind} title=${title} />`)}
        ${!isGuest() && html`<${NewDirect} />`}
      </nav>
      <${Administration} />
      <${Account} showHelp=${showHelp} />
    </aside>`
}

const administration = [
  ['people', 'manage_people', icon.people, 'People'], ['audit', 'read_audit', icon.list, 'Audit log'],
]

function Administration() {
  const links = administration.filter(([, right]) => may(right))
  return links.length > 0 && html`
    <nav class="side-links" aria-label="Administration">
      ${links.map(([page, , symbol, label]) => html`
        <a class="room-link" id="${page}-open" key=${page} href="#/${page}" data-member
          aria-current=${state.route.page === page ? 'page' : undefined}>${symbol()}
          <span class="room-link-name">${label}</span></a>`)}
    </nav>`
}

function Section({ kind, title }) {
  const rooms = state.rooms.filter((room) => room.kind === kind)
  const first = state.roomsLoaded && kind === 'public' && !state.rooms.length
  if (kind === 'private' && !rooms.length) return null
  if (kind === 'direct' && !rooms.length && isGuest()) return null
  return html`
    <section class="rooms-section" aria-labelledby="rooms-${kind}">
      <h2 class="label" id="rooms-${kind}">${title}</h2>
      ${first && html`<p class="side-note">
        ${isGuest() ? 'You are in no room yet.' : 'No room yet. Name the first one below.'}</p>`}
      <ul aria-labelledby="rooms-${kind}" data-kind=${kind}>
        ${rooms.map((room) => html`<li key=${room.id}><${RoomLink} room=${room} /></li>`)}
      </ul>
      ${kind === 'public' && !isGuest() && html`<${NewRoom} />`}
    </section>`
}

function RoomLink({ room }) {
  const current = room === currentRoom()
  const holds = taskOf(state.route.task)?.room_id === room.id // the task that is shown
  const direct = room.kind === 'direct'
  return html`
    <a class="room-link" href=${roomHref(room.id)} data-room-id=${room.id} data-unread=${room.unread ? '' : undefined}
      data-member=${room.member || undefined} aria-current=${current ? 'page' : holds ? 'true' : undefined}>
      ${direct ? html`<${Dot} id=${room.user_id} />` : html`<${RoomIcon} room=${room} />`}
      <span class="room-link-name">${room.name}</span>
      ${!room.member && html`<span class="sr-only">, not joined</span>`}
      ${room.unread > 0 && html`
        <span class="unread"><span aria-hidden="true">${room.unread > 99 ? '99+' : room.unread}</span>
          <span class="sr-only">, ${room.unread > 99 ? 'more than 99 new messages' : plural(room.unread, 'new message')}
          </span></span>`}
    </a>`
}

// What else there is to say of a new room appears when its name is being typed.
function NewRoom() {
  const form = useForm(({ name, kind, description }) => createRoom(kind, name, description))
  const { error } = form
  return html`
    <form class="room-new" onSubmit=${form.submit} aria-label="New room">
      <div class="room-new-row">
        <label class="sr-only" for="room-new-name">Name of a new room</label>
        <input id="room-new-name" name="name" placeholder="New room" required maxlength="80" autocomplete="off"
          onInput=${error ? form.clear : undefined} aria-invalid=${error ? 'true' : undefined} />
        <button class="icon-button" id="room-new-submit" aria-label="Create the room" title="Create the room"
          disabled=${form.busy}>${icon.plus()}</button>
      </div>
      <div class="room-new-more">
        <fieldset class="room-kinds">
          <legend class="sr-only">Who may read it</legend>
          <label class="kind"><input type="radio" id="room-new-public" name="kind" value="public" defaultChecked />
            <span>Public</span></label>
          <label class="kind"><input type="radio" id="room-new-private" name="kind" value="private" />
            <span>Private</span></label>
        </fieldset>
        <label class="sr-only" for="room-new-description">What it is about</label>
        <input id="room-new-description" name="description" placeholder="What it is about (optional)" maxlength="500"
          autocomplete="off" />
      </div>
      <${FormError} error=${error} />
    </form>`
}

function NewDirect() {
  const [picking, setPicking] = useState(false)
  return html`
    <button class="side-button" id="direct-new" onClick=${() => setPicking(true)}>
      ${icon.plus()}<span>Write to somebody</span></button>
    ${picking && html`<${PickPerson} title="Write to somebody" close=${() => setPicking(false)} pick=${writeTo} />`}`
}

function Account({ showHelp }) {
  const { state: seen } = presenceOf(state.me.id)
  const connected = state.connection === 'online'
  const mine = !connected ? 'offline' : isAway() && seen !== 'online' ? 'away' : 'online'
  return html`
    <footer class="account">
      <a class="account-link" id="account-open" href="#/account" title="Your account"
        aria-current=${state.route.page === 'account' ? 'page' : undefined}>
        <span class="avatar" data-hue=${hue(state.me.name)} aria-hidden="true">${initials(state.me.name)}
          <i class="presence dot" data-state=${mine}></i></span>
        <span class="account-text">
          <strong>${state.me.name}</strong><span class="sr-only">, your account</span>
          <span title="The replica ${state.node} with the ${state.driver} driver">
            ${[state.driver, state.node].filter(Boolean).join(' · ')}</span>
        </span>
      </a>
      <button class="icon-button keyboard-only" onClick=${showHelp} aria-label="Keyboard shortcuts"
        title="Keyboard shortcuts (?)">${icon.keyboard()}</button>
      <button class="icon-button" id="signout" onClick=${signOut} aria-label="Sign out" title="Sign out">
        ${icon.leave()}</button>
    </footer>`
}
