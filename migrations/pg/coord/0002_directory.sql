-- +goose Up

-- Whoever has joined the directory. Renewals touch one row, and stay HOT.
CREATE TABLE coord_members (
    id text PRIMARY KEY,         -- random
    name text NOT NULL,
    data bytea NOT NULL,
    since timestamptz NOT NULL,
    lease_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- What members have registered. An entry lives as long as its member's lease.
CREATE TABLE coord_entries (
    key text COLLATE "C" PRIMARY KEY,
    epoch bigint NOT NULL,
    member_id text NOT NULL,
    data bytea NOT NULL,
    since timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX coord_entries_member ON coord_entries (member_id);

-- Registrations that were taken over, until the member that lost them has heard.
CREATE TABLE coord_losses (
    member_id text NOT NULL,
    by_epoch bigint NOT NULL,    -- of the registration that took it over
    key text NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (member_id, by_epoch)
);

-- One row: the highest epoch that an entry has ever had. Who adds or removes
-- entries or removes members locks it first, until the commit, so that they take
-- turns and epochs grow in the order of commits. Renewals don't.
CREATE TABLE coord_epoch (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO coord_epoch (epoch) VALUES (0);

-- coord_change registers, updates and removes entries, in the order given, and returns
-- the epoch of each, 0 where the member or the registration is no longer good.
-- +goose StatementBegin
CREATE FUNCTION coord_change(kinds text[], members text[], keys text[], epochs bigint[], datas bytea[])
RETURNS SETOF bigint
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    last bigint;
    clock timestamptz;
    held coord_entries;
BEGIN
    SELECT c.epoch INTO last FROM coord_epoch c WHERE c.one FOR UPDATE;
    clock := coord_clock();
    FOR i IN 1 .. cardinality(keys) LOOP
        SELECT * INTO held FROM coord_entries e WHERE e.key = keys[i];
        IF NOT EXISTS (SELECT FROM coord_members m WHERE m.id = members[i] AND m.lease_until > clock) THEN
            RETURN NEXT 0;
        ELSIF kinds[i] = 'register' THEN
            last := last + 1;
            -- Also one whose lease seems to have ended: a renewal may be under way.
            INSERT INTO coord_losses (member_id, by_epoch, key, epoch)
            SELECT m.id, last, held.key, held.epoch FROM coord_members m WHERE m.id = held.member_id;
            INSERT INTO coord_entries AS e (key, epoch, member_id, data, since, updated_at)
            VALUES (keys[i], last, members[i], datas[i], clock, clock)
            ON CONFLICT (key) DO UPDATE SET epoch = excluded.epoch, member_id = excluded.member_id, data = excluded.data,
                since = excluded.since, updated_at = excluded.updated_at;
            RETURN NEXT last;
        ELSIF held.member_id IS DISTINCT FROM members[i] OR held.epoch <> epochs[i] THEN
            RETURN NEXT 0;
        ELSE
            IF kinds[i] = 'remove' THEN
                DELETE FROM coord_entries e WHERE e.key = keys[i];
            ELSE
                UPDATE coord_entries e SET data = datas[i], updated_at = clock WHERE e.key = keys[i];
            END IF;
            RETURN NEXT held.epoch;
        END IF;
    END LOOP;
    UPDATE coord_epoch c SET epoch = last WHERE c.one AND c.epoch < last;
END $$;
-- +goose StatementEnd

-- coord_leave removes a member whose lease has not ended, and its entries, and returns
-- whether there was one.
-- +goose StatementBegin
CREATE FUNCTION coord_leave(member text) RETURNS boolean
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM FROM coord_epoch c WHERE c.one FOR UPDATE;
    DELETE FROM coord_members m WHERE m.id = member AND m.lease_until > coord_clock();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM coord_entries e WHERE e.member_id = member;
    DELETE FROM coord_losses l WHERE l.member_id = member;
    RETURN true;
END $$;
-- +goose StatementEnd

-- coord_sweep removes up to most entries of members whose lease has ended, and the
-- members that have none left, and returns the entries.
-- +goose StatementBegin
CREATE FUNCTION coord_sweep(most integer)
RETURNS TABLE (key text, epoch bigint, member_id text, name text, data bytea, since timestamptz, updated_at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    gone text[];
BEGIN
    IF NOT EXISTS (SELECT FROM coord_members WHERE lease_until <= coord_clock()) THEN
        RETURN;
    END IF;
    PERFORM FROM coord_epoch c WHERE c.one FOR UPDATE;
    -- A renewal that is under way keeps its member.
    gone := ARRAY(SELECT id FROM coord_members WHERE lease_until <= coord_clock() FOR UPDATE SKIP LOCKED);
    RETURN QUERY WITH swept AS (
        DELETE FROM coord_entries WHERE key IN (SELECT key FROM coord_entries WHERE member_id = ANY (gone) LIMIT most) RETURNING *
    ) SELECT s.key, s.epoch, s.member_id, m.name, s.data, s.since, s.updated_at
        FROM swept s JOIN coord_members m ON m.id = s.member_id ORDER BY s.key;
    gone := ARRAY(SELECT id FROM unnest(gone) AS g (id) WHERE NOT EXISTS (SELECT FROM coord_entries e WHERE e.member_id = g.id));
    DELETE FROM coord_losses WHERE member_id = ANY (gone);
    DELETE FROM coord_members WHERE id = ANY (gone);
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION coord_change, coord_leave, coord_sweep;
DROP TABLE coord_epoch, coord_losses, coord_entries, coord_members;
