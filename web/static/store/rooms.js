// The rooms that one may read, and who is in them.

import { api } from '../api.js'
import { sentence } from '../format.js'
import { failed, hear, listen, rereads, roomOfTopic, socket, topicOf } from './live.js'
import { begin, loadRoom, outdated, seen } from './messages.js'
import { lookUp } from './people.js'
import { go, narrow, readRoute, roomHref } from './places.js'
import { discard } from './sending.js'
import { announce, changed, currentRoom, isGuest, roomOf, state, toast } from './state.js'

hear({
  'room.created': (data) => {
    stale()
    if (!roomOf(data.id)) addRoom({ ...data, member: '', last_read: 0, unread: 0 })
  },
  'room.changed': (data) => described(data),
  'room.joined': joined,
  'room.left': (data) => left(roomOf(data.id)),
  'room.member_added': memberChanged,
  'room.member_changed': memberChanged,
  'room.member_removed': memberRemoved,
})

rereads('rooms', { fresh: loadRooms })
rereads('user', { fresh: loadRooms })
rereads('room', {
  reset(topic) {
    const room = roomOfTopic(topic)
    if (!room) return
    outdated(room)
    loadRooms()
    if (room.members) loadMembers(room)
  },
  fresh(topic) {
    const room = roomOfTopic(topic)
    if (room?.loaded || room?.loading) loadRoom(room)
    else loadRooms() // for what is unread
    if (room?.members) loadMembers(room)
  },
  refused(topic, error) {
    const room = roomOfTopic(topic)
    if (!room) return
    if (error.code === 'forbidden' || error.code === 'not_found') loadRooms() // which tells whether it is gone
    else room.error = error.message
    changed()
  },
})

// What the server says of a room, and what one does there.
const fields = ['kind', 'name', 'description', 'user_id', 'member']

function addRoom(data) {
  const known = roomOf(data.id)
  if (known) {
    for (const field of fields) if (field in data) known[field] = data[field]
    if (data.last_read >= known.last_read) Object.assign(known, { last_read: data.last_read, unread: data.unread })
    return known
  }
  const room = {
    ...data, messages: [], loaded: false, loading: false, again: false, more: false, loadingMore: false, error: '',
    openedAt: 0,
    atEnd: true, // the end of its messages is what is shown
    line: null, // the message behind which the line is that says what is new
    heard: 0, // how many messages came that are not read
    reported: data.last_read, // up to where the server knows that it is read
    reporting: false,
    writers: [], // who is writing something: {user_id, name}
    toldWriting: 0, // when it was told that we are
    writingTimer: 0,
    members: null, // once somebody wants to know
    membersLoading: false, membersAgain: false, membersError: '',
  }
  state.rooms.push(room)
  state.rooms.sort((a, b) => a.name.localeCompare(b.name) || a.id - b.id)
  return room
}

let loading = false
let again = false

export async function loadRooms() {
  again = loading
  if (loading) return
  loading = true
  try {
    do {
      again = false
      const heard = new Map(state.rooms.map((r) => [r, r.heard]))
      const rooms = await api.rooms()
      if (again) continue
      state.roomsLoaded = true
      state.roomsError = ''
      take(rooms, heard)
    } while (again)
  } catch (error) {
    state.roomsError = failed(error)
  }
  loading = false
  changed()
}

// A list of rooms that is on its way may be from before what has just happened.
function stale() {
  if (loading) again = true
}

// Takes in the list of rooms; heard is how many messages of each had come when it was asked for.
function take(rooms, heard) {
  const ids = new Set(rooms.map((r) => r.id))
  state.rooms.filter((r) => !ids.has(r.id)).forEach(close)
  for (const data of rooms) {
    const before = roomOf(data.id)
    const { unread } = before ?? {}
    const room = addRoom(data)
    if (before && before.heard !== heard.get(before)) room.unread = Math.max(room.unread, unread)
  }
  arrive()
  listen(state.rooms)
  lookUp(state.rooms.map((r) => r.user_id))
}

// Coming, going.

let opened = null

/** Goes to a room if the address names nothing, unless the list is a page of its own. */
export function arrive() {
  const { task, run, page } = state.route
  if (task || run || page) {
    opened = null
    return
  }
  const room = currentRoom()
  if (state.closed && state.closed.id !== state.route.room) state.closed = null
  if (!room) {
    opened = null
    if (!state.roomsLoaded || state.closed || (narrow.matches && !state.route.room)) return
    if (!state.rooms.length) {
      if (state.route.room) location.replace('#/')
      return
    }
    const last = roomOf(Number(localStorage.getItem('tandem.room')))
    const mine = state.rooms.filter((r) => r.member)
    const first = last ?? mine.find((r) => r.kind !== 'direct') ?? mine[0] ?? state.rooms[0]
    location.replace(narrow.matches ? '#/' : roomHref(first.id))
    readRoute()
    if (currentRoom()) arrive()
    return
  }
  localStorage.setItem('tandem.room', room.id)
  room.openedAt = Date.now()
  if (room !== opened) begin(room)
  opened = room
  if (!room.loaded && !room.loading) loadRoom(room)
  seen()
}

narrow.addEventListener('change', () => state.view === 'app' && arrive())

export async function createRoom(kind, name, description = '') {
  const room = addRoom(await api.createRoom({ kind, name, description }))
  stale()
  go(room.id)
  changed()
}

/** Goes to the direct room with a person, which is made if there is none. */
export async function writeTo(person) {
  const room = addRoom(await api.createRoom({ kind: 'direct', user_id: person.id }))
  stale()
  listen([room])
  lookUp([room.user_id])
  go(room.id)
  changed()
}

// One has become a member, here or elsewhere, or somebody added one.
function joined(data) {
  stale()
  const before = roomOf(data.id)
  const room = addRoom({ last_read: 0, unread: 0, ...data })
  if (state.closed?.id === room.id) state.closed = null
  if (before && before.member === data.member) return
  listen([room])
  lookUp([room.user_id])
  loadRooms()
  announce(room.kind === 'direct' ? `${room.name} can now write to you.` : `You are now in ${room.name}.`)
  if (room.id === state.route.room) arrive()
}

function left(room) {
  stale()
  if (!room) return
  if (room.kind !== 'public' || isGuest()) return close(room)
  Object.assign(room, { member: '', unread: 0, line: null })
  if (room !== currentRoom() && socket.has(topicOf(room)) && !room.loaded) socket.unsubscribe(topicOf(room))
  changed()
}

// A room is no longer there for us.
function close(room) {
  if (!state.rooms.includes(room)) return
  stale()
  if (room === currentRoom()) {
    state.closed = { id: room.id, name: room.name }
    announce(`You are no longer in ${room.name}.`)
  }
  state.rooms = state.rooms.filter((r) => r !== room)
  state.outbox.filter((entry) => entry.room_id === room.id).forEach(discard)
  if (Number(localStorage.getItem('tandem.room')) === room.id) localStorage.removeItem('tandem.room')
  socket.unsubscribe(topicOf(room))
  changed()
}

function described(data) {
  const room = roomOf(data.id)
  if (room) Object.assign(room, room.kind === 'direct' ? {} : { name: data.name, description: data.description })
}

export async function describe(room, description) {
  addRoom(await api.describeRoom(room.id, description))
  changed()
}

// Members.

/** Reads who is in a room, unless that is known. */
export async function loadMembers(room) {
  room.membersAgain = room.membersLoading
  if (room.membersLoading) return
  room.membersLoading = true
  try {
    do {
      room.membersAgain = false
      room.members = await api.members(room.id)
    } while (room.membersAgain)
    room.membersError = ''
    lookUp(room.members.map((m) => m.user_id))
  } catch (error) {
    room.membersError = failed(error)
  }
  room.membersLoading = false
  changed()
}

function setMembers(room, members) {
  if (room.membersLoading) room.membersAgain = true // the list that is on its way may be from before
  if (!room.members) return
  room.members = members(room.members).sort((a, b) => a.name.localeCompare(b.name))
}

function memberChanged(member, frame) {
  const room = frame && roomOfTopic(frame.topic)
  if (!room) return
  setMembers(room, (list) => [...list.filter((m) => m.user_id !== member.user_id), member])
  lookUp([member.user_id])
  if (member.user_id !== state.me.id) return
  stale()
  room.member = member.role
}

function memberRemoved({ user_id: id, may_read: mayRead }, frame) {
  const room = frame && roomOfTopic(frame.topic)
  if (!room) return
  setMembers(room, (list) => list.filter((m) => m.user_id !== id))
  room.writers = room.writers.filter((w) => w.user_id !== id)
  if (id !== state.me.id) return
  if (mayRead) left(room)
  else close(room)
}

// Does something to the members of a room, and says why it did not work.
async function withMembers(room, action, done) {
  try {
    await action()
    if (done) toast(done)
    return true
  } catch (error) {
    toast(sentence(failed(error)))
    return false
  } finally {
    if (roomOf(room.id) === room && room.members) loadMembers(room)
  }
}

export const addMember = (room, person) =>
  withMembers(room, () => api.setMember(room.id, person.id), `${person.name} is now in ${room.name}.`)

export const setRole = (room, member, role) => withMembers(room, () => api.setMember(room.id, member.user_id, role))

export const removeMember = (room, member) =>
  withMembers(room, () => api.removeMember(room.id, member.user_id), `${member.name} is no longer in ${room.name}.`)

export async function join(room) {
  await withMembers(room, async () => {
    const { role } = await api.setMember(room.id, state.me.id)
    stale()
    Object.assign(room, { member: role, unread: 0 })
    loadRooms()
  })
  changed()
}

export async function leave(room) {
  if (!(await withMembers(room, () => api.removeMember(room.id, state.me.id), `You have left ${room.name}.`))) return
  left(room)
  state.closed = null // we know
  arrive()
  changed()
}
