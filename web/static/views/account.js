// One's own account: the password, where one is signed in, and the tokens of one's programs.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { deviceName, fromNow, fullTime, plural } from '../format.js'
import { icon } from '../icons.js'
import { attempt } from '../store/live.js'
import { signOut } from '../store/session.js'
import { isAdmin, isGuest, state, toast } from '../store/state.js'
import {
  AskButton, Choice, Field, FormError, NewPassword, Once, PageHead, PasswordInput, ReadError, useFocus, useForm,
  useKeptFocus, useNow, useRead, Username,
} from './parts.js'

export function AccountPage() {
  const sessions = useRead(api.sessions)
  return html`
    <${PageHead} id="account-title" back="#/" where="the rooms" symbol=${icon.person()} title="Your account" />
    <div class="page"><div class="page-column" id="account-page">
      <p class="page-intro">You are <b>${state.me.name}</b>, ${kinds[state.me.role]}.</p>
      <${Sessions} sessions=${sessions} />
      ${sessions.known && html`
        <${Password} changed=${sessions.load} />
        <${Tokens} />`}
    </div></div>`
}

const kinds = { admin: 'an administrator', member: 'a member', guest: 'a guest' }

function Password({ changed }) {
  const form = useForm(async ({ current, password }) => {
    await api.changePassword(current, password)
    toast('Your password is changed. You are signed out everywhere else.')
    changed()
  })
  return html`
    <section class="card" aria-labelledby="password-title">
      <h2 id="password-title">Password</h2>
      <p class="hint">Another password signs you out everywhere but here. Tokens stay.</p>
      <form class="stack card-form" id="password-form" onSubmit=${form.submit}>
        <${Username} name=${state.me.name} />
        <${Field} id="password-current" name="current" label="Present password" error=${form.error}
          autocomplete="current-password">
          ${(props) => html`<${PasswordInput} ...${props} />`}
        <//>
        <${NewPassword} id="password-new" label="New password" error=${form.error} />
        <${FormError} error=${form.error} fields=${['current', 'password']} wait=${form.wait} />
        <div class="page-actions">
          <button class="button" id="password-submit" disabled=${form.busy || form.wait > 0}>
            Change the password</button>
        </div>
      </form>
    </section>`
}

// Where one is signed in.

function Sessions({ sessions: { value: sessions, error, load } }) {
  const others = sessions?.filter((s) => !s.current).length
  const endOthers = async () => {
    const ended = await attempt(api.endOtherSessions)
    if (ended !== undefined) toast(`${plural(Number(ended), 'other session')} ended.`)
    load()
  }
  const card = useKeptFocus('h2')
  return html`
    <section class="card" ref=${card} aria-labelledby="sessions-title" aria-busy=${!sessions && !error}>
      <h2 id="sessions-title" tabindex="-1">Where you are signed in</h2>
      <${ReadError} error=${error} load=${load} />
      <ul class="entries" id="sessions" aria-labelledby="sessions-title">
        ${sessions?.toSorted((a, b) => b.current - a.current).map((s) => html`
          <${Session} key=${s.id} session=${s} load=${load} />`)}
      </ul>
      ${others > 0 && html`
        <div class="page-actions">
          <${AskButton} name="sessions-end" symbol=${icon.leave()} label="Sign out everywhere else" act=${endOthers}
            question="End ${plural(others, 'other session')}?" no="Keep" yes="Sign out" />
        </div>`}
    </section>`
}

function Session({ session, load }) {
  const now = useNow(30_000)
  const { id, current, seen_at: seen, created_at: made, address } = session
  const device = deviceName(session.user_agent)
  const end = async () => {
    if (current) return signOut()
    await attempt(() => api.endSession(id), `${device} is signed out.`)
    load()
  }
  return html`
    <li class="entry" data-session-id=${id} data-current=${current ? '' : undefined}>
      <span class="entry-icon" aria-hidden="true">${icon.device()}</span>
      <div class="entry-text">
        <p class="entry-name" title=${session.user_agent}>${device}
          ${current && html`<span class="badge">this one</span>`}</p>
        <p class="hint">${current ? 'In use now' : html`Last used ${ago(seen, now)}`}, signed in ${ago(made, now)}${
          address && ` from ${address}`}</p>
      </div>
      <button type="button" class="button small session-end" onClick=${end}>Sign out
        <span class="sr-only"> ${device}</span></button>
    </li>`
}

const ago = (at, now) => html`
  <time datetime=${at} title=${fullTime(at)}>${fromNow(Math.min(new Date(at), now), now)}</time>`

// Tokens.

const scopes = [
  ['read', 'Read', 'See the rooms that you see, and hear what happens in them.'],
  ['chat', 'Chat', 'Write as you, and join and leave rooms.'],
  ['tasks', 'Tasks', 'Make, change and run tasks.'],
  ['admin', 'Administer', 'Manage people, and read the audit log.'],
]
const scopesOf = { guest: ['read', 'chat'], member: ['read', 'chat', 'tasks'] }

const day = 86_400
const lives = [
  [7 * day, '7 days'], [30 * day, '30 days'], [90 * day, '90 days'], [365 * day, 'A year'], [0, 'Until it is revoked'],
]

function Tokens() {
  const { value: tokens, error, known, load } = useRead(api.tokens)
  const [made, setMade] = useState(null)
  const [open, setOpen] = useState(false)
  const now = useNow(30_000)

  // The form takes the place of its opener, which afterwards has the focus again.
  const opener = useRef(null)
  const busy = open || made !== null
  const wasBusy = useRef(false)
  useEffect(() => {
    if (wasBusy.current && !busy) opener.current.focus()
    wasBusy.current = busy
  }, [busy])

  const card = useKeptFocus('h2')
  return html`
    <section class="card" ref=${card} aria-labelledby="tokens-title" aria-busy=${!tokens && !error}>
      <h2 id="tokens-title" tabindex="-1">Tokens</h2>
      <p class="hint">With a token a program acts as you, as far as its scopes go.</p>
      <${ReadError} error=${error} load=${load} />
      ${made && html`
        <${Once} id="token-made" title="The token “${made.token.name}”. Keep it now: it is not shown again."
          text=${made.secret} what="the token" close=${() => setMade(null)}>
          <p class="hint">A program sends it as <code>Authorization: Bearer …</code></p>
        <//>`}
      <ul class="entries" id="tokens" aria-labelledby="tokens-title">
        ${tokens?.map((t) => html`<${Token} key=${t.id} token=${t} now=${now} load=${load} />`)}
      </ul>
      ${known && (open
        ? html`<${NewToken} close=${() => setOpen(false)}
            done=${(token) => (setMade(token), setOpen(false), load())} />`
        : html`<div class="page-actions"><button type="button" class="button small" id="token-new-open" ref=${opener}
            onClick=${() => (setMade(null), setOpen(true))}>${icon.plus()}<span>New token</span></button></div>`)}
    </section>`
}

function Token({ token, now, load }) {
  const { id, name, created_at: made, expires_at: expires, last_used_at: used } = token
  const over = expires && new Date(expires) <= now
  const revoke = async () => {
    await attempt(() => api.revokeToken(id), `“${name}” is revoked.`)
    load()
  }
  const end = !expires ? 'good until it is revoked'
    : html`<time datetime=${expires} title=${fullTime(expires)}>
        ${over ? 'expired' : 'expires'} ${fromNow(expires, now)}</time>`
  return html`
    <li class="entry" data-token-id=${id} data-over=${over ? '' : undefined}>
      <span class="entry-icon" aria-hidden="true">${icon.key()}</span>
      <div class="entry-text">
        <p class="entry-name">${name} ${token.scopes.map((s) => html`<span class="badge quiet" key=${s}>${s}</span>`)}</p>
        <p class="hint">Made ${ago(made, now)}, ${used ? html`last used ${ago(used, now)}` : 'not used yet'},
          ${' '}${end}</p>
      </div>
      <${AskButton} name="token-revoke" label="Revoke" what=${name} question="What uses it stops working." no="Keep"
        yes="Revoke" act=${revoke} />
    </li>`
}

function NewToken({ close, done }) {
  const form = useForm(async ({ name, expires_in_s: life }, data) => {
    done(await api.makeToken({ name, scopes: data.getAll('scopes'), expires_in_s: Number(life) }))
  }, { reset: false })
  const first = useFocus()
  const { error } = form
  const mine = scopes.filter(([scope]) => isAdmin() || scopesOf[isGuest() ? 'guest' : 'member'].includes(scope))
  const wrong = error?.field === 'scopes'
  return html`
    <form class="stack card-form" id="token-form" onSubmit=${form.submit} aria-label="New token"
      onKeyDown=${(e) => e.key === 'Escape' && close()}>
      <${Field} id="token-name" name="name" label="Name" hint="What it is for, such as “deploys”." error=${error}>
        ${(props) => html`
          <input ...${props} ref=${first} required maxlength="100" autocomplete="off" />`}
      <//>
      <fieldset class="checks" aria-describedby=${wrong ? 'token-scopes-error' : undefined}>
        <legend>What it may do</legend>
        ${mine.map(([scope, label, hint]) => html`
          <label class="check" key=${scope}>
            <input type="checkbox" name="scopes" value=${scope} defaultChecked=${scope === 'read'}
              aria-invalid=${wrong ? 'true' : undefined} />
            <span><b>${label}</b><span class="hint">${hint}</span></span></label>`)}
        ${wrong && html`<p class="field-error" id="token-scopes-error">Choose one at least.</p>`}
      </fieldset>
      <${Choice} id="token-expires" name="expires_in_s" label="Good for" options=${lives} initial=${90 * day}
        error=${error} />
      <${FormError} error=${error} fields=${['name', 'scopes', 'expires_in_s']} wait=${form.wait} />
      <div class="page-actions">
        <button class="button primary" id="token-submit" disabled=${form.busy || form.wait > 0}>Make the token</button>
        <button type="button" class="button" onClick=${close}>Cancel</button>
      </div>
    </form>`
}
