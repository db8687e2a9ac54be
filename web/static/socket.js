// The WebSocket: tickets, endpoints, reconnecting, positions.
//
// For each topic the socket remembers the position of the last event that it
// handed out. After a reconnect, wherever to, it subscribes from there, so that
// nothing is missed, and it drops what it has seen, so that nothing comes twice.

/** Why a request over the socket has no answer, or a refusal as its answer. */
export class SocketError extends Error {
  constructor(code, message) {
    super(message)
    this.code = code // as in the protocol, or "disconnected", "timeout"
  }
}

const head = 'head'
const requestTimeout = 10_000
const pingEvery = 25_000
const connectTimeout = 15_000

/** The number in a position, such as 42 in "42.9f3a1c07"; -1 when it has none. */
export function seqOf(position) {
  const seq = parseInt(position, 10)
  return Number.isNaN(seq) ? -1 : seq
}

/** A pause before the given attempt, counted from 0: exponential with full jitter. */
export function backoff(attempt, random = Math.random) {
  return random() * Math.min(30_000, 500 * 2 ** attempt)
}

export class Socket {
  #handlers
  #endpoints = [location.origin] // the next one to try is the first
  #topics = new Map() // topic → {position, sent, live}; sent: the position asked for on this connection; live: confirmed
  #requests = new Map() // id → {resolve, reject, timer, confirmed}
  #lastID = 0
  #ws = null
  #state = 'offline'
  #running = false
  #attempt = 0
  #generation = 0 // grows with each attempt; an older one that comes late is ignored
  #onlineSince = 0
  #ahead = 0 // how many milliseconds our clock is ahead of the server's
  #waiting = false // between two attempts
  #retryTimer = 0
  #pingTimer = 0

  /**
   * handlers: ticket() → Promise of a secret; state(s); event(frame); reset(topic);
   * fresh(topic): subscribed from the present, so earlier events must be read otherwise;
   * refused(topic, error): the subscription is not allowed, or not any more; call(frame) and cancel(frame): a tool is
   * to be used, and no longer; unauthorised(told): there is no session, or, if told, it has just been ended.
   */
  constructor(handlers) {
    this.#handlers = handlers
    // Another network, or a page that somebody looks at again: the connection may be dead.
    addEventListener('online', () => this.#check())
    addEventListener('visibilitychange', () => document.visibilityState === 'visible' && this.#check())
  }

  get online() {
    return this.#state === 'online'
  }

  /** What the server's clock shows, in milliseconds, as far as is known. */
  serverNow() {
    return Date.now() - this.#ahead
  }

  /** Connects to the first of the endpoints that will do; one that fails is tried last from then on. */
  start(endpoints = []) {
    if (this.#running) return
    this.#endpoints = endpoints.length ? [...endpoints] : [location.origin]
    this.#running = true
    this.#attempt = 0
    this.#connect()
  }

  /** Ends the connection and forgets all topics. */
  stop() {
    this.#running = false
    this.#topics.clear()
    this.#drop(1000)
    this.#setState('offline')
  }

  /** Ends the wait between two attempts. */
  reconnectNow() {
    if (this.#running && this.#waiting) this.#connect()
  }

  has(topic) {
    return this.#topics.has(topic)
  }

  get topics() {
    return [...this.#topics.keys()]
  }

  /** Subscribes to topics, {topic: position}; those that it follows already keep their place. */
  subscribe(from) {
    for (const [name, position] of Object.entries(from)) {
      const topic = this.#topics.get(name)
      if (!topic) this.#topics.set(name, { position: position || head, sent: null, live: false })
      else if (topic.position === head && !topic.sent) topic.position = position || head
    }
    this.#sendSubscribe(Object.keys(from))
  }

  unsubscribe(...topics) {
    const sent = topics.filter((t) => this.#topics.get(t)?.sent)
    for (const topic of topics) this.#topics.delete(topic)
    if (this.online && sent.length) this.request({ type: 'unsubscribe', topics: sent }).catch(() => {})
  }

  /**
   * Sends a frame and resolves with its ack. Rejects with a SocketError. confirmed, if given, is called with the
   * ack before the frames behind it are looked at.
   */
  request(frame, timeout = requestTimeout, confirmed) {
    if (!this.online) return Promise.reject(new SocketError('disconnected', 'There is no connection.'))
    const id = String(++this.#lastID)
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#requests.delete(id)
        reject(new SocketError('timeout', 'The server did not answer in time.'))
      }, timeout)
      this.#requests.set(id, { resolve, reject, timer, confirmed })
      this.#ws.send(JSON.stringify({ ...frame, id }))
    })
  }

  async #connect() {
    this.#drop(1000)
    const generation = ++this.#generation
    const current = () => generation === this.#generation && this.#running
    this.#setState('connecting')
    let ticket
    try {
      ticket = await this.#handlers.ticket()
    } catch (error) {
      if (!current()) return
      if (error.status === 401) this.#handlers.unauthorised(false)
      else this.#retry(Math.max(this.#pause(), 1000 * (error.retryAfter || 0)))
      return
    }
    if (!current()) return
    const url = new URL('/ws', this.#endpoints[0])
    url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:'
    const ws = new WebSocket(url, ['tandem.v1', 'ticket.' + ticket])
    this.#ws = ws
    const slow = setTimeout(() => current() && ws === this.#ws && this.#lost(), connectTimeout)
    ws.onmessage = ({ data }) => {
      if (!current() || ws !== this.#ws) return
      const frames = JSON.parse(data)
      for (const frame of Array.isArray(frames) ? frames : [frames]) {
        if (frame.type === 'welcome') clearTimeout(slow)
        this.#receive(frame)
      }
    }
    ws.onclose = ({ code }) => {
      clearTimeout(slow)
      if (current() && ws === this.#ws) this.#lost(code)
    }
  }

  // The connection is gone, or is given up because it is silent.
  #lost(code) {
    // A connection that did not last counts as a failed attempt.
    if (this.#onlineSince && Date.now() - this.#onlineSince > 5_000) this.#attempt = 0
    if (code === 4009) { // replaced: until somebody looks at this page, it must not come back
      this.#drop()
      this.#waiting = true
      this.#setState('offline')
      return
    }
    if (code === 4001) {
      this.#drop()
      this.#setState('offline')
      this.#handlers.unauthorised(true)
      return
    }
    let delay = this.#pause()
    if (code !== 4008) this.#tryLast() // which says nothing about the server
    if (code === 1012) delay += Math.random() * 2_000 // a restart sends everybody away at once
    this.#drop()
    this.#retry(delay)
  }

  // A pause for each round of the endpoints.
  #pause() {
    return backoff(Math.floor(this.#attempt++ / this.#endpoints.length))
  }

  #tryLast() {
    this.#endpoints.push(this.#endpoints.shift())
  }

  #retry(delay) {
    this.#setState('offline')
    this.#waiting = true
    this.#retryTimer = setTimeout(() => this.#connect(), delay)
  }

  #drop(code) {
    clearTimeout(this.#retryTimer)
    clearInterval(this.#pingTimer)
    this.#retryTimer = this.#pingTimer = 0
    this.#waiting = false
    this.#onlineSince = 0
    const ws = this.#ws
    this.#ws = null
    if (ws) {
      ws.onmessage = ws.onclose = null
      ws.close(code ?? 1000)
    }
    for (const topic of this.#topics.values()) Object.assign(topic, { sent: null, live: false })
    const requests = [...this.#requests.values()]
    this.#requests.clear()
    for (const { reject, timer } of requests) {
      clearTimeout(timer)
      reject(new SocketError('disconnected', 'The connection was lost.'))
    }
  }

  #setState(state) {
    if (state === this.#state) return
    this.#state = state
    this.#handlers.state(state)
  }

  #receive(frame) {
    switch (frame.type) {
      case 'welcome':
        this.#onlineSince = Date.now()
        this.#ahead = this.#onlineSince - (Date.parse(frame.server_time) || this.#onlineSince)
        this.#pingTimer = setInterval(() => this.#ping(requestTimeout), pingEvery)
        this.#setState('online')
        this.#sendSubscribe(this.topics)
        break
      case 'event':
        this.#event(frame)
        break
      case 'reset': {
        const topic = this.#topics.get(frame.topic)
        if (!topic?.sent) break
        topic.position = frame.position || head
        this.#handlers.reset(frame.topic)
        break
      }
      case 'tool.call':
        this.#handlers.call(frame)
        break
      case 'tool.cancel':
        this.#handlers.cancel(frame)
        break
      case 'ack':
      case 'pong':
      case 'error': {
        if (frame.topic && this.#topics.delete(frame.topic)) { // it may not be read any more
          this.#handlers.refused(frame.topic, new SocketError(frame.code, frame.message))
        }
        const request = this.#requests.get(frame.id)
        if (!request) break
        this.#requests.delete(frame.id)
        clearTimeout(request.timer)
        if (frame.type === 'error') request.reject(new SocketError(frame.code, frame.message || frame.code))
        else {
          request.confirmed?.(frame)
          request.resolve(frame)
        }
        break
      }
      case 'reconnect': {
        // The server is about to leave. Go before it does, but not all at once.
        const ws = this.#ws
        const wait = (frame.after_ms || 0) + Math.random() * (frame.jitter_ms || 0)
        setTimeout(() => {
          if (ws !== this.#ws) return
          this.#tryLast()
          this.#connect()
        }, wait)
        break
      }
    }
  }

  #event(frame) {
    const topic = this.#topics.get(frame.topic)
    if (!topic?.live) return // of an earlier subscription
    const seq = seqOf(frame.position)
    if (seq >= 0 && seq <= seqOf(topic.position)) return
    topic.position = frame.position
    this.#handlers.event(frame)
  }

  #check() {
    if (this.online) this.#ping(4_000)
    else this.reconnectNow()
  }

  async #ping(timeout) {
    const ws = this.#ws
    try {
      await this.request({ type: 'ping' }, timeout)
    } catch (error) {
      if (error.code === 'timeout' && ws && ws === this.#ws) this.#lost()
    }
  }

  async #sendSubscribe(topics) {
    const asked = new Map()
    const from = {}
    for (const name of topics) {
      const topic = this.#topics.get(name)
      if (!this.online || !topic || topic.sent) continue
      asked.set(name, topic)
      from[name] = topic.sent = topic.position
    }
    if (!asked.size) return
    const confirmed = (ack) => {
      for (const [name, topic] of asked) {
        topic.live = true
        if (topic.position === head) topic.position = ack.positions?.[name] || head
      }
    }
    const still = () => [...asked.keys()].filter((name) => this.#topics.get(name) === asked.get(name))
    try {
      await this.request({ type: 'subscribe', topics: from }, requestTimeout, confirmed)
      for (const name of still()) if (from[name] === head) this.#handlers.fresh(name)
    } catch (error) {
      this.#subscribeFailed(still(), error)
    }
  }

  #subscribeFailed(names, error) {
    if (error.code === 'disconnected') return // the next welcome subscribes again
    for (const name of names) {
      const topic = this.#topics.get(name)
      if (topic) topic.sent = null
    }
    if (error.code === 'timeout') {
      this.#lost() // whether the server has subscribed us is unknown: begin anew
    } else if (error.code === 'limited' || error.code === 'unavailable') {
      setTimeout(() => this.#sendSubscribe(names), 1_000 + backoff(3))
    } else if (names.length > 1) {
      for (const name of names) this.#sendSubscribe([name]) // find the one that is refused
    } else if (names.length) {
      this.#topics.delete(names[0])
      this.#handlers.refused(names[0], error)
    }
  }
}
