-- +goose Up

SET LOCAL statement_timeout = 0;

-- The clock that decides, in one place. coord_now is that of the statement, so
-- that an index can be searched by it; coord_clock moves on, for what must be read
-- after a lock was taken. Both are inlined by the planner.
CREATE FUNCTION coord_now() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT statement_timestamp()';
CREATE FUNCTION coord_clock() RETURNS timestamptz LANGUAGE sql VOLATILE
AS 'SELECT clock_timestamp()';

CREATE TABLE coord_tasks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    kind text NOT NULL,
    payload bytea NOT NULL,
    schedule text NOT NULL,
    zone text NOT NULL,
    overlap text NOT NULL,
    misfire text NOT NULL,
    misfire_cap integer NOT NULL,
    max_attempts integer NOT NULL,
    backoff bigint NOT NULL,     -- microseconds, as all durations
    max_backoff bigint NOT NULL,
    timeout bigint NOT NULL,
    priority smallint NOT NULL,
    at_most_once boolean NOT NULL,
    paused boolean NOT NULL,
    version bigint NOT NULL,
    next_at timestamptz,         -- the next occurrence; NULL: none
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX coord_tasks_due ON coord_tasks (next_at) WHERE next_at IS NOT NULL AND NOT paused;

CREATE TABLE coord_runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id bigint,              -- NULL: of no task; outlives the task
    kind text NOT NULL,
    payload bytea NOT NULL,
    unique_key text,
    state text NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    exclusive boolean NOT NULL,  -- at most one of its task queued or running
    scheduled_for timestamptz,   -- the occurrence
    -- The one time that matters to its state: queued, when it may be claimed;
    -- running, when the lease ends; ended, when that was.
    at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    rescues integer NOT NULL DEFAULT 0,
    token bigint NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    backoff bigint NOT NULL,
    max_backoff bigint NOT NULL,
    timeout bigint NOT NULL,
    priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 4),
    at_most_once boolean NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    worker text NOT NULL DEFAULT '',
    error text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz
);
-- What a claim searches: it holds neither ended nor, before their time, future runs
-- in the way, whatever their number.
CREATE INDEX coord_runs_claim ON coord_runs (priority, at, id) WHERE state IN ('queued', 'running');
CREATE UNIQUE INDEX coord_runs_occurrence ON coord_runs (task_id, scheduled_for) WHERE scheduled_for IS NOT NULL;
CREATE UNIQUE INDEX coord_runs_exclusive ON coord_runs (task_id) WHERE exclusive AND state IN ('queued', 'running');
CREATE INDEX coord_runs_active ON coord_runs (task_id) WHERE task_id IS NOT NULL AND state IN ('queued', 'running');
-- A trigger's key is its task's; NULL stands for the runs of no task.
CREATE UNIQUE INDEX coord_runs_unique_key ON coord_runs (task_id, unique_key) NULLS NOT DISTINCT WHERE unique_key IS NOT NULL;
CREATE INDEX coord_runs_history ON coord_runs (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX coord_runs_ended ON coord_runs (at) WHERE state IN ('succeeded', 'failed', 'cancelled');

CREATE TABLE coord_tickets (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash bytea NOT NULL UNIQUE,  -- SHA-256 of the secret
    purpose text NOT NULL,
    user_id text NOT NULL,
    session_id text NOT NULL,
    origin text NOT NULL,
    scope text NOT NULL,
    ttl bigint NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX coord_tickets_session ON coord_tickets (session_id, id);
CREATE INDEX coord_tickets_expiry ON coord_tickets (expires_at);

-- No index on the changing column, and room on each page: updates stay HOT.
CREATE TABLE coord_limits (
    key bytea PRIMARY KEY,       -- a hash
    tat bigint NOT NULL          -- microseconds since 1970: when it owes nothing
) WITH (fillfactor = 50);

CREATE TABLE coord_topics (
    topic text PRIMARY KEY,
    seq bigint NOT NULL,         -- of the last event
    tag bigint NOT NULL          -- of the last event; stays when that is trimmed
) WITH (fillfactor = 50);

CREATE TABLE coord_events (
    topic text NOT NULL,
    seq bigint NOT NULL,
    tag bigint NOT NULL,
    kind text NOT NULL,
    payload bytea NOT NULL,
    at timestamptz NOT NULL,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (topic, seq)
);
-- New events are those of the transactions that a reader could not see before.
CREATE INDEX coord_events_xid ON coord_events (xid);
CREATE INDEX coord_events_age ON coord_events (at);

-- +goose Down
DROP TABLE coord_events, coord_topics, coord_limits, coord_tickets, coord_runs, coord_tasks;
DROP FUNCTION coord_now(), coord_clock();
