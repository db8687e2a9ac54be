// A task on a page of its own: what it does, its webhook, its runs.

import { html, useState } from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { roomHref, runHref, taskHref } from '../store/places.js'
import { isAdmin, state, taskOf, toast } from '../store/state.js'
import { loadTasks, runTask, withTask } from '../store/tasks.js'
import { duration, exactTime, fromNow, fullTime, plural, sentence, zonedTime } from '../format.js'
import { icon } from '../icons.js'
import { ended, useRuns } from '../runs.js'
import { AskButton, CopyButton, PageHead, useNow } from './parts.js'
import { DeleteButton, PauseButton, What } from './tasks.js'
import { misfires, overlaps, priorities, reports, TaskForm } from './task-form.js'

export function TaskPage({ name }) {
  const task = taskOf(name)
  if (!task) return html`<${NoTask} name=${name} />`
  const editing = state.route.edit && mayEdit(task)
  const home = task.room_id ? roomHref(task.room_id, 'tasks') : '#/'
  return html`
    <${PageHead} id="task-title" back=${editing ? taskHref(name) : home} symbol=${icon.clock()}
      where=${editing ? name : task.room || 'the rooms'} title=${editing ? `Edit ${name}` : name} />
    <div class="page"><div class="page-column" id="task-page" data-task-name=${name}>
      ${editing
        ? html`<${TaskForm} task=${task} close=${() => location.replace(taskHref(name))}
            done=${() => (toast('Saved.'), location.replace(taskHref(name)))} />`
        : html`<${Summary} task=${task} />
            ${isAdmin() && html`<${Webhook} task=${task} />`}
            <${Runs} task=${task} />`}
    </div></div>`
}

// Only administrators may say which addresses are called.
const mayEdit = (task) => isAdmin() || task.kind !== 'http'

function NoTask({ name }) {
  if (!state.tasksLoaded && !state.tasksError) return html`<div class="blank" aria-busy="true"></div>`
  return html`
    <div class="blank">
      <div class="blank-card" id="task-missing">
        <span class="blank-icon">${icon.clock()}</span>
        <h1>${state.tasksError ? 'The tasks can’t be read' : 'There is no such task'}</h1>
        <p>${state.tasksError || `Nobody has made “${name}”, or somebody has deleted it.`}</p>
        ${state.tasksError && html`<button class="button" onClick=${loadTasks}>Try again</button>`}
        <a class="button" href="#/">To the rooms</a>
      </div>
    </div>`
}

function Summary({ task }) {
  const now = useNow()
  const { name } = task
  const next = task.next_at && new Date(task.next_at)
  // Going on to the run shows what it does.
  const run = async () => {
    const made = await runTask(name)
    if (made) location.hash = runHref(made.id)
  }
  return html`
    <section class="card" aria-label="What it does">
      <p class="task-when">
        <strong class="task-schedule">${sentence(task.description || task.schedule || 'No schedule')}</strong>
        ${task.paused && html`<span class="task-next paused">Paused</span>`}
        ${!task.paused && next && html`
          <span class="task-next" title=${fullTime(next)}>Next ${fromNow(Math.max(next, now), now)}</span>`}
      </p>
      ${!task.paused && next && html`
        <p class="hint"><time datetime=${task.next_at}>${zonedTime(task.next_at, task.zone)}</time></p>`}
      <${What} task=${task} />
      <dl class="facts">
        ${facts(task).map(([label, value]) => html`<div key=${label}><dt>${label}</dt><dd>${value}</dd></div>`)}
      </dl>
      <div class="page-actions">
        <button class="button primary task-run" onClick=${run}>${icon.play()}<span>Run now</span></button>
        <${PauseButton} task=${task} />
        ${mayEdit(task) && html`
          <a class="button small task-edit" href=${taskHref(name, true)}>${icon.edit()}<span>Edit</span></a>`}
        <${CopyButton} label="Copy link" text=${location.origin + '/' + taskHref(name)} />
        <${DeleteButton} task=${task} done=${() => location.replace(roomHref(task.room_id))} />
      </div>
    </section>`
}

// What is worth to be said: that which is not usual.
function facts(task) {
  const { http, retry = {}, concurrency = {} } = task
  const room = state.rooms.find((r) => r.id === task.room_id)
  const statuses = http?.expect_status?.join(', ')
  const attempts = retry.max_attempts && plural(retry.max_attempts, 'attempt')
  const pauses = retry.max_attempts > 1 && retry.backoff_s && `pauses from ${span(retry.backoff_s)}`
  return [
    ['Room', room ? html`<a href=${roomHref(room.id)}>${room.name}</a>` : task.room || 'gone'],
    http && ['Report', reports[task.report || 'failures']],
    http && ['Expects', statuses || '200 to 299'],
    attempts && ['Tries', [attempts, pauses].filter(Boolean).join(', ')],
    task.timeout_s && ['Time limit', span(task.timeout_s)],
    task.overlap === 'allow' && ['Overlap', overlaps.allow[0]],
    task.schedule && task.misfire && task.misfire !== 'latest' && ['Missed times', misfires[task.misfire]?.[0]],
    task.priority && task.priority !== 2 && ['Priority', priorities[task.priority]],
    concurrency.key && ['Shared key', `${concurrency.key}, ${concurrency.limit || 1} at a time`],
    task.at_most_once && ['At most once', 'Yes'],
    task.webhook && !isAdmin() && ['Webhook', 'Yes'],
  ].filter(Boolean)
}

const span = (seconds) => duration(0, seconds * 1_000)

// The webhook. Its secret is told once.

function Webhook({ task }) {
  const [made, setMade] = useState(null)
  const { name } = task
  const address = location.origin + (made?.path ?? `/hooks/v1/tasks/${encodeURIComponent(name)}`)
  const make = async () => setMade(await withTask(() => api.makeWebhook(name)) ?? made)
  const remove = async () => (await withTask(() => api.removeWebhook(name), 'The webhook is removed.')) && setMade(null)
  return html`
    <section class="card" id="webhook" aria-labelledby="webhook-title" data-made=${task.webhook ? '' : undefined}>
      <h2 id="webhook-title">Webhook</h2>
      ${!task.webhook && !made && html`
        <p class="hint">Lets another program run this task by a signed request.</p>
        <div class="page-actions">
          <button class="button small webhook-make" onClick=${make}>${icon.plus()}<span>Make a webhook</span></button>
        </div>`}
      ${(task.webhook || made) && html`
        <div class="copy-row"><code id="webhook-address">${address}</code>
          <${CopyButton} text=${address} what="the address" /></div>`}
      ${made && html`
        <div class="secret" role="status">
          <p><b>The secret. Keep it now: it is not shown again.</b></p>
          <div class="copy-row"><code id="webhook-secret">${made.secret}</code>
            <${CopyButton} text=${made.secret} what="the secret" /></div>
          <p class="label">To try it from a shell</p>
          <div class="copy-row"><pre id="webhook-example" tabindex="0">${example(address, made.secret)}</pre>
            <${CopyButton} text=${example(address, made.secret)} what="the example" /></div>
          <button class="button small" id="webhook-kept" onClick=${() => setMade(null)}>I have kept it</button>
        </div>`}
      ${task.webhook && html`
        <div class="page-actions">
          <${AskButton} name="webhook-rotate" symbol=${icon.history()} label="New secret" act=${make}
            question="The present secret stops working at once." no="Keep it" yes="Make a new one" />
          <${AskButton} name="webhook-remove" symbol=${icon.bin()} label="Remove" act=${remove} what="the webhook"
            question="Who uses it can’t run this task any more." yes="Remove" />
        </div>`}
    </section>`
}

// A request as Standard Webhooks signs it, with nothing but a shell, curl and openssl.
const example = (address, secret) => `url=${quoted(address)}
secret='${secret}'
body='{}'
id="test_$(openssl rand -hex 8)"
time=$(date +%s)
key=$(printf %s "\${secret#whsec_}" |
  openssl base64 -d -A | od -An -v -tx1 | tr -d ' \\n')
sign=$(printf %s "$id.$time.$body" |
  openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | openssl base64 -A)
curl -sS "$url" -d "$body" -H 'Content-Type: application/json' \\
  -H "webhook-id: $id" -H "webhook-timestamp: $time" \\
  -H "webhook-signature: v1,$sign"
`

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`

// Its runs.

export const runStates = {
  queued: 'Waiting', running: 'Running', succeeded: 'Done', failed: 'Failed', cancelled: 'Cancelled',
}

const triggers = { schedule: 'by schedule', webhook: 'by webhook', api: 'by a program', manual: 'by hand' }

export const triggerOf = (run) => triggers[run.trigger] ?? run.trigger

function Runs({ task }) {
  const [only, setOnly] = useState('')
  const { runs, more, busy, error, load, older } = useRuns(task.name, only)
  const now = useNow()
  const filters = [['', 'All'], ...Object.entries(runStates)]
  return html`
    <section class="runs" aria-labelledby="runs-title">
      <h2 id="runs-title">Runs</h2>
      <div class="chips" role="group" aria-label="Which runs are shown" id="runs-filter">
        ${filters.map(([value, label]) => html`
          <button type="button" class="chip" data-state=${value || 'all'} aria-pressed=${only === value}
            onClick=${() => setOnly(value)}>${label}</button>`)}
      </div>
      ${error && html`<p class="form-error" role="alert">${error}
        <button class="link-button" onClick=${load}>Try again</button></p>`}
      <ol class="run-list" id="runs" data-only=${only || 'all'} aria-busy=${!runs && !error}>
        ${runs?.map((run) => html`<${RunRow} key=${run.id} run=${run} now=${now} />`)}
      </ol>
      ${runs && !runs.length && html`
        <p class="hint">${only ? 'There is none like that.' : 'It has not run yet.'}</p>`}
      ${more && html`
        <button class="button wide" id="runs-older" disabled=${busy} onClick=${older}>
          ${busy ? 'Loading…' : 'Older runs'}</button>`}
    </section>`
}

function RunRow({ run, now }) {
  const at = run.started_at || run.due_at || run.created_at
  const until = run.finished_at || (run.state === 'running' && now)
  const facts = [
    run.started_at && until && duration(run.started_at, until),
    run.attempt > 1 && `attempt ${run.attempt}`,
    triggerOf(run),
    run.worker && `on ${run.worker}`,
  ].filter(Boolean)
  return html`
    <li class="run" data-state=${run.state} data-run-id=${run.id}>
      <a class="run-link" href=${runHref(run.id)}>
        <span class="run-state">${stateOf(run)}</span>
        ${at && html`<time datetime=${at} title=${fullTime(at)}>${exactTime(at)}</time>`}
        <span class="run-facts">${facts.join(', ')}</span>
        ${run.error && run.state !== 'succeeded' && html`<span class="run-error">${run.error}</span>`}
        ${run.state === 'running' && run.progress > 0 && html`<${Progress} percent=${run.progress} />`}
      </a>
    </li>`
}

/** In a word what a run is in. */
export function stateOf(run) {
  if (run.cancel_requested && !ended(run)) return 'Stopping'
  if (run.state === 'queued' && run.attempt > 0 && run.error) return 'Trying again'
  return runStates[run.state] ?? run.state
}

/** How far something is; without percents, only that it goes on. */
export function Progress({ percent, label = 'Progress' }) {
  return html`
    <progress class="bar" max="100" value=${percent || undefined} aria-label=${label}>${percent} %</progress>`
}
