-- +goose Up

CREATE TABLE coord_receipts (
    key bytea PRIMARY KEY,       -- SHA-256, as the fingerprint
    fingerprint bytea NOT NULL,
    holder text NOT NULL,
    token bigint NOT NULL,       -- of the last hold
    done boolean NOT NULL DEFAULT false,
    keep bigint NOT NULL,        -- microseconds, once it is done
    until timestamptz NOT NULL,  -- when the lease ends, or when what is done is kept no longer
    error text NOT NULL DEFAULT '',
    body bytea NOT NULL DEFAULT ''
);
CREATE INDEX coord_receipts_until ON coord_receipts (until);
-- Tokens grow beyond the life of a row.
CREATE SEQUENCE coord_receipt_tokens;

-- coord_begin asks for keys, in the order given, which is that of the keys so that two
-- calls can't deadlock. Keys and fingerprints are 32 bytes each, one behind the other. Of
-- each key it returns whether it is 'mine' now, 'held' by another, 'done' or in 'conflict'.
-- +goose StatementBegin
CREATE FUNCTION coord_begin(keys bytea, fingerprints bytea, holders text[], leases bigint[], keeps bigint[])
RETURNS TABLE (state text, token bigint, until timestamptz, error text, body bytea)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    asked bytea;
    same bytea;
    lease interval;
    held coord_receipts;
BEGIN
    FOR i IN 1 .. cardinality(holders) LOOP
        asked := substring(keys FROM 32 * i - 31 FOR 32);
        same := substring(fingerprints FROM 32 * i - 31 FOR 32);
        lease := leases[i] * interval '1 microsecond';
        LOOP
            -- Who only looks locks nothing.
            SELECT * INTO held FROM coord_receipts r WHERE r.key = asked;
            IF held.until > coord_clock() AND (held.done OR held.fingerprint <> same OR held.holder <> holders[i]) THEN
                state := CASE WHEN held.fingerprint <> same THEN 'conflict' WHEN held.done THEN 'done' ELSE 'held' END;
                token := held.token;
                until := held.until;
                error := held.error;
                body := held.body;
                EXIT;
            END IF;
            -- Decided on the locked row, with a clock that is read and a token that is drawn then.
            INSERT INTO coord_receipts AS r (key, fingerprint, holder, token, keep, until)
            VALUES (asked, same, holders[i], nextval('coord_receipt_tokens'), keeps[i], coord_clock() + lease)
            ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, holder = excluded.holder, keep = excluded.keep,
                token = CASE WHEN r.until > coord_clock() THEN r.token ELSE nextval('coord_receipt_tokens') END,
                until = coord_clock() + lease, done = false, error = '', body = ''
            WHERE r.until <= coord_clock() OR NOT r.done AND r.fingerprint = excluded.fingerprint AND r.holder = excluded.holder
            RETURNING 'mine', r.token, r.until, '', ''::bytea INTO state, token, until, error, body;
            EXIT WHEN FOUND;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END $$;
-- +goose StatementEnd

-- coord_complete stores the outcomes of keys that are held, in the order given, which is
-- that of the keys, and returns for each whether it was. The bodies are one value, with
-- where each begins and the end of the last.
-- +goose StatementBegin
CREATE FUNCTION coord_complete(keys bytea, tokens bigint[], errors text[], cuts integer[], bodies bytea)
RETURNS boolean[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    completed boolean[];
BEGIN
    FOR i IN 1 .. cardinality(tokens) LOOP
        UPDATE coord_receipts AS r SET done = true, holder = '', until = coord_clock() + r.keep * interval '1 microsecond',
            error = errors[i], body = substring(bodies FROM cuts[i] FOR cuts[i + 1] - cuts[i])
        WHERE r.key = substring(keys FROM 32 * i - 31 FOR 32) AND r.token = tokens[i] AND NOT r.done;
        completed[i] := FOUND;
    END LOOP;
    RETURN completed;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION coord_begin, coord_complete;
DROP SEQUENCE coord_receipt_tokens;
DROP TABLE coord_receipts;
