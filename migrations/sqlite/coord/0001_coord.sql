-- +goose Up

-- Times and durations are integer microseconds.

CREATE TABLE coord_tasks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    payload BLOB NOT NULL,
    schedule TEXT NOT NULL,
    zone TEXT NOT NULL,
    overlap TEXT NOT NULL,
    misfire TEXT NOT NULL,
    misfire_cap INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    backoff INTEGER NOT NULL,
    max_backoff INTEGER NOT NULL,
    timeout INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    concurrency_key TEXT NOT NULL, -- empty: none
    concurrency_limit INTEGER NOT NULL,
    at_most_once BOOLEAN NOT NULL,
    paused BOOLEAN NOT NULL,
    version INTEGER NOT NULL,
    next_at INTEGER,             -- the next occurrence; NULL: none
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE INDEX coord_tasks_due ON coord_tasks (next_at) WHERE next_at IS NOT NULL AND NOT paused;

CREATE TABLE coord_runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id INTEGER,             -- NULL: of no task; outlives the task
    kind TEXT NOT NULL,
    payload BLOB NOT NULL,
    unique_key TEXT,
    state TEXT NOT NULL,
    exclusive BOOLEAN NOT NULL,  -- at most one of its task queued or running
    scheduled_for INTEGER,       -- the occurrence
    -- The one time that matters to its state: queued, when it may be claimed;
    -- running, when the lease ends; ended, when that was.
    at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    rescues INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    backoff INTEGER NOT NULL,
    max_backoff INTEGER NOT NULL,
    timeout INTEGER NOT NULL,
    priority INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 4),
    gate TEXT,                   -- what limits how many run at a time, see coord/internal/gate; NULL: nothing
    concurrency_limit INTEGER NOT NULL DEFAULT 0,
    at_most_once BOOLEAN NOT NULL,
    cancel_requested BOOLEAN NOT NULL DEFAULT FALSE,
    progress INTEGER NOT NULL DEFAULT 0,
    log_lines INTEGER NOT NULL DEFAULT 0,
    worker TEXT NOT NULL DEFAULT '',
    error TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER
);
-- A run is in flight, queued or running, until it has finished_at. What a partial
-- index asks is asked at each change of a row, the cheapest first. SQLite puts the
-- id at the end of every index by itself.
CREATE INDEX coord_runs_claim ON coord_runs (priority, at) WHERE finished_at IS NULL AND gate IS NULL;
-- Runs that wait for a place do not stand in the way of those that need none.
CREATE INDEX coord_runs_gated ON coord_runs (gate, concurrency_limit, priority, at) WHERE gate IS NOT NULL AND finished_at IS NULL;
CREATE INDEX coord_runs_gated_due ON coord_runs (at) WHERE gate IS NOT NULL AND finished_at IS NULL;
CREATE INDEX coord_runs_gated_running ON coord_runs (priority, at, id, gate, kind) WHERE gate IS NOT NULL AND state = 'running';
CREATE INDEX coord_runs_cancels ON coord_runs (cancel_requested) WHERE cancel_requested AND finished_at IS NULL;
CREATE UNIQUE INDEX coord_runs_occurrence ON coord_runs (task_id, scheduled_for) WHERE scheduled_for IS NOT NULL;
CREATE UNIQUE INDEX coord_runs_exclusive ON coord_runs (task_id) WHERE exclusive AND finished_at IS NULL;
CREATE INDEX coord_runs_active ON coord_runs (task_id) WHERE task_id IS NOT NULL AND finished_at IS NULL;
CREATE UNIQUE INDEX coord_runs_unique_key ON coord_runs (COALESCE(task_id, 0), unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX coord_runs_history ON coord_runs (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX coord_runs_ended ON coord_runs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX coord_runs_failed ON coord_runs (state) WHERE finished_at IS NOT NULL AND state IN ('failed', 'cancelled');

CREATE TABLE coord_run_log (
    run_id INTEGER NOT NULL,       -- deleted with the run
    number INTEGER NOT NULL,      -- counted from 1 over all attempts
    attempt INTEGER NOT NULL,
    at INTEGER NOT NULL,
    line TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
) WITHOUT ROWID;

CREATE TABLE coord_tickets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash BLOB NOT NULL UNIQUE,   -- SHA-256 of the secret
    purpose TEXT NOT NULL,
    user_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    origin TEXT NOT NULL,
    scope TEXT NOT NULL,
    ttl INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX coord_tickets_session ON coord_tickets (session_id, id);
CREATE INDEX coord_tickets_expiry ON coord_tickets (expires_at);

CREATE TABLE coord_limits (
    key BLOB PRIMARY KEY,        -- a hash
    tat INTEGER NOT NULL         -- when it owes nothing
) WITHOUT ROWID;

CREATE TABLE coord_topics (
    topic TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,        -- of the last event
    tag INTEGER NOT NULL         -- of the last event; stays when that is trimmed
) WITHOUT ROWID;

-- There is one writer at a time, so the order of ids is the order of commits. What
-- may be long comes last, so that the rest is read without it.
CREATE TABLE coord_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    seq INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    prev INTEGER NOT NULL,       -- the tag of the event before it; 0: it is the first
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    key TEXT,
    payload BLOB NOT NULL,
    UNIQUE (topic, seq)
);
CREATE UNIQUE INDEX coord_events_key ON coord_events (topic, key) WHERE key IS NOT NULL;

-- +goose Down
DROP TABLE coord_events;
DROP TABLE coord_topics;
DROP TABLE coord_limits;
DROP TABLE coord_tickets;
DROP TABLE coord_run_log;
DROP TABLE coord_runs;
DROP TABLE coord_tasks;
