// Asking a person something in their browser, to try what programs do. The answer is shown as it comes.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { sentence } from '../format.js'
import { failed } from '../store/live.js'
import { FormError, Modal, useForm } from './parts.js'

const answerWithin = 120 // seconds
const againAfter = 2_000

export function Ask({ person: { user_id: id, name }, close }) {
  const [call, setCall] = useState(null)
  const [error, setError] = useState('')
  const done = useRef(null)
  const open = call?.state === 'open'
  const form = useForm(async ({ text }) => {
    setCall(await api.callTool(id, { tool: 'confirm', args: { text }, timeout_s: answerWithin }))
  }, { reset: false })

  useEffect(() => {
    if (!open) return
    let over = false
    const wait = async () => {
      try {
        const now = await api.waitForCall(call.id)
        if (over) return
        setError('')
        if (now.state === 'open') wait()
        else setCall(now)
      } catch (e) {
        if (over) return
        setError(sentence(failed(e)))
        setTimeout(() => over || wait(), againAfter)
      }
    }
    wait()
    return () => { over = true }
  }, [call?.id, open])

  useEffect(() => { if (call && !open) done.current?.focus() }, [open])

  const cancel = async () => {
    try {
      setCall(await api.cancelCall(call.id))
    } catch (e) {
      setError(sentence(failed(e)))
    }
  }
  const leave = () => {
    if (open) api.cancelCall(call.id).catch(failed)
    close()
  }
  return html`
    <${Modal} id="ask" title="Ask ${name}" close=${leave}>
      ${!call && html`
        <form class="stack" onSubmit=${form.submit}>
          <div class="field">
            <label for="ask-text">What is to be confirmed</label>
            <textarea id="ask-text" name="text" data-focus required rows="3" maxlength="2000"></textarea>
            <p class="hint">It appears in the window of theirs that was used last, for ${answerWithin / 60} minutes.</p>
          </div>
          <${FormError} error=${form.error} />
          <div class="modal-actions">
            <button type="button" class="button" onClick=${leave}>Close</button>
            <button class="button primary" id="ask-submit" disabled=${form.busy}>Ask</button>
          </div>
        </form>`}
      ${call && html`<blockquote class="question">${call.args.text}</blockquote>`}
      <p id="ask-answer" class="ask-answer" role="status" data-state=${call?.state}>${call && outcome(call, name)}</p>
      <div role="alert">${error && html`<p class="form-error">${error}</p>`}</div>
      ${call && html`
        <div class="modal-actions">
          ${open
            ? html`<button type="button" class="button" id="ask-cancel" onClick=${cancel}>Cancel the question</button>`
            : html`
                <button type="button" class="button" id="ask-again" onClick=${() => setCall(null)}>Ask again</button>
                <button type="button" class="button primary" id="ask-close" ref=${done} onClick=${leave}>Close</button>`}
        </div>`}
    <//>`
}

function outcome({ state, result, error }, name) {
  if (state === 'open') return `Waiting for ${name}…`
  if (state === 'expired') return 'Nobody answered in time.'
  if (error === 'refused') return `${name} refused to answer.`
  if (error === 'cancelled') return 'The question was withdrawn.'
  if (error === 'the connection is gone') return `The connection of ${name} ended before there was an answer.`
  if (error) return `There is no answer: ${error}.`
  return result?.ok ? `${name} said yes.` : `${name} said no.`
}
