// What the page knows. Views read `state`; the modules beside this one change it and then call changed().

const nobody = () => ({
  me: null,
  rights: [], // what one may do, by the names of the API
  rooms: [],
  roomsLoaded: false,
  roomsError: '',
  closed: null, // the room that was taken from us while we were in it: {id, name, direct}
  outbox: [], // own messages that the server has not confirmed
  editing: 0, // the own message that is being changed
  tasks: [],
  tasksLoaded: false,
  tasksError: '',
  drafts: {}, // what is being written: forms of tasks, see views/task-form.js, and messages, see draftOf
  presence: {}, // by the id of a person: {state, last_seen}
  people: null, // everybody, once somebody is to be picked
  calls: [], // tools that are to be used here, the oldest first, see calls.js
  connection: 'connecting', // as Socket's state
})

export const state = {
  view: 'boot', // boot, unreachable, setup, unset, link, signin, app
  notice: '', // above the sign-in form
  link: null, // by which the page was opened: {kind: setup, invite or reset, token}
  node: '',
  driver: '',
  route: { room: 0, panel: '', task: '', edit: false, run: 0, page: '' },
  announcement: '', // for screen readers
  toast: '',
  ...nobody(),
}

/** Forgets whatever belongs to a session. */
export const forgetAll = () => Object.assign(state, nobody())

const listeners = new Set()
let scheduled = false

export function onChange(listener) {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

export function changed() {
  if (scheduled) return
  scheduled = true
  queueMicrotask(() => {
    scheduled = false
    for (const listener of listeners) listener()
  })
}

export const roomOf = (id) => state.rooms.find((r) => r.id === id)

export const currentRoom = () => roomOf(state.route.room)

export const taskOf = (name) => state.tasks.find((t) => t.name === name)

export const may = (right) => state.rights.includes(right)

/** The message that is being written in a room. */
export const draftOf = (room) => state.drafts[`message ${room.id}`] ?? ''

export function keepDraft(room, text) {
  if (text) state.drafts[`message ${room.id}`] = text
  else delete state.drafts[`message ${room.id}`]
}

export const isAdmin = () => state.me.role === 'admin'

export const isGuest = () => state.me.role === 'guest'

export const visible = () => document.visibilityState === 'visible'

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
