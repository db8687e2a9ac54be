// The form of a task, to make one or to change it.
//
// What is typed is a draft: flat texts by the names of the form's fields. It stays in the store until it is saved or
// given up, so that a look at another page loses nothing. A draft remembers what the task was when it was begun;
// when somebody else changed the task meanwhile, what only they changed is taken over, and the rest is asked.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { api, ApiError } from '../api.js'
import { isAdmin, state } from '../store/state.js'
import { loadTasks } from '../store/tasks.js'
import { fullTime, localZone, plural, sentence, wallTime, zonedTime, zones } from '../format.js'
import { Field, FormError, useForm } from './parts.js'

const labels = {
  kind: 'Kind', name: 'Name', text: 'Message', 'http.method': 'Method', 'http.url': 'Address',
  'http.headers': 'Headers', 'http.body': 'Body', 'http.expect_status': 'Expected status',
  'http.timeout_s': 'Answer within', report: 'Report', room_id: 'Room', schedule: 'Schedule', zone: 'Time zone',
  overlap: 'When a run takes longer', misfire: 'Missed times', misfire_cap: 'At most',
  'retry.max_attempts': 'Attempts', 'retry.backoff_s': 'First pause', 'retry.max_backoff_s': 'Longest pause',
  timeout_s: 'Time limit', priority: 'Priority', 'concurrency.key': 'Shared key',
  'concurrency.limit': 'Together at most', at_most_once: 'At most once',
}
const fields = Object.keys(labels)
const advanced = fields.slice(fields.indexOf('overlap'))

const http = (draft) => draft.kind === 'http'

const methods = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE']

export const reports = { failures: 'Only failures', always: 'Every run', never: 'Nothing' }

export const overlaps = {
  forbid: ['One run at a time', 'A time that comes while a run is under way waits, and then counts as missed.'],
  allow: ['Runs may overlap', 'Each time begins a run, whether the one before has ended or not.'],
}

export const misfires = {
  latest: ['Run the latest one', 'After a pause or an outage it runs once, for the last time that was missed.'],
  skip: ['Skip them', 'What was missed by more than a minute is not made up for.'],
  all: ['Run them all', 'Each missed time gets its run, in order, the oldest left out when there are too many.'],
}

const named = (policies) => Object.entries(policies).map(([value, [name]]) => [value, name])

export const priorities = { 1: 'First', 2: 'Normal', 3: 'Later', 4: 'Last' }

// What an empty field means.
const defaults = (values) => ({
  'http.timeout_s': '30', misfire_cap: '10', 'retry.max_attempts': values.at_most_once ? '1' : '3',
  'retry.backoff_s': '1', 'retry.max_backoff_s': '3600', timeout_s: 'None', 'concurrency.limit': '1',
})

const presets = [
  ['Every minute', '@every 1m'],
  ['Hourly', '0 * * * *'],
  ['Daily at 9', '0 9 * * *'],
  ['Weekdays at 9', '0 9 * * mon-fri'],
]

// From and to what the server knows.

const text = (value) => (value ? String(value) : '')

function draftOf(task) {
  const { http: request = {}, retry = {}, concurrency = {} } = task
  return {
    kind: task.kind || 'message', name: task.name ?? '', text: task.text ?? '',
    'http.method': request.method || 'GET', 'http.url': request.url ?? '',
    'http.headers': Object.entries(request.headers ?? {}).map(([name, value]) => `${name}: ${value}`).join('\n'),
    'http.body': request.body ?? '', 'http.expect_status': (request.expect_status ?? []).join(', '),
    'http.timeout_s': text(request.timeout_s), report: task.report || 'failures', room_id: String(task.room_id),
    schedule: task.schedule ?? '', zone: task.zone || 'UTC', overlap: task.overlap || 'forbid',
    misfire: task.misfire || 'latest', misfire_cap: text(task.misfire_cap),
    'retry.max_attempts': text(retry.max_attempts), 'retry.backoff_s': text(retry.backoff_s),
    'retry.max_backoff_s': text(retry.max_backoff_s),
    timeout_s: text(task.timeout_s), priority: String(task.priority || 2), 'concurrency.key': concurrency.key ?? '',
    'concurrency.limit': text(concurrency.limit), at_most_once: task.at_most_once ? 'yes' : '',
  }
}

function taskFrom(draft) {
  const number = (name) => (draft[name] === '' ? undefined : Number(draft[name]))
  const task = {
    kind: draft.kind, name: draft.name.trim(), room_id: Number(draft.room_id), schedule: draft.schedule.trim(),
    zone: draft.zone.trim(), overlap: draft.overlap, misfire: draft.misfire,
    misfire_cap: draft.misfire === 'all' ? number('misfire_cap') : undefined,
    retry: {
      max_attempts: number('retry.max_attempts'), backoff_s: number('retry.backoff_s'),
      max_backoff_s: number('retry.max_backoff_s'),
    },
    timeout_s: number('timeout_s'), priority: Number(draft.priority), at_most_once: Boolean(draft.at_most_once),
  }
  const key = draft['concurrency.key'].trim()
  if (key) task.concurrency = { key, limit: number('concurrency.limit') }
  if (!http(draft)) return { ...task, text: draft.text.trim() }
  const bodiless = ['GET', 'HEAD'].includes(draft['http.method'])
  return {
    ...task, report: draft.report,
    http: {
      method: draft['http.method'], url: draft['http.url'].trim(), headers: headersFrom(draft['http.headers']),
      body: bodiless ? '' : draft['http.body'], expect_status: statusesFrom(draft['http.expect_status']),
      timeout_s: number('http.timeout_s'),
    },
  }
}

const wrong = (field, detail) => new ApiError(422, { detail, field })

function headersFrom(lines) {
  const headers = {}
  for (const line of lines.split('\n').map((l) => l.trim()).filter(Boolean)) {
    const colon = line.indexOf(':')
    if (colon < 1) throw wrong('http.headers', `“${line}” is no header: write its name, a colon and its value`)
    headers[line.slice(0, colon).trim()] = line.slice(colon + 1).trim()
  }
  return headers
}

function statusesFrom(list) {
  const words = list.split(/[\s,;]+/).filter(Boolean)
  const odd = words.find((word) => !/^\d{3}$/.test(word))
  if (odd) throw wrong('http.expect_status', `“${odd}” is no status: write numbers such as 200, 204`)
  return words.map(Number)
}

// What a field's value is called, for the one who must choose between two.
function shown(field, value) {
  const names = {
    room_id: () => state.rooms.find((r) => String(r.id) === value)?.name, report: () => reports[value],
    overlap: () => overlaps[value]?.[0], misfire: () => misfires[value]?.[0], priority: () => priorities[value],
    at_most_once: () => (value ? 'Yes' : 'No'),
  }
  return names[field]?.() ?? (value || 'nothing')
}

const draftKey = (task, room) => (task ? `task ${task.name}` : `room ${room.id}`)

/** Whether something was typed into the form, and neither saved nor given up. */
export const hasDraft = (task, room) => Boolean(state.drafts[draftKey(task, room)])

/**
 * The form. `task` is the one to change, or null for a new one in the room; begun() is called when something was
 * typed, done(task) when it was saved, close() to leave it.
 */
export function TaskForm({ room, task = null, begun, done, close }) {
  const key = draftKey(task, room)
  const [draft, setDraft] = useState(() => state.drafts[key] ?? fresh(task, room))
  const [theirs, setTheirs] = useState(null) // what others changed meanwhile
  const first = useRef(null)
  const more = useRef(null)
  const problem = useRef(null)
  const { values } = draft
  const prefix = task ? 'task-edit' : 'task-new'
  const id = (field) => `${prefix}-${field.replace(/[._]/g, '-')}`
  useEffect(() => close && first.current.focus(), []) // when it was asked for

  function keep(next) {
    state.drafts[key] = next
    setDraft(next)
  }
  function set(field, value) {
    keep({ ...draft, values: { ...values, [field]: value } })
    begun?.()
    if (form.error?.field === field) form.clear()
  }
  function giveUp() {
    delete state.drafts[key]
    close()
  }

  const form = useForm(async () => {
    try {
      const saved = await (task ? update() : api.createTask(taskFrom(values)))
      delete state.drafts[key]
      await loadTasks()
      done(saved)
    } catch (error) {
      if (advanced.includes(error.field)) more.current.open = true
      throw error
    }
  }, { reset: false })

  useEffect(() => {
    if (form.error && !form.error.field) problem.current.scrollIntoView({ block: 'nearest' })
  }, [form.error])

  async function update() {
    const save = (version) => api.updateTask(task.name, { ...taskFrom(values), version })
    try {
      return await save(draft.version)
    } catch (error) {
      if (error.status !== 409) throw error
      const now = await api.task(task.name)
      const other = draftOf(now)
      // To pause and to resume are changes too, but nothing of them is in the form.
      if (fields.every((field) => other[field] === draft.base[field])) return save(now.version)
      takeOver(error, now, other)
      throw error
    }
  }

  // Somebody else changed the task: their changes and those of the draft become one.
  function takeOver(conflict, now, other) {
    const merged = { ...other }
    const changes = []
    for (const field of fields) {
      const changed = other[field] !== draft.base[field]
      if (values[field] !== draft.base[field]) merged[field] = values[field]
      if (changed) changes.push({ field, value: other[field], clash: merged[field] !== other[field] })
    }
    keep({ version: now.version, base: other, values: merged })
    setTheirs(changes)
    conflict.field = ''
    conflict.message = 'This was not saved yet, because somebody else changed the task meanwhile. ' +
      'Nothing that you typed is lost.'
  }

  const control = (field, more = {}) => ({
    id: id(field), name: field, label: labels[field], error: form.error, ...more,
  })
  const input = (field, more = {}) => ({ value: values[field], onInput: (e) => set(field, e.target.value), ...more })
  const plain = { autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false' }
  const number = (field, max) =>
    input(field, { type: 'number', inputmode: 'numeric', min: 1, max, step: 1, placeholder: defaults(values)[field] })
  const choice = (field, options, hint) => html`
    <${Field} ...${control(field, { hint })}>
      ${(props) => html`
        <select ...${props} ...${input(field)}>
          ${options.map(([value, name]) => html`
            <option value=${value} selected=${values[field] === value}>${name}</option>`)}
        </select>`}
    <//>`
  // Once the form has said what is wrong, the preview need not say it again.
  const refused = ['schedule', 'zone'].includes(form.error?.field)
  const bodiless = ['GET', 'HEAD'].includes(values['http.method'])

  return html`
    <form class="task-form" id="${prefix}-form" onSubmit=${form.submit}
      aria-label=${task ? `Edit ${task.name}` : 'New task'}
      onKeyDown=${(e) => e.key === 'Escape' && close && (e.stopPropagation(), close())}>
      ${isAdmin() && !task && html`
        <fieldset class="kinds">
          <legend class="label">What it does</legend>
          ${[['message', 'Post a message'], ['http', 'Call an address']].map(([kind, label]) => html`
            <label class="kind"><input type="radio" name="kind" value=${kind} id="${prefix}-kind-${kind}"
              checked=${values.kind === kind} onChange=${() => set('kind', kind)} /><span>${label}</span></label>`)}
        </fieldset>`}
      ${!task && html`
        <${Field} ...${control('name')}>
          ${(props) => html`
            <input ...${props} ...${input('name')} ref=${first} required maxlength="100" autocomplete="off"
              placeholder=${http(values) ? 'Nightly backup' : 'Stand-up'} />`}
        <//>`}
      ${!http(values) && html`
        <${Field} ...${control('text')}>
          ${(props) => html`
            <textarea ...${props} ...${input('text')} ref=${task ? first : undefined} required rows="2"
              placeholder="Good morning! What are you up to today?"></textarea>`}
        <//>`}
      ${http(values) && html`
        <div class="pair request">
          ${choice('http.method', methods.map((m) => [m, m]))}
          <${Field} ...${control('http.url')}>
            ${(props) => html`
              <input ...${props} ...${input('http.url')} ...${plain} ref=${task ? first : undefined} type="url" required
                inputmode="url" class="mono" placeholder="https://example.com/report" />`}
          <//>
        </div>
        ${!bodiless && html`
          <${Field} ...${control('http.body')}>
            ${(props) => html`
              <textarea ...${props} ...${input('http.body')} ...${plain} class="mono" rows="3"
                placeholder='{"text":"…"}'></textarea>`}
          <//>`}
        <${Field} ...${control('http.headers', { hint: 'One a line, as in Accept: application/json.' })}>
          ${(props) => html`
            <textarea ...${props} ...${input('http.headers')} ...${plain} class="mono" rows="2"
              placeholder="Authorization: Bearer …"></textarea>`}
        <//>
        <div class="pair">
          <${Field} ...${control('http.expect_status', { hint: 'Any other is a failure.' })}>
            ${(props) => html`
              <input ...${props} ...${input('http.expect_status')} ...${plain} inputmode="text"
                placeholder="200 to 299" />`}
          <//>
          <${Field} ...${control('http.timeout_s', { hint: 'In seconds.' })}>
            ${(props) => html`<input ...${props} ...${number('http.timeout_s', 600)} />`}
          <//>
        </div>
        ${choice('report', Object.entries(reports), `Which runs post a line into “${roomName(values.room_id)}”.`)}`}
      ${task && choice('room_id', roomChoices(values.room_id))}

      <${Field} ...${control('schedule')}>
        ${(props) => html`
          <input ...${props} ...${input('schedule')} ...${plain} class="mono" placeholder="0 9 * * mon-fri" />
          <div class="chips" role="group" aria-label="Common schedules">
            ${presets.map(([label, value]) => html`
              <button type="button" class="chip" aria-pressed=${values.schedule === value}
                onClick=${() => set('schedule', value)}>${label}</button>`)}
            <button type="button" class="chip" id=${id('once')} aria-pressed=${values.schedule.startsWith('@at')}
              onClick=${() => set('schedule', soon(values.zone))}>Once…</button>
          </div>
          <${Once} id=${id('once-at')} schedule=${values.schedule} set=${(value) => set('schedule', value)} />`}
      <//>
      <${Field} ...${control('zone')}>
        ${(props) => html`
          <input ...${props} ...${input('zone')} ...${plain} required list="zones" />
          <datalist id="zones">${zones.map((z) => html`<option value=${z} />`)}</datalist>`}
      <//>
      ${refused || html`<${Preview} schedule=${values.schedule.trim()} zone=${values.zone.trim()} />`}

      <details class="more" id="${prefix}-more" ref=${more} onInvalidCapture=${() => { more.current.open = true }}>
        <summary>More options${summaryOf(values)}</summary>
        <div class="more-body">
          ${choice('overlap', named(overlaps), overlaps[values.overlap]?.[1])}
          ${choice('misfire', named(misfires), misfires[values.misfire]?.[1])}
          ${values.misfire === 'all' && html`
            <${Field} ...${control('misfire_cap', { hint: 'How many missed times get a run.' })}>
              ${(props) => html`<input ...${props} ...${number('misfire_cap', 1000)} />`}
            <//>`}
          <div class="triple">
            <${Field} ...${control('retry.max_attempts')}>
              ${(props) => html`<input ...${props} ...${number('retry.max_attempts', 100)} />`}
            <//>
            <${Field} ...${control('retry.backoff_s')}>
              ${(props) => html`<input ...${props} ...${number('retry.backoff_s')} />`}
            <//>
            <${Field} ...${control('retry.max_backoff_s')}>
              ${(props) => html`<input ...${props} ...${number('retry.max_backoff_s')} />`}
            <//>
            <p class="hint">What fails is tried again, after pauses in seconds that double each time.</p>
          </div>
          <div class="pair">
            <${Field} ...${control('timeout_s', { hint: 'Of one attempt, in seconds.' })}>
              ${(props) => html`<input ...${props} ...${number('timeout_s')} />`}
            <//>
            ${choice('priority', Object.entries(priorities), 'Who goes first when much is due.')}
          </div>
          <div class="pair">
            <${Field} ...${control('concurrency.key', { hint: 'Tasks with the same key share a limit.' })}>
              ${(props) => html`
                <input ...${props} ...${input('concurrency.key')} ...${plain} maxlength="200" placeholder="None" />`}
            <//>
            <${Field} ...${control('concurrency.limit', { hint: 'Runs under way at a time.' })}>
              ${(props) => html`
                <input ...${props} ...${number('concurrency.limit', 10_000)}
                  disabled=${!values['concurrency.key'].trim()} />`}
            <//>
          </div>
          <label class="check">
            <input type="checkbox" name="at_most_once" id=${id('at_most_once')} checked=${Boolean(values.at_most_once)}
              onChange=${(e) => set('at_most_once', e.target.checked ? 'yes' : '')} />
            <span><b>${labels.at_most_once}</b><span class="hint">When the machine that runs it fails, it is better
              not to run it again than to run it twice.</span></span>
          </label>
        </div>
      </details>

      <div class="problem" ref=${problem}>
        <${FormError} error=${form.error} fields=${fields} wait=${form.wait} />
        ${theirs && html`<${Theirs} changes=${theirs} values=${values} set=${set} />`}
      </div>
      <div class="form-actions">
        <button class="button primary" id="${prefix}-submit" disabled=${form.busy || form.wait > 0}>
          ${form.busy ? 'One moment…' : task ? 'Save the changes' : 'Create the task'}</button>
        ${close && html`
          <button type="button" class="button quiet" id="${prefix}-cancel" onClick=${giveUp}>Cancel</button>`}
      </div>
    </form>`
}

function fresh(task, room) {
  const base = draftOf(task ?? { room_id: room.id, zone: localZone })
  return { version: task?.version, base, values: base }
}

const roomName = (id) => state.rooms.find((r) => String(r.id) === id)?.name ?? 'the room'

function roomChoices(id) {
  const choices = state.rooms.map((r) => [String(r.id), r.name])
  return choices.some(([known]) => known === id) ? choices : [[id, 'A room that is gone'], ...choices]
}

// How many of the folded options are not as they are by default.
function summaryOf(values) {
  const usual = { ...draftOf({ room_id: 0 }), ...defaults(values) }
  const set = advanced.filter((field) => values[field] && values[field] !== usual[field]).length
  return set ? html` <span class="count">${set}<span class="sr-only"> set</span></span>` : ''
}

// The next full hour, as the zone's clock shows it.
const soon = (zone) => `@at ${wallTime(Math.floor(Date.now() / 3_600_000 + 1) * 3_600_000, zone.trim())}`

// A single time can be chosen instead of typed.
function Once({ id, schedule, set }) {
  if (!schedule.startsWith('@at')) return null
  const [, date, clock] = schedule.trim().match(/^@at (\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)$/) ?? []
  return html`
    <label class="sr-only" for=${id}>Date and time</label>
    <input type="datetime-local" id=${id} value=${date ? `${date}T${clock}` : ''}
      onInput=${(e) => e.target.value && set(`@at ${e.target.value.replace('T', ' ')}`)} />`
}

// What others changed since the form was opened.
function Theirs({ changes, values, set }) {
  return html`
    <div class="theirs" id="task-edit-theirs" role="status">
      <h3>What they changed</h3>
      <ul>
        ${changes.map(({ field, value, clash }) => html`
          <li data-field=${field}><b>${labels[field]}</b> <q>${shown(field, value)}</q>
            ${clash && values[field] !== value
              ? html`<span class="theirs-choice">you have <q>${shown(field, values[field])}</q>
                  ${' '}<button type="button" class="link-button" onClick=${() => set(field, value)}>
                    Use theirs</button></span>`
              : html`<span class="theirs-choice">taken over</span>`}
          </li>`)}
      </ul>
      <p>Look it over, then save.</p>
    </div>`
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
        <p class="hint">Five cron fields, or <code>@every 10m</code>, or <code>@at 2026-12-24 18:00</code>: what they
          mean appears here as you type. Without a schedule the task runs only by hand.</p>`}
      ${kind === 'loading' && html`<p class="hint">Reading…</p>`}
      ${kind === 'error' && html`<p class="field-error">${sentence(answer.message)}</p>`}
      ${kind === 'ready' && html`
        <p class="schedule-description">${sentence(answer.description)}</p>
        ${answer.next.length > 0
          ? html`<p class="label">Next ${plural(answer.next.length, 'time')}</p>
              <ol class="schedule-next">
                ${answer.next.map((at) => html`
                  <li><time datetime=${at} title="Your time: ${fullTime(at)}">
                    ${zonedTime(at, answer.zone)}</time></li>`)}
              </ol>`
          : html`<p class="hint">This never comes, or has passed.</p>`}`}
    </div>`
}
