// The messages of rooms: reading, changing, and what is read of them.

import { api } from '../api.js'
import { sentence } from '../format.js'
import { failed, follow, hear, roomOfTopic, socket, whenConnected } from './live.js'
import { forget } from './sending.js'
import { changed, currentRoom, draftOf, roomOf, state, toast, visible } from './state.js'

hear({
  'message.created': created,
  'message.edited': replaced,
  'message.deleted': replaced,
  typing,
  read: ({ room_id: id, message_id: message }) => readElsewhere(roomOf(id), message),
})

export async function loadRoom(room) {
  room.again = room.loading
  if (room.loading) return
  room.loading = true
  room.error = ''
  changed()
  try {
    do {
      room.again = false
      const page = await api.messages(room.id)
      mergePage(room, page)
      follow(room, page.position)
    } while (room.again)
    room.loaded = true
  } catch (error) {
    room.error = failed(error)
  }
  room.loading = false
  seen()
  changed()
}

/** What is shown of a room is out of date. */
export function outdated(room) {
  Object.assign(room, { messages: [], loaded: false, more: false })
  if (room === currentRoom()) loadRoom(room)
  else if (room.loading) room.again = true
}

// Takes in the newest page. What lies before a hole is dropped; it is read again when asked for.
function mergePage(room, page) {
  const [first] = page.messages
  const last = page.messages.at(-1)
  if (page.more && !room.messages.some((m) => m.id === first.id)) {
    room.messages = room.messages.filter((m) => m.id > last.id)
  }
  if (!room.messages.length || !first || room.messages[0].id >= first.id) room.more = page.more
  for (const message of page.messages) insert(room, message)
}

export async function loadOlder(room) {
  if (room.loadingMore || !room.more || !room.messages.length) return
  room.loadingMore = true
  changed()
  try {
    const first = room.messages[0].id
    const page = await api.messages(room.id, { before: first })
    if (room.messages[0]?.id === first) {
      room.messages = [...page.messages, ...room.messages]
      room.more = page.more
    }
  } catch (error) {
    toast(failed(error))
  }
  room.loadingMore = false
  changed()
}

const editedAt = (message) => (message.edited_at ? Date.parse(message.edited_at) : 0)

// Puts a message where its id belongs and reports whether it is new.
function insert(room, message) {
  if (message.user_id === state.me.id && message.client_id) forget(message.client_id)
  let i = room.messages.length
  while (i > 0 && room.messages[i - 1].id > message.id) i--
  const known = i > 0 && room.messages[i - 1].id === message.id ? room.messages[i - 1] : null
  if (!known) room.messages = room.messages.toSpliced(i, 0, message)
  else if (!known.deleted && (message.deleted || editedAt(message) >= editedAt(known))) {
    room.messages = room.messages.with(i - 1, message)
  }
  return !known
}

function created(message) {
  const room = roomOf(message.room_id)
  if (!room) return
  const mine = message.user_id === state.me.id
  room.writers = room.writers.filter((w) => w.user_id !== message.user_id)
  // What is not shown yet comes with the page that is read when the room is opened.
  if (room.loaded || room.loading) {
    if (!insert(room, message)) return
  } else if (mine) forget(message.client_id)
  if (mine || message.id <= room.last_read) return
  if (watched(room)) {
    state.announcement = `${message.author}: ${message.text}`
    seen()
    return
  }
  if (!room.member) return // who does not follow a room does not count what is new there
  room.heard++
  room.unread = Math.min(room.unread + 1, 100)
  if (room === currentRoom()) room.line ??= room.last_read
}

function replaced(message) {
  const room = roomOf(message.room_id)
  if (!room) return
  if (room.loading) room.again = true // the page that is on its way may be from before
  if (room.messages.some((m) => m.id === message.id)) insert(room, message)
  if (!message.deleted) return
  if (state.editing === message.id) stopEditing()
  if (room.unread && message.id > room.last_read) recount(room)
}

// Changing one's own.

export function edit(message) {
  state.editing = message.id
  changed()
}

export function stopEditing() {
  state.editing = 0
  changed()
}

/** The last message of a room that one may change. */
export const lastOwn = (room) => room.messages.findLast((m) => m.user_id === state.me.id && !m.deleted)

/** Replaces the text of a message. Rejects when that was not possible. */
export async function saveEdit(message, text) {
  if (text !== message.text) replaced(await api.editMessage(message.room_id, message.id, text))
  if (state.editing === message.id) stopEditing()
}

export async function deleteMessage(message) {
  try {
    await api.deleteMessage(message.room_id, message.id)
    replaced({ ...message, text: '', deleted: true })
  } catch (error) {
    toast(sentence(failed(error)))
  }
  changed()
}

// What is read, on whatever device.

// Somebody looks at the end of the room.
const watched = (room) => room === currentRoom() && visible() && room.atEnd

/** The current room has been looked at. */
export function seen() {
  const room = currentRoom()
  if (!room || !watched(room)) return
  const last = room.messages.at(-1)?.id ?? 0
  if (!room.loaded || last <= room.last_read) return
  room.last_read = last
  room.unread = 0
  report(room)
  changed()
}

/** Begins to look at a room: from here on it is new. */
export function begin(room) {
  room.atEnd = true
  if (room.unread) room.line = room.last_read
  seen()
}

const reportEvery = 1_000

// Tells the server up to where a room is read, not for each message.
async function report(room) {
  if (room.reporting || room.last_read <= room.reported || !socket.online) return
  room.reporting = true
  const message = room.last_read
  try {
    await socket.request({ type: 'read', room: room.id, message_id: message })
    room.reported = message
  } catch (error) {
    if (!['disconnected', 'timeout', 'unavailable'].includes(error.code)) room.reported = message
  }
  setTimeout(() => {
    room.reporting = false
    if (roomOf(room.id) === room) report(room)
  }, reportEvery)
}

whenConnected(() => state.rooms.forEach(report))

// Another tab or device has read a room.
function readElsewhere(room, message) {
  if (!room || message <= room.last_read) return
  room.last_read = room.reported = message
  if (room.unread) recount(room)
}

async function recount(room) {
  const { heard, last_read: read } = room
  try {
    const { unread } = await api.room(room.id)
    if (room.heard === heard && room.last_read === read) room.unread = unread
    else if (room.unread) recount(room)
  } catch (error) {
    failed(error)
  }
  changed()
}

// Who is writing.

const writingFor = 6_000
const writingEvery = 3_100 // somewhat more than what the server allows

function typing({ user_id: id, name }, frame) {
  const room = frame && roomOfTopic(frame.topic)
  const age = frame && socket.serverNow() - Date.parse(frame.at)
  if (!room || id === state.me.id || age > writingFor) return // told late, after a reconnect
  const writer = { user_id: id, name }
  room.writers = [...room.writers.filter((w) => w.user_id !== id), writer]
  setTimeout(() => {
    room.writers = room.writers.filter((w) => w !== writer)
    changed()
  }, writingFor)
}

/** Tells the others in a room that one is writing, at once or as soon as it may be told again. */
export function writing(room) {
  const wait = room.toldWriting + writingEvery - Date.now()
  if (wait > 0) {
    room.writingTimer ||= setTimeout(() => {
      room.writingTimer = 0
      if (draftOf(room).trim() && room === currentRoom()) writing(room)
    }, wait)
  } else if (socket.online) {
    room.toldWriting = Date.now()
    socket.request({ type: 'typing', room: room.id }).catch(() => {})
  }
}

addEventListener('visibilitychange', () => {
  const room = state.view === 'app' && currentRoom()
  if (!room) return
  if (!visible() && !room.unread) room.line = null
  seen()
})
