// Line icons on a 20-pixel grid. They are decoration: whatever holds one has a name of its own.

import { html } from './vendor/htm-preact/standalone.module.js'

const draw = (...paths) => html`
  <svg class="icon" viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.6"
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">
    ${paths.map((d) => html`<path d=${d} />`)}
  </svg>`

export const icon = {
  hash: () => draw('M4 7.5h12.5', 'M3.5 12.5H16', 'M8.2 3.5 6.6 16.5', 'M13.4 3.5l-1.6 13'),
  lock: () => draw('M5 9h10v7.5H5z', 'M7 9V6.5a3 3 0 0 1 6 0V9'),
  person: () => draw('M10 3.5a3 3 0 1 0 0 6 3 3 0 0 0 0-6z', 'M4.5 16.5c.4-3 2.6-4.6 5.5-4.6s5.1 1.6 5.5 4.6'),
  people: () => draw('M7.5 4a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4z', 'M2.5 16c.3-2.8 2.3-4.2 5-4.2s4.7 1.4 5 4.2',
    'M12.5 4.4a2.6 2.6 0 0 1 0 4.8', 'M14.3 12c1.8.5 2.9 1.9 3.2 4'),
  ask: () => draw('M7.3 7.6a2.7 2.7 0 1 1 3.9 2.4c-.8.4-1.2 1-1.2 2', 'M10 15v.1'),
  plus: () => draw('M10 4.5v11', 'M4.5 10h11'),
  send: () => draw('M10 16V4.5', 'M5 9.5l5-5 5 5'),
  close: () => draw('M5.5 5.5l9 9', 'M14.5 5.5l-9 9'),
  back: () => draw('M16 10H4.5', 'M9.5 5l-5 5 5 5'),
  down: () => draw('M10 4v11.5', 'M5 10.5l5 5 5-5'),
  leave: () => draw('M8 3.5H5A1.5 1.5 0 0 0 3.5 5v10A1.5 1.5 0 0 0 5 16.5h3', 'M8.5 10h8', 'M13.5 7l3 3-3 3'),
  clock: () => draw('M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14z', 'M10 6.2V10l2.6 1.7'),
  play: () => draw('M6.5 4.2v11.6l9-5.8z'),
  pause: () => draw('M7.2 5v10', 'M12.8 5v10'),
  bin: () => draw('M4 6h12', 'M8 6V4h4v2', 'M5.5 6l.8 10.5h7.4L14.5 6', 'M8.6 9v4.5', 'M11.4 9v4.5'),
  history: () => draw('M3.6 8.2A6.7 6.7 0 1 1 3.3 10.6', 'M3.2 4.2v4h4', 'M10 6.8V10l2.3 1.5'),
  edit: () => draw('M12.6 4.6l2.8 2.8L7.4 15.4l-3.6.8.8-3.6z', 'M11 6.2l2.8 2.8'),
  copy: () => draw('M7.5 7.5h8.5v8.5H7.5z', 'M12.5 7V4H4v8.5h3'),
  stop: () => draw('M5.5 5.5h9v9h-9z'),
  check: () => draw('M4.5 10.5l3.8 3.7 7.2-8'),
  key: () => draw('M7 9.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7z', 'M9.6 10.5l6.4-6.4', 'M13 7l2.3 2.3'),
  link: () => draw('M8.5 11.5a3 3 0 0 0 4.3 0l2.6-2.6a3 3 0 0 0-4.3-4.3l-.9.9',
    'M11.5 8.5a3 3 0 0 0-4.3 0l-2.6 2.6a3 3 0 0 0 4.3 4.3l.9-.9'),
  device: () => draw('M3.5 4.5h13v9h-13z', 'M7 16.5h6', 'M10 13.5v3'),
  list: () => draw('M7.5 5.5h9', 'M7.5 10h9', 'M7.5 14.5h9', 'M3.8 5.5v.1', 'M3.8 10v.1', 'M3.8 14.5v.1'),
  again: () => draw('M16.2 8.2A6.7 6.7 0 1 0 16.6 11', 'M16.8 4.2v4h-4'),
  alert: () => draw('M10 3.5 2.8 16.2h14.4z', 'M10 8.2v3.6', 'M10 14v.1'),
  keyboard: () => draw('M2.5 5.5h15v9h-15z', 'M5.5 8.3v.1', 'M8.5 8.3v.1', 'M11.5 8.3v.1', 'M14.5 8.3v.1', 'M7 11.7h6'),
}

/** Two wheels, one in front of the other. */
export const logo = () => html`
  <svg class="logo" viewBox="0 0 32 20" fill="none" stroke-width="3.6" aria-hidden="true" focusable="false">
    <circle class="logo-front" cx="10.4" cy="10" r="8" />
    <path class="logo-back" d="M18.6 3.06a8 8 0 1 1 0 13.88" />
  </svg>`
