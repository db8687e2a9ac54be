// What is shown before someone is in: set-up, sign-in, links that let somebody in, and why none of it is possible.

import { html, useEffect, useState } from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { fullTime, sentence } from '../format.js'
import { acceptInvitation, leaveLink, resetPassword, setUp, signIn } from '../store/session.js'
import { state } from '../store/state.js'
import { logo } from '../icons.js'
import { Field, FormError, NewPassword, PasswordInput, useFocus, useForm, useNow, Username, Wait } from './parts.js'

const Door = ({ title, children }) => html`
  <main class="door">
    <div class="door-card">
      <div class="brand brand-large">${logo()}<span>Tandem</span></div>
      <h1>${title}</h1>
      ${children}
    </div>
    <p class="door-foot">Rooms to talk in, tasks that report back.</p>
  </main>`

export const Boot = () => html`
  <main class="boot" id="boot" aria-busy="true">${logo()}<span class="sr-only">Loading</span></main>`

export const Unreachable = () => html`
  <${Door} title="The server does not answer">
    <p id="unreachable" role="status">Trying again. This page goes on by itself as soon as the server is back.</p>
    <div class="progress" aria-hidden="true"></div>
  <//>`

export const SetUpMissing = () => html`
  <${Door} title="One step is left">
    <p id="setup-missing">
      This instance has no administrator yet. Open the link that the server printed when it started.
      It holds a token that works once.
    </p>
    <p class="example"><code>${location.origin}/#setup=…</code></p>
  <//>`

const fields = ['name', 'password']

function NewName({ id, error }) {
  const first = useFocus()
  return html`
    <${Field} id=${id} name="name" label="Your name" hint="As the others will see it." error=${error}>
      ${(props) => html`<input ...${props} ref=${first} required maxlength="64" autocomplete="username" />`}
    <//>`
}

function Submit({ id, form, busy = 'One moment…', children }) {
  return html`
    <${FormError} error=${form.error} fields=${fields} wait=${form.wait} />
    <button class="button primary wide" id=${id} disabled=${form.busy || form.wait > 0}>
      ${form.busy ? busy : children}</button>`
}

export function SetUp() {
  const form = useForm(({ name, password }) => setUp(name, password))
  return html`
    <${Door} title="Welcome">
      <p>You will be the administrator of this instance.</p>
      <form id="setup-form" onSubmit=${form.submit}>
        <${NewName} id="setup-name" error=${form.error} />
        <${NewPassword} id="setup-password" error=${form.error} />
        <${Submit} id="setup-submit" form=${form}>Create the administrator<//>
      </form>
    <//>`
}

export function SignIn() {
  const form = useForm(({ name, password }) => signIn(name, password))
  const first = useFocus()
  return html`
    <${Door} title="Sign in">
      ${state.notice && html`<p class="notice" id="signin-notice" role="alert">${state.notice}</p>`}
      <form id="signin-form" onSubmit=${form.submit}>
        <${Field} id="signin-name" name="name" label="Name" error=${form.error}>
          ${(props) => html`<input ...${props} ref=${first} required autocomplete="username" autocapitalize="off" />`}
        <//>
        <${Field} id="signin-password" name="password" label="Password" error=${form.error}
          autocomplete="current-password">
          ${(props) => html`<${PasswordInput} ...${props} />`}
        <//>
        <${Submit} id="signin-submit" form=${form} busy="Signing in…">Sign in<//>
      </form>
    <//>`
}

// Links that let somebody in. What one is for the server says.

export function Link() {
  const { token } = state.link
  const [link, setLink] = useState(null)
  const [error, setError] = useState(null)
  const [me, setMe] = useState('') // who is signed in here

  async function look() {
    setError(null)
    try {
      setLink(await api.link(token))
    } catch (e) {
      setError(e)
    }
  }
  useEffect(() => {
    setLink(null)
    look()
    api.me().then(({ user }) => setMe(user.name), () => {})
  }, [token])

  if (error) return html`<${BadLink} error=${error} again=${look} />`
  if (!link) return html`<${Boot} />`
  const Form = link.kind === 'reset' ? Reset : Invited
  return html`<${Form} link=${link} me=${me} />`
}

const Until = ({ at }) => html`
  <p class="hint">The link is good until
    ${' '}<time datetime=${at} title=${fullTime(at)}>${fullTime(at)}</time>, and works once.</p>`

const SignedInAs = ({ me, children }) => me && html`
  <p class="notice">You are signed in here as <b>${me}</b>. ${children}${' '}
    <button type="button" class="link-button link-leave" onClick=${leaveLink}>Stay ${me}</button></p>`

const roles = {
  admin: 'an administrator, who manages people and all that runs here', member: 'a member',
  guest: 'a guest, who sees the rooms that they are added to',
}

function Invited({ link, me }) {
  const form = useForm(({ name, password }) => acceptInvitation(name, password))
  return html`
    <${Door} title="You are invited">
      <p>Choose a name and a password. You will be ${roles[link.role] ?? 'a member'}${
        link.room && html`, and begin in <b>${link.room}</b>`}.</p>
      <${SignedInAs} me=${me}>The new account takes its place.<//>
      <form id="invite-form" onSubmit=${form.submit} data-role=${link.role}>
        <${NewName} id="invite-name" error=${form.error} />
        <${NewPassword} id="invite-password" error=${form.error} />
        <${Submit} id="invite-submit" form=${form}>Join<//>
      </form>
      <${Until} at=${link.expires_at} />
    <//>`
}

function Reset({ link, me }) {
  const form = useForm(({ password }) => resetPassword(password))
  return html`
    <${Door} title="Choose another password">
      <p>It is for the account of <b>${link.name}</b>, which is then signed out wherever it is signed in. Its tokens
        stop working.</p>
      <${SignedInAs} me=${me !== link.name && me}>You will be <b>${link.name}</b>.<//>
      <form id="reset-form" onSubmit=${form.submit}>
        <${Username} name=${link.name} />
        <${NewPassword} id="reset-password" label="New password" error=${form.error} />
        <${Submit} id="reset-submit" form=${form}>Set the password<//>
      </form>
      <${Until} at=${link.expires_at} />
    <//>`
}

function BadLink({ error, again }) {
  const { status, retryAfter } = error
  const [until] = useState(Date.now() + 1_000 * retryAfter)
  const wait = status === 429 ? Math.max(0, Math.ceil((until - useNow(250)) / 1_000)) : 0
  const invite = state.link.kind === 'invite'
  const gone = status === 403
  const title = gone ? (invite ? 'This invitation is no longer good' : 'This link is no longer good')
    : status === 429 ? 'Too many links were tried' : 'The link can’t be checked'
  return html`
    <${Door} title=${title}>
      <p id="link-bad" role="alert" data-status=${status}>
        ${gone && 'It was used already, was withdrawn, or has expired: each link works once. '}
        ${gone && (invite
          ? 'Ask whoever sent it for a new one. If you have made your account with it, sign in.'
          : 'Ask an administrator for a new one. If you have set your password with it, sign in.')}
        ${!gone && sentence(error.message)}</p>
      <${Wait} seconds=${wait} />
      ${!gone && html`
        <button class="button primary wide" id="link-again" disabled=${wait > 0} onClick=${again}>Try again</button>`}
      <button class="button ${gone ? 'primary' : ''} wide" id="link-leave" onClick=${leaveLink}>To the sign-in</button>
    <//>`
}
