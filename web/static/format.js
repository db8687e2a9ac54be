// Times, counts and message text for people.

import { html } from './vendor/htm-preact/standalone.module.js'

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' })
const full = new Intl.DateTimeFormat(undefined, { dateStyle: 'full', timeStyle: 'medium' })
const weekday = new Intl.DateTimeFormat(undefined, { weekday: 'long', day: 'numeric', month: 'long' })
const withYear = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'long', year: 'numeric' })
const shortDay = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' })
const seconds = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' })
const relative = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto' })

export const localZone = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC'

export const zones = [...new Set(['UTC', localZone, ...(Intl.supportedValuesOf?.('timeZone') ?? [])])]

export const clockTime = (iso) => clock.format(new Date(iso))
export const fullTime = (iso) => full.format(new Date(iso))

const dayStart = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate())
const daysAgo = (date) => Math.round((dayStart(new Date()) - dayStart(date)) / 86_400_000)

/** Names the local day of an instant: "Today", "Yesterday", "Monday, 3 March". */
export function dayName(iso) {
  const date = new Date(iso)
  const ago = daysAgo(date)
  if (ago === 0) return 'Today'
  if (ago === 1) return 'Yesterday'
  return (ago > 0 && ago < 300 ? weekday : withYear).format(date)
}

export const sameDay = (a, b) => new Date(a).toDateString() === new Date(b).toDateString()

/** "in 5 min", "tomorrow", "3 hr ago"; now is in milliseconds. */
export function fromNow(iso, now) {
  const seconds = Math.round((new Date(iso) - now) / 1000)
  const size = Math.abs(seconds)
  if (size < 1) return 'now'
  if (size < 60) return relative.format(seconds, 'second')
  if (size < 3_600) return relative.format(Math.round(seconds / 60), 'minute')
  if (size < 86_400) return relative.format(Math.round(seconds / 3_600), 'hour')
  return relative.format(Math.round(seconds / 86_400), 'day')
}

/** The clock time of an instant to the second, with the day unless that is today. */
export function exactTime(iso) {
  const date = new Date(iso)
  return (daysAgo(date) === 0 ? '' : `${shortDay.format(date)}, `) + seconds.format(date)
}

/** How long it is between two instants. */
export function duration(from, to) {
  const ms = Math.max(0, new Date(to) - new Date(from))
  if (ms < 1) return 'under 1 ms'
  if (ms < 1_000) return `${ms} ms`
  if (ms < 59_950) return `${Number((ms / 1_000).toFixed(1))} s`
  const seconds = Math.round(ms / 1_000)
  const parts = [[Math.floor(seconds / 3_600), 'h'], [Math.floor(seconds / 60) % 60, 'min'], [seconds % 60, 's']]
  return parts.filter(([n]) => n).map(([n, unit]) => `${n} ${unit}`).join(' ')
}

/** So many seconds as "1:05". */
export const minutes = (seconds) => `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`

/** An instant, written with an offset, as the clock of its zone shows it. */
export function zonedTime(iso, zone) {
  const parts = { weekday: 'short', day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' }
  if (new Date(iso).getSeconds()) parts.second = '2-digit'
  try {
    return new Intl.DateTimeFormat(undefined, { ...parts, timeZone: zone, timeZoneName: 'short' }).format(new Date(iso))
  } catch {
    return iso.replace('T', ' ') // a zone that this browser does not know
  }
}

/** What the clock of a zone shows at an instant in milliseconds, such as "2026-12-24 18:00". */
export function wallTime(at, zone) {
  const parts = { dateStyle: 'short', timeStyle: 'short' }
  try {
    return new Intl.DateTimeFormat('sv-SE', { ...parts, timeZone: zone }).format(at)
  } catch {
    return new Intl.DateTimeFormat('sv-SE', parts).format(at) // as above
  }
}

export const sentence = (text) => text && text[0].toUpperCase() + text.slice(1)

export const plural = (n, one, many = one + 's') => `${n} ${n === 1 ? one : many}`

const browsers = [
  ['Edg', 'Edge'], ['OPR', 'Opera'], ['SamsungBrowser', 'Samsung Internet'], ['Firefox', 'Firefox'],
  ['FxiOS', 'Firefox'], ['CriOS', 'Chrome'], ['Chrome', 'Chrome'], ['Safari', 'Safari'],
]
const systems = [
  ['Android', 'Android'], ['iPhone', 'iPhone'], ['iPad', 'iPad'], ['CrOS', 'ChromeOS'], ['Windows', 'Windows'],
  ['Mac OS', 'macOS'], ['Linux', 'Linux'],
]

/** What a User-Agent header says in two words, such as "Firefox on Linux"; of a program, what it calls itself. */
export function deviceName(agent) {
  const find = (list) => list.find(([mark]) => agent.includes(mark))?.[1]
  const browser = find(browsers)
  const system = find(systems)
  if (browser) return system ? `${browser} on ${system}` : browser
  return agent.match(/^[\w.-]+/)?.[0] || 'Unknown device'
}

/** Up to two letters that stand for a name. */
export function initials(name) {
  const words = name.trim().split(/[\s._-]+/).filter(Boolean)
  const letters = words.length > 1 ? [words[0], words.at(-1)] : [words[0] ?? '?']
  return letters.map((w) => [...w][0]).join('').toUpperCase()
}

/** One of eight hues, always the same for a name. */
export function hue(name) {
  let sum = 0
  for (const c of name) sum = (sum * 31 + c.codePointAt(0)) >>> 0
  return sum % 8
}

const block = /```(?:[\w+-]*\n)?([\s\S]+?)```/
const inline = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|(https?:\/\/[^\s<>"`]+)/g

/** Message text as nodes: links, `code`, **bold** and ``` blocks; all else stays text. */
export function richText(text) {
  return text.split(block).map((piece, i) => {
    if (i % 2) return html`<pre><code>${piece.replace(/\n$/, '')}</code></pre>`
    // A block has space around it already.
    return inlineText(piece.replace(/^\n/, i ? '' : '\n').replace(/\n$/, '\n'))
  })
}

function inlineText(text) {
  const nodes = []
  let end = 0
  for (const match of text.matchAll(inline)) {
    nodes.push(text.slice(end, match.index))
    end = match.index + match[0].length
    const [, code, bold, link] = match
    if (code) nodes.push(html`<code>${code}</code>`)
    else if (bold) nodes.push(html`<strong>${inlineText(bold)}</strong>`)
    else {
      const url = withoutTail(link)
      nodes.push(html`<a href=${url} target="_blank" rel="noopener noreferrer">${url}</a>`, link.slice(url.length))
    }
  }
  nodes.push(text.slice(end))
  return nodes
}

// The punctuation behind a link belongs to the sentence; so does a bracket that the link does not open.
// Links may be as long as a message, so this takes one pass.
function withoutTail(link) {
  const opened = { ')': link.indexOf('('), ']': link.indexOf('['), '}': link.indexOf('{') }
  const outside = (end) => {
    const at = opened[link[end - 1]]
    return at === undefined ? ".,;:!?'*_".includes(link[end - 1]) : at < 0 || at >= end
  }
  let end = link.length
  while (end && outside(end)) end--
  return link.slice(0, end)
}
