// Sending. A message keeps its client id over all attempts, so that it is stored once.

import { newID } from '../api.js'
import { deliver, socket, whenConnected } from './live.js'
import { changed, state } from './state.js'

const patience = 15_000

whenConnected(() => state.outbox.forEach(attempt))

const outboxKey = () => `tandem.outbox.${state.me.id}`

function save() {
  const kept = ['client_id', 'room_id', 'text', 'created_at']
  sessionStorage.setItem(outboxKey(), JSON.stringify(state.outbox, kept))
}

/** Finds what was not sent before the page was left. */
export function recall() {
  const unsent = { state: 'failed', error: 'It was not sent before you left.' }
  state.outbox = stored(outboxKey(), []).map((entry) => ({ ...entry, ...unsent }))
}

function stored(key, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(key)) ?? otherwise
  } catch {
    return otherwise
  }
}

export function send(room, text) {
  const entry = { client_id: newID(), room_id: room.id, text, created_at: new Date().toISOString() }
  state.outbox = [...state.outbox, entry]
  room.line = null
  retry(entry)
}

export function retry(entry) {
  const deadline = Date.now() + patience
  Object.assign(entry, { state: 'pending', error: '', obstacle: 'There is no connection.', deadline })
  setTimeout(() => entry.deadline === deadline && refuse(entry, entry.obstacle), patience)
  save()
  attempt(entry)
  changed()
}

export const discard = (entry) => forget(entry.client_id)

/** Forgets a message that has arrived, or is not to. */
export function forget(clientID) {
  if (!state.outbox.some((e) => e.client_id === clientID)) return
  state.outbox = state.outbox.filter((e) => e.client_id !== clientID)
  save()
  changed()
}

function refuse(entry, reason) {
  if (entry.state !== 'pending') return
  Object.assign(entry, { state: 'failed', error: reason })
  changed()
}

async function attempt(entry) {
  if (entry.state !== 'pending' || entry.busy) return
  entry.busy = true
  let again = 0
  try {
    const { client_id, room_id: room, text } = entry
    const ack = await socket.request({ type: 'send', room, client_id, text })
    if (ack.message) deliver('message.created', ack.message)
    else entry.state = 'sent' // the event is on its way
  } catch (error) {
    if (error.code === 'timeout') again = 1
    else if (error.code === 'unavailable') again = 2_000
    else if (error.code !== 'disconnected') refuse(entry, error.message)
    entry.obstacle = error.message
  }
  entry.busy = false
  if (again) setTimeout(attempt, again, entry)
  changed()
}
