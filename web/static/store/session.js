// Coming and going.

import { api, beginSession } from '../api.js'
import { backoff } from '../socket.js'
import { failed, socket, whenEnded } from './live.js'
import { readRoute } from './places.js'
import { arrive, loadRooms } from './rooms.js'
import { recall } from './sending.js'
import { changed, currentRoom, forgetAll, isGuest, state, toast } from './state.js'
import { loadTasks } from './tasks.js'
import './calls.js'

whenEnded(signedOut)

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
    if (error.status !== 401) return toast(`You are still signed in. ${failed(error)}`)
  }
  sessionStorage.clear()
  signedOut('')
}

function signedOut(notice) {
  beginSession()
  socket.stop()
  forgetAll()
  Object.assign(state, { view: 'signin', notice })
  changed()
}

async function enter() {
  beginSession()
  const { user, node, driver, endpoints } = await api.me()
  Object.assign(state, { me: user, node, driver, view: 'app', notice: '', setupToken: '' })
  if (location.hash.startsWith('#setup=')) history.replaceState(null, '', location.pathname)
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

addEventListener('hashchange', () => {
  if (state.view !== 'app') {
    if (location.hash.startsWith('#setup=')) boot()
    return
  }
  const left = currentRoom()
  readRoute()
  if (left && left !== currentRoom()) {
    left.line = null
    state.editing = 0
  }
  arrive()
  changed()
})
