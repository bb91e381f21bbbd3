-- Claims locks, each by itself, in one transaction. Its sender sorts them by name, so that no two transactions wait for each
-- other. p_beats: heartbeat in ms, 0: no queue. Outcomes: granted (token, slot), busy, late, fence, disagrees (mode). o_place:
-- 0 for the first waiter; for others how many are before it, or 1 where messages come in.
CREATE OR REPLACE FUNCTION "distlock".claim(p_wake text, p_not_after bigint, p_names text[], p_attempts text[], p_modes text[],
    p_ttls bigint[], p_delays bigint[], p_beats bigint[], p_records text[])
RETURNS TABLE (o_now bigint, o_outcome text, o_token bigint, o_slot integer, o_place integer, o_left_us bigint,
    o_held_us bigint, o_mode text, o_record text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l "distlock".locks;
    may_grant boolean;
    is_changed boolean := false;
    opened integer := 0;
    t timestamptz;
    c record;
BEGIN
    FOR i IN 1 .. cardinality(p_names) LOOP
        o_token := NULL; o_slot := NULL; o_place := NULL; o_left_us := NULL; o_held_us := NULL; o_mode := NULL; o_record := NULL;
        IF p_modes[i] = 'x' THEN
            -- As "distlock".lean_claim.
            t := clock_timestamp();
            o_now := "distlock"._us(t);
            UPDATE "distlock".locks SET token = o_now, mode = 'x', attempt = p_attempts[i], since = t,
                expires = t + (p_ttls[i] + p_delays[i]) * interval '1 millisecond', handed = false, channel = p_wake,
                record = p_records[i], used_on = "distlock"._day(o_now)
            WHERE name = p_names[i] AND mode IS NULL AND NOT queued AND xmax = 0 AND token < o_now AND o_now <= p_not_after;
            IF FOUND THEN
                o_outcome := 'granted'; o_token := o_now; is_changed := true;
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        SELECT * INTO l FROM "distlock".locks WHERE name = p_names[i] FOR UPDATE SKIP LOCKED;
        may_grant := FOUND;
        IF NOT FOUND THEN
            l := "distlock"._open(p_names[i]);
            may_grant := "distlock"._may_grant(p_names[i]);
        END IF;
        IF l.token = 0 THEN
            opened := opened + 1;
        END IF;
        -- Read after the row is locked, which may have taken its time.
        t := clock_timestamp();
        o_now := "distlock"._us(t);
        IF o_now > p_not_after THEN
            -- The sender has given up on it, and perhaps released it already.
            o_outcome := 'late';
        ELSIF l.token > o_now + 86400000000 THEN
            o_outcome := 'fence';
        ELSE
            c := "distlock"._claim(l, may_grant, t, p_wake, p_attempts[i], p_modes[i], p_ttls[i], p_delays[i], p_beats[i], p_records[i]);
            o_outcome := c.o_outcome; o_token := c.o_token; o_slot := c.o_slot; o_place := c.o_place; o_left_us := c.o_left_us;
            o_held_us := c.o_held_us; o_mode := c.o_mode; o_record := c.o_record;
            is_changed := is_changed OR c.is_changed;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF NOT is_changed THEN
        -- A place in a queue may be lost in a crash: its waiter claims again.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    -- The table grows only by new names, so they sweep it.
    FOR i IN 1 .. opened LOOP
        PERFORM "distlock"._sweep("distlock"._day("distlock"._us(t)) - 7);
    END LOOP;
END $$;

-- Claims a lock that is held, or has a queue, or that several may hold.
CREATE OR REPLACE FUNCTION "distlock"._claim(l "distlock".locks, p_may_grant boolean, p_now timestamptz, p_wake text, p_attempt text,
    p_mode text, p_ttl bigint, p_delay bigint, p_beat bigint, p_record text, OUT o_outcome text, OUT o_token bigint,
    OUT o_slot integer, OUT o_place integer, OUT o_left_us bigint, OUT o_held_us bigint, OUT o_mode text, OUT o_record text,
    OUT is_changed boolean)
LANGUAGE plpgsql AS $$
DECLARE
    before "distlock".locks := l;
    ends timestamptz := p_now + (p_ttl + p_delay) * interval '1 millisecond';
    mine "distlock".waiters;
    a record;
BEGIN
    l := "distlock"._settle(l, p_may_grant, p_now, p_wake);
    -- A repeat, or the first that a waiter hears of a handoff. A lease is never made shorter.
    IF l.attempt = p_attempt THEN
        o_token := l.token; l.expires := greatest(l.expires, ends); l.handed := false;
    ELSIF l.mode IS NOT NULL AND l.attempt IS NULL THEN
        UPDATE "distlock".holders SET expires = greatest(expires, ends), handed = false
        WHERE name = l.name AND attempt = p_attempt AND expires > p_now RETURNING token, slot INTO o_token, o_slot;
    END IF;
    IF o_token IS NULL THEN
        IF l.mode <> p_mode THEN
            o_mode := "distlock"._disagreement(l, p_mode, p_record);
        ELSIF l.mode IS NULL AND l.queued THEN
            SELECT w.mode INTO o_mode
            FROM (SELECT * FROM "distlock".waiters WHERE name = l.name AND attempt <> p_attempt ORDER BY ticket LIMIT 1) w
            WHERE NOT "distlock"._agree(w.mode, w.record, p_mode, p_record);
        END IF;
        IF o_mode IS NOT NULL THEN
            o_outcome := 'disagrees';
        ELSE
            IF left(p_mode, 1) = 'r' AND l.mode = p_mode THEN
                -- The owner is inside: the waiters wait for it, so it would wait for itself.
                a := "distlock"._grant(l, p_now, p_attempt, p_mode, p_ttl + p_delay, p_wake, p_record, false);
                l := a.l; o_token := a.o_token;
            ELSE
                a := "distlock"._admit(l, p_may_grant, p_now, p_attempt);
                l := a.l;
                IF l.queued THEN
                    SELECT * INTO mine FROM "distlock".waiters WHERE attempt = p_attempt AND name = l.name;
                END IF;
                IF a.o_mine OR "distlock"._has_room(l, p_may_grant, p_mode) AND NOT (l.queued AND EXISTS (
                    SELECT FROM "distlock".waiters WHERE name = l.name AND (mine.ticket IS NULL OR ticket < mine.ticket)
                    AND NOT (p_mode = 's' AND mode = 's')))
                THEN
                    a := "distlock"._grant(l, p_now, p_attempt, p_mode, p_ttl + p_delay, p_wake, p_record, false);
                    l := a.l; o_token := a.o_token; o_slot := a.o_slot;
                END IF;
            END IF;
        END IF;
    END IF;
    IF o_token IS NOT NULL THEN
        o_outcome := 'granted';
        IF l.queued THEN
            DELETE FROM "distlock".waiters WHERE attempt = p_attempt AND name = l.name;
            -- Others may enter beside it.
            a := "distlock"._admit(l, p_may_grant, p_now, NULL);
            l := a.l;
        END IF;
    ELSIF o_outcome IS NULL THEN
        o_outcome := 'busy';
        IF p_beat > 0 THEN
            IF mine.ticket IS NULL THEN
                l.ticket := l.ticket + 1; l.queued := true;
                INSERT INTO "distlock".waiters (name, ticket, attempt, mode, ttl_ms, delay_ms, alive, channel, record)
                VALUES (l.name, l.ticket, p_attempt, p_mode, p_ttl, p_delay, p_now + p_beat * interval '1 millisecond', p_wake, p_record);
            ELSE
                UPDATE "distlock".waiters SET alive = p_now + p_beat * interval '1 millisecond', channel = p_wake
                WHERE name = l.name AND ticket = mine.ticket;
            END IF;
            a := "distlock"._first(l, p_now, p_attempt);
            l := a.l; o_place := CASE WHEN a.o_first THEN 0 ELSE 1 END;
            IF p_wake IS NULL AND NOT a.o_first THEN
                -- The further behind, the more rarely it polls.
                SELECT count(*) INTO o_place FROM "distlock".waiters WHERE name = l.name AND ticket > l.served
                AND ticket < coalesce(mine.ticket, l.ticket);
            END IF;
        END IF;
        -- Room comes with the first lease that ends; for a claim of another mode, with the last.
        IF l.attempt IS NOT NULL THEN
            o_token := l.token; o_record := l.record; o_mode := 'x';
            o_left_us := "distlock"._us(l.expires) - "distlock"._us(p_now); o_held_us := "distlock"._us(p_now) - "distlock"._us(l.since);
        ELSIF l.mode IS NOT NULL THEN
            SELECT token, record, "distlock"._us(expires) - "distlock"._us(p_now), "distlock"._us(p_now) - "distlock"._us(since)
            INTO o_token, o_record, o_left_us, o_held_us FROM "distlock".holders WHERE name = l.name
            ORDER BY CASE WHEN l.mode = p_mode OR left(l.mode, 1) = 'p' THEN expires END, expires DESC LIMIT 1;
            o_mode := l.mode;
        END IF;
    END IF;
    IF l IS DISTINCT FROM before THEN
        PERFORM "distlock"._store(l);
    END IF;
    before.queued := l.queued; before.ticket := l.ticket; before.served := l.served;
    is_changed := l IS DISTINCT FROM before OR o_outcome = 'granted';
END $$;

-- Returns whether an attempt is the first waiter that lives, and drops dead ones before it.
CREATE OR REPLACE FUNCTION "distlock"._first(INOUT l "distlock".locks, OUT o_first boolean, p_now timestamptz, p_attempt text)
LANGUAGE plpgsql AS $$
DECLARE
    w "distlock".waiters;
BEGIN
    o_first := false;
    FOR w IN SELECT * FROM "distlock".waiters WHERE name = l.name AND ticket > l.served ORDER BY ticket LIMIT 1000 LOOP
        o_first := w.attempt = p_attempt;
        EXIT WHEN o_first OR w.alive > p_now AND "distlock"._listens(w.channel);
        DELETE FROM "distlock".waiters WHERE name = w.name AND ticket = w.ticket;
        l.served := w.ticket;
    END LOOP;
END $$;

-- Claims several free locks for exclusive holds in one step: all or none. Sorted by name. o_outcome of the one row that is no
-- grant: busy, late or fence, and o_place is the number of its claim.
CREATE OR REPLACE FUNCTION "distlock".claim_all(p_wake text, p_not_after bigint, p_names text[], p_attempts text[], p_ttls bigint[],
    p_delays bigint[], p_records text[])
RETURNS TABLE (o_now bigint, o_outcome text, o_place integer, o_token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l "distlock".locks;
    opened "distlock".locks[] := '{}';
    new_names integer := 0;
    may_grant boolean;
    t timestamptz;
    a record;
BEGIN
    FOR i IN 1 .. cardinality(p_names) LOOP
        opened := opened || "distlock"._open(p_names[i]);
    END LOOP;
    t := clock_timestamp();
    o_now := "distlock"._us(t);
    FOR i IN 1 .. cardinality(p_names) LOOP
        may_grant := "distlock"._may_grant(p_names[i]);
        l := "distlock"._settle(opened[i], may_grant, t, p_wake);
        IF l.queued AND l.attempt IS DISTINCT FROM p_attempts[i] THEN
            a := "distlock"._admit(l, may_grant, t, NULL);
            l := a.l;
        END IF;
        IF l IS DISTINCT FROM opened[i] THEN
            PERFORM "distlock"._store(l);
            opened[i] := l;
        END IF;
        o_place := i;
        o_outcome := CASE
            WHEN o_now > p_not_after THEN 'late'
            WHEN l.token > o_now + 86400000000 THEN 'fence'
            WHEN l.attempt = p_attempts[i] THEN NULL
            WHEN l.mode IS NOT NULL OR l.queued OR NOT may_grant THEN 'busy'
        END;
        IF o_outcome IS NOT NULL THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
    o_outcome := 'granted';
    FOR i IN 1 .. cardinality(p_names) LOOP
        l := opened[i];
        new_names := new_names + (l.token = 0)::integer;
        IF l.attempt = p_attempts[i] THEN
            o_token := l.token;
            l.expires := greatest(l.expires, t + (p_ttls[i] + p_delays[i]) * interval '1 millisecond'); l.handed := false;
        ELSE
            a := "distlock"._grant(l, t, p_attempts[i], 'x', p_ttls[i] + p_delays[i], p_wake, p_records[i], false);
            l := a.l; o_token := a.o_token;
        END IF;
        PERFORM "distlock"._store(l);
        o_place := i;
        RETURN NEXT;
    END LOOP;
    FOR i IN 1 .. new_names LOOP
        PERFORM "distlock"._sweep("distlock"._day(o_now) - 7);
    END LOOP;
END $$;
