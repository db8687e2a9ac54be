-- +goose Up

SET LOCAL statement_timeout = 0;

-- The clock that decides, in one place. coord_now is that of the statement, so
-- that an index can be searched by it; coord_clock moves on, for what must be read
-- after a lock was taken. Both are inlined by the planner.
CREATE FUNCTION coord_now() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT statement_timestamp()';
CREATE FUNCTION coord_clock() RETURNS timestamptz LANGUAGE sql VOLATILE
AS 'SELECT clock_timestamp()';

-- In this order: what comes after running has ended. An enum is compared as a
-- number, which counts where every change of a row is tested for each index.
CREATE TYPE coord_state AS ENUM ('queued', 'running', 'succeeded', 'failed', 'cancelled');

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
    concurrency_key text NOT NULL, -- empty: none
    concurrency_limit integer NOT NULL,
    at_most_once boolean NOT NULL,
    paused boolean NOT NULL,
    version bigint NOT NULL,
    next_at timestamptz,         -- the next occurrence; NULL: none
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX coord_tasks_due ON coord_tasks (next_at) WHERE next_at IS NOT NULL AND NOT paused;

CREATE TABLE coord_runs (
    -- With room in the index for the versions of a run, which is changed twice at least.
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY WITH (fillfactor = 50),
    task_id bigint,              -- NULL: of no task; outlives the task
    kind text NOT NULL,
    payload bytea NOT NULL,
    unique_key text,
    state coord_state NOT NULL,
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
    gate text,                   -- what limits how many run at a time, see coord/internal/gate; NULL: nothing
    concurrency_limit integer NOT NULL DEFAULT 0,
    at_most_once boolean NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    progress smallint NOT NULL DEFAULT 0,
    log_lines integer NOT NULL DEFAULT 0,
    worker text NOT NULL DEFAULT '',
    error text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz
);
-- What a claim searches: it holds neither ended nor, before their time, future runs
-- in the way, whatever their number.
CREATE INDEX coord_runs_claim ON coord_runs (priority, at, id) WHERE state <= 'running' AND gate IS NULL;
-- Runs that wait for a place do not stand in the way of those that need none.
CREATE INDEX coord_runs_gated ON coord_runs (gate, concurrency_limit, kind, priority, at, id) WHERE state = 'queued' AND gate IS NOT NULL;
CREATE INDEX coord_runs_gated_running ON coord_runs (at) WHERE state = 'running' AND gate IS NOT NULL;
CREATE INDEX coord_runs_gated_due ON coord_runs (at) WHERE state <= 'running' AND gate IS NOT NULL;
CREATE UNIQUE INDEX coord_runs_occurrence ON coord_runs (task_id, scheduled_for) WHERE scheduled_for IS NOT NULL;
CREATE UNIQUE INDEX coord_runs_exclusive ON coord_runs (task_id) WHERE exclusive AND state <= 'running';
CREATE INDEX coord_runs_active ON coord_runs (task_id) WHERE task_id IS NOT NULL AND state <= 'running';
-- A trigger's key is its task's; NULL stands for the runs of no task.
CREATE UNIQUE INDEX coord_runs_unique_key ON coord_runs (task_id, unique_key) NULLS NOT DISTINCT WHERE unique_key IS NOT NULL;
CREATE INDEX coord_runs_history ON coord_runs (task_id, id) WHERE task_id IS NOT NULL;
-- Ended runs lie in the table about as they ended; the ranges cost next to nothing
-- to keep.
CREATE INDEX coord_runs_ended ON coord_runs USING brin (at) WITH (pages_per_range = 32, autosummarize = on) WHERE state > 'running';
CREATE INDEX coord_runs_failed ON coord_runs (state, id) WHERE state >= 'failed';

CREATE TABLE coord_run_log (
    run_id bigint NOT NULL,       -- deleted with the run
    number integer NOT NULL,      -- counted from 1 over all attempts
    attempt integer NOT NULL,
    at timestamptz NOT NULL,
    line text NOT NULL,
    PRIMARY KEY (run_id, number)
);

-- The hot statements are functions, so that a server keeps their plans behind a
-- transaction pooler too, where a statement can't be prepared. The plans are made
-- before anything is known of the tables, hence the settings: each search is one
-- of an index, in its order.

-- coord_enqueue queues runs of no task, numbered in the order given, and returns
-- those whose key is new, behind a row with the time. With keys they are inserted in the order of these, so that
-- calls with the same keys can't deadlock; without, keys is NULL.
-- +goose StatementBegin
CREATE FUNCTION coord_enqueue(kinds text[], payloads bytea[], keys text[], delays bigint[], dues timestamptz[],
    max_attempts integer[], backoffs bigint[], max_backoffs bigint[], timeouts bigint[], priorities smallint[], gates text[],
    places integer[], once boolean[])
RETURNS TABLE (id bigint, unique_key text, clock timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    clock := coord_clock();
    RETURN NEXT;
    IF keys IS NULL THEN
        RETURN QUERY INSERT INTO coord_runs AS r (id, kind, payload, at, due_at, max_attempts, backoff, max_backoff,
            timeout, priority, gate, concurrency_limit, at_most_once, state, exclusive, created_at) OVERRIDING SYSTEM VALUE
        SELECT v.id, v.kind, v.payload, d.due, d.due, v.max_attempts, v.backoff, v.max_backoff,
            v.timeout, v.priority, NULLIF(v.gate, ''), v.places, v.once, 'queued', false, clock
        FROM (
            SELECT nextval('coord_runs_id_seq') AS id, * FROM unnest(kinds, payloads, delays, dues, max_attempts, backoffs,
                max_backoffs, timeouts, priorities, gates, places, once)
        ) AS v (id, kind, payload, delay, due, max_attempts, backoff, max_backoff, timeout, priority, gate, places, once),
        LATERAL (SELECT COALESCE(v.due, clock + v.delay * interval '1 microsecond') AS due) AS d
        RETURNING r.id, NULL, NULL::timestamptz;
        RETURN;
    END IF;
    RETURN QUERY INSERT INTO coord_runs AS r (id, kind, payload, unique_key, at, due_at, max_attempts, backoff, max_backoff,
        timeout, priority, gate, concurrency_limit, at_most_once, state, exclusive, created_at) OVERRIDING SYSTEM VALUE
    SELECT v.id, v.kind, v.payload, NULLIF(v.key, ''), d.due, d.due, v.max_attempts, v.backoff, v.max_backoff,
        v.timeout, v.priority, NULLIF(v.gate, ''), v.places, v.once, 'queued', false, clock
    FROM (
        SELECT nextval('coord_runs_id_seq') AS id, * FROM unnest(kinds, payloads, keys, delays, dues, max_attempts, backoffs,
            max_backoffs, timeouts, priorities, gates, places, once)
    ) AS v (id, kind, payload, key, delay, due, max_attempts, backoff, max_backoff, timeout, priority, gate, places, once),
    LATERAL (SELECT COALESCE(v.due, clock + v.delay * interval '1 microsecond') AS due) AS d
    ORDER BY v.key COLLATE "C", v.id
    ON CONFLICT (task_id, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
    RETURNING r.id, r.unique_key, NULL::timestamptz;
END $$;
-- +goose StatementEnd

-- coord_next_due returns in how many microseconds the next run or occurrence of these
-- kinds, or of any when they are NULL, falls due or lease ends; NULL: never. The
-- indexes don't know the kind, so each search reads a few that come next. When none
-- of these is asked for, the answer is where it stopped: too soon, but at a price that
-- no backlog of other kinds changes.
-- +goose StatementBegin
CREATE FUNCTION coord_next_due(kinds text[]) RETURNS bigint
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_sort = off AS $$
DECLARE
    few CONSTANT integer := 50;
BEGIN
    RETURN (SELECT ceil(extract(epoch FROM min(next.at) - coord_now()) * 1000000) FROM (
        SELECT ahead.search, COALESCE(min(ahead.at) FILTER (WHERE kinds IS NULL OR ahead.kind = ANY (kinds)),
            CASE count(*) WHEN few THEN max(ahead.at) END) FROM (
            SELECT p.priority, r.at, r.kind FROM unnest('{1,2,3,4}'::smallint[]) AS p (priority) CROSS JOIN LATERAL (
                SELECT at, kind FROM coord_runs
                WHERE priority = p.priority AND state <= 'running' AND gate IS NULL AND at > coord_now()
                ORDER BY at LIMIT few) AS r
            UNION ALL (SELECT 5, at, kind FROM coord_runs WHERE state <= 'running' AND gate IS NOT NULL AND at > coord_now()
                ORDER BY at LIMIT few)
            UNION ALL (SELECT 6, next_at, kind FROM coord_tasks WHERE next_at > coord_now() AND NOT paused
                ORDER BY next_at LIMIT few)
        ) AS ahead (search, at, kind) GROUP BY ahead.search
    ) AS next (search, at));
END $$;
-- +goose StatementEnd

-- coord_again tells whether a claimable run may run, and need not end because its
-- worker vanished. The planner inlines it.
CREATE FUNCTION coord_again(r coord_runs) RETURNS boolean LANGUAGE sql IMMUTABLE
AS 'SELECT r.state = ''queued'' OR NOT (r.cancel_requested OR r.at_most_once OR r.attempt >= r.max_attempts)';

-- coord_claim leases due runs without a gate. The first column says what a row is:
-- 'now', the time at which that was done; a run that is 'running' now, or had to end
-- instead; or that there is more to do: 'gated', runs with a gate are due and nothing
-- was taken; 'tasks', tasks are. With chosen runs it leases those that are still
-- claimable, and looks for no others. Of runs that may not run again since their
-- worker vanished it ends the claims. What few runs have is in one column, which is
-- NULL for the others: handing on a column costs about as much as writing it.
--
-- One search per priority keeps each an index scan that ends at the limit,
-- whatever lies in the future. The clock is read when the rows are locked.
-- +goose StatementBegin
CREATE FUNCTION coord_claim(kinds text[], most integer, chosen bigint[], lease bigint, who text, lost text)
RETURNS TABLE (what text, id bigint, kind text, payload bytea, due_at timestamptz, attempt integer, token bigint,
    max_attempts integer, backoff bigint, max_backoff bigint, priority smallint, created_at timestamptz, rest json)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    ids bigint[];
    tasks_due boolean;
    gated_due boolean;
    clock timestamptz;
BEGIN
    IF chosen IS NULL THEN
        SELECT EXISTS (SELECT FROM coord_tasks t
                WHERE t.next_at <= coord_now() AND NOT t.paused AND t.kind = ANY (kinds) AND NOT (t.overlap = 'forbid' AND EXISTS (
                    SELECT FROM coord_runs r WHERE r.task_id = t.id AND r.state <= 'running'))),
            (SELECT true FROM coord_runs r
                WHERE r.gate IS NOT NULL AND r.state <= 'running' AND r.at <= coord_now() AND r.kind = ANY (kinds)
                ORDER BY r.at LIMIT 1)
            INTO tasks_due, gated_due;
        IF tasks_due THEN
            what := 'tasks';
            RETURN NEXT;
        END IF;
        IF gated_due THEN
            what := 'gated';
            RETURN NEXT;
            RETURN;
        END IF;
        ids := ARRAY(
            SELECT due.id FROM unnest('{1,2,3,4}'::smallint[]) AS p (priority)
            CROSS JOIN LATERAL (
                SELECT r.id FROM coord_runs r
                WHERE r.priority = p.priority AND r.gate IS NULL AND r.state <= 'running' AND r.at <= coord_now() AND r.kind = ANY (kinds)
                ORDER BY r.at, r.id LIMIT most FOR UPDATE SKIP LOCKED
            ) AS due LIMIT most);
    ELSE
        ids := ARRAY(
            SELECT r.id FROM coord_runs r WHERE r.id = ANY (chosen) AND r.state <= 'running' AND r.at <= coord_now()
            ORDER BY r.id FOR UPDATE SKIP LOCKED);
    END IF;
    IF ids = '{}' THEN
        RETURN;
    END IF;
    clock := coord_clock();
    what := 'now';
    due_at := clock;
    RETURN NEXT;
    RETURN QUERY UPDATE coord_runs AS r SET
        state = CASE WHEN coord_again(r) THEN 'running'::coord_state WHEN r.cancel_requested THEN 'cancelled' ELSE 'failed' END,
        at = CASE WHEN coord_again(r) THEN clock + lease * interval '1 microsecond' ELSE clock END,
        token = r.token + 1,
        attempt = r.attempt + coord_again(r)::int,
        rescues = r.rescues + (r.state = 'running')::int,
        worker = CASE WHEN coord_again(r) THEN who ELSE r.worker END,
        error = CASE WHEN coord_again(r) OR r.cancel_requested THEN r.error ELSE lost END,
        started_at = CASE WHEN coord_again(r) THEN clock ELSE r.started_at END,
        finished_at = CASE WHEN coord_again(r) THEN NULL ELSE clock END,
        progress = CASE WHEN coord_again(r) THEN 0 ELSE r.progress END
    WHERE r.id = ANY (ids)
    RETURNING r.state::text, r.id, r.kind, r.payload, r.due_at, r.attempt, r.token, r.max_attempts, r.backoff, r.max_backoff,
        r.priority, r.created_at, CASE WHEN r.task_id IS NOT NULL OR r.unique_key IS NOT NULL OR r.gate IS NOT NULL OR r.rescues > 0
            OR r.timeout > 0 OR r.log_lines > 0 OR r.at_most_once OR r.cancel_requested OR r.error <> '' THEN json_build_object(
                'task_id', r.task_id, 'unique_key', r.unique_key, 'scheduled_for', r.scheduled_for, 'gate', r.gate,
                'concurrency_limit', r.concurrency_limit, 'rescues', r.rescues, 'timeout', r.timeout, 'log_lines', r.log_lines,
                'at_most_once', r.at_most_once, 'cancel_requested', r.cancel_requested, 'error', r.error) END;
END $$;
-- +goose StatementEnd

-- coord_finish ends claims and returns the runs whose claims are held no longer, and
-- whether something may have waited for one of the ends: an occurrence of its task, or
-- a run that needs its place. Without states all have succeeded. Rows are locked in the
-- order given, which is that of the ids.
-- +goose StatementBegin
CREATE FUNCTION coord_finish(ids bigint[], tokens bigint[], states coord_state[], delays bigint[], refunds integer[],
    errors text[], OUT awaited boolean, OUT lost bigint[])
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    done bigint[];
BEGIN
    IF states IS NULL THEN
        WITH ended AS (
            UPDATE coord_runs AS r SET state = 'succeeded', at = coord_clock(), finished_at = coord_clock()
            FROM unnest(ids, tokens) AS f (id, token)
            WHERE r.id = f.id AND r.token = f.token AND r.state = 'running'
            RETURNING r.id, r.gate IS NOT NULL OR r.task_id IS NOT NULL AS awaited
        ) SELECT array_agg(ended.id), COALESCE(bool_or(ended.awaited), false) INTO done, awaited FROM ended;
    ELSE
        WITH ended AS (
            UPDATE coord_runs AS r SET
                state = CASE WHEN f.state = 'queued' AND r.cancel_requested THEN 'cancelled' ELSE f.state END,
                at = coord_clock() + CASE WHEN f.state = 'queued' AND NOT r.cancel_requested THEN f.delay ELSE 0 END
                    * interval '1 microsecond',
                due_at = CASE WHEN f.state = 'queued' AND NOT r.cancel_requested
                    THEN coord_clock() + f.delay * interval '1 microsecond' ELSE r.due_at END,
                attempt = r.attempt - f.refund,
                error = CASE WHEN f.error = '' THEN r.error ELSE f.error END,
                finished_at = CASE WHEN f.state = 'queued' AND NOT r.cancel_requested THEN NULL ELSE coord_clock() END
            FROM unnest(ids, tokens, states, delays, refunds, errors) AS f (id, token, state, delay, refund, error)
            WHERE r.id = f.id AND r.token = f.token AND r.state = 'running'
            RETURNING r.id, r.gate IS NOT NULL OR r.task_id IS NOT NULL AS awaited
        ) SELECT array_agg(ended.id), COALESCE(bool_or(ended.awaited), false) INTO done, awaited FROM ended;
    END IF;
    IF cardinality(done) IS DISTINCT FROM cardinality(ids) THEN
        lost := ARRAY(SELECT f.id FROM unnest(ids) AS f (id) WHERE f.id <> ALL (COALESCE(done, '{}')));
    END IF;
END $$;
-- +goose StatementEnd

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

-- Topics are compared as bytes, whatever the language of the database.
CREATE TABLE coord_topics (
    topic text COLLATE "C" PRIMARY KEY,
    seq bigint NOT NULL,         -- of the last event
    tag bigint NOT NULL,         -- of the last event; stays when that is trimmed
    before bigint NOT NULL       -- what tag was before the last publish
) WITH (fillfactor = 50);

CREATE TABLE coord_events (
    seq bigint NOT NULL,
    tag bigint NOT NULL,
    prev bigint NOT NULL,        -- the tag of the event before it; 0: it is the first
    at timestamptz NOT NULL,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    topic text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    key text,
    payload bytea NOT NULL,
    PRIMARY KEY (topic, seq)
);
-- New events are those of the transactions that a reader could not see before. The
-- lowest are also the oldest.
CREATE INDEX coord_events_xid ON coord_events (xid);
CREATE UNIQUE INDEX coord_events_key ON coord_events (topic, key) WHERE key IS NOT NULL;

-- coord_publish appends events, which come topic by topic, to their topics and returns
-- the number of each topic's last. Of each topic: its name, in the order of names, and
-- the place of its last event in the list. Of each event: the place of its topic, tag
-- and kind, and where its payload begins among the payloads, with the end of the last.
--
-- The counters are bumped first, in the order of the topics, so that publishers can't
-- deadlock; the lock on a counter puts the commits of its topic in the order of the
-- sequence. The clock is read when they are locked.
-- +goose StatementBegin
CREATE FUNCTION coord_publish(topics text[], ends integer[], places integer[], tags bigint[], kinds text[], cuts integer[],
    payloads bytea)
RETURNS bigint[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    seqs bigint[];
    befores bigint[];
    clock timestamptz;
BEGIN
    WITH bumped AS (
        INSERT INTO coord_topics AS t (topic, seq, tag, before)
        SELECT b.topic, b.last - COALESCE(ends[b.i - 1], 0), tags[b.last], 0 FROM unnest(topics, ends) WITH ORDINALITY AS b (topic, last, i)
        ON CONFLICT (topic) DO UPDATE SET seq = t.seq + excluded.seq, tag = excluded.tag, before = t.tag
        RETURNING t.seq, t.before
    ) SELECT array_agg(bumped.seq), array_agg(bumped.before) INTO seqs, befores FROM bumped;
    clock := coord_clock();
    INSERT INTO coord_events (seq, tag, prev, at, topic, kind, payload)
    SELECT seqs[e.t] - ends[e.t] + e.i, e.tag, CASE WHEN e.i = COALESCE(ends[e.t - 1], 0) + 1 THEN befores[e.t] ELSE tags[e.i - 1] END,
        clock, topics[e.t], e.kind, substring(payloads FROM e.cut FOR cuts[e.i + 1] - e.cut)
    FROM unnest(places, tags, kinds, cuts[:cardinality(tags)]) WITH ORDINALITY AS e (t, tag, kind, cut, i);
    RETURN seqs;
END $$;
-- +goose StatementEnd

-- coord_publish_once is coord_publish for events of which some have a key, the others
-- an empty one, and no key comes twice on a topic. An event is not published again
-- while one with its key is kept. It returns the position of each.
-- +goose StatementBegin
CREATE FUNCTION coord_publish_once(topics text[], ends integer[], places integer[], tags bigint[], kinds text[], cuts integer[],
    payloads bytea, keys text[])
RETURNS TABLE (seq bigint, tag bigint)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    seqs bigint[];
    heads bigint[];
    clock timestamptz;
BEGIN
    -- The locks alone: what is published depends on what is there once they are held.
    WITH locked AS (
        INSERT INTO coord_topics AS t (topic, seq, tag, before) SELECT name, 0, 0, 0 FROM unnest(topics) AS name
        ON CONFLICT (topic) DO UPDATE SET seq = t.seq RETURNING t.seq, t.tag
    ) SELECT array_agg(locked.seq), array_agg(locked.tag) INTO seqs, heads FROM locked;
    clock := coord_clock();
    RETURN QUERY WITH known AS MATERIALIZED (
        SELECT e.*, earlier.seq AS earlier_seq, earlier.tag AS earlier_tag
        FROM unnest(places, tags, kinds, cuts[:cardinality(tags)], keys) WITH ORDINALITY AS e (t, tag, kind, cut, key, i)
        LEFT JOIN LATERAL (
            SELECT o.seq, o.tag FROM coord_events o WHERE o.topic = topics[e.t] AND o.key = e.key AND o.key IS NOT NULL
        ) AS earlier ON true
    ), placed AS MATERIALIZED (
        -- Those that were published before are kept in it: a join of the two would let
        -- each event meet each.
        SELECT k.*, seqs[k.t] + row_number() OVER own AS seq, COALESCE(lag(k.tag) OVER own, heads[k.t]) AS prev
        FROM known k WINDOW own AS (PARTITION BY k.t, k.earlier_seq IS NULL ORDER BY k.i)
    ), appended AS (
        INSERT INTO coord_events (seq, tag, prev, at, topic, kind, key, payload)
        SELECT f.seq, f.tag, f.prev, clock, topics[f.t], f.kind, NULLIF(f.key, ''), substring(payloads FROM f.cut FOR cuts[f.i + 1] - f.cut)
        FROM placed f WHERE f.earlier_seq IS NULL
    ), bumped AS (
        UPDATE coord_topics AS t SET seq = last.seq, tag = last.tag, before = t.tag
        FROM (SELECT DISTINCT ON (f.t) f.* FROM placed f WHERE f.earlier_seq IS NULL ORDER BY f.t, f.i DESC) AS last
        WHERE t.topic = topics[last.t]
    )
    SELECT COALESCE(p.earlier_seq, p.seq), COALESCE(p.earlier_tag, p.tag) FROM placed p ORDER BY p.i;
END $$;
-- +goose StatementEnd

-- coord_news returns the events of the transactions that a snapshot did not show and
-- the present one does, in order per topic, behind a row whose kind is the server's
-- start, that of its statistics, which a crash ends, and the present snapshot. The snapshot did not show those from next on, nor
-- those that were running. Microseconds since 1970 cost less to hand on than a time.
-- +goose StatementBegin
CREATE FUNCTION coord_news(next xid8, running xid8[])
RETURNS TABLE (topic text, seq bigint, tag bigint, prev bigint, at bigint, kind text, payload bytea)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    kind := extract(epoch FROM pg_postmaster_start_time()) || '/' ||
        extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) || ':' || pg_current_snapshot();
    RETURN NEXT;
    -- The upper bound is for events that were restored from another server.
    RETURN QUERY SELECT e.topic, e.seq, e.tag, e.prev, round(date_part('epoch', e.at) * 1000000)::bigint, e.kind, e.payload FROM (
        SELECT * FROM coord_events WHERE xid >= next AND xid < pg_snapshot_xmax(pg_current_snapshot())
        UNION ALL SELECT * FROM coord_events WHERE xid = ANY (running)
    ) AS e ORDER BY e.topic, e.seq;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION coord_publish, coord_publish_once, coord_news, coord_enqueue, coord_claim, coord_finish, coord_next_due, coord_again;
DROP TABLE coord_events, coord_topics, coord_limits, coord_tickets, coord_run_log, coord_runs, coord_tasks;
DROP FUNCTION coord_now, coord_clock;
DROP TYPE coord_state;
