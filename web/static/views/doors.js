// What is shown before someone is in: set-up, sign-in, and why neither is possible.

import { html, useState } from '../vendor/htm-preact/standalone.module.js'
import { setUp, signIn } from '../store/session.js'
import { state } from '../store/state.js'
import { logo } from '../icons.js'
import { Field, FormError, useFocus, useForm } from './parts.js'

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

function PasswordInput({ shown, ...props }) {
  const [visible, setVisible] = useState(false)
  return html`
    <div class="with-button">
      <input ...${props} type=${visible ? 'text' : 'password'} spellcheck="false" autocapitalize="off" />
      <button type="button" class="inline-button" aria-pressed=${visible} aria-label="Show the password"
        onClick=${() => setVisible(!visible)}>${visible ? 'Hide' : 'Show'}</button>
    </div>`
}

const password = (props) => html`<${PasswordInput} ...${props} />`
const fields = ['name', 'password']

export function SetUp() {
  const form = useForm(({ name, password }) => setUp(name, password))
  const first = useFocus()
  return html`
    <${Door} title="Welcome">
      <p>You will be the administrator of this instance.</p>
      <form id="setup-form" onSubmit=${form.submit}>
        <${Field} id="setup-name" name="name" label="Your name" hint="As the others will see it." error=${form.error}>
          ${(props) => html`<input ...${props} ref=${first} required maxlength="64" autocomplete="username" />`}
        <//>
        <${Field} id="setup-password" name="password" label="Password" error=${form.error} required
          hint="A few words in a row are easy to remember and hard to guess." autocomplete="new-password">
          ${password}
        <//>
        <${FormError} error=${form.error} fields=${fields} wait=${form.wait} />
        <button class="button primary wide" id="setup-submit" disabled=${form.busy || form.wait > 0}>
          ${form.busy ? 'One moment…' : 'Create the administrator'}
        </button>
      </form>
    <//>`
}

export function SignIn() {
  const form = useForm(({ name, password }) => signIn(name, password))
  const first = useFocus()
  return html`
    <${Door} title="Sign in">
      ${state.notice && html`<p class="notice" role="status">${state.notice}</p>`}
      <form id="signin-form" onSubmit=${form.submit}>
        <${Field} id="signin-name" name="name" label="Name" error=${form.error}>
          ${(props) => html`<input ...${props} ref=${first} required autocomplete="username" autocapitalize="off" />`}
        <//>
        <${Field} id="signin-password" name="password" label="Password" error=${form.error} required
          autocomplete="current-password">
          ${password}
        <//>
        <${FormError} error=${form.error} fields=${fields} wait=${form.wait} />
        <button class="button primary wide" id="signin-submit" disabled=${form.busy || form.wait > 0}>
          ${form.busy ? 'Signing in…' : 'Sign in'}
        </button>
      </form>
    <//>`
}
