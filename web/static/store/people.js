// Other people, and whether they are there.

import { api } from '../api.js'
import { failed, hear, rereads, socket, whenConnected } from './live.js'
import { changed, isGuest, state, visible } from './state.js'

const atOnce = 500 // as the server's limit

const heard = new Set() // of whom events told while an answer was on its way
let asking = 0

hear({
  presence(person) {
    if (asking) heard.add(person.user_id) // also of whom nothing is known yet: the answer is older
    if (asking || state.presence[person.user_id]) state.presence[person.user_id] = person
  },
})

rereads('presence', { fresh: refresh })

/** Learns whether people are there, from now on. */
export function lookUp(ids) {
  const unknown = [...new Set(ids)].filter((id) => id && !state.presence[id])
  return ask(unknown)
}

/** Asks again for everybody who is known. */
export function refresh() {
  return ask(Object.keys(state.presence).map(Number))
}

async function ask(ids) {
  if (!ids.length) return
  asking++
  try {
    for (let i = 0; i < ids.length; i += atOnce) {
      for (const person of await api.presence(ids.slice(i, i + atOnce))) {
        if (!heard.has(person.user_id)) state.presence[person.user_id] = person
      }
    }
  } catch (error) {
    failed(error) // a later one tells
  }
  if (!--asking) heard.clear()
  changed()
}

export const presenceOf = (id) => state.presence[id] ?? { user_id: id, state: '' }

/** Reads who there is, to pick from. Rejects when that was not possible. */
export async function loadPeople() {
  const people = await api.users()
  state.people = people.filter((p) => p.id !== state.me.id)
  changed()
  lookUp(people.map((p) => p.id))
}

// Guests are told of nobody's coming and going; they ask.
setInterval(() => state.view === 'app' && isGuest() && visible() && socket.online && refresh(), 30_000)

// Whether somebody is here.

const idleAfter = 5 * 60_000
const hiddenAfter = 5_000 // who only looks at another tab for a moment is still here
const checkEvery = 10_000

let lastInput = Date.now()
let hiddenSince = 0
let told = 'online' // what the server believes of this connection

export const isAway = () =>
  Date.now() - lastInput >= idleAfter || (hiddenSince > 0 && Date.now() - hiddenSince >= hiddenAfter)

async function tell() {
  const now = isAway() ? 'away' : 'online'
  if (state.view !== 'app' || !socket.online || now === told) return
  told = now
  changed()
  try {
    await socket.request({ type: 'presence', state: now })
  } catch (error) {
    if (error.code !== 'disconnected' && told === now) told = '' // the next check tells again
  }
}

function input() {
  lastInput = Date.now()
  if (told !== 'online') tell()
}

for (const kind of ['pointerdown', 'pointermove', 'keydown', 'wheel', 'touchstart']) {
  addEventListener(kind, input, { passive: true, capture: true })
}

addEventListener('visibilitychange', () => {
  hiddenSince = visible() ? 0 : Date.now()
  if (visible()) input()
  else setTimeout(tell, hiddenAfter)
})

setInterval(tell, checkEvery)

whenConnected(() => {
  told = 'online' // as each connection begins
  tell()
})
