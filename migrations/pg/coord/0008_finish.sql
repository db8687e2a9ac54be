-- +goose Up

-- coord_finish as it was, but for "= ANY" of one id: a plan that is made while there are few runs would
-- otherwise read all of them in the order of ids, and be kept.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION coord_finish(ids bigint[], tokens bigint[], states coord_state[], delays bigint[], refunds integer[],
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
            WHERE r.id = ANY (ARRAY[f.id]) AND r.token = f.token AND r.state = 'running'
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
            WHERE r.id = ANY (ARRAY[f.id]) AND r.token = f.token AND r.state = 'running'
            RETURNING r.id, r.gate IS NOT NULL OR r.task_id IS NOT NULL AS awaited
        ) SELECT array_agg(ended.id), COALESCE(bool_or(ended.awaited), false) INTO done, awaited FROM ended;
    END IF;
    IF cardinality(done) IS DISTINCT FROM cardinality(ids) THEN
        lost := ARRAY(SELECT f.id FROM unnest(ids) AS f (id) WHERE f.id <> ALL (COALESCE(done, '{}')));
    END IF;
END $$;
-- +goose StatementEnd

-- +goose Down
-- The function serves the schema of before as well.
