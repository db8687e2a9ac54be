import { html, render, useEffect, useLayoutEffect, useState } from './vendor/htm-preact/standalone.module.js'
import { boot } from './store/session.js'
import { currentRoom, onChange, state } from './store/state.js'
import { Boot, Link, SetUp, SetUpMissing, SignIn, Unreachable } from './views/doors.js'
import { Shell } from './views/shell.js'

const views = {
  boot: Boot, unreachable: Unreachable, setup: SetUp, unset: SetUpMissing, link: Link, signin: SignIn, app: Shell,
}
const pages = { account: 'Your account', people: 'People', audit: 'Audit log' }

function App() {
  const [, redraw] = useState(0)
  // Not after the first paint: what changes before that would be missed.
  useLayoutEffect(() => onChange(() => redraw((n) => n + 1)), [])
  useEffect(() => {
    const unread = state.view === 'app' ? state.rooms.reduce((sum, room) => sum + room.unread, 0) : 0
    const { task, run, page } = state.route
    const name = state.view === 'app' && (currentRoom()?.name || task || (run && `Run ${run}`) || pages[page])
    const count = unread ? `(${unread > 99 ? '99+' : unread}) ` : ''
    document.title = count + [state.calls.length && 'A question', name, 'Tandem'].filter(Boolean).join(' · ')
  })
  return html`<${views[state.view]} />`
}

render(html`<${App} />`, document.body)
boot()
