// The scheduled tasks.

import { api } from '../api.js'
import { attempt, failed, hear, rereads, whenConnected } from './live.js'
import { changed, isGuest, state } from './state.js'

const every = 1_000 // at most so often, however much goes on

hear({ 'task.changed': tasksChanged })
rereads('tasks', { fresh: loadTasks })
whenConnected(() => state.tasksError && loadTasks())

let busy = false
let again = false
let askedAt = 0
let timer = 0

function tasksChanged() {
  timer ||= setTimeout(() => {
    timer = 0
    if (state.view === 'app') loadTasks()
  }, Math.max(0, askedAt + every - Date.now()))
}

export async function loadTasks() {
  if (isGuest()) return // for whom there are none
  again = busy
  if (busy) return
  busy = true
  askedAt = Date.now()
  try {
    do {
      again = false
      state.tasks = await api.tasks()
    } while (again)
    state.tasksLoaded = true
    state.tasksError = ''
  } catch (error) {
    state.tasksError = failed(error)
  }
  busy = false
  changed()
}

/** Does something to a task, says how it went, and returns what came of it: undefined when it failed. */
export async function withTask(action, done) {
  const result = await attempt(action, done)
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
