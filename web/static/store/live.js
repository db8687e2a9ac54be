// What comes over the socket, and who hears it: modules hear kinds of events, views watch topics.

import { api } from '../api.js'
import { sentence } from '../format.js'
import { Socket } from '../socket.js'
import { changed, currentRoom, state, toast } from './state.js'

const maxTopics = 100 // as the server's limit

const kinds = new Map() // kind → handler(payload, frame)
const readers = new Map() // what a topic begins with → {fresh(topic), reset(topic), refused(topic, error)}
const watchers = new Map() // topic → Set of watchers
const connected = [] // handlers
const lost = []
let ended = () => {}
let toolCalled = () => {}
let toolCancelled = () => {}

const sessionOver = 'Your session has ended. Please sign in again.'
const endedElsewhere = 'Your session was ended from another device, or by an administrator. Please sign in again.'

const readerOf = (topic) => readers.get(topic.split(':')[0])

export const socket = new Socket({
  ticket: api.ticket,
  state(s) {
    const before = state.connection
    state.connection = s
    if (s === 'online') connected.forEach((f) => f())
    else if (before === 'online') lost.forEach((f) => f())
    changed()
  },
  event(frame) {
    deliver(frame.kind, frame.payload, frame)
    watchers.get(frame.topic)?.forEach((w) => w.event(frame.kind, frame.payload))
    changed()
  },
  reset(topic) {
    const reader = readerOf(topic)
    if (reader?.reset) reader.reset(topic)
    else reader?.fresh(topic)
    watchers.get(topic)?.forEach((w) => w.fresh())
  },
  fresh(topic) {
    readerOf(topic)?.fresh(topic)
    watchers.get(topic)?.forEach((w) => w.fresh())
  },
  refused(topic, error) {
    readerOf(topic)?.refused?.(topic, error)
  },
  call: (frame) => toolCalled(frame),
  cancel: (frame) => toolCancelled(frame),
  unauthorised: (told) => ended(told ? endedElsewhere : sessionOver),
})

/** Has handlers called with the payloads, and frames, of events: {kind: handler}. */
export function hear(handlers) {
  for (const [kind, handler] of Object.entries(handlers)) kinds.set(kind, handler)
}

/** Has what an event would tell handled without one. */
export const deliver = (kind, payload, frame) => kinds.get(kind)?.(payload, frame)

/**
 * Says what to do about topics that begin with a word: fresh(topic): earlier events must be read otherwise;
 * reset(topic), if that is more: what is known is out of date; refused(topic, error).
 */
export const rereads = (word, reader) => readers.set(word, reader)

/** Has a function called whenever there is a connection again. */
export const whenConnected = (f) => connected.push(f)

/** Has a function called whenever the connection is lost. */
export const whenLost = (f) => lost.push(f)

/** Has a function called with the reason when the session is over. */
export function whenEnded(f) {
  ended = f
}

/** Has functions called with frames that want a tool to be used, and to be used no longer. */
export function whenCalled(call, cancel) {
  toolCalled = call
  toolCancelled = cancel
}

/** What to show of an error. An answer of 401 to any request means that the session is over. */
export function failed(error) {
  if (error.status !== 401) return error.message
  ended(sessionOver)
  return ''
}

/** Does something, says how it went, and returns what came of it: undefined when it failed. */
export async function attempt(action, done) {
  try {
    const result = (await action()) ?? true
    if (done) toast(done)
    return result
  } catch (error) {
    toast(sentence(failed(error)))
  }
}

export const reconnectNow = () => socket.reconnectNow()

// Topics, of which there is place for so many.

export const topicOf = (room) => `room:${room.id}`

/** The room of a topic, if it is one's. */
export const roomOfTopic = (topic) => state.rooms.find((r) => topicOf(r) === topic)

/**
 * Follows a topic until the returned function is called: event(kind, payload) is what happens; fresh() says that
 * events may have been missed, so that what they tell must be read otherwise.
 */
export function watch(topic, watcher) {
  if (!watchers.has(topic)) watchers.set(topic, new Set())
  watchers.get(topic).add(watcher)
  if (!socket.has(topic)) {
    makePlace()
    socket.subscribe({ [topic]: '' })
  }
  return () => {
    const others = watchers.get(topic)
    others.delete(watcher)
    if (others.size) return
    watchers.delete(topic)
    if (!readerOf(topic)) socket.unsubscribe(topic) // unless it is followed anyway
  }
}

/** Hears what happens in rooms that are not open, to count it. */
export function listen(rooms) {
  const others = rooms.filter((r) => r.member && r !== currentRoom() && !socket.has(topicOf(r)))
  const some = others.slice(0, Math.max(0, maxTopics - socket.topics.length))
  socket.subscribe(Object.fromEntries(some.map((r) => [topicOf(r), ''])))
}

/** Subscribes to an open room. */
export function follow(room, position) {
  const topic = topicOf(room)
  if (!socket.has(topic)) makePlace()
  socket.subscribe({ [topic]: position })
}

// Makes place for one more topic: the room that was opened the longest ago must go.
function makePlace() {
  if (socket.topics.length < maxTopics) return
  const others = state.rooms.filter((r) => r !== currentRoom() && socket.has(topicOf(r)))
  const oldest = others.sort((a, b) => a.openedAt - b.openedAt)[0]
  if (!oldest) return
  socket.unsubscribe(topicOf(oldest))
  Object.assign(oldest, { loaded: false, messages: [] })
}
