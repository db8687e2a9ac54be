-- +goose Up

CREATE TABLE coord_leaders (
    name text COLLATE "C" PRIMARY KEY,
    epoch bigint NOT NULL,    -- of the last term
    holder text NOT NULL,     -- of it; '' when they have resigned, as candidate
    candidate text NOT NULL,
    lease bigint NOT NULL,    -- microseconds
    since timestamptz,        -- when the term began
    until timestamptz         -- when the lease ends; NULL when nobody leads, as since
);

-- coord_stand asks to lead and returns who does. Who leads is not waited for, and neither is
-- who has the row locked: another candidate, or a transaction that is fenced by the term,
-- which lasts for as long as that does. Without the lock on the row FOR UPDATE no term
-- begins, and with it none is fenced.
-- +goose StatementBegin
CREATE FUNCTION coord_stand(asked text, asker text, person text, duration bigint)
RETURNS TABLE (name text, epoch bigint, holder text, candidate text, lease bigint, since timestamptz, until timestamptz, mine boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    seen coord_leaders;
    held coord_leaders;
    clock timestamptz;
BEGIN
    mine := false;
    SELECT * INTO seen FROM coord_leaders l WHERE l.name = asked;
    IF NOT FOUND THEN
        INSERT INTO coord_leaders VALUES (asked, 0, '', '', 0) ON CONFLICT DO NOTHING;
        SELECT * INTO seen FROM coord_leaders l WHERE l.name = asked;
    END IF;
    clock := coord_clock();
    -- Who only looks locks nothing.
    IF seen.until > clock AND seen.until <= clock + seen.lease * interval '1 microsecond' AND seen.holder <> asker THEN
        RETURN QUERY SELECT seen.*, false;
        RETURN;
    END IF;
    SELECT * INTO held FROM coord_leaders l WHERE l.name = asked FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN QUERY SELECT seen.*, false;
        RETURN;
    END IF;
    clock := coord_clock();
    IF held.until > clock AND held.holder <> asker THEN
        RETURN QUERY UPDATE coord_leaders l SET until = LEAST(l.until, clock + l.lease * interval '1 microsecond')
            WHERE l.name = asked RETURNING l.*, false;
    ELSE
        RETURN QUERY UPDATE coord_leaders l SET epoch = l.epoch + 1, holder = asker, candidate = person, lease = duration,
                since = clock, until = clock + duration * interval '1 microsecond'
            WHERE l.name = asked RETURNING l.*, true;
    END IF;
END $$;
-- +goose StatementEnd

-- coord_fence tells whether a term lasts, and locks its row with a lock that extensions pass
-- and new terms and resignations don't. The lock shows the row as the statement's snapshot has
-- it, whatever extensions have come since; so the row is read once more, by a snapshot that is
-- younger than the clock it is compared with.
-- +goose StatementBegin
CREATE FUNCTION coord_fence(asked text, term bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    clock timestamptz;
BEGIN
    PERFORM FROM coord_leaders l WHERE l.name = asked AND l.epoch = term FOR KEY SHARE;
    clock := coord_clock();
    RETURN EXISTS (SELECT FROM coord_leaders l WHERE l.name = asked AND l.epoch = term AND l.until > clock);
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION coord_stand, coord_fence;
DROP TABLE coord_leaders;
