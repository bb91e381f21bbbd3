-- Renews, releases and changes holds, and lets a transaction rely on one.

-- Renews holds, sorted by name and attempt. Returns for each whether it was there.
CREATE OR REPLACE FUNCTION "distlock".renew(p_names text[], p_attempts text[], p_leases bigint[])
RETURNS TABLE (o_now bigint, o_renewed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    FOR i IN 1 .. cardinality(p_names) LOOP
        -- The clock is read again after a wait for the row.
        UPDATE "distlock".locks
        SET expires = greatest(expires, clock_timestamp() + p_leases[i] * interval '1 millisecond'), handed = false
        WHERE name = p_names[i] AND attempt = p_attempts[i] AND expires > clock_timestamp();
        IF NOT FOUND THEN
            UPDATE "distlock".holders
            SET expires = greatest(expires, clock_timestamp() + p_leases[i] * interval '1 millisecond'), handed = false
            WHERE name = p_names[i] AND attempt = p_attempts[i] AND expires > clock_timestamp();
        END IF;
        o_renewed := FOUND;
        o_now := "distlock"._us(clock_timestamp());
        RETURN NEXT;
    END LOOP;
END $$;

-- Releases holds or withdraws waiters, sorted by name. Returns for each whether it held the lock, and the waiter that must claim
-- next by itself.
CREATE OR REPLACE FUNCTION "distlock".release(p_wake text, p_names text[], p_attempts text[])
RETURNS TABLE (o_released boolean, o_next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    FOR i IN 1 .. cardinality(p_names) LOOP
        o_next := NULL;
        -- The lock has no waiters. A transaction that relies on the hold keeps the next grant out, and not this.
        UPDATE "distlock".locks SET mode = NULL, attempt = NULL, since = NULL, expires = NULL, handed = false, channel = NULL, record = NULL,
            used_on = "distlock"._day("distlock"._us(clock_timestamp()))
        WHERE name = p_names[i] AND attempt = p_attempts[i] AND NOT queued AND expires > clock_timestamp();
        o_released := FOUND;
        IF NOT FOUND THEN
            r := "distlock"._release(p_names[i], p_attempts[i], NULL, p_wake);
            o_released := r.o_count > 0; o_next := r.o_next;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Ends the live holds that have this attempt or this token, withdraws the attempt, and admits the next waiters.
CREATE OR REPLACE FUNCTION "distlock"._release(p_name text, p_attempt text, p_token bigint, p_wake text, OUT o_count integer, OUT o_next text)
LANGUAGE plpgsql AS $$
DECLARE
    l "distlock".locks;
    before "distlock".locks;
    may_grant boolean;
    t timestamptz;
    h "distlock".holders;
    a record;
BEGIN
    o_count := 0;
    SELECT * INTO l FROM "distlock".locks WHERE name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    before := l;
    may_grant := "distlock"._may_grant(p_name);
    t := clock_timestamp();
    IF l.attempt = p_attempt OR l.attempt IS NOT NULL AND l.token = p_token THEN
        o_count := coalesce(l.expires > t, false)::integer;
        IF p_token IS NOT NULL AND o_count > 0 AND l.channel IS NOT NULL THEN
            PERFORM pg_notify(l.channel, 'lost ' || l.attempt);
        END IF;
        IF p_token IS NULL OR o_count > 0 THEN
            l := "distlock"._free(l);
        END IF;
    ELSIF l.mode IS NOT NULL AND l.attempt IS NULL THEN
        -- Not deleted here: a transaction may rely on it. In the order in which renewals lock them.
        FOR h IN SELECT * FROM "distlock".holders WHERE name = p_name AND (attempt = p_attempt OR token = p_token) AND expires > t
            ORDER BY attempt COLLATE "C" FOR NO KEY UPDATE LOOP
            UPDATE "distlock".holders SET expires = t, handed = false WHERE id = h.id;
            o_count := o_count + 1;
            IF p_token IS NOT NULL AND h.channel IS NOT NULL THEN
                PERFORM pg_notify(h.channel, 'lost ' || h.attempt);
            END IF;
        END LOOP;
    END IF;
    IF l.queued THEN
        DELETE FROM "distlock".waiters WHERE attempt = p_attempt AND name = p_name;
    END IF;
    l := "distlock"._settle(l, may_grant, t, p_wake);
    a := "distlock"._admit(l, may_grant, t, NULL);
    l := a.l; o_next := a.o_next;
    IF l IS DISTINCT FROM before THEN
        PERFORM "distlock"._store(l);
    END IF;
END $$;

-- Ends the holds with a token. Returns whether there was one.
CREATE OR REPLACE FUNCTION "distlock".force_release(p_name text, p_token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT o_count > 0 FROM "distlock"._release(p_name, NULL, p_token, NULL));
END $$;

-- Replaces the record of a holder. Returns whether it holds the lock.
CREATE OR REPLACE FUNCTION "distlock".amend(p_name text, p_attempt text, p_record text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE "distlock".locks SET record = p_record WHERE name = p_name AND attempt = p_attempt AND expires > clock_timestamp();
    IF NOT FOUND THEN
        UPDATE "distlock".holders SET record = p_record WHERE name = p_name AND attempt = p_attempt AND expires > clock_timestamp();
    END IF;
    RETURN FOUND;
END $$;

-- Gives the hold that the attempt p_from has with a token to another attempt. Outcomes: adopted (slot), not held, late.
CREATE OR REPLACE FUNCTION "distlock".adopt(p_wake text, p_not_after bigint, p_name text, p_from text, p_token bigint, p_attempt text,
    p_mode text, p_lease bigint, p_record text, OUT o_now bigint, OUT o_outcome text, OUT o_slot integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l "distlock".locks;
    h "distlock".holders;
    t timestamptz;
    ends timestamptz;
    was_at text;
    was text;
BEGIN
    SELECT * INTO l FROM "distlock".locks WHERE name = p_name FOR NO KEY UPDATE;
    t := clock_timestamp(); ends := t + p_lease * interval '1 millisecond';
    o_now := "distlock"._us(t);
    o_outcome := CASE WHEN o_now > p_not_after THEN 'late' ELSE 'not held' END;
    -- The sizes of permits may differ.
    IF o_outcome = 'late' OR l.mode IS DISTINCT FROM p_mode AND (left(l.mode, 1) = 'p' AND left(p_mode, 1) = 'p') IS NOT TRUE THEN
        RETURN;
    END IF;
    IF p_mode = 'x' THEN
        IF l.attempt IN (p_from, p_attempt) AND l.token = p_token AND l.expires > t THEN
            o_outcome := 'adopted'; was := l.attempt; was_at := l.channel;
            UPDATE "distlock".locks SET attempt = p_attempt, expires = greatest(expires, ends), handed = false, channel = p_wake,
                record = p_record WHERE name = p_name;
        END IF;
    ELSE
        SELECT * INTO h FROM "distlock".holders
        WHERE name = p_name AND attempt IN (p_from, p_attempt) AND token = p_token AND expires > t
        ORDER BY attempt = p_attempt DESC LIMIT 1 FOR NO KEY UPDATE;
        IF FOUND THEN
            o_outcome := 'adopted'; o_slot := h.slot; was := h.attempt; was_at := h.channel;
            UPDATE "distlock".holders SET attempt = p_attempt, expires = greatest(expires, ends), handed = false, channel = p_wake,
                record = p_record WHERE id = h.id;
        END IF;
    END IF;
    IF was = p_from AND was_at IS NOT NULL THEN
        PERFORM pg_notify(was_at, 'adopted ' || p_from);
    END IF;
END $$;

-- Lets the caller's transaction rely on a hold: fails unless the token's hold is live, and keeps the lock from being granted to
-- another owner until the transaction ends. Renewals of the hold go on.
CREATE OR REPLACE FUNCTION "distlock".hold(name text, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    l "distlock".locks;
    is_held boolean;
BEGIN
    SELECT * INTO l FROM "distlock".locks k WHERE k.name = hold.name FOR KEY SHARE;
    is_held := l.attempt IS NOT NULL AND l.token = hold.token AND l.expires > clock_timestamp();
    IF is_held AND current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        -- Read again, as of now. If a release committed while the row was being locked, that returned the row from before it, and the
        -- next claim may have passed before the lock was on the free version. If it has not committed yet, that version is locked.
        SELECT k.attempt IS NOT NULL AND k.token = hold.token INTO is_held FROM "distlock".locks k WHERE k.name = hold.name;
    ELSIF is_held THEN
        -- The row is as of the transaction's snapshot. Locking it harder fails if it has changed since; that lock is given back
        -- at once, so that renewals go on.
        BEGIN
            PERFORM FROM "distlock".locks k WHERE k.name = hold.name FOR NO KEY UPDATE;
            RAISE EXCEPTION USING ERRCODE = 'DL000';
        EXCEPTION WHEN SQLSTATE 'DL000' THEN
            NULL;
        END;
    ELSIF NOT coalesce(is_held, false) THEN
        PERFORM FROM "distlock".holders h
        WHERE h.name = hold.name AND h.token = hold.token AND h.expires > clock_timestamp() FOR KEY SHARE;
        is_held := FOUND;
    END IF;
    IF NOT is_held THEN
        RAISE EXCEPTION 'distlock: the lock "%" is not held with token %', name, token
            USING ERRCODE = 'DL001', HINT = 'the lease ended, the lock was released, or another owner holds it';
    END IF;
END $$;
