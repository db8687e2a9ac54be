// What the page knows, and everything that changes it. Views read `state` and call the functions here.

import { api, beginSession, newID } from './api.js'
import { sentence } from './format.js'
import { Socket, backoff } from './socket.js'

export const state = {
  view: 'boot', // boot, unreachable, setup, unset, signin, app
  notice: '', // above the sign-in form
  setupToken: '',
  me: null,
  node: '',
  driver: '',
  connection: 'connecting', // as Socket's state
  rooms: [],
  roomsLoaded: false,
  roomsError: '',
  route: { room: 0, tasks: false, task: '', edit: false, run: 0 },
  outbox: [], // own messages that the server has not confirmed
  tasks: [],
  tasksLoaded: false,
  tasksError: '',
  drafts: {}, // forms of tasks that are being written, see views/task-form.js
  announcement: '', // for screen readers
  toast: '',
}

const listeners = new Set()
let scheduled = false

export function onChange(listener) {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

function changed() {
  if (scheduled) return
  scheduled = true
  queueMicrotask(() => {
    scheduled = false
    for (const listener of listeners) listener()
  })
}

const topicOf = (room) => `room:${room.id}`
const maxTopics = 100 // as the server's limit

const socket = new Socket({
  ticket: api.ticket,
  state(s) {
    state.connection = s
    if (s === 'online') {
      state.outbox.forEach(attempt)
      if (!state.roomsLoaded) loadRooms()
      if (currentRoom()?.error) loadRoom(currentRoom())
      if (state.tasksError) loadTasks()
    }
    changed()
  },
  event({ topic, kind, payload }) {
    if (kind === 'message.created') accept(payload, true)
    else if (kind === 'room.created') listen([addRoom(payload)])
    else if (topic === 'tasks') tasksChanged()
    else watchers.get(topic)?.forEach((w) => w.event(kind, payload))
    changed()
  },
  reset(topic) {
    const room = state.rooms.find((r) => topicOf(r) === topic)
    if (room) {
      Object.assign(room, { messages: [], loaded: false, more: false })
      if (room === currentRoom()) loadRoom(room)
      else if (room.loading) room.again = true
    } else reread(topic)
  },
  fresh: reread,
  refused(topic, error) {
    const room = state.rooms.find((r) => topicOf(r) === topic)
    if (!room) return
    room.error = error.message
    changed()
  },
  unauthorised: () => signedOut('Your session has ended. Please sign in again.'),
})

// Reads again what the events of a topic would have told.
function reread(topic) {
  if (topic === 'rooms') loadRooms()
  else if (topic === 'tasks') loadTasks()
  else if (watchers.has(topic)) watchers.get(topic).forEach((w) => w.fresh())
  else {
    const room = state.rooms.find((r) => topicOf(r) === topic)
    if (room?.loaded || room?.loading) loadRoom(room)
  }
}

// Views that follow a topic while they are shown.

const watchers = new Map() // topic → Set of watchers

/**
 * Follows a topic until the returned function is called: event(kind, payload) is what happens; fresh() says that
 * events may have been missed, so that what they tell must be read otherwise.
 */
export function watch(topic, watcher) {
  if (!watchers.has(topic)) watchers.set(topic, new Set())
  watchers.get(topic).add(watcher)
  if (!socket.has(topic)) {
    makePlace()
    socket.subscribe({ [topic]: '' })
  }
  return () => {
    const others = watchers.get(topic)
    others.delete(watcher)
    if (others.size) return
    watchers.delete(topic)
    socket.unsubscribe(topic)
  }
}

// Coming and going.

export async function boot(attempt = 0) {
  try {
    state.setupToken = new URLSearchParams(location.hash.slice(1)).get('setup') || ''
    if (await api.setupNeeded()) state.view = state.setupToken ? 'setup' : 'unset'
    else await enter()
  } catch (error) {
    if (error.status === 401) {
      state.notice = state.setupToken ? 'This instance is set up already. Sign in to continue.' : ''
      state.view = 'signin'
    } else {
      if (attempt > 1) state.view = 'unreachable'
      setTimeout(() => boot(attempt + 1), 300 + backoff(attempt))
    }
  }
  changed()
}

export async function setUp(name, password) {
  await api.setup(state.setupToken, name, password)
  await enter()
}

export async function signIn(name, password) {
  await api.signIn(name, password)
  await enter()
}

export async function signOut() {
  try {
    await api.signOut()
  } catch (error) {
    if (error.status !== 401) return toast(`You are still signed in. ${error.message}`)
  }
  sessionStorage.clear()
  signedOut('')
}

function signedOut(notice) {
  beginSession()
  socket.stop()
  Object.assign(state, {
    view: 'signin', notice, me: null, rooms: [], roomsLoaded: false, tasks: [], tasksLoaded: false, outbox: [],
    drafts: {}, connection: 'connecting',
  })
  changed()
}

async function enter() {
  beginSession()
  const { user, node, driver } = await api.me()
  Object.assign(state, { me: user, node, driver, view: 'app', notice: '', setupToken: '' })
  if (location.hash.startsWith('#setup=')) history.replaceState(null, '', location.pathname)
  const unsent = { state: 'failed', error: 'It was not sent before you left.' }
  state.outbox = stored(outboxKey(), []).map((entry) => ({ ...entry, ...unsent }))
  readRoute()
  changed()
  await loadRooms()
  socket.subscribe({ rooms: '', tasks: '' })
  socket.start()
  loadTasks()
}

/** What to show of an error. An answer of 401 to any request means that the session is over. */
export function failed(error) {
  if (error.status !== 401) return error.message
  signedOut('Your session has ended. Please sign in again.')
  return ''
}

function stored(key, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(key)) ?? otherwise
  } catch {
    return otherwise
  }
}

// Where we are: #/rooms/ID, #/rooms/ID/tasks, #/tasks/NAME, #/tasks/NAME/edit and #/runs/ID.

const wide = matchMedia('(min-width: 1200px)')
const narrow = matchMedia('(max-width: 719px)')

export const roomHref = (id, tasks = wide.matches && tasksPreferred()) => `#/rooms/${id}${tasks ? '/tasks' : ''}`

export const taskHref = (name, edit = false) => `#/tasks/${encodeURIComponent(name)}${edit ? '/edit' : ''}`

export const runHref = (id) => `#/runs/${id}`

function tasksPreferred() {
  return localStorage.getItem('tandem.tasks') !== 'closed'
}

export function showTasks(open) {
  if (wide.matches) localStorage.setItem('tandem.tasks', open ? 'open' : 'closed')
  const href = roomHref(state.route.room, open)
  // On a wide screen the panel is no place of its own to come back to.
  if (wide.matches || !open) location.replace(href)
  else location.hash = href
}

function readRoute() {
  const [, room, tasks] = location.hash.match(/^#\/rooms\/(\d+)(\/tasks)?$/) ?? []
  const [, task, edit] = location.hash.match(/^#\/tasks\/([^/]+)(\/edit)?$/) ?? []
  const [, run] = location.hash.match(/^#\/runs\/(\d+)$/) ?? []
  state.route = {
    room: Number(room) || 0, tasks: Boolean(tasks), task: decoded(task ?? ''), edit: Boolean(edit),
    run: Number(run) || 0,
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

addEventListener('hashchange', () => {
  if (state.view !== 'app') {
    if (location.hash.startsWith('#setup=')) boot()
    return
  }
  const left = currentRoom()
  readRoute()
  if (left && left !== currentRoom()) left.firstUnread = 0
  arrive()
  changed()
})

export const currentRoom = () => state.rooms.find((r) => r.id === state.route.room)

export const taskOf = (name) => state.tasks.find((t) => t.name === name)

export const isAdmin = () => state.me.role === 'admin'

export function go(id) {
  location.hash = roomHref(id)
}

// Goes to a room if the address names nothing, unless the list is a page of its own.
function arrive() {
  if (state.route.task || state.route.run) return
  const room = currentRoom()
  if (!room) {
    if (!state.roomsLoaded || !state.rooms.length || (narrow.matches && !state.route.room)) return
    const last = state.rooms.find((r) => r.id === Number(localStorage.getItem('tandem.room')))
    location.replace(narrow.matches ? '#/' : roomHref((last ?? state.rooms[0]).id))
    readRoute()
    if (currentRoom()) arrive()
    return
  }
  localStorage.setItem('tandem.room', room.id)
  room.openedAt = Date.now()
  seen()
  if (!room.loaded && !room.loading) loadRoom(room)
}

narrow.addEventListener('change', () => state.view === 'app' && arrive())

// Rooms and messages.

function addRoom(data) {
  const known = state.rooms.find((r) => r.id === data.id)
  if (known) return Object.assign(known, data)
  const room = {
    ...data, messages: [], loaded: false, loading: false, again: false, more: false, loadingMore: false, error: '',
    unread: 0, firstUnread: 0, openedAt: 0, draft: '',
  }
  state.rooms.push(room)
  state.rooms.sort((a, b) => a.name.localeCompare(b.name))
  return room
}

async function loadRooms() {
  try {
    const rooms = await api.rooms()
    state.roomsLoaded = true
    state.roomsError = ''
    const ids = new Set(rooms.map((r) => r.id))
    const gone = state.rooms.filter((r) => !ids.has(r.id))
    state.rooms = state.rooms.filter((r) => ids.has(r.id))
    socket.unsubscribe(...gone.map(topicOf))
    rooms.forEach(addRoom)
    arrive()
    listen(state.rooms)
  } catch (error) {
    state.roomsError = failed(error)
  }
  changed()
}

export async function createRoom(name) {
  const room = addRoom(await api.createRoom(name))
  go(room.id)
  changed()
}

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
  changed()
}

// Hears what happens in rooms that are not open, to count it.
function listen(rooms) {
  const others = rooms.filter((r) => r !== currentRoom() && !socket.has(topicOf(r)))
  const some = others.slice(0, Math.max(0, maxTopics - socket.topics.length))
  socket.subscribe(Object.fromEntries(some.map((r) => [topicOf(r), ''])))
}

// Subscribes to an open room.
function follow(room, position) {
  const topic = topicOf(room)
  if (!socket.has(topic)) makePlace()
  socket.subscribe({ [topic]: position })
}

// Makes place for one more topic: the room that was opened the longest ago must go.
function makePlace() {
  if (socket.topics.length < maxTopics) return
  const others = state.rooms.filter((r) => r !== currentRoom() && socket.has(topicOf(r)))
  const oldest = others.sort((a, b) => a.openedAt - b.openedAt)[0]
  if (!oldest) return
  socket.unsubscribe(topicOf(oldest))
  Object.assign(oldest, { loaded: false, messages: [] })
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
    const page = await api.messages(room.id, { before: room.messages[0].id })
    room.messages = [...page.messages, ...room.messages]
    room.more = page.more
  } catch (error) {
    toast(failed(error))
  }
  room.loadingMore = false
  changed()
}

// Puts a message where its id belongs and reports whether it is new.
function insert(room, message) {
  if (message.user_id === state.me.id && message.client_id) forget(message.client_id)
  let i = room.messages.length
  while (i > 0 && room.messages[i - 1].id > message.id) i--
  if (i > 0 && room.messages[i - 1].id === message.id) return false
  room.messages = room.messages.toSpliced(i, 0, message)
  return true
}

function accept(message, live = false) {
  const room = state.rooms.find((r) => r.id === message.room_id)
  if (!room) return
  const mine = message.user_id === state.me.id
  // What is not shown yet comes with the page that is read when the room is opened.
  if (room.loaded || room.loading) {
    if (!insert(room, message)) return
  } else if (mine) forget(message.client_id)
  if (!live || mine) return changed()
  const watched = room === currentRoom() && document.visibilityState === 'visible'
  if (watched) state.announcement = `${message.author}: ${message.text}`
  else {
    room.unread++
    room.firstUnread ||= message.id
  }
  changed()
}

// The current room has been looked at.
export function seen() {
  const room = currentRoom()
  if (!room || document.visibilityState !== 'visible' || !room.unread) return
  room.unread = 0
  changed()
}

addEventListener('visibilitychange', () => {
  const room = currentRoom()
  if (document.visibilityState === 'hidden' && room && !room.unread) room.firstUnread = 0
  seen()
})

export const unreadTotal = () => state.rooms.reduce((sum, r) => sum + r.unread, 0)

// Sending. A message keeps its client id over all attempts, so that it is stored once.

const patience = 15_000

function outboxKey() {
  return `tandem.outbox.${state.me.id}`
}

function saveOutbox() {
  const kept = ['client_id', 'room_id', 'text', 'created_at']
  sessionStorage.setItem(outboxKey(), JSON.stringify(state.outbox, kept))
}

export function send(room, text) {
  const entry = { client_id: newID(), room_id: room.id, text, created_at: new Date().toISOString() }
  state.outbox = [...state.outbox, entry]
  room.firstUnread = 0
  retry(entry)
}

export function retry(entry) {
  const deadline = Date.now() + patience
  Object.assign(entry, { state: 'pending', error: '', deadline })
  setTimeout(() => entry.deadline === deadline && refuse(entry, 'There is no connection.'), patience)
  saveOutbox()
  attempt(entry)
  changed()
}

export const discard = (entry) => forget(entry.client_id)

function forget(clientID) {
  if (!state.outbox.some((e) => e.client_id === clientID)) return
  state.outbox = state.outbox.filter((e) => e.client_id !== clientID)
  saveOutbox()
  changed()
}

function refuse(entry, reason) {
  if (entry.state !== 'pending') return
  Object.assign(entry, { state: 'failed', error: reason })
  changed()
}

async function attempt(entry) {
  if (entry.state !== 'pending' || entry.busy) return
  entry.busy = true
  let again = 0
  try {
    const { client_id, room_id: room, text } = entry
    const ack = await socket.request({ type: 'send', room, client_id, text })
    if (ack.message) accept(ack.message)
    else entry.state = 'sent' // the event is on its way
  } catch (error) {
    if (error.code === 'timeout') again = 1
    else if (error.code === 'unavailable') again = 2_000
    else if (error.code !== 'disconnected') refuse(entry, error.message)
  }
  entry.busy = false
  if (again) setTimeout(attempt, again, entry)
  changed()
}

// Tasks.

const tasksEvery = 1_000 // at most so often, however much goes on

let tasksBusy = false
let tasksAgain = false
let tasksAskedAt = 0
let tasksTimer = 0

function tasksChanged() {
  tasksTimer ||= setTimeout(() => {
    tasksTimer = 0
    if (state.view === 'app') loadTasks()
  }, Math.max(0, tasksAskedAt + tasksEvery - Date.now()))
}

export async function loadTasks() {
  tasksAgain = tasksBusy
  if (tasksBusy) return
  tasksBusy = true
  tasksAskedAt = Date.now()
  try {
    do {
      tasksAgain = false
      state.tasks = await api.tasks()
    } while (tasksAgain)
    state.tasksLoaded = true
    state.tasksError = ''
  } catch (error) {
    state.tasksError = failed(error)
  }
  tasksBusy = false
  changed()
}

/** Does something to a task, says how it went, and returns what came of it: undefined when it failed. */
export async function withTask(action, done) {
  let result
  try {
    result = (await action()) ?? true
    if (done) toast(done)
  } catch (error) {
    toast(sentence(failed(error)))
  }
  await loadTasks()
  return result
}

const starting = new Set()

/** Runs a task, as withTask does; to ask again before that is done is to ask once. */
export async function runTask(name, done) {
  if (starting.has(name)) return
  starting.add(name)
  const run = await withTask(() => api.runTask(name), done)
  starting.delete(name)
  return run
}

// A word in passing.

let toastTimer = 0

export function toast(text) {
  if (!text) return
  state.toast = text
  clearTimeout(toastTimer)
  toastTimer = setTimeout(() => {
    state.toast = ''
    changed()
  }, 5_000)
  changed()
}

/** Says something to those who use a screen reader. */
export function announce(text) {
  state.announcement = text
  changed()
}

export const reconnectNow = () => socket.reconnectNow()
