// Small pieces that several views use.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { fromNow, fullTime, hue, initials, sentence } from '../format.js'
import { icon } from '../icons.js'
import { presenceOf } from '../store/people.js'

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
 * A form's life: `busy`, the `error` of the last attempt, `wait` seconds until the next is allowed. `submit`
 * hands the trimmed fields to action; when that fails, what was typed stays. Afterwards the form is empty, unless
 * reset is false.
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
    const fields = {}
    for (const [name, value] of new FormData(form)) fields[name] = name === 'password' ? value : value.trim()
    setBusy(true)
    setError(null)
    try {
      await action(fields)
      if (alive.current && reset) form.reset()
    } catch (e) {
      if (!alive.current) return
      setError(e)
      if (e.status === 429) setUntil(Date.now() + 1000 * Math.max(1, e.retryAfter))
      if (e.field) form.elements.namedItem(e.field)?.focus?.()
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
    <div role="alert">
      ${text && html`<p class="form-error">${text}${wait ? ` You can try again in ${wait} s.` : ''}</p>`}
    </div>`
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
