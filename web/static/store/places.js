// Where we are: #/rooms/ID, #/rooms/ID/tasks, #/rooms/ID/members, #/tasks/NAME, #/tasks/NAME/edit, #/runs/ID,
// #/account, #/people and #/audit.

import { state } from './state.js'

export const wide = matchMedia('(min-width: 1200px)')
export const narrow = matchMedia('(max-width: 719px)')

export const roomHref = (id, panel = wide.matches ? preferredPanel() : '') =>
  `#/rooms/${id}${panel ? `/${panel}` : ''}`

export const taskHref = (name, edit = false) => `#/tasks/${encodeURIComponent(name)}${edit ? '/edit' : ''}`

export const runHref = (id) => `#/runs/${id}`

function preferredPanel() {
  if (state.me?.role === 'guest') return ''
  const panel = localStorage.getItem('tandem.panel') ?? 'tasks'
  return ['tasks', 'members'].includes(panel) ? panel : ''
}

/** Shows a panel beside the room: tasks, members, or none. */
export function showPanel(panel) {
  if (wide.matches) localStorage.setItem('tandem.panel', panel)
  const href = roomHref(state.route.room, panel)
  // On a wide screen the panel is no place of its own to come back to.
  if (wide.matches || !panel || state.route.panel) location.replace(href)
  else location.hash = href
}

export function readRoute() {
  const [, room, panel] = location.hash.match(/^#\/rooms\/(\d+)(?:\/(tasks|members))?$/) ?? []
  const [, task, edit] = location.hash.match(/^#\/tasks\/([^/]+)(\/edit)?$/) ?? []
  const [, run] = location.hash.match(/^#\/runs\/(\d+)$/) ?? []
  const [, page] = location.hash.match(/^#\/(account|people|audit)$/) ?? []
  state.route = {
    room: Number(room) || 0, panel: panel ?? '', task: decoded(task ?? ''), edit: Boolean(edit), run: Number(run) || 0,
    page: page ?? '',
  }
}

/** The link by which the page was opened, if it was one that works once. */
export function readLink() {
  const [, kind, token] = location.hash.match(/^#(setup|invite|reset)=(.+)$/) ?? []
  return kind ? { kind, token: decoded(token) } : null
}

function decoded(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

export function go(id) {
  location.hash = roomHref(id)
}
