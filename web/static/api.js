// The HTTP API: JSON in, JSON out, problem+json on errors.

/** An answer that is not 2xx, or (status 0) no answer at all. */
export class ApiError extends Error {
  constructor(status, { title, detail, field } = {}, retryAfter = 0) {
    super(detail || title || 'Something went wrong.')
    this.status = status
    this.field = field || ''
    this.retryAfter = retryAfter // seconds
  }
}

const timeout = 15_000

// Requests belong to the session in which they were sent: a late 401 of an
// earlier one says nothing about the present.
let session = 0
export const beginSession = () => session++

async function call(method, path, body, more = {}, patience = timeout) {
  const headers = { Accept: 'application/json', ...more }
  const sentIn = session
  const init = { method, headers, cache: 'no-store', signal: AbortSignal.timeout(patience) }
  if (body !== undefined) {
    headers['Content-Type'] = 'application/json'
    init.body = JSON.stringify(body)
  }
  let response, text
  try {
    response = await fetch('/api/v1' + path, init)
    text = await response.text()
  } catch {
    throw new ApiError(0, { title: 'The server can’t be reached.' })
  }
  let value = {}
  try {
    if (text) value = JSON.parse(text)
  } catch {
    if (response.ok) throw new ApiError(502, { title: 'The answer makes no sense. Does a proxy interfere?' })
  }
  if (response.status === 401 && sentIn !== session) throw new ApiError(0, { title: 'The session has changed.' })
  if (!response.ok) {
    const title = `The server answered with an error (${response.status}).`
    throw new ApiError(response.status, { title, ...value }, Number(response.headers.get('Retry-After')) || 0)
  }
  return value
}

const get = (path) => call('GET', path)
const post = (path, body = {}) => call('POST', path, body)
const put = (path, body) => call('PUT', path, body)
const patch = (path, body) => call('PATCH', path, body)
const remove = (path) => call('DELETE', path)
const part = encodeURIComponent

/** A fresh UUID. */
export function newID() {
  const hex = [...crypto.getRandomValues(new Uint8Array(16))].map((b, i) => {
    if (i === 6) b = (b & 0x0f) | 0x40 // version 4
    if (i === 8) b = (b & 0x3f) | 0x80
    return b.toString(16).padStart(2, '0')
  })
  return hex.join('').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

// A post that is done once, however often it arrives. An answer that was lost is asked for once more.
async function postOnce(path, body = {}) {
  const sentIn = session
  const key = newID()
  const send = () => call('POST', path, body, { 'Idempotency-Key': key })
  try {
    return await send()
  } catch (error) {
    if (error.status || sentIn !== session) throw error
    return send()
  }
}

export const api = {
  setupNeeded: () => get('/setup').then((r) => r.needed),
  setup: (token, name, password) => post('/setup', { token, name, password }),
  me: () => get('/me'),
  signIn: (name, password) => post('/session', { name, password }),
  signOut: () => remove('/session'),
  ticket: () => post('/ws-tickets').then((r) => r.ticket),

  link: (token) => post('/links', { token }),
  acceptInvitation: (token, name, password) => post('/invitations/accept', { token, name, password }),
  resetPassword: (token, password) => post('/password/reset', { token, password }),

  changePassword: (current, password) => post('/password', { current, password }),
  sessions: () => get('/sessions').then((r) => r.sessions ?? []),
  endSession: (id) => remove(`/sessions/${part(id)}`),
  endOtherSessions: () => remove('/sessions').then((r) => r.ended),
  tokens: () => get('/tokens').then((r) => r.tokens ?? []),
  makeToken: (token) => post('/tokens', token),
  revokeToken: (id) => remove(`/tokens/${part(id)}`),

  people: () => get('/people').then((r) => r.people ?? []),
  changePerson: (id, change) => patch(`/people/${part(id)}`, change).then((r) => r.person),
  endSessionsOf: (id) => remove(`/people/${part(id)}/sessions`).then((r) => r.ended),
  makeReset: (id) => post(`/people/${part(id)}/reset`),
  invitations: () => get('/invitations').then((r) => r.invitations ?? []),
  invite: (invitation) => post('/invitations', invitation),
  withdraw: (id) => remove(`/invitations/${part(id)}`),
  audit: (query) => get(`/audit?${new URLSearchParams(query)}`),
  jobs: () => get('/jobs').then((r) => r.jobs ?? []),

  rooms: () => get('/rooms').then((r) => r.rooms ?? []),
  room: (id) => get(`/rooms/${part(id)}`).then((r) => r.room),
  createRoom: (room) => post('/rooms', room).then((r) => r.room),
  describeRoom: (id, description) => patch(`/rooms/${part(id)}`, { description }).then((r) => r.room),
  members: (room) => get(`/rooms/${part(room)}/members`).then((r) => r.members ?? []),
  setMember: (room, user, role) =>
    put(`/rooms/${part(room)}/members/${part(user)}`, role ? { role } : {}).then((r) => r.member),
  removeMember: (room, user) => remove(`/rooms/${part(room)}/members/${part(user)}`),
  messages: (room, { before, limit = 50 } = {}) =>
    get(`/rooms/${part(room)}/messages?limit=${limit}${before ? `&before=${part(before)}` : ''}`),
  editMessage: (room, id, text) =>
    patch(`/rooms/${part(room)}/messages/${part(id)}`, { text }).then((r) => r.message),
  deleteMessage: (room, id) => remove(`/rooms/${part(room)}/messages/${part(id)}`),

  users: () => get('/users').then((r) => r.users ?? []),
  presence: (users) => get(`/presence?users=${users.join(',')}`).then((r) => r.presence ?? []),

  callTool: (user, call) => postOnce(`/users/${part(user)}/tools`, call).then((r) => r.call),
  waitForCall: (id) => call('GET', `/calls/${part(id)}?wait_s=20`, undefined, {}, 35_000).then((r) => r.call),
  cancelCall: (id) => post(`/calls/${part(id)}/cancel`).then((r) => r.call),

  tasks: () => get('/tasks').then((r) => r.tasks ?? []),
  task: (name) => get(`/tasks/${part(name)}`).then((r) => r.task),
  createTask: (task) => post('/tasks', task).then((r) => r.task),
  updateTask: (name, task) => put(`/tasks/${part(name)}`, task).then((r) => r.task),
  deleteTask: (name) => remove(`/tasks/${part(name)}`),
  pauseTask: (name) => post(`/tasks/${part(name)}/pause`).then((r) => r.task),
  resumeTask: (name) => post(`/tasks/${part(name)}/resume`).then((r) => r.task),
  runTask: (name) => postOnce(`/tasks/${part(name)}/run`).then((r) => r.run),
  makeWebhook: (name) => post(`/tasks/${part(name)}/webhook`),
  removeWebhook: (name) => remove(`/tasks/${part(name)}/webhook`),

  runs: (name, query) => get(`/tasks/${part(name)}/runs?${new URLSearchParams(query)}`),
  run: (id) => get(`/runs/${part(id)}`).then((r) => r.run),
  log: (id, after) => get(`/runs/${part(id)}/log?after=${part(after)}`),
  cancelRun: (id) => post(`/runs/${part(id)}/cancel`).then((r) => r.run),
  schedule: (schedule, zone) => get(`/schedule?schedule=${part(schedule)}&zone=${part(zone)}`),
}
