// Everybody who has an account, and invitations for those who have none yet: for administrators.

import { html, useEffect, useRef, useState } from '../vendor/htm-preact/standalone.module.js'
import { api } from '../api.js'
import { fromNow, fullTime, plural, sentence } from '../format.js'
import { icon } from '../icons.js'
import { attempt, failed, watch } from '../store/live.js'
import { lookUp } from '../store/people.js'
import { state, toast } from '../store/state.js'
import {
  AskButton, Choice, FormError, Once, PageHead, Person, ReadError, useForm, useKeptFocus, useNow, useRead,
} from './parts.js'

export function PeoplePage() {
  const people = useRead(api.people)
  const invitations = useRead(api.invitations)

  // Who is heard of for the first time has just used an invitation.
  const known = useRef(new Set())
  people.value?.forEach((p) => known.current.add(p.id))
  useEffect(() => {
    const load = () => {
      people.load()
      invitations.load()
    }
    return watch('presence', {
      event(_, { user_id: id }) {
        if (!known.current.has(id)) load()
        known.current.add(id)
      },
      fresh: load,
    })
  }, [])

  return html`
    <${PageHead} id="people-title" back="#/" where="the rooms" symbol=${icon.people()} title="People" />
    <div class="page"><div class="page-column" id="people-page">
      <${Everybody} people=${people} />
      ${people.known && html`<${Invitations} invitations=${invitations} />`}
    </div></div>`
}

const roles = [['member', 'Member'], ['guest', 'Guest'], ['admin', 'Administrator']]
const roleNames = Object.fromEntries(roles)
const roleHints = {
  admin: 'Manages people, and everything that runs here.',
  member: 'Sees public rooms and people, and makes rooms and tasks.',
  guest: 'Sees only the rooms that they are added to.',
}

const manyPeople = 8 // from here on one looks for a name

function Everybody({ people: { value: people, error, load } }) {
  const [text, setText] = useState('')
  const [open, setOpen] = useState(0)
  useNow(30_000) // for when people were seen
  const ids = people?.map((p) => p.id)
  useEffect(() => { if (ids) lookUp(ids) }, [ids?.join()])

  const wanted = text.trim().toLocaleLowerCase()
  const shown = people?.filter((p) => p.name.toLocaleLowerCase().includes(wanted))
  return html`
    <section class="card" aria-labelledby="everybody-title" aria-busy=${!people && !error}>
      <h2 id="everybody-title">${people ? plural(people.length, 'account') : 'Accounts'}</h2>
      <${ReadError} error=${error} load=${load} />
      ${people?.length >= manyPeople && html`
        <div class="field"><label class="sr-only" for="people-find">Name</label>
          <input id="people-find" type="search" placeholder="Find somebody" autocomplete="off" value=${text}
            onInput=${(e) => setText(e.currentTarget.value)} aria-controls="everybody" /></div>`}
      <ul class="entries" id="everybody" aria-labelledby="everybody-title">
        ${shown?.map((p) => html`<${Account} key=${p.id} person=${p} load=${load} open=${open === p.id}
          toggle=${() => setOpen(open === p.id ? 0 : p.id)} />`)}
      </ul>
      <p class="hint" role="status">${shown && !shown.length && 'Nobody has such a name.'}</p>
    </section>`
}

function Account({ person, load, open, toggle }) {
  const { id, name, role, deactivated, sessions, tokens } = person
  const facts = [sessions && plural(sessions, 'session'), tokens && plural(tokens, 'token')].filter(Boolean)
  return html`
    <li class="entry" data-account=${id} data-name=${name} data-role=${role}
      data-deactivated=${deactivated ? '' : undefined}>
      <div class="entry-text">
        <${Person} id=${id} name=${name}>
          ${id === state.me.id && html`<span class="badge quiet">you</span>`}
          <span class="badge ${role === 'admin' ? '' : 'quiet'}">${roleNames[role]}</span>
          ${deactivated && html`<span class="badge warn">deactivated</span>`}
        <//>
      </div>
      <span class="hint entry-facts">${facts.join(', ')}</span>
      <button type="button" class="button small account-manage" aria-expanded=${open} onClick=${toggle}>
        Manage<span class="sr-only"> ${name}</span></button>
      ${open && html`<${Manage} person=${person} load=${load} />`}
    </li>`
}

function Manage({ person, load }) {
  const { id, name, role, deactivated, sessions, tokens } = person
  const [error, setError] = useState('')
  const [made, setMade] = useState(null)
  const [chosen, setChosen] = useState('')
  const me = id === state.me.id
  const next = chosen || role

  // Why something did not work stays beside what was tried.
  async function act(action, done) {
    setError('')
    try {
      const result = await action()
      toast(done)
      return result
    } catch (e) {
      setError(sentence(failed(e)))
    } finally {
      load()
    }
  }
  const setRole = async () => {
    await act(() => api.changePerson(id, { role: next }), `${name} is ${words[next]} now.`)
    setChosen('')
  }
  const endAll = () => act(() => api.endSessionsOf(id), `${name} is signed out everywhere.`)
  const reset = async () => setMade((await act(() => api.makeReset(id))) ?? made)
  const setActive = (active) =>
    act(() => api.changePerson(id, { active }), `${name} is ${active ? 'reactivated' : 'deactivated'}.`)
  const box = useKeptFocus('select')
  return html`
    <div class="manage" ref=${box} role="group" aria-label="Manage ${name}">
      <div class="field">
        <label for="account-role-${id}">Role</label>
        <div class="manage-role">
          <select id="account-role-${id}" class="account-role" value=${next} aria-describedby="account-role-${id}-hint"
            onChange=${(e) => setChosen(e.currentTarget.value)}>
            ${roles.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}
          </select>
          ${next !== role && (me
            ? html`<${AskButton} name="account-role-save" kind="button" label="Change the role" no="Keep it"
                question="You will not be able to undo this yourself." yes="Change" act=${setRole} />`
            : html`<button type="button" class="button primary account-role-save" onClick=${setRole}>
                Change the role</button>`)}
        </div>
        <p class="hint" id="account-role-${id}-hint">${roleHints[next]}</p>
      </div>
      <div class="page-actions">
        ${sessions + tokens > 0 && html`
          <${AskButton} name="account-end" symbol=${icon.leave()} label="Sign out everywhere" what=${name} no="Keep"
            question=${me ? 'End all your sessions and tokens?' : `End all sessions and tokens of ${name}?`}
            yes="Sign out" act=${endAll} />`}
        ${!deactivated && html`
          <button type="button" class="button small account-reset" onClick=${reset}>
            ${icon.link()}<span>Reset link</span><span class="sr-only"> for ${name}</span></button>
          <${AskButton} name="account-deactivate" symbol=${icon.stop()} label="Deactivate" what=${name} no="Keep"
            question="Deactivate ${name}? What they wrote stays, and so do their tasks." yes="Deactivate"
            act=${() => setActive(false)} />`}
        ${deactivated && html`
          <${AskButton} name="account-reactivate" symbol=${icon.again()} label="Reactivate" what=${name} no="No"
            question="Let ${name} sign in again?" yes="Reactivate" act=${() => setActive(true)} />`}
      </div>
      <div role="alert">${error && html`<p class="form-error">${error}</p>`}</div>
      ${made && html`
        <${Once} id="reset-made" title="A link for another password. Keep it now: it is not shown again."
          text=${location.origin + made.path} what="the link" close=${() => setMade(null)}>
          <p class="hint">Give it to ${name} alone. It works once, until ${fullTime(made.expires_at)}.</p>
        <//>`}
    </div>`
}

const words = { admin: 'an administrator', member: 'a member', guest: 'a guest' }

// Invitations.

const day = 86_400
const lives = [[day, 'A day'], [7 * day, 'A week'], [30 * day, '30 days']]

function Invitations({ invitations: { value: invitations, error, load } }) {
  const [made, setMade] = useState(null)
  const now = useNow(30_000)
  const withdrawn = (id) => {
    if (made?.invitation.id === id) setMade(null)
    load()
  }
  const card = useKeptFocus('h2')
  return html`
    <section class="card" ref=${card} aria-labelledby="invitations-title" aria-busy=${!invitations && !error}>
      <h2 id="invitations-title" tabindex="-1">Invitations</h2>
      <p class="hint">A link lets one person make an account of their own.</p>
      <${NewInvitation} done=${(link) => (setMade(link), load())} />
      ${made && html`
        <${Once} id="invitation-made" title="The link. Keep it now: it is not shown again."
          text=${location.origin + made.path} what="the link" close=${() => setMade(null)}>
          <p class="hint">It works once, until ${fullTime(made.expires_at)}.</p>
        <//>`}
      <${ReadError} error=${error} load=${load} />
      <ul class="entries" id="invitations" aria-labelledby="invitations-title">
        ${invitations?.map((i) => html`
          <${Invitation} key=${i.id} invitation=${i} now=${now} withdrawn=${() => withdrawn(i.id)} />`)}
      </ul>
      ${invitations && !invitations.length && html`<p class="hint">None is open.</p>`}
    </section>`
}

function NewInvitation({ done }) {
  const [role, setRole] = useState('member')
  const form = useForm(async (fields) => {
    done(await api.invite({
      role: fields.role, room_id: Number(fields.room_id), expires_in_s: Number(fields.expires_in_s),
    }))
  }, { reset: false })
  const rooms = state.rooms.filter((room) => room.kind !== 'direct')
  const { error } = form
  return html`
    <form class="stack card-form" id="invitation-form" onSubmit=${form.submit} aria-label="New invitation"
      onChange=${(e) => e.target.name === 'role' && setRole(e.target.value)}>
      <div class="triple">
        <${Choice} id="invitation-role" name="role" label="Role" options=${roles} error=${error} />
        <${Choice} id="invitation-room" name="room_id" label="Room" error=${error}
          options=${[[0, 'None'], ...rooms.map((room) => [room.id, room.name])]} />
        <${Choice} id="invitation-expires" name="expires_in_s" label="Good for" options=${lives} initial=${7 * day}
          error=${error} />
        <p class="hint">${roleHints[role]}${role === 'guest' && ' Choose the one to begin in.'}</p>
      </div>
      <${FormError} error=${error} fields=${['role', 'room_id', 'expires_in_s']} wait=${form.wait} />
      <div class="page-actions">
        <button class="button primary" id="invitation-submit" disabled=${form.busy || form.wait > 0}>
          ${icon.link()}<span>Make a link</span></button>
      </div>
    </form>`
}

function Invitation({ invitation, now, withdrawn }) {
  const { id, role, room, by, expires_at: expires } = invitation
  const withdraw = async () => {
    await attempt(() => api.withdraw(id), 'The invitation is withdrawn.')
    withdrawn()
  }
  return html`
    <li class="entry" data-invitation=${id}>
      <span class="entry-icon" aria-hidden="true">${icon.link()}</span>
      <div class="entry-text">
        <p class="entry-name">${roleNames[role]}${room && html`<span class="entry-room">in ${room}</span>`}</p>
        <p class="hint">By ${by}, <time datetime=${expires} title=${fullTime(expires)}>
          expires ${fromNow(expires, now)}</time></p>
      </div>
      <${AskButton} name="invitation-withdraw" label="Withdraw" what="the invitation for ${words[role]}" no="Keep"
        question="The link stops working." yes="Withdraw" act=${withdraw} />
    </li>`
}
