// Small pieces that several views use.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { fromNow, fullTime, hue, initials, minutes, sentence } from '../format.js'
import { icon } from '../icons.js'
import { failed } from '../store/live.js'
import { presenceOf } from '../store/people.js'
import { state, visible } from '../store/state.js'

/** The current time in milliseconds, kept up to date while the view is shown. */
export function useNow(every = 1_000) {
  const [now, set] = useState(Date.now())
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), every)
    return () => clearInterval(timer)
  }, [every])
  return now
}

/** Puts the focus on an element when it appears, unless that would open a phone's keyboard. */
export function useFocus(active = true) {
  const ref = useRef(null)
  useEffect(() => {
    if (active && matchMedia('(pointer: fine)').matches) ref.current?.focus()
  }, [active])
  return ref
}

/**
 * A ref for a part of a view: when what has the focus in it goes away, the focus stays near, on what the selector
 * finds there.
 */
export function useKeptFocus(selector) {
  const box = useRef(null)
  const had = box.current?.contains(document.activeElement)
  useLayoutEffect(() => {
    if (had && document.activeElement === document.body) box.current.querySelector(selector).focus()
  })
  return box
}

/**
 * What is read when a view appears, and from time to time while somebody looks: its `value`, null before it is known,
 * the `error` of the last attempt, and load(), which reads again. It is `known` once there is either: what belongs
 * below is best shown then, and stays where it is.
 */
export function useRead(read, every = 15_000) {
  const [value, setValue] = useState(null)
  const [error, setError] = useState('')
  const alive = useRef(true)
  const last = useRef(0)

  async function load() {
    const asked = ++last.current
    let result
    let problem = ''
    try {
      result = await read()
    } catch (e) {
      problem = sentence(failed(e))
    }
    if (!alive.current || asked !== last.current) return
    setError(problem)
    if (!problem) setValue(result)
  }

  useEffect(() => {
    load()
    const again = () => visible() && load()
    const timer = setInterval(again, every)
    addEventListener('visibilitychange', again)
    return () => {
      alive.current = false
      clearInterval(timer)
      removeEventListener('visibilitychange', again)
    }
  }, [])
  return { value, error, known: value !== null || error !== '', load }
}

const asTyped = ['password', 'current'] // fields that may begin or end with a space

/**
 * A form's life: `busy`, the `error` of the last attempt, `wait` seconds until the next is allowed. `submit`
 * hands the trimmed fields, and the whole data, to action; when that fails, what was typed stays. Afterwards the form
 * is empty, unless reset is false.
 */
export function useForm(action, { reset = true } = {}) {
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState(null)
  const [until, setUntil] = useState(0)
  const [wait, setWait] = useState(0)
  const alive = useRef(true)
  useEffect(() => () => { alive.current = false }, [])

  useEffect(() => {
    if (!until) return
    const tick = () => {
      const left = Math.max(0, Math.ceil((until - Date.now()) / 1000))
      setWait(left)
      if (!left) setUntil(0)
    }
    tick()
    const timer = setInterval(tick, 250)
    return () => clearInterval(timer)
  }, [until])

  async function submit(event) {
    event.preventDefault()
    if (busy || wait) return
    const form = event.currentTarget
    const data = new FormData(form)
    const fields = {}
    for (const [name, value] of data) fields[name] = asTyped.includes(name) ? value : value.trim()
    setBusy(true)
    setError(null)
    try {
      await action(fields, data)
      if (alive.current && reset) form.reset()
    } catch (e) {
      if (e.status === 401 && state.view === 'app') failed(e)
      if (!alive.current) return
      setError(e)
      if (e.status === 429) setUntil(Date.now() + 1000 * Math.max(1, e.retryAfter))
      const field = e.field && form.elements.namedItem(e.field)
      if (field) (field instanceof RadioNodeList ? field[0] : field).focus()
    }
    if (alive.current) setBusy(false)
  }

  return { busy, error, wait, submit, clear: () => setError(null) }
}

/** A labelled control with its hint and its error, tied together for screen readers. */
export function Field({ id, name, label, hint, error, children, ...input }) {
  const message = error?.field === name && name ? sentence(error.message) : ''
  const described = [hint && `${id}-hint`, message && `${id}-error`].filter(Boolean).join(' ') || undefined
  const props = { id, name, 'aria-describedby': described, 'aria-invalid': message ? 'true' : undefined, ...input }
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      ${children ? children(props) : html`<input ...${props} />`}
      ${message && html`<p class="field-error" id="${id}-error">${message}</p>`}
      ${hint && html`<p class="hint" id="${id}-hint">${hint}</p>`}
    </div>`
}

/** The error of a form that belongs to none of its fields. */
export function FormError({ error, fields = [], wait = 0 }) {
  const text = error && !fields.includes(error.field) ? sentence(error.message) : ''
  return html`
    <div class="form-errors">
      <div role="alert">${text && html`<p class="form-error">${text}</p>`}</div>
      <${Wait} seconds=${wait} />
    </div>`
}

/** How long it is until something may be tried again. It is not read out each second. */
export const Wait = ({ seconds }) => seconds > 0 && html`
  <p class="form-wait" role="timer">You can try again in
    ${' '}<b>${seconds < 60 ? `${seconds} s` : minutes(seconds)}</b>.</p>`

/** Something could not be read. */
export const ReadError = ({ error, load }) => html`
  <div role="alert">${error && html`<p class="form-error">${error}${' '}
    <button type="button" class="link-button" onClick=${load}>Try again</button></p>`}</div>`

/** A field to choose in: options are [value, label] pairs, the one that is chosen at first is `initial`. */
export const Choice = ({ options, initial = options[0][0], ...field }) => html`
  <${Field} ...${field}>
    ${(props) => html`
      <select ...${props}>
        ${options.map(([value, label]) => html`
          <option key=${value} value=${value} defaultSelected=${value === initial}>${label}</option>`)}
      </select>`}
  <//>`

/** A password, which can be shown. */
export function PasswordInput(props) {
  const [shown, setShown] = useState(false)
  return html`
    <div class="with-button">
      <input required ...${props} type=${shown ? 'text' : 'password'} spellcheck="false" autocapitalize="off" />
      <button type="button" class="inline-button" aria-pressed=${shown} aria-label="Show the password"
        onClick=${() => setShown(!shown)}>${shown ? 'Hide' : 'Show'}</button>
    </div>`
}

/** The field of a password that one chooses. */
export const NewPassword = ({ id, label = 'Password', error }) => html`
  <${Field} id=${id} name="password" label=${label} error=${error} autocomplete="new-password"
    hint="At least 8 characters. A few words in a row are easy to remember and hard to guess.">
    ${(props) => html`<${PasswordInput} ...${props} />`}
  <//>`

/** Tells password managers whose password it is. */
export const Username = ({ name }) => html`<input hidden type="text" autocomplete="username" value=${name} readonly />`

/** What is shown once: a text to be copied, and a button that it was. */
export function Once({ id, title, text, what, close, children }) {
  const box = useRef(null)
  useEffect(() => {
    const before = document.activeElement
    box.current.querySelector('.copy').focus()
    return () => before.isConnected && before.focus()
  }, [])
  return html`
    <div class="secret" id=${id} ref=${box} role="status">
      <p><b>${title}</b></p>
      <div class="copy-row"><code class="once-text">${text}</code><${CopyButton} text=${text} what=${what} /></div>
      ${children}
      <button type="button" class="button small once-kept" onClick=${close}>I have kept it</button>
    </div>`
}

/** The head of a page in the middle, with the way back. */
export function PageHead({ id, back, where, symbol, title, children }) {
  const heading = useRef(null)
  useEffect(() => heading.current.focus({ preventScroll: true }), []) // where a screen reader goes on
  return html`
    <header class="room-head">
      <a class="icon-button page-back" href=${back} aria-label="Back to ${where}" title="Back to ${where}">
        ${icon.back()}</a>
      <h1 id=${id} ref=${heading} tabindex="-1"><span class="hash" aria-hidden="true">${symbol}</span>
        <span class="page-title">${title}</span></h1>
      ${children}
    </header>`
}

/** A button that asks once before it acts: `name` begins the class of both, `what` follows for screen readers. */
export function AskButton({ name, kind = '', label, what = '', symbol, question, no = 'Keep', yes, act }) {
  const [asking, setAsking] = useState(false)
  const asked = useRef(false)
  const opener = useRef(null)
  const back = useRef(null)
  useEffect(() => {
    if (asking) back.current.focus()
    else if (asked.current) opener.current.focus()
    asked.current = asking
  }, [asking])
  const stop = () => setAsking(false)
  if (!asking) {
    return html`
      <button type="button" class="${kind || 'button small'} ${name}" ref=${opener} title=${label ? undefined : yes}
        onClick=${() => setAsking(true)}>${symbol}${label && html`<span>${label}</span>`}
        <span class="sr-only">${label ? '' : yes} ${what}</span></button>`
  }
  return html`
    <div class="ask" role="group" aria-label=${question}
      onKeyDown=${(e) => e.key === 'Escape' && (e.stopPropagation(), stop())}>
      <span>${question}</span>
      <button type="button" class="button small" ref=${back} onClick=${stop}>${no}</button>
      <button type="button" class="button small danger ${name}-confirm" onClick=${() => (stop(), act())}>${yes}</button>
    </div>`
}

/** A button that puts a text on the clipboard, and says so. */
export function CopyButton({ text, label = 'Copy', what = '', ...props }) {
  const [copied, setCopied] = useState(0)
  useEffect(() => {
    if (!copied) return
    const timer = setTimeout(() => setCopied(0), 2_000)
    return () => clearTimeout(timer)
  }, [copied])
  return html`
    <button type="button" class="button small copy" ...${props}
      onClick=${async (e) => (await copy(text, e.currentTarget)) && setCopied(copied + 1)}>
      ${copied ? icon.check() : icon.copy()}
      <span aria-live="polite">${copied ? 'Copied' : label}</span><span class="sr-only"> ${what}</span></button>`
}

// Without https, other than on this machine, browsers offer the old way alone.
async function copy(text, beside) {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    const field = document.createElement('textarea')
    field.value = text
    field.className = 'sr-only'
    beside.after(field)
    field.select()
    const done = document.execCommand('copy')
    field.remove()
    beside.focus()
    return done
  }
}

/** A dialog in front of everything else, while it is shown; Escape calls close. It focuses what has data-focus. */
export function Modal({ id, title, close, children, ...props }) {
  const dialog = useRef(null)
  const shown = useRef(true)
  useLayoutEffect(() => {
    const el = dialog.current
    el.showModal()
    const [title, first] = el.querySelectorAll('[data-focus]')
    ;(first ?? title).focus()
    return () => {
      shown.current = false
      el.close() // which gives the focus back
    }
  }, [])
  const onKeyDown = (event) => {
    event.stopPropagation() // what lies behind has keys of its own
    if (event.key !== 'Escape') return
    event.preventDefault()
    close()
  }
  return html`
    <dialog class="modal" id=${id} ref=${dialog} aria-labelledby="${id}-title" onKeyDown=${onKeyDown}
      onCancel=${(e) => (e.preventDefault(), close())} onClose=${() => shown.current && close()} ...${props}>
      <h2 id="${id}-title" tabindex="-1" data-focus>${title}</h2>
      ${children}
    </dialog>`
}

const stateNames = { online: 'online', away: 'away', offline: 'offline' }

/** A dot that says whether somebody is there. */
export const Dot = ({ id }) => html`
  <i class="dot" data-state=${presenceOf(id).state}>
    <span class="sr-only">${stateNames[presenceOf(id).state] ?? ''} </span></i>`

/** A person with a dot, and when they were seen. */
export function Person({ id, name, children }) {
  const { state, last_seen: seen } = presenceOf(id)
  const words = state === 'offline' && seen ? `last seen ${fromNow(seen, Date.now())}` : stateNames[state] ?? ''
  return html`
    <span class="person" data-user-id=${id} data-presence=${state}>
      <span class="avatar small" data-hue=${hue(name)} aria-hidden="true">${initials(name)}
        <i class="presence dot" data-state=${state}></i></span>
      <span class="person-text"><span class="person-name">${name}${children}</span>
        <span class="person-state" title=${seen ? fullTime(seen) : undefined}>${words}</span></span>
    </span>`
}

const roomIcons = { public: icon.hash, private: icon.lock, direct: icon.person }

export const RoomIcon = ({ room }) => (roomIcons[room.kind] ?? icon.hash)()
