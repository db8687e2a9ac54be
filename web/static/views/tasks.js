// The scheduled tasks of a room.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { createTask, loadTasks, showTasks, state, toast, withTask } from '../store.js'
import { duration, exactTime, fromNow, fullTime, localZone, plural, sentence, zonedTime, zones } from '../format.js'
import { icon } from '../icons.js'
import { Field, FormError, useForm, useNow } from './parts.js'

export function Tasks({ room }) {
  const tasks = state.tasks.filter((task) => task.room_id === room.id)
  const [adding, setAdding] = useState(false)
  const now = useNow()
  const heading = useRef(null)
  const opener = useRef(null)

  // Over the messages, on a smaller screen, the panel takes the focus and gives it back.
  useEffect(() => {
    if (matchMedia('(min-width: 1200px)').matches) return
    heading.current.focus()
    return () => document.getElementById('tasks-toggle')?.focus()
  }, [])

  // A task whose time has come has another next time soon.
  const due = tasks.some((task) => !task.paused && task.next_at && new Date(task.next_at) < now - 500)
  useEffect(() => {
    if (!due) return
    const timer = setInterval(() => document.visibilityState === 'visible' && loadTasks(), 2_000)
    return () => clearInterval(timer)
  }, [due])

  // The form takes the place of the list; afterwards the focus is where it came from.
  const [left, setLeft] = useState(0)
  useEffect(() => left && opener.current?.focus(), [left])
  const close = () => {
    setAdding(false)
    setLeft(left + 1)
  }
  const hide = () => {
    document.getElementById('tasks-toggle').focus()
    showTasks(false)
  }
  const first = state.tasksLoaded && !tasks.length
  return html`
    <section class="tasks" id="tasks" aria-labelledby="tasks-title"
      onKeyDown=${(e) => e.key === 'Escape' && hide()}>
      <header class="panel-head">
        <h2 id="tasks-title" ref=${heading} tabindex="-1">${adding && !first ? 'New task' : 'Scheduled tasks'}</h2>
        <button class="icon-button" id="tasks-close" aria-label="Close the tasks" title="Close (Esc)"
          onClick=${hide}>${icon.close()}</button>
      </header>
      <div class="panel-body">
        ${state.tasksError && html`<p class="form-error" role="alert">${state.tasksError}
          <button class="link-button" onClick=${loadTasks}>Try again</button></p>`}
        ${first && html`<p class="panel-intro">A task posts a message into <b>${room.name}</b> by a schedule.
          Give it a name and a time; it runs even when nobody is here.</p>`}
        ${tasks.length > 0 && !adding && html`
          <ul class="task-list">
            ${tasks.map((task) => html`<${Task} key=${task.name} task=${task} now=${now} />`)}</ul>`}
        ${adding || first
          ? html`<${NewTask} room=${room} close=${first ? null : close} done=${close} begun=${() => setAdding(true)} />`
          : state.tasksLoaded && html`<button class="button wide" id="task-new-open" ref=${opener}
              onClick=${() => setAdding(true)}>${icon.plus()}<span>New task</span></button>`}
      </div>
    </section>`
}

function Task({ task, now }) {
  const [asking, setAsking] = useState(false)
  const [open, setOpen] = useState(false)
  const keep = useRef(null)
  useEffect(() => asking && keep.current.focus(), [asking])
  const { name } = task
  const id = `runs-${encodeURIComponent(name)}`
  const soon = task.next_at && `Next ${fromNow(Math.max(new Date(task.next_at), now), now)}`
  const next = task.paused ? 'Paused' : soon
  return html`
    <li class="task" data-testid="task" data-task-name=${name} data-paused=${task.paused ? '' : undefined}>
      <div class="task-top">
        <h3>${name}</h3>
        ${next && html`
          <span class="task-next" title=${task.paused ? undefined : fullTime(task.next_at)}>${next}</span>`}
      </div>
      <p class="task-schedule">${sentence(task.description || task.schedule || 'No schedule')}</p>
      <p class="task-text">${task.text}</p>
      ${asking
        ? html`<div class="task-confirm" role="group" aria-label="Delete ${name}?">
            <span>Delete this task?</span>
            <button class="button small" ref=${keep} onClick=${() => setAsking(false)}>Keep</button>
            <button class="button small danger task-delete-confirm"
              onClick=${() => withTask(() => api.deleteTask(name), `“${name}” is deleted.`)}>Delete</button>
          </div>`
        : html`<div class="task-actions">
            <button class="button small task-run"
              onClick=${() => withTask(() => api.runTask(name), `“${name}” is on its way.`)}>
              ${icon.play()}<span>Run now</span><span class="sr-only"> ${name}</span></button>
            <button class="button small task-pause"
              onClick=${() => withTask(() => (task.paused ? api.resumeTask(name) : api.pauseTask(name)))}>
              ${task.paused ? icon.clock() : icon.pause()}<span>${task.paused ? 'Resume' : 'Pause'}</span>
              <span class="sr-only"> ${name}</span></button>
            <button class="button small task-runs-toggle" aria-expanded=${open} aria-controls=${id}
              onClick=${() => setOpen(!open)}>${icon.history()}<span>Runs</span>
              <span class="sr-only"> of ${name}</span></button>
            <button class="icon-button small task-delete" aria-label="Delete ${name}" title="Delete"
              onClick=${() => setAsking(true)}>${icon.bin()}</button>
          </div>`}
      ${open && html`<${Runs} id=${id} task=${task} />`}
    </li>`
}

const runStates = {
  queued: 'Waiting', running: 'Running', succeeded: 'Done', failed: 'Failed', cancelled: 'Cancelled',
}

function Runs({ id, task }) {
  const [runs, setRuns] = useState(null)
  const [error, setError] = useState('')
  useEffect(() => {
    let alive = true
    const load = async () => {
      try {
        const list = await api.runs(task.name)
        if (alive) setRuns(list), setError('')
      } catch (e) {
        if (alive) setError(e.message)
      }
    }
    load()
    const timer = setInterval(() => document.visibilityState === 'visible' && load(), 3_000)
    return () => {
      alive = false
      clearInterval(timer)
    }
  }, [task.name, state.tasksVersion])
  return html`
    <div class="task-runs" id=${id}>
      ${error && html`<p class="field-error">${error}</p>`}
      ${runs && !runs.length && html`<p class="hint">It has not run yet.</p>`}
      <ol>
        ${runs?.slice(0, 10).map((run) => html`<${Run} key=${run.id} run=${run} />`)}
      </ol>
    </div>`
}

function Run({ run }) {
  const at = run.started_at || run.scheduled_for
  const facts = [
    run.finished_at && run.started_at && duration(run.started_at, run.finished_at),
    run.attempt > 1 && `attempt ${run.attempt}`,
    run.worker && `on ${run.worker}`,
  ].filter(Boolean)
  return html`
    <li class="run" data-state=${run.state}>
      <span class="run-state">${runStates[run.state] ?? run.state}</span>
      ${at && html`<time datetime=${at} title=${fullTime(at)}>${exactTime(at)}</time>`}
      <span class="run-facts">${facts.join(', ')}</span>
      ${run.error && html`<p class="run-error">${run.error}</p>`}
    </li>`
}

const presets = [
  ['Every minute', '@every 1m'],
  ['Hourly', '0 * * * *'],
  ['Daily at 9', '0 9 * * *'],
  ['Weekdays at 9', '0 9 * * mon-fri'],
]

const fields = ['name', 'text', 'schedule', 'zone']

// begun is called when something was typed: then the form stays, whatever others do.
function NewTask({ room, close, done, begun }) {
  const [schedule, setSchedule] = useState('')
  const [zone, setZone] = useState(localZone)
  const first = useRef(null)
  useEffect(() => close && first.current.focus(), []) // when it was asked for
  const form = useForm(async (values) => {
    await createTask({ ...values, room_id: room.id })
    toast(`“${values.name}” is scheduled.`)
    setSchedule('')
    done()
  })
  // Once the form has said what is wrong, the preview need not say it again.
  const refused = ['schedule', 'zone'].includes(form.error?.field)
  const change = (set, value) => {
    set(value)
    begun()
    if (refused) form.clear()
  }
  return html`
    <form class="task-new" id="task-new-form" onSubmit=${form.submit} onInput=${begun} aria-label="New task"
      onKeyDown=${(e) => e.key === 'Escape' && close && (e.stopPropagation(), close())}>
      <${Field} id="task-new-name" name="name" label="Name" error=${form.error}>
        ${(props) => html`
          <input ...${props} ref=${first} required maxlength="100" autocomplete="off" placeholder="Stand-up" />`}
      <//>
      <${Field} id="task-new-text" name="text" label="Message" error=${form.error}>
        ${(props) => html`
          <textarea ...${props} required rows="2" placeholder="Good morning! What are you up to today?"></textarea>`}
      <//>
      <${Field} id="task-new-schedule" name="schedule" label="Schedule" error=${form.error}>
        ${(props) => html`
          <input ...${props} class="mono" autocomplete="off" autocapitalize="off" spellcheck="false"
            placeholder="0 9 * * mon-fri" value=${schedule} onInput=${(e) => change(setSchedule, e.target.value)} />
          <div class="chips" role="group" aria-label="Common schedules">
            ${presets.map(([label, value]) => html`
              <button type="button" class="chip" aria-pressed=${schedule === value}
                onClick=${() => change(setSchedule, value)}>${label}</button>`)}
          </div>`}
      <//>
      <${Field} id="task-new-zone" name="zone" label="Time zone" error=${form.error}>
        ${(props) => html`
          <input ...${props} required autocomplete="off" autocapitalize="off" spellcheck="false" list="zones"
            value=${zone} onInput=${(e) => change(setZone, e.target.value)} />
          <datalist id="zones">${zones.map((z) => html`<option value=${z} />`)}</datalist>`}
      <//>
      ${refused || html`<${Preview} schedule=${schedule.trim()} zone=${zone.trim()} />`}
      <${FormError} error=${form.error} fields=${fields} wait=${form.wait} />
      <div class="form-actions">
        <button class="button primary" id="task-new-submit" disabled=${form.busy || form.wait > 0}>
          ${form.busy ? 'Creating…' : 'Create the task'}</button>
        ${close && html`<button type="button" class="button quiet" onClick=${close}>Cancel</button>`}
      </div>
    </form>`
}

// What the schedule means, asked from the server a moment after the last key.
function Preview({ schedule, zone }) {
  const [answer, setAnswer] = useState({ kind: 'empty' })
  useEffect(() => {
    if (!schedule || !zone) return setAnswer({ kind: 'empty' })
    let alive = true
    setAnswer((old) => (old.kind === 'empty' ? { kind: 'loading' } : { ...old, stale: true }))
    const timer = setTimeout(async () => {
      try {
        const { description, next } = await api.schedule(schedule, zone)
        if (alive) setAnswer({ kind: 'ready', description, next: next ?? [], zone })
      } catch (error) {
        if (alive) setAnswer({ kind: 'error', message: error.message })
      }
    }, 250)
    return () => {
      alive = false
      clearTimeout(timer)
    }
  }, [schedule, zone])

  const { kind } = answer
  return html`
    <div class="preview" id="schedule-preview" data-state=${answer.stale ? 'loading' : kind} aria-live="polite">
      ${kind === 'empty' && html`
        <p class="hint">Five cron fields, or <code>@every 10m</code>: what they mean appears here as you type.
          Without a schedule the task runs only by hand.</p>`}
      ${kind === 'loading' && html`<p class="hint">Reading…</p>`}
      ${kind === 'error' && html`<p class="field-error">${sentence(answer.message)}</p>`}
      ${kind === 'ready' && html`
        <p class="schedule-description">${sentence(answer.description)}</p>
        ${answer.next.length > 0 && html`
          <p class="label">Next ${plural(answer.next.length, 'time')}</p>
          <ol class="schedule-next">
            ${answer.next.map((at) => html`
              <li><time datetime=${at} title="Your time: ${fullTime(at)}">${zonedTime(at, answer.zone)}</time></li>`)}
          </ol>`}`}
    </div>`
}
