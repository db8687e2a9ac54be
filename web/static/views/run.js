// One run on a page of its own: what became of it, and its log as it grows.

import {
  Component, html, useEffect, useLayoutEffect, useRef, useState,
} from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { failed } from '../store/live.js'
import { runHref, taskHref } from '../store/places.js'
import { announce, taskOf, toast } from '../store/state.js'
import { runTask } from '../store/tasks.js'
import { duration, exactTime, fromNow, fullTime, plural, sentence } from '../format.js'
import { icon } from '../icons.js'
import { ended, useRun } from '../runs.js'
import { AskButton, CopyButton, PageHead, useNow } from './parts.js'
import { Progress, stateOf, triggerOf } from './task.js'

export function RunPage({ id }) {
  const live = useRun(id)
  const { run, error, load } = live
  useSpoken(run)
  if (!run && error) return html`<${NoRun} error=${error} load=${load} />`
  if (!run) return html`<div class="blank" aria-busy="true"></div>`
  const name = run.task || run.kind
  return html`
    <${PageHead} id="run-title" symbol=${icon.history()} title="${name}, run ${run.id}"
      back=${run.task ? taskHref(run.task) : '#/'} where=${run.task || 'the rooms'} />
    <div class="page"><div class="page-column run-page" id="run-page" data-run-id=${run.id} data-state=${run.state}>
      ${error && html`<p class="form-error" role="alert">${error}
        <button class="link-button" onClick=${load}>Try again</button></p>`}
      <${Facts} run=${run} />
      <${Log} live=${live} count=${live.lines.length} />
    </div></div>`
}

const NoRun = ({ error, load }) => html`
  <div class="blank">
    <div class="blank-card" id="run-missing">
      <span class="blank-icon">${icon.history()}</span>
      <h1>This run can’t be shown</h1>
      <p>${sentence(error)}</p>
      <button class="button" onClick=${load}>Try again</button>
      <a class="button quiet" href="#/">To the rooms</a>
    </div>
  </div>`

// The end of a run is worth a word to those who don't see it.
function useSpoken(run) {
  const before = useRef('')
  useEffect(() => {
    if (!run) return
    if (before.current && before.current !== run.state && ended(run)) announce(`Run ${run.id}: ${stateOf(run)}`)
    before.current = run.state
  }, [run?.state])
}

function Facts({ run }) {
  const now = useNow(250)
  const cancel = async () => {
    try {
      await api.cancelRun(run.id)
    } catch (error) {
      toast(sentence(failed(error)))
    }
  }
  const again = async () => {
    const made = await runTask(run.task)
    if (made) location.hash = runHref(made.id)
  }
  const running = run.state === 'running'
  return html`
    <section class="card run-card" data-state=${run.state} aria-label="What became of it">
      <p class="run-headline"><span class="run-state" role="status">${stateOf(run)}</span>
        <span class="run-story">${story(run, now)}</span></p>
      ${running && html`<div class="run-progress"><${Progress} percent=${run.progress} />
        ${run.progress > 0 && html`<span aria-hidden="true">${run.progress} %</span>`}</div>`}
      ${run.error && run.state !== 'succeeded' && html`<pre class="run-error" tabindex="0">${run.error}</pre>`}
      <dl class="facts">
        ${facts(run).map(([label, value]) => html`<div key=${label}><dt>${label}</dt><dd>${value}</dd></div>`)}
      </dl>
      <div class="page-actions">
        ${!ended(run) && !run.cancel_requested && html`
          <${AskButton} name="run-cancel" kind="button" symbol=${icon.stop()} label="Cancel the run" act=${cancel}
            question=${running ? 'It stops where it is.' : 'It will not begin.'} no="Let it be"
            yes="Cancel the run" />`}
        ${ended(run) && run.task && taskOf(run.task) && html`
          <button class="button run-again" onClick=${again}>${icon.play()}<span>Run again</span></button>`}
        <${CopyButton} label="Copy link" text=${location.origin + '/' + runHref(run.id)} />
      </div>
    </section>`
}

// What goes on, or went on, in a few words.
function story(run, now) {
  const took = run.started_at && duration(run.started_at, run.finished_at || now)
  const due = new Date(run.due_at)
  if (run.state === 'running') return `for ${took}`
  if (run.state === 'queued') return due > now ? `begins ${fromNow(due, now)}` : 'for its turn'
  return run.started_at ? `after ${took}` : 'before it began'
}

function facts(run) {
  const time = (iso) => html`<time datetime=${iso} title=${fullTime(iso)}>${exactTime(iso)}</time>`
  return [
    ['Begun', triggerOf(run)],
    run.scheduled_for && ['Planned for', time(run.scheduled_for)],
    run.started_at && ['Started', time(run.started_at)],
    run.finished_at && ['Ended', time(run.finished_at)],
    run.attempt > 0 && ['Attempt', run.max_attempts ? `${run.attempt} of ${run.max_attempts}` : run.attempt],
    run.rescues > 0 && ['Taken over', `${plural(run.rescues, 'time')}, as its machine had vanished`],
    run.worker && ['On', run.worker],
  ].filter(Boolean)
}

// The log.

const chunkSize = 200

function Log({ live, count }) {
  const { run, lines, logLoaded } = live
  const box = useRef(null)
  const stick = useRef(true)
  const [away, setAway] = useState(false)

  // Stay at the end, unless one has scrolled up to read.
  useLayoutEffect(() => {
    if (stick.current) box.current.scrollTop = box.current.scrollHeight
  }, [count])
  useEffect(() => {
    const watcher = new ResizeObserver(() => {
      if (stick.current) box.current.scrollTop = box.current.scrollHeight
    })
    watcher.observe(box.current)
    return () => watcher.disconnect()
  }, [])

  function onScroll() {
    const el = box.current
    stick.current = el.scrollHeight - el.scrollTop - el.clientHeight < 32
    setAway(!stick.current)
  }
  function toEnd() {
    stick.current = true
    box.current.scrollTop = box.current.scrollHeight
    setAway(false)
  }

  const chunks = []
  for (let from = 0; from < count; from += chunkSize) {
    const size = Math.min(chunkSize, count - from)
    chunks.push(html`<${Chunk} key=${from} lines=${lines} from=${from} size=${size} />`)
  }
  const unkept = run.log_lines - count
  return html`
    <section class="log-frame" aria-labelledby="log-title">
      <h2 id="log-title">Log</h2>
      <div class="log" id="log" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-live="off"
        aria-labelledby="log-title" data-lines=${count} aria-busy=${!logLoaded}>
        ${chunks}
        ${logLoaded && !count && html`
          <p class="hint">
            ${ended(run) ? 'It has written nothing.' : 'Nothing yet. Lines appear as they are written.'}</p>`}
        ${logLoaded && ended(run) && unkept > 0 && html`
          <p class="hint">${plural(unkept, 'further line')} could not be kept.</p>`}
      </div>
      ${away && html`
        <button class="jump" id="log-end" onClick=${toEnd}>
          ${icon.down()}${ended(run) ? 'To the end' : 'Follow the log'}</button>`}
    </section>`
}

class Chunk extends Component {
  // A long log is drawn anew with each line; all but its end is the same as before.
  shouldComponentUpdate(next) {
    return next.size !== this.props.size || next.lines !== this.props.lines
  }

  render({ lines, from, size }) {
    return lines.slice(from, from + size).map((line, i) => {
      const first = line.attempt > 1 && line.attempt !== lines[from + i - 1]?.attempt
      return html`
        ${first && html`<p class="log-attempt" key="attempt-${line.attempt}">Attempt ${line.attempt}</p>`}
        <p class="log-line" key=${line.number} data-number=${line.number}>
          <time datetime=${line.at} title=${fullTime(line.at)}>${exactTime(line.at)}</time>
          <span>${line.text}</span></p>`
    })
  }
}
