// Coming and going.

import { api, beginSession } from '../api.js'
import { backoff } from '../socket.js'
import { failed, socket, whenConnected, whenEnded } from './live.js'
import { readLink, readRoute } from './places.js'
import { arrive, loadRooms } from './rooms.js'
import { recall } from './sending.js'
import { changed, currentRoom, forgetAll, isGuest, state, toast, visible } from './state.js'
import { loadTasks } from './tasks.js'
import './calls.js'

let left = null // who has just been here without signing out, and what they were writing: {user, drafts}
let news = false // the next connection is not the first: one may be somebody else by now

whenEnded((notice) => {
  if (state.view !== 'app') return
  left = { user: state.me.id, drafts: state.drafts }
  signedOut(notice)
  comeBack()
})

export async function boot(attempt = 0) {
  try {
    state.link = readLink()
    const setup = state.link?.kind === 'setup'
    if (await api.setupNeeded()) state.view = setup ? 'setup' : 'unset'
    else if (state.link && !setup) state.view = 'link'
    else await enter()
  } catch (error) {
    if (error.status === 401) {
      state.notice = state.link ? 'This instance is set up already. Sign in to continue.' : ''
      state.view = 'signin'
    } else {
      if (attempt > 1) state.view = 'unreachable'
      setTimeout(() => boot(attempt + 1), 300 + backoff(attempt))
    }
  }
  changed()
}

export async function setUp(name, password) {
  await api.setup(state.link.token, name, password)
  await enter()
}

export async function signIn(name, password) {
  await api.signIn(name, password)
  await enter()
}

export async function acceptInvitation(name, password) {
  await api.acceptInvitation(state.link.token, name, password)
  await enter()
}

export async function resetPassword(password) {
  await api.resetPassword(state.link.token, password)
  await enter()
}

/** Goes on without the link by which the page was opened. */
export function leaveLink() {
  history.replaceState(null, '', location.pathname)
  return boot()
}

export async function signOut() {
  try {
    await api.signOut()
  } catch (error) {
    if (error.status !== 401) return toast(`You are still signed in. ${failed(error)}`)
  }
  sessionStorage.clear()
  left = null
  signedOut('')
}

function signedOut(notice) {
  beginSession()
  socket.stop()
  forgetAll()
  Object.assign(state, { view: 'signin', notice })
  changed()
}

// Another tab may have signed in.
async function comeBack() {
  try {
    await enter()
  } catch {
    // the form is there
  }
}

addEventListener('visibilitychange', () => visible() && state.view === 'signin' && comeBack())

async function enter() {
  const { user, rights, node, driver, endpoints } = await api.me()
  beginSession()
  if (state.link) history.replaceState(null, '', location.pathname)
  Object.assign(state, { me: user, rights, node, driver, view: 'app', notice: '', link: null })
  if (left?.user === user.id) state.drafts = left.drafts
  left = null
  news = false
  recall()
  readRoute()
  changed()
  await loadRooms()
  if (state.me !== user) return
  socket.subscribe({ [`user:${user.id}`]: '' })
  if (!isGuest()) socket.subscribe({ rooms: '', tasks: '', presence: '' })
  socket.start(endpoints)
  loadTasks()
}

// Leaves without signing out.
function stepOut() {
  left = { user: state.me.id, drafts: state.drafts }
  socket.stop()
  forgetAll()
  state.view = 'boot'
  changed()
}

whenConnected(async () => {
  const { me } = state
  if (!news) {
    news = true
    return
  }
  try {
    const { user } = await api.me()
    if (state.me === me && (user.id !== me.id || user.role !== me.role)) await enterAgain(user)
  } catch (error) {
    failed(error)
  }
})

// Begins anew as who one is by now.
async function enterAgain(user) {
  stepOut()
  await boot()
  if (state.me?.id === user.id) toast(`You are ${user.role === 'admin' ? 'an administrator' : `a ${user.role}`} now.`)
}

addEventListener('hashchange', () => {
  if (readLink()) {
    if (state.view === 'app') stepOut()
    boot()
  }
  if (state.view !== 'app') return
  const before = currentRoom()
  readRoute()
  if (before && before !== currentRoom()) {
    before.line = null
    state.editing = 0
  }
  arrive()
  changed()
})
