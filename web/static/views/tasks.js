// The scheduled tasks of a room.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { showPanel, taskHref } from '../store/places.js'
import { state, toast } from '../store/state.js'
import { loadTasks, runTask, withTask } from '../store/tasks.js'
import { fromNow, fullTime, sentence } from '../format.js'
import { icon } from '../icons.js'
import { AskButton, useNow } from './parts.js'
import { hasDraft, TaskForm } from './task-form.js'

export function Tasks({ room }) {
  const tasks = state.tasks.filter((task) => task.room_id === room.id)
  const [adding, setAdding] = useState(hasDraft(null, room))
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
    showPanel('')
  }
  const first = state.tasksLoaded && !tasks.length
  return html`
    <section class="side" id="tasks" aria-labelledby="tasks-title"
      onKeyDown=${(e) => e.key === 'Escape' && hide()}>
      <header class="panel-head">
        <h2 id="tasks-title" ref=${heading} tabindex="-1">${adding && !first ? 'New task' : 'Scheduled tasks'}</h2>
        <button class="icon-button" id="tasks-close" aria-label="Close the tasks" title="Close (Esc)"
          onClick=${hide}>${icon.close()}</button>
      </header>
      <div class="panel-body">
        ${state.tasksError && html`<p class="form-error" role="alert">${state.tasksError}
          <button class="link-button" onClick=${loadTasks}>Try again</button></p>`}
        ${first && html`<p class="panel-intro">A task posts a message into <b>${room.name}</b> by a schedule, or calls
          an address and reports here. Give it a name and a time; it runs even when nobody is here.</p>`}
        ${tasks.length > 0 && !adding && html`
          <ul class="task-list">
            ${tasks.map((task) => html`<${Task} key=${task.name} task=${task} now=${now} />`)}</ul>`}
        ${adding || first
          ? html`<${TaskForm} room=${room} close=${first ? null : close} begun=${() => setAdding(true)}
              done=${(task) => (toast(`“${task.name}” is made.`), close())} />`
          : state.tasksLoaded && html`<button class="button wide" id="task-new-open" ref=${opener}
              onClick=${() => setAdding(true)}>${icon.plus()}<span>New task</span></button>`}
      </div>
    </section>`
}

function Task({ task, now }) {
  const { name } = task
  const soon = task.next_at && `Next ${fromNow(Math.max(new Date(task.next_at), now), now)}`
  const next = task.paused ? 'Paused' : soon
  return html`
    <li class="task" data-testid="task" data-task-name=${name} data-paused=${task.paused ? '' : undefined}>
      <div class="task-top">
        <h3><a class="task-open" href=${taskHref(name)}>${name}</a></h3>
        ${next && html`
          <span class="task-next" title=${task.paused ? undefined : fullTime(task.next_at)}>${next}</span>`}
      </div>
      <p class="task-schedule">${sentence(task.description || task.schedule || 'No schedule')}</p>
      <${What} task=${task} />
      <div class="task-actions">
        <button class="button small task-run"
          onClick=${() => runTask(name, `“${name}” is on its way.`)}>
          ${icon.play()}<span>Run now</span><span class="sr-only"> ${name}</span></button>
        <${PauseButton} task=${task} />
        <a class="button small task-runs" href=${taskHref(name)}>${icon.history()}<span>Runs</span>
          <span class="sr-only"> of ${name}</span></a>
        <${DeleteButton} task=${task} />
      </div>
    </li>`
}

/** What a task does, in two lines. */
export const What = ({ task }) => (task.http
  ? html`<p class="task-text mono">${task.http.method || 'GET'} ${task.http.url}</p>`
  : html`<p class="task-text">${task.text}</p>`)

export const PauseButton = ({ task }) => html`
  <button class="button small task-pause"
    onClick=${() => withTask(() => (task.paused ? api.resumeTask(task.name) : api.pauseTask(task.name)))}>
    ${task.paused ? icon.clock() : icon.pause()}<span>${task.paused ? 'Resume' : 'Pause'}</span>
    <span class="sr-only"> ${task.name}</span></button>`

export const DeleteButton = ({ task, done }) => html`
  <${AskButton} name="task-delete" kind="icon-button small" symbol=${icon.bin()} what=${task.name}
    question="Delete this task?" yes="Delete"
    act=${async () => {
      if (await withTask(() => api.deleteTask(task.name), `“${task.name}” is deleted.`)) done?.()
    }} />`
