// Background jobs, and what came of each: for administrators.

import { html } from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { duration, exactTime, fullTime, plural } from '../format.js'
import { ReadError, useRead } from './parts.js'

export function Jobs() {
  const { value, error, load } = useRead(api.jobs, 60_000)
  const jobs = value?.filter((job) => !job.loop) ?? [] // of the others nothing is written down
  const failing = jobs.filter((job) => job.failures).length
  return html`
    <details class="more" id="jobs">
      <summary>Background jobs${failing > 0 && `: ${plural(failing, 'job')} failing`}</summary>
      <${ReadError} error=${error} load=${load} />
      <div class="table-frame">
        <table class="audit" aria-label="Background jobs">
          <thead><tr><th scope="col">Last run</th><th scope="col">Job</th></tr></thead>
          <tbody>${jobs.map((job) => html`<${Job} key=${job.name} job=${job} />`)}</tbody>
        </table>
      </div>
    </details>`
}

const Job = ({ job }) => html`
  <tr data-job=${job.name} data-class=${job.class}>
    <td class="audit-when">${job.turns ? html`<${At} time=${job.started_at} />` : 'Never'}</td>
    <td><b>${job.name}</b> ${job.about}${' '}
      <span class="hint">${[...facts(job)].join(', ')}</span>
      ${job.error && html`<p class="hint">Failed at <${At} time=${job.error_at} />: ${job.error}</p>`}</td>
  </tr>`

const At = ({ time }) => html`<time datetime=${time} title=${fullTime(time)}>${exactTime(time)}</time>`

function* facts(job) {
  if (job.class !== 'replica-safe') yield job.class
  if (!job.turns) return
  yield `by ${job.node}`
  yield job.ended_at ? `took ${duration(job.started_at, job.ended_at)}` : 'not ended'
  if (job.failures) yield `${plural(job.failures, 'failure')} in a row`
  yield `next at ${exactTime(job.next_at)}`
}
