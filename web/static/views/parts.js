// Small pieces that several views use.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { sentence } from '../format.js'

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
 * hands the trimmed fields to action; when that fails, what was typed stays.
 */
export function useForm(action) {
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
      if (alive.current) form.reset()
    } catch (e) {
      if (!alive.current) return
      setError(e)
      if (e.status === 429) setUntil(Date.now() + 1000 * Math.max(1, e.retryAfter))
      const field = e.field && form.elements.namedItem(e.field)
      if (field) field.focus()
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
