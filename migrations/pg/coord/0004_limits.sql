-- +goose Up

-- coord_micros is the clock as limits count it.
CREATE FUNCTION coord_micros() RETURNS bigint LANGUAGE sql VOLATILE
AS $$SELECT (date_part('epoch', coord_clock()) * 1000000)::bigint$$;

-- coord_allow_all decides about calls that ask for several buckets each, all or nothing.
-- Of each bucket: its key of 16 bytes, in their order. Of each item, call by call: the
-- numbers of its call and of its key, its cost and how far ahead of the clock the bucket
-- may be. It returns how far each item's bucket was when it was decided about: an item by
-- itself would be granted when that and the cost, together, are no more than it may be.
--
-- A look without locks may deny, and who is denied locks and writes nothing. The others'
-- buckets are locked, or made, in the order of keys; then the clock is read, and calls
-- are decided about one after the other.
-- +goose StatementBegin
CREATE FUNCTION coord_allow_all(keys bytea, calls integer[], places integer[], costs bigint[], most bigint[])
RETURNS bigint[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    n CONSTANT integer := cardinality(calls);
    ahead bigint[];
    may boolean[];
    wanted boolean[] := array_fill(false, ARRAY[length(keys) / 16]);
    locked integer[] := '{}';
    tats bigint[];
    were bigint[];
    clock bigint := coord_micros();
    granted boolean;
    heals boolean;
    i integer := 1;
    last integer;
BEGIN
    SELECT array_agg(greatest(COALESCE((SELECT l.tat FROM coord_limits l WHERE l.key = substring(keys FROM p * 16 - 15 FOR 16)), 0), clock) - clock)
    INTO ahead FROM unnest(places) AS p;
    WHILE i <= n LOOP
        granted := true;
        heals := false;
        last := i;
        LOOP
            granted := granted AND ahead[last] + costs[last] <= most[last];
            heals := heals OR ahead[last] > most[last];
            EXIT WHEN last = n OR calls[last + 1] <> calls[i];
            last := last + 1;
        END LOOP;
        may[i] := granted OR heals;
        IF may[i] THEN
            FOR k IN i..last LOOP
                wanted[places[k]] := true;
            END LOOP;
        END IF;
        i := last + 1;
    END LOOP;
    IF NOT true = ANY (wanted) THEN
        RETURN ahead;
    END IF;

    INSERT INTO coord_limits AS l (key, tat)
    SELECT substring(keys FROM w.i::integer * 16 - 15 FOR 16), 0 FROM unnest(wanted) WITH ORDINALITY AS w (wanted, i) WHERE w.wanted
    ON CONFLICT (key) DO UPDATE SET tat = l.tat WHERE false;
    clock := coord_micros();
    SELECT array_agg((SELECT l.tat FROM coord_limits l WHERE l.key = substring(keys FROM p * 16 - 15 FOR 16)))
    INTO tats FROM generate_series(1, length(keys) / 16) AS p;
    were := tats;
    i := 1;
    WHILE i <= n LOOP
        granted := true;
        last := i;
        LOOP
            IF may[i] THEN
                ahead[last] := greatest(tats[places[last]], clock) - clock;
                granted := granted AND least(ahead[last], most[last]) + costs[last] <= most[last];
            END IF;
            EXIT WHEN last = n OR calls[last + 1] <> calls[i];
            last := last + 1;
        END LOOP;
        IF may[i] THEN
            FOR k IN i..last LOOP
                IF granted THEN
                    tats[places[k]] := clock + least(ahead[k], most[k]) + costs[k];
                ELSE
                    tats[places[k]] := least(tats[places[k]], clock + most[k]); -- heals
                END IF;
            END LOOP;
        END IF;
        i := last + 1;
    END LOOP;
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE coord_limits AS l SET tat = u.tat FROM unnest(tats, were) WITH ORDINALITY AS u (tat, old, i)
    WHERE l.key = ANY (ARRAY[substring(keys FROM u.i::integer * 16 - 15 FOR 16)]) AND u.tat <> u.old;
    RETURN ahead;
END $$;
-- +goose StatementEnd

-- coord_allow decides about buckets that calls ask for by themselves, as coord_allow_all
-- does, with less ado: several of the same cost may ask for one bucket. Of each bucket: its
-- key, the cost of one call and of all, and how far ahead of the clock it may be. It returns
-- how far it was before all were granted, or when not even one was. -1 stands for what has
-- to be asked of that function: the bucket is new, has to heal, has no room for all, or was
-- changed meanwhile.
--
-- A row that the snapshot denies is neither locked nor written. The others are changed in
-- the order of keys. Where one was changed by somebody else meanwhile, READ COMMITTED
-- computes the condition and the value again, on the row as it is then and by the clock
-- as it is then. ANY of one keeps a plan that is made while there are few buckets from
-- reading all of them in the order of keys, which "=" allows.
-- +goose StatementBegin
CREATE FUNCTION coord_allow(keys bytea, costs bigint[], totals bigint[], most bigint[])
RETURNS bigint[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    granted integer[];
    ahead bigint[];
    others bigint[];
    clock bigint;
BEGIN
    WITH granted AS (
        UPDATE coord_limits AS l SET tat = greatest(l.tat, coord_micros()) + r.total
        FROM unnest(totals, most) WITH ORDINALITY AS r (total, most, i)
        WHERE l.key = ANY (ARRAY[substring(keys FROM r.i::integer * 16 - 15 FOR 16)])
            AND l.tat <= coord_micros() + r.most - r.total AND r.total <= r.most
        RETURNING r.i::integer AS i, greatest(l.tat - r.total - coord_micros(), 0) AS ahead
    ) SELECT array_agg(g.i), array_agg(g.ahead) INTO granted, ahead FROM granted g;
    IF granted IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        IF cardinality(granted) = cardinality(costs) THEN
            RETURN ahead;
        END IF;
    END IF;
    clock := coord_micros();
    SELECT array_agg(CASE WHEN a.ahead + r.cost > r.most AND a.ahead <= r.most THEN a.ahead ELSE -1 END) INTO others
    FROM unnest(costs, most) WITH ORDINALITY AS r (cost, most, i), LATERAL (
        SELECT greatest(COALESCE((SELECT l.tat FROM coord_limits l WHERE l.key = substring(keys FROM r.i::integer * 16 - 15 FOR 16)), 0),
            clock) - clock AS ahead OFFSET 0
    ) AS a;
    IF granted IS NOT NULL THEN
        FOR k IN 1..cardinality(granted) LOOP
            others[granted[k]] := ahead[k];
        END LOOP;
    ELSIF -1 = ANY (others) AND costs = totals AND pg_current_xact_id_if_assigned() IS NULL THEN
        -- Nothing is locked yet, so that nobody can wait in a circle. A row that was to be
        -- changed and then was not, because of what somebody else had changed, is locked.
        RETURN coord_allow_all(keys, ordinals, ordinals, costs, most)
        FROM (SELECT array_agg(i) AS ordinals FROM generate_series(1, cardinality(costs)) AS i) AS o;
    END IF;
    RETURN others;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION coord_allow, coord_allow_all, coord_micros;
