-- +goose Up

-- coord_issue stores tickets and returns the time at which it did. A session's oldest good
-- ones go, so that with a new one there are no more than most. Tickets that come at the
-- same time may be more, and what another transaction has just locked is passed over;
-- coord_redeem makes that good.
--
-- The commit does not wait for the disk: a ticket that is lost with the server's power lets
-- nobody in. That of coord_redeem does.
-- +goose StatementBegin
CREATE FUNCTION coord_issue(hashes bytea[], purposes text[], users text[], sessions text[], origins text[], scopes text[], ttls bigint[],
    most integer)
RETURNS timestamptz
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    clock timestamptz := coord_clock();
    surplus bigint[] := ARRAY(
        SELECT good.id FROM unnest(sessions) AS s (id) CROSS JOIN LATERAL (
            SELECT t.id FROM coord_tickets t WHERE t.session_id = s.id AND t.expires_at > clock
            ORDER BY t.id DESC OFFSET most - 1) AS good);
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF surplus <> '{}' THEN
        DELETE FROM coord_tickets WHERE id IN (SELECT t.id FROM coord_tickets t WHERE t.id = ANY (surplus) FOR UPDATE SKIP LOCKED);
    END IF;
    INSERT INTO coord_tickets (hash, purpose, user_id, session_id, origin, scope, ttl, expires_at)
    SELECT v.hash, v.purpose, v.user_id, v.session_id, v.origin, v.scope, v.ttl, clock + v.ttl * interval '1 microsecond'
    FROM unnest(hashes, purposes, users, sessions, origins, scopes, ttls) AS v (hash, purpose, user_id, session_id, origin, scope, ttl);
    RETURN clock;
END $$;
-- +goose StatementEnd

-- coord_redeem burns tickets and returns what those that were there were for. Issuers that
-- race may leave more of a session than are good: newer tells how many newer ones there
-- were, and those that are no good go along, so that none becomes good again when a newer
-- one is used up. Both are seen by the statement that burns: whoever burns a newer one at
-- the same time either is still seen, or has taken the older one away before. Rows are
-- locked in the order of the hashes, in which the index is searched.
-- +goose StatementBegin
CREATE FUNCTION coord_redeem(hashes bytea[], most integer)
RETURNS TABLE (hash bytea, purpose text, user_id text, session_id text, origin text, scope text, ttl bigint, expired boolean, newer integer)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    good bigint[];
    number bigint;
    surplus bigint[] := '{}';
BEGIN
    FOR hash, purpose, user_id, session_id, origin, scope, ttl, expired, number, good IN
        DELETE FROM coord_tickets t WHERE t.hash = ANY (hashes)
        RETURNING t.hash, t.purpose, t.user_id, t.session_id, t.origin, t.scope, t.ttl, t.expires_at <= coord_clock(), t.id,
            ARRAY(SELECT o.id FROM coord_tickets o WHERE o.session_id = t.session_id AND o.expires_at > coord_now()
                ORDER BY o.id DESC)
    LOOP
        newer := COALESCE(array_position(good, number) - 1, 0);
        surplus := surplus || good[most + 1:];
        RETURN NEXT;
    END LOOP;
    IF surplus <> '{}' THEN
        DELETE FROM coord_tickets WHERE id IN (SELECT t.id FROM coord_tickets t WHERE t.id = ANY (surplus) FOR UPDATE SKIP LOCKED);
    END IF;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION coord_issue, coord_redeem;
