// Who did what: for administrators.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { duration, exactTime, fullTime, plural, sentence } from '../format.js'
import { icon } from '../icons.js'
import { failed } from '../store/live.js'
import { roomOf } from '../store/state.js'
import { Jobs } from './jobs.js'
import { Choice, Field, PageHead, ReadError, useRead } from './parts.js'

const pageSize = 50

export function AuditPage() {
  const [filter, setFilter] = useState({ actor: '', action: '', since: '' })
  const log = useLog(filter)
  const { lines, more, busy, error, load, older } = log
  return html`
    <${PageHead} id="audit-title" back="#/" where="the rooms" symbol=${icon.list()} title="Audit log">
      <button type="button" class="button quiet" id="audit-again" aria-label="Look again" onClick=${load}>
        ${icon.again()}<span class="wide-only">Look again</span></button>
    <//>
    <div class="page"><div class="page-column" id="audit-page">
      <${Filters} filter=${filter} set=${setFilter} />
      <${ReadError} error=${error} load=${load} />
      <div class="table-frame">
        <table class="audit" id="audit" aria-labelledby="audit-title" aria-busy=${!lines && !error}>
          <thead><tr><th scope="col">When</th><th scope="col">What</th></tr></thead>
          <tbody>${lines?.map((line) => html`<${Line} key=${line.id} line=${line} />`)}</tbody>
        </table>
      </div>
      <p class="hint" id="audit-count" role="status">
        ${lines?.length > 0 && `${plural(lines.length, 'line')}${more ? ', and there are older ones' : ''}`}
        ${lines?.length === 0 && 'There is nothing like that.'}</p>
      ${more && html`
        <button class="button wide" id="audit-older" disabled=${busy} onClick=${older}>
          ${busy ? 'Loading…' : 'Older lines'}</button>`}
      <${Jobs} />
    </div></div>`
}

// The lines that a filter lets through, the newest first. An answer that comes late counts no more.
function useLog(filter) {
  const [log, setLog] = useState({ lines: null, more: false })
  const [error, setError] = useState('')
  const [busy, setBusy] = useState(false)
  const last = useRef(0)

  async function read(before, lines) {
    const asked = ++last.current
    const query = { limit: pageSize }
    if (filter.actor) query.actor = filter.actor
    if (filter.action) query.action = filter.action
    if (filter.since) query.since = new Date(`${filter.since}T00:00`).toISOString()
    if (before) query.before = before
    setBusy(true)
    setError('')
    try {
      const page = await api.audit(query)
      if (asked === last.current) setLog({ lines: [...lines, ...page.lines], more: page.more })
    } catch (e) {
      if (asked === last.current) setError(sentence(failed(e)))
    }
    if (asked === last.current) setBusy(false)
  }
  const load = () => read(0, [])
  useEffect(() => {
    load()
    return () => { last.current++ }
  }, [filter])
  return { ...log, busy, error, load, older: () => read(log.lines.at(-1).id, log.lines) }
}

const groups = [
  ['account', 'Accounts', [
    ['account.created', 'Account made'], ['account.role', 'Role changed'], ['account.deactivated', 'Deactivated'],
    ['account.reactivated', 'Reactivated'], ['account.password', 'Password changed'],
    ['account.reset_made', 'Reset link made'], ['account.reset', 'Reset link used'],
  ]],
  ['session', 'Signing in and out', [
    ['session.signed_in', 'Signed in'], ['session.failed', 'Wrong password'], ['session.signed_out', 'Signed out'],
    ['session.revoked', 'Sessions ended'],
  ]],
  ['token', 'Tokens', [['token.created', 'Token made'], ['token.revoked', 'Token revoked']]],
  ['invitation', 'Invitations', [
    ['invitation.created', 'Invitation made'], ['invitation.withdrawn', 'Invitation withdrawn'],
  ]],
  ['task', 'Tasks', [
    ['task.created', 'Task made'], ['task.changed', 'Task changed'], ['task.paused', 'Task paused'],
    ['task.resumed', 'Task resumed'], ['task.deleted', 'Task deleted'], ['task.webhook_created', 'Webhook made'],
    ['task.webhook_removed', 'Webhook removed'],
  ]],
]

function Filters({ filter, set }) {
  const { value: people } = useRead(api.people, 300_000)
  const change = (event) => set({ ...filter, [event.target.name]: event.target.value })
  const option = ([value, label]) => html`<option key=${value} value=${value}>${label}</option>`
  return html`
    <form class="triple filters" id="audit-filter" role="search" aria-label="Which lines are shown" onChange=${change}
      onSubmit=${(e) => e.preventDefault()}>
      <${Choice} id="audit-actor" name="actor" label="Who"
        options=${[['', 'Everybody'], ...(people ?? []).map((p) => [p.id, p.name])]} />
      <${Field} id="audit-action" name="action" label="What">
        ${(props) => html`
          <select ...${props}>
            <option value="">Everything</option>
            ${groups.map(([group, label, actions]) => html`
              <optgroup key=${group} label=${label}>${option([group, `All: ${label.toLowerCase()}`])}
                ${actions.map(option)}</optgroup>`)}
          </select>`}
      <//>
      <${Field} id="audit-since" name="since" label="Since" type="date" />
    </form>`
}

const Line = ({ line }) => html`
  <tr data-line=${line.id} data-action=${line.action}>
    <td class="audit-when"><time datetime=${line.at} title=${fullTime(line.at)}>${exactTime(line.at)}</time></td>
    <td><span class="audit-what">${told(line)}</span>
      ${line.address && html` <span class="hint audit-from">from ${line.address}</span>`}</td>
  </tr>`

const roles = { admin: 'an administrator', member: 'a member', guest: 'a guest' }
const b = (text) => html`<b>${text}</b>`

// For each action, what follows who did it.
const stories = {
  'account.set_up': () => 'set this instance up and became its administrator',
  'account.created': ({ target, details: d, self }) => (self
    ? html`joined as ${roles[d.role]}${d.invited_by && html`, invited by ${b(d.invited_by)}`}`
    : html`made an account for ${b(target)}, ${roles[d.role]}`),
  'account.role': ({ target, details: d, self }) =>
    html`made ${self ? 'themself' : b(target)} ${roles[d.to]}, who was ${roles[d.from]}`,
  'account.deactivated': ({ target, self }) => html`deactivated ${self ? 'themself' : b(target)}`,
  'account.reactivated': ({ target }) => html`reactivated ${b(target)}`,
  'account.password': ({ details: d }) => `changed their password${others(d.sessions_ended)}`,
  'account.reset_made': ({ target, self }) =>
    html`made a link by which ${self ? 'they choose' : html`${b(target)} chooses`} another password`,
  'account.reset': ({ details: d }) => `chose another password by a link${others(d.sessions_ended)}`,
  'session.signed_in': () => 'signed in',
  'session.failed': ({ target }) => (target
    ? html`tried to sign in as ${b(target)} with a wrong password` : 'tried to sign in by a name that nobody has'),
  'session.signed_out': () => 'signed out',
  'session.revoked': ({ target, details: d, self }) =>
    html`ended ${plural(d.count, 'session')} of ${self ? 'their own' : b(target)}`,
  'token.created': ({ details: d }) => html`made the token ${b(d.name)} (${d.scopes.replaceAll(' ', ', ')}), good ${
    d.expires_in_s ? `for ${life(d.expires_in_s)}` : 'until it is revoked'}`,
  'token.revoked': ({ details: d }) => html`revoked the token ${b(d.name)}`,
  'invitation.created': ({ details: d }) =>
    `made the invitation ${d.id} for ${roles[d.role]}${d.room_id ? ` in ${roomName(d.room_id)}` : ''}`,
  'invitation.withdrawn': ({ details: d }) => `withdrew the invitation ${d.id} for ${roles[d.role]}`,
  'task.created': ({ target }) => html`made the task ${b(target)}`,
  'task.changed': ({ target }) => html`changed the task ${b(target)}`,
  'task.paused': ({ target }) => html`paused the task ${b(target)}`,
  'task.resumed': ({ target }) => html`resumed the task ${b(target)}`,
  'task.deleted': ({ target }) => html`deleted the task ${b(target)}`,
  'task.webhook_created': ({ target }) => html`made a webhook, or another secret of it, for the task ${b(target)}`,
  'task.webhook_removed': ({ target }) => html`removed the webhook of the task ${b(target)}`,
}

const roomName = (id) => roomOf(id)?.name ?? `room ${id}`

const others = (n) => (n ? `, which ended ${plural(n, 'session')}` : '')

const life = (seconds) => (seconds % 86_400 ? duration(0, seconds * 1_000) : plural(seconds / 86_400, 'day'))

function told(line) {
  const { actor, actor_id: id, target, action, details } = line
  const who = id ? b(actor) : actor === '(command line)' ? 'The command line' : 'Somebody'
  const self = Boolean(id) && actor === target
  const story = stories[action]
  return html`${who} ${story ? story({ target, details, self }) : `${action} ${target}`}`
}
