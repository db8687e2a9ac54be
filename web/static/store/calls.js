// Tools that programs use in this page: to ask something, and to read the clipboard. docs/protocol.md describes them.

import { announce, changed, state, toast } from './state.js'
import { socket, whenCalled, whenLost } from './live.js'

const mostFields = 50
const mostOptions = 500

const isText = (value) => typeof value === 'string' && value.trim() !== ''
const isOptions = (value) =>
  Array.isArray(value) && value.length > 0 && value.length <= mostOptions && value.every(isText)
const fieldTypes = ['text', 'textarea', 'number', 'date', 'checkbox', 'select']
const maybe = (value, is) => value === undefined || is(value)

function isField(field) {
  return field && isText(field.name) && maybe(field.label, isText) &&
    maybe(field.type, (type) => fieldTypes.includes(type)) &&
    (field.type === 'select' ? isOptions(field.options) : field.options === undefined) &&
    maybe(field.required, (r) => typeof r === 'boolean')
}

// For each tool, whether it can do anything with its arguments.
const tools = {
  confirm: ({ text }) => isText(text),
  form: ({ title, fields }) => maybe(title, isText) && Array.isArray(fields) && fields.length > 0 &&
    fields.length <= mostFields && fields.every(isField) && new Set(fields.map((f) => f.name)).size === fields.length,
  pick: ({ title, options }) => maybe(title, isText) && isOptions(options),
  'clipboard.read': () => true,
}

whenCalled(called, ({ call, reason }) => {
  const ended = reason === 'cancelled' || !reason ? 'The question was withdrawn.' : `The question has ended: ${reason}.`
  end(state.calls.find((c) => c.id === call), ended)
})

// Another connection is none that could answer.
whenLost(() => state.calls.forEach((call) => end(call, 'The question has ended, since the connection was lost.')))

function called({ call: id, tool, args, deadline }) {
  const known = Object.hasOwn(tools, tool)
  if (!known || !tools[tool](args ?? {})) {
    const error = known ? 'the arguments make no sense' : 'unknown tool'
    socket.request({ type: 'tool.result', call: id, error }).catch(() => {})
    return
  }
  const left = Date.parse(deadline) - socket.serverNow()
  const call = { id, tool, args: args ?? {}, until: Date.now() + left, busy: false, error: '' }
  call.timer = setTimeout(() => end(call, 'The question has ended: nobody answered in time.'), Math.max(0, left))
  state.calls = [...state.calls, call]
  announce('There is a question for you.')
}

function end(call, words) {
  if (!call || !state.calls.includes(call)) return
  clearTimeout(call.timer)
  state.calls = state.calls.filter((c) => c !== call)
  if (words) toast(words)
  changed()
}

async function reply(call, answer) {
  if (call.busy) return
  Object.assign(call, { busy: true, error: '' })
  changed()
  try {
    await socket.request({ type: 'tool.result', call: call.id, ...answer })
    end(call)
  } catch (error) {
    const over = error.code === 'conflict' || error.code === 'not_found'
    if (over) end(call, 'The question had ended before your answer came.')
    else call.error = error.message
  }
  call.busy = false
  changed()
}

/** Answers a call. */
export const answer = (call, result) => reply(call, { result })

/** Refuses a call, with the reason for the program. */
export const refuse = (call, error = 'refused') => reply(call, { error })
