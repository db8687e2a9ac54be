// The runs that a view looks at: read by HTTP, then followed live.
//
// Events of a topic come in order and complete, so what they say of a run counts more than an answer to a request
// that was sent before they came. Between a connection's end and the next nothing is missed either: the socket
// resumes, or says that it could not, and then everything is read again.

import { useEffect, useRef, useState } from './vendor/htm-preact/standalone.module.js'
import { api } from './api.js'
import { failed, watch } from './store/live.js'
import { taskOf } from './store/state.js'
import { loadTasks } from './store/tasks.js'

const pageSize = 25
const largestPage = 100
const mostKept = 2_000 // runs in a list that grows while one looks at it
const checkEvery = 5_000 // a worker that vanished tells nobody; what is in flight is looked at again

export const ended = (run) => run.state !== 'queued' && run.state !== 'running'

// The runs of a task that reports into a room that not everybody may read are told in that room.
const topicOf = (task) => taskOf(task)?.topic || `runs:${task}`

// Calls a function from time to time while somebody looks.
function regularly(check) {
  const timer = setInterval(() => document.visibilityState === 'visible' && check(), checkEvery)
  return () => clearInterval(timer)
}

/**
 * The runs of a task, the newest first, of one state unless that is empty: `runs`, null before they are known;
 * `more` says that older() finds further ones; `busy` while it does; `error`.
 */
export function useRuns(task, only) {
  return useLive(History, task, only)
}

/** A run and its log: `run` and `lines`, null before they are known; `error`; load() tries again. */
export function useRun(id) {
  return useLive(Follower, id)
}

function useLive(Kind, ...args) {
  const [, redraw] = useState(0)
  const live = useRef(null)
  useEffect(() => {
    live.current = new Kind(() => redraw((n) => n + 1), ...args)
    redraw((n) => n + 1)
    return () => live.current.stop()
  }, args)
  return live.current?.is(...args) ? live.current : Kind.empty
}

class History {
  static empty = { runs: null, more: false, busy: false, error: '' }

  runs = null
  more = false
  busy = false
  error = ''
  #redraw
  #task
  #only
  #stops
  #stopped = false
  #loading = false
  #again = false
  #cuts = 0 // how often older runs were dropped
  #asking = 0 // requests that are not answered yet
  #news = new Map() // what events said while they are not

  constructor(redraw, task, only) {
    this.#redraw = redraw
    this.#task = task
    this.#only = only
    this.#stops = [
      watch(topicOf(task), {
        event: (kind, payload) => kind === 'run.changed' && payload.task === task && this.#take(payload),
        fresh: this.load,
      }),
      regularly(() => this.runs?.some((run) => !ended(run)) && this.load()),
    ]
    this.load()
  }

  is(task, only) {
    return task === this.#task && only === this.#only
  }

  stop() {
    this.#stopped = true
    this.#stops.forEach((stop) => stop())
  }

  // Has a page taken in, and then what came meanwhile, which is later.
  async #page(query, take) {
    this.#asking++
    try {
      take(await api.runs(this.#task, this.#only ? { ...query, state: this.#only } : query))
      for (const run of this.#news.values()) this.#put(run)
    } finally {
      if (!--this.#asking) this.#news.clear()
    }
  }

  load = async () => {
    this.#again = this.#loading
    if (this.#loading) return
    this.#loading = true
    do {
      this.#again = false
      try {
        const limit = Math.min(Math.max(this.runs?.length ?? 0, pageSize), largestPage)
        await this.#page({ limit }, (page) => this.#merge(page))
        this.error = ''
      } catch (error) {
        this.error = this.#stopped ? '' : failed(error)
      }
    } while (this.#again && !this.#stopped)
    this.#loading = false
    this.#redraw()
  }

  // Takes in the newest page. Older runs stay, unless there is a hole before them.
  #merge({ runs, more }) {
    const last = runs.at(-1)
    const older = (more && this.runs?.filter((run) => run.id < last.id)) || []
    if (older.length && this.runs[0].id >= last.id) this.runs = [...runs, ...older]
    else {
      this.runs = runs
      this.more = more
      this.#cuts++
    }
  }

  #take(run) {
    if (this.#asking) this.#news.set(run.id, run)
    if (!this.runs) return
    this.#put(run)
    this.#redraw()
  }

  #put(run) {
    const fits = !this.#only || run.state === this.#only
    const at = this.runs.findIndex((r) => r.id <= run.id)
    if (at >= 0 && this.runs[at].id === run.id) {
      this.runs = this.runs.toSpliced(at, 1, ...(fits ? [run] : []))
    } else if (fits && (at >= 0 || !this.more)) {
      this.runs = this.runs.toSpliced(at < 0 ? this.runs.length : at, 0, run)
    }
    if (this.runs.length > mostKept) {
      this.runs = this.runs.slice(0, mostKept)
      this.more = true
      this.#cuts++
    }
  }

  older = async () => {
    if (this.busy) return
    this.busy = true
    this.#redraw()
    const cuts = this.#cuts
    const before = this.runs.at(-1)?.id
    try {
      await this.#page(before ? { before, limit: pageSize } : { limit: pageSize }, ({ runs, more }) => {
        if (cuts !== this.#cuts) return
        const known = new Set(this.runs.map((run) => run.id))
        this.runs = [...this.runs, ...runs.filter((run) => !known.has(run.id))]
        this.more = more
      })
      this.error = ''
    } catch (error) {
      this.error = this.#stopped ? '' : failed(error)
    }
    this.busy = false
    this.#redraw()
  }
}

class Follower {
  static empty = { run: null, lines: [], logLoaded: false, error: '' }

  run = null
  lines = [] // grows in place
  logLoaded = false
  error = ''
  #redraw
  #id
  #stops
  #stopped = false
  #loading = false
  #again = false
  #heard = 0 // how many events told of the run
  #watching = false

  constructor(redraw, id) {
    this.#redraw = redraw
    this.#id = id
    this.#stops = [regularly(() => this.run && !ended(this.run) && this.load())]
    this.load()
  }

  is(id) {
    return id === this.#id
  }

  stop() {
    this.#stopped = true
    this.#stops.forEach((stop) => stop())
  }

  load = async () => {
    this.#again = this.#loading
    if (this.#loading) return
    this.#loading = true
    do {
      this.#again = false
      const heard = this.#heard
      try {
        const run = await api.run(this.#id)
        if (this.#stopped) break
        if (heard === this.#heard) this.run = run
        if (run.task && !taskOf(run.task)) await loadTasks() // which tell the topic
        if (this.#stopped) break
        this.#watch()
        this.#redraw()
        await this.#loadLog()
        this.error = ''
      } catch (error) {
        this.error = this.#stopped ? '' : failed(error)
      }
    } while (this.#again && !this.#stopped)
    this.#loading = false
    this.#redraw()
  }

  async #loadLog() {
    let more
    do {
      const page = await api.log(this.#id, this.lines.length && this.lines.at(-1).number)
      this.#append(page.lines)
      more = page.more && page.lines.length > 0 && !this.#stopped
      this.#redraw()
    } while (more)
    this.logLoaded = true
  }

  #watch() {
    if (this.#watching || !this.run.task || ended(this.run)) return
    this.#watching = true
    const watcher = { event: (kind, payload) => this.#take(kind, payload), fresh: this.load }
    this.#stops.push(watch(topicOf(this.run.task), watcher))
  }

  #take(kind, payload) {
    if (kind === 'run.changed' && payload.id === this.#id) {
      this.#heard++
      this.run = payload
      if (ended(payload)) this.load() // whatever is missing of the log
    } else if (kind === 'run.log' && payload.run_id === this.#id) {
      if (!this.#append(payload.lines)) this.load()
    }
    this.#redraw()
  }

  // Takes the lines that come next and drops those that are here; reports whether none is missing between.
  #append(lines) {
    for (const line of lines) {
      const next = (this.lines.at(-1)?.number ?? 0) + 1
      if (line.number > next) return false
      if (line.number === next) this.lines.push(line)
    }
    return true
  }
}
