import { html, render, useEffect, useLayoutEffect, useState } from './vendor/htm-preact/standalone.module.js'
import { boot, currentRoom, onChange, state, unreadTotal } from './store.js'
import { Boot, SetUp, SetUpMissing, SignIn, Unreachable } from './views/doors.js'
import { Shell } from './views/shell.js'

const views = { boot: Boot, unreachable: Unreachable, setup: SetUp, unset: SetUpMissing, signin: SignIn, app: Shell }

function App() {
  const [, redraw] = useState(0)
  // Not after the first paint: what changes before that would be missed.
  useLayoutEffect(() => onChange(() => redraw((n) => n + 1)), [])
  useEffect(() => {
    const unread = state.view === 'app' ? unreadTotal() : 0
    const { task, run } = state.route
    const name = state.view === 'app' && (currentRoom()?.name || task || (run && `Run ${run}`))
    document.title = (unread ? `(${unread}) ` : '') + (name ? `${name} · Tandem` : 'Tandem')
  })
  return html`<${views[state.view]} />`
}

render(html`<${App} />`, document.body)
boot()
