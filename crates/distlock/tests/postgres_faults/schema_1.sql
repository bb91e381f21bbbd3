-- The locks of distlock, version 1. A user of them needs: GRANT USAGE ON SCHEMA "distlock" TO …;
BEGIN;
SELECT pg_advisory_xact_lock(hashtextextended('distlock setup', 0));
CREATE SCHEMA IF NOT EXISTS "distlock";

-- The tables of the engine. A lock's row in "distlock".locks is the serialisation point of that lock: every change of a lock
-- begins by locking it FOR NO KEY UPDATE. A grant to a new holder needs FOR UPDATE, which "distlock".hold() keeps out.

-- One row per lock name. It outlives the hold, so that tokens rise, and is swept a week after its last use. No column that
-- changes with a hold is indexed, so every update is a HOT update.
CREATE TABLE IF NOT EXISTS "distlock".locks (
    name    text COLLATE "C" PRIMARY KEY,
    -- The last token granted.
    token   bigint  NOT NULL DEFAULT 0,
    -- Of the holders: x (exclusive), s (shared), p<n> (slot of n), r<owner in hex> (re-entrant); NULL: the lock is free.
    mode    text,
    -- The exclusive holder; holders of the other modes are in "distlock".holders.
    attempt text,
    since   timestamptz,
    expires timestamptz,
    -- Whether the hold was handed over and its holder has not been heard of since.
    handed  boolean NOT NULL DEFAULT false,
    channel text,
    record  text,
    -- Whether "distlock".waiters has rows of this lock.
    queued  boolean NOT NULL DEFAULT false,
    -- The last ticket given to a waiter, and the last one that has left the head of the queue.
    ticket  bigint  NOT NULL DEFAULT 0,
    served  bigint  NOT NULL DEFAULT 0,
    -- Indexed, and changes once a day at most.
    used_on date    NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX IF NOT EXISTS locks_used_on ON "distlock".locks (used_on);

-- Holders of locks that several may hold. Only "id" is a key: "distlock".hold() locks a row FOR KEY SHARE, which lets it be
-- renewed and adopted, but not deleted.
CREATE TABLE IF NOT EXISTS "distlock".holders (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text COLLATE "C" NOT NULL,
    attempt text    NOT NULL,
    token   bigint  NOT NULL,
    slot    integer,
    since   timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    handed  boolean NOT NULL,
    channel text,
    record  text    NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX IF NOT EXISTS holders_name ON "distlock".holders (name);

CREATE TABLE IF NOT EXISTS "distlock".waiters (
    name     text COLLATE "C" NOT NULL,
    ticket   bigint  NOT NULL,
    attempt  text    NOT NULL,
    mode     text    NOT NULL,
    ttl_ms   bigint  NOT NULL,
    delay_ms bigint  NOT NULL,
    -- The end of the waiter's heartbeat.
    alive    timestamptz NOT NULL,
    -- Where its process listens; NULL: it polls.
    channel  text,
    record   text    NOT NULL,
    PRIMARY KEY (name, ticket)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE UNIQUE INDEX IF NOT EXISTS waiters_attempt ON "distlock".waiters (attempt, name);

CREATE TABLE IF NOT EXISTS "distlock".history (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text COLLATE "C" NOT NULL,
    written timestamptz NOT NULL DEFAULT clock_timestamp(),
    line    text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX IF NOT EXISTS history_name ON "distlock".history (name, id);
CREATE INDEX IF NOT EXISTS history_written ON "distlock".history (written);

-- What the functions of the engine share. None is called by clients.

-- Returns a time in microseconds; NULL for one that somebody wrote and that is not finite.
CREATE OR REPLACE FUNCTION "distlock"._us(t timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT CASE WHEN isfinite(t) THEN (extract(epoch FROM t) * 1000000)::bigint END $$;

-- Returns the number of the advisory lock that the listener of a channel holds as its sign of life.
CREATE OR REPLACE FUNCTION "distlock"._sign(channel text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT hashtextextended('"distlock" ' || channel, 0) $$;

-- Returns whether a process listens at a channel. A waiter that polls has none, and lives by its heartbeat alone.
CREATE OR REPLACE FUNCTION "distlock"._listens(channel text) RETURNS boolean
LANGUAGE sql VOLATILE AS $$ SELECT channel IS NULL OR NOT pg_try_advisory_xact_lock_shared("distlock"._sign(channel)) $$;

-- Drops a few locks that were not used since a day, with what their dead holders and waiters have left.
CREATE OR REPLACE FUNCTION "distlock"._sweep(p_before date) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    l record;
    t timestamptz := clock_timestamp();
BEGIN
    FOR l IN SELECT k.name FROM "distlock".locks k WHERE k.used_on < p_before AND (k.expires IS NULL OR k.expires < t)
        AND NOT EXISTS (SELECT FROM "distlock".holders h WHERE k.mode IS NOT NULL AND h.name = k.name AND h.expires > t)
        AND NOT EXISTS (SELECT FROM "distlock".waiters w WHERE k.queued AND w.name = k.name AND w.alive > t)
        LIMIT 4 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM "distlock".waiters w WHERE w.name = l.name;
        DELETE FROM "distlock".holders h WHERE h.name = l.name;
        DELETE FROM "distlock".locks k WHERE k.name = l.name;
    END LOOP;
END $$;

-- Makes the row of a lock and returns it locked. The table grows only here, so it is swept here.
CREATE OR REPLACE FUNCTION "distlock"._open(p_name text) RETURNS "distlock".locks
LANGUAGE plpgsql AS $$
DECLARE
    l "distlock".locks;
    today date := clock_timestamp() AT TIME ZONE 'UTC';
BEGIN
    LOOP
        SELECT * INTO l FROM "distlock".locks WHERE name = p_name FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO "distlock".locks (name, used_on) VALUES (p_name, today) ON CONFLICT (name) DO NOTHING RETURNING * INTO l;
        IF FOUND THEN
            PERFORM "distlock"._sweep(today - 7);
            EXIT;
        END IF;
    END LOOP;
    RETURN l;
END $$;

-- Returns whether this transaction may grant the lock anew: no transaction relies on an earlier hold by "distlock".hold().
CREATE OR REPLACE FUNCTION "distlock"._may_grant(p_name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM "distlock".locks WHERE name = p_name FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION "distlock"._store(l "distlock".locks) RETURNS void
LANGUAGE sql AS $$
    UPDATE "distlock".locks SET token = l.token, mode = l.mode, attempt = l.attempt, since = l.since, expires = l.expires,
        handed = l.handed, channel = l.channel, record = l.record, queued = l.queued, ticket = l.ticket, served = l.served,
        used_on = (clock_timestamp() AT TIME ZONE 'UTC')::date
    WHERE name = l.name
$$;

CREATE OR REPLACE FUNCTION "distlock"._free(INOUT l "distlock".locks)
LANGUAGE plpgsql AS $$
BEGIN
    l.mode := NULL; l.attempt := NULL; l.since := NULL; l.expires := NULL; l.handed := false; l.channel := NULL; l.record := NULL;
END $$;

-- Drops the places of a process that let a handed lock run out, unless it is the sender's: each would cost another first
-- lease.
CREATE OR REPLACE FUNCTION "distlock"._purge(p_name text, p_channel text, p_wake text) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM "distlock".waiters WHERE name = p_name AND channel = p_channel AND channel IS DISTINCT FROM p_wake
$$;

-- Ends expired holds, except those that a transaction still relies on.
CREATE OR REPLACE FUNCTION "distlock"._settle(INOUT l "distlock".locks, p_may_grant boolean, p_now timestamptz, p_wake text)
LANGUAGE plpgsql AS $$
DECLARE
    h "distlock".holders;
BEGIN
    IF l.attempt IS NOT NULL THEN
        IF l.expires <= p_now AND p_may_grant THEN
            IF l.handed AND l.queued THEN
                PERFORM "distlock"._purge(l.name, l.channel, p_wake);
            END IF;
            l := "distlock"._free(l);
        END IF;
    ELSIF l.mode IS NOT NULL THEN
        FOR h IN SELECT * FROM "distlock".holders WHERE name = l.name AND expires <= p_now FOR UPDATE SKIP LOCKED LOOP
            DELETE FROM "distlock".holders WHERE id = h.id;
            IF h.handed AND l.queued THEN
                PERFORM "distlock"._purge(l.name, h.channel, p_wake);
            END IF;
        END LOOP;
        IF NOT EXISTS (SELECT FROM "distlock".holders WHERE name = l.name) THEN
            l := "distlock"._free(l);
        END IF;
    END IF;
END $$;

-- Returns whether a claim in a mode may enter beside the holders.
CREATE OR REPLACE FUNCTION "distlock"._has_room(l "distlock".locks, p_may_grant boolean, p_mode text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF l.mode IS NULL THEN
        RETURN p_may_grant;
    ELSIF l.mode <> p_mode OR p_mode = 'x' THEN
        RETURN false;
    ELSIF left(p_mode, 1) = 'p' THEN
        RETURN (SELECT count(*) FROM "distlock".holders WHERE name = l.name) < substr(p_mode, 2)::bigint;
    END IF;
    RETURN true;
END $$;

-- Grants the lock to an attempt that has room.
CREATE OR REPLACE FUNCTION "distlock"._grant(INOUT l "distlock".locks, OUT o_token bigint, OUT o_slot integer, p_now timestamptz,
    p_attempt text, p_mode text, p_lease_ms bigint, p_channel text, p_record text, p_handed boolean)
LANGUAGE plpgsql AS $$
DECLARE
    ends timestamptz := p_now + p_lease_ms * interval '1 millisecond';
BEGIN
    IF left(p_mode, 1) = 'r' AND l.mode = p_mode THEN
        SELECT min(token) INTO o_token FROM "distlock".holders WHERE name = l.name;
    ELSE
        o_token := greatest(l.token + 1, "distlock"._us(p_now));
        l.token := o_token;
    END IF;
    l.mode := p_mode;
    IF p_mode = 'x' THEN
        l.attempt := p_attempt; l.since := p_now; l.expires := ends;
        l.handed := p_handed; l.channel := p_channel; l.record := p_record;
        RETURN;
    END IF;
    IF left(p_mode, 1) = 'p' THEN
        SELECT min(s) INTO o_slot FROM generate_series(0, substr(p_mode, 2)::integer - 1) s
        WHERE NOT EXISTS (SELECT FROM "distlock".holders WHERE name = l.name AND slot = s);
    END IF;
    INSERT INTO "distlock".holders (name, attempt, token, slot, since, expires, handed, channel, record)
    VALUES (l.name, p_attempt, o_token, o_slot, p_now, ends, p_handed, p_channel, p_record);
END $$;

-- Hands the lock to the waiters whose turn it is, up to the claim p_me, which is the sender's. Returns whether it is the turn of
-- p_me, or else the waiter that must claim by itself.
CREATE OR REPLACE FUNCTION "distlock"._admit(INOUT l "distlock".locks, OUT o_mine boolean, OUT o_next text, p_may_grant boolean,
    p_now timestamptz, p_me text)
LANGUAGE plpgsql AS $$
DECLARE
    w "distlock".waiters;
    first_ms bigint;
    g record;
BEGIN
    o_mine := false;
    IF NOT l.queued THEN
        RETURN;
    END IF;
    FOR w IN SELECT * FROM "distlock".waiters WHERE name = l.name AND ticket > l.served ORDER BY ticket LIMIT 1000 LOOP
        IF w.attempt IS DISTINCT FROM p_me AND (w.alive <= p_now OR NOT "distlock"._listens(w.channel)) THEN
            DELETE FROM "distlock".waiters WHERE name = w.name AND ticket = w.ticket;
        ELSIF l.mode IS NULL AND NOT p_may_grant THEN
            -- A transaction relies on the last hold. The waiter claims until that has ended.
            IF w.attempt IS DISTINCT FROM p_me AND w.channel IS NOT NULL THEN
                PERFORM pg_notify(w.channel, 'retry ' || w.attempt);
            END IF;
            o_next := w.attempt;
            EXIT;
        ELSIF NOT "distlock"._has_room(l, p_may_grant, w.mode) THEN
            EXIT;
        ELSIF w.attempt = p_me THEN
            o_mine := true;
            EXIT;
        ELSIF w.channel IS NULL THEN
            o_next := w.attempt;
            EXIT;
        ELSE
            -- A short first lease: a process that is stopped costs the others this, and not its whole lease.
            first_ms := least(w.ttl_ms, 1000);
            g := "distlock"._grant(l, p_now, w.attempt, w.mode, first_ms + w.delay_ms, w.channel, w.record, true);
            l := g.l;
            DELETE FROM "distlock".waiters WHERE name = w.name AND ticket = w.ticket;
            PERFORM pg_notify(w.channel, concat_ws(' ', 'grant', w.attempt, g.o_token, "distlock"._us(p_now), first_ms, g.o_slot));
        END IF;
        l.served := w.ticket;
    END LOOP;
    l.queued := EXISTS (SELECT FROM "distlock".waiters WHERE name = l.name AND ticket > l.served);
END $$;

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
    t timestamptz;
    c record;
BEGIN
    FOR i IN 1 .. cardinality(p_names) LOOP
        o_token := NULL; o_slot := NULL; o_place := NULL; o_left_us := NULL; o_held_us := NULL; o_mode := NULL; o_record := NULL;
        SELECT * INTO l FROM "distlock".locks WHERE name = p_names[i] FOR UPDATE SKIP LOCKED;
        may_grant := FOUND;
        IF NOT FOUND THEN
            l := "distlock"._open(p_names[i]);
            may_grant := "distlock"._may_grant(p_names[i]);
        END IF;
        -- Read after the row is locked, which may have taken its time.
        t := clock_timestamp();
        o_now := "distlock"._us(t);
        IF o_now > p_not_after THEN
            -- The sender has given up on it, and perhaps released it already.
            o_outcome := 'late';
        ELSIF l.token > o_now + 86400000000 THEN
            o_outcome := 'fence';
        ELSIF l.mode IS NULL AND NOT l.queued AND may_grant AND p_modes[i] = 'x' THEN
            o_outcome := 'granted';
            o_token := greatest(l.token + 1, o_now);
            UPDATE "distlock".locks SET token = o_token, mode = 'x', attempt = p_attempts[i], since = t,
                expires = t + (p_ttls[i] + p_delays[i]) * interval '1 millisecond', handed = false, channel = p_wake,
                record = p_records[i], used_on = (t AT TIME ZONE 'UTC')::date
            WHERE name = p_names[i];
            is_changed := true;
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
END $$;

-- Claims one lock: as claim(), without the cost of rows. Returns the server's clock and the token of a lock that is free, or else
-- the row of claim() as JSON.
CREATE OR REPLACE FUNCTION "distlock".claim_one(p_wake text, p_not_after bigint, p_name text, p_attempt text, p_mode text, p_ttl bigint,
    p_delay bigint, p_beat bigint, p_record text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l record;
    t timestamptz;
    t_us bigint;
    granted bigint;
BEGIN
    SELECT token, mode, queued INTO l FROM "distlock".locks WHERE name = p_name FOR UPDATE SKIP LOCKED;
    IF FOUND AND l.mode IS NULL AND NOT l.queued AND p_mode = 'x' THEN
        t := clock_timestamp();
        t_us := "distlock"._us(t);
        IF t_us <= p_not_after AND l.token <= t_us + 86400000000 THEN
            granted := greatest(l.token + 1, t_us);
            UPDATE "distlock".locks SET token = granted, mode = 'x', attempt = p_attempt, since = t,
                expires = t + (p_ttl + p_delay) * interval '1 millisecond', handed = false, channel = p_wake,
                record = p_record, used_on = (t AT TIME ZONE 'UTC')::date
            WHERE name = p_name;
            RETURN t_us || ' ' || granted;
        END IF;
    END IF;
    RETURN (SELECT to_json(c) FROM "distlock".claim(p_wake, p_not_after, ARRAY[p_name], ARRAY[p_attempt], ARRAY[p_mode],
        ARRAY[p_ttl], ARRAY[p_delay], ARRAY[p_beat], ARRAY[p_record]) c);
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
        o_mode := coalesce(l.mode,
            (SELECT mode FROM "distlock".waiters WHERE l.queued AND name = l.name AND attempt <> p_attempt ORDER BY ticket LIMIT 1));
        IF o_mode <> p_mode AND (left(o_mode, 1) = 'p' OR left(p_mode, 1) = 'p') THEN
            o_outcome := 'disagrees';
        ELSE
            o_mode := NULL;
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
            ORDER BY CASE WHEN l.mode = p_mode THEN expires END, expires DESC LIMIT 1;
            o_mode := l.mode;
        END IF;
    END IF;
    is_changed := l IS DISTINCT FROM before OR o_outcome = 'granted';
    IF l IS DISTINCT FROM before THEN
        PERFORM "distlock"._store(l);
    END IF;
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
END $$;

-- Renews, releases and changes holds, and lets a transaction rely on one.

-- Renews holds, sorted by name. Returns for each whether it was there.
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
        UPDATE "distlock".locks SET mode = NULL, attempt = NULL, since = NULL, expires = NULL, handed = false, channel = NULL, record = NULL
        WHERE name = p_names[i] AND attempt = p_attempts[i] AND NOT queued AND expires > clock_timestamp();
        o_released := FOUND;
        IF NOT FOUND THEN
            r := "distlock"._release(p_names[i], p_attempts[i], NULL, p_wake);
            o_released := r.o_count > 0; o_next := r.o_next;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Releases one hold, or withdraws one waiter: as release(), without the cost of rows. Returns 'released' or 'not-ours', and the
-- waiter that must claim next by itself, if there is one.
CREATE OR REPLACE FUNCTION "distlock".release_one(p_wake text, p_name text, p_attempt text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    UPDATE "distlock".locks SET mode = NULL, attempt = NULL, since = NULL, expires = NULL, handed = false, channel = NULL, record = NULL
    WHERE name = p_name AND attempt = p_attempt AND NOT queued AND expires > clock_timestamp();
    IF FOUND THEN
        RETURN 'released';
    END IF;
    r := "distlock"._release(p_name, p_attempt, NULL, p_wake);
    RETURN concat_ws(' ', CASE WHEN r.o_count > 0 THEN 'released' ELSE 'not-ours' END, r.o_next);
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
        o_count := (l.expires > t)::integer;
        IF p_token IS NOT NULL AND o_count > 0 AND l.channel IS NOT NULL THEN
            PERFORM pg_notify(l.channel, 'lost ' || l.attempt);
        END IF;
        IF p_token IS NULL OR o_count > 0 THEN
            l := "distlock"._free(l);
        END IF;
    ELSIF l.mode IS NOT NULL AND l.attempt IS NULL THEN
        -- Not deleted here: a transaction may rely on it.
        FOR h IN UPDATE "distlock".holders SET expires = t, handed = false
            WHERE name = p_name AND (attempt = p_attempt OR token = p_token) AND expires > t RETURNING * LOOP
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
    IF o_outcome = 'late' OR l.mode IS DISTINCT FROM p_mode THEN
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
    IF is_held AND current_setting('transaction_isolation') <> 'read committed' THEN
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

-- Shows locks and their histories.

-- Returns the live holders and waiters of the locks behind p_after whose names begin with p_start, at most p_most locks, in the
-- order of names; of each lock at most 1000 holders, then as many waiters.
CREATE OR REPLACE FUNCTION "distlock".show(p_start text, p_after text, p_most integer)
RETURNS TABLE (o_name text, o_is_holder boolean, o_token bigint, o_left_us bigint, o_held_us bigint, o_record text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l record;
    t timestamptz := clock_timestamp();
BEGIN
    FOR l IN SELECT * FROM "distlock".locks k
        WHERE k.name >= p_start AND k.name > p_after AND starts_with(k.name, p_start) AND (k.mode IS NOT NULL OR k.queued)
        ORDER BY k.name LIMIT p_most
    LOOP
        o_name := l.name; o_is_holder := NULL; o_token := NULL; o_left_us := NULL; o_held_us := NULL; o_record := NULL;
        -- One row for the lock itself, so that its reader can go on behind it.
        RETURN NEXT;
        RETURN QUERY
            SELECT l.name, true, l.token, "distlock"._us(l.expires) - "distlock"._us(t), "distlock"._us(t) - "distlock"._us(l.since), l.record
            WHERE l.attempt IS NOT NULL AND l.expires > t;
        RETURN QUERY
            SELECT h.name, true, h.token, "distlock"._us(h.expires) - "distlock"._us(t), "distlock"._us(t) - "distlock"._us(h.since), h.record
            FROM "distlock".holders h WHERE h.name = l.name AND h.expires > t ORDER BY h.id LIMIT 1000;
        RETURN QUERY
            SELECT w.name, false, NULL::bigint, NULL::bigint, NULL::bigint, w.record
            FROM "distlock".waiters w WHERE w.name = l.name AND w.alive > t ORDER BY w.ticket LIMIT 1000;
    END LOOP;
END $$;

-- Adds lines to the histories of locks, and drops what is over: all but the last p_most of each lock, and a few old ones.
CREATE OR REPLACE FUNCTION "distlock".write_history(p_names text[], p_lines text[], p_most integer, p_days integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n text;
BEGIN
    INSERT INTO "distlock".history (name, line) SELECT * FROM unnest(p_names, p_lines);
    FOR n IN SELECT DISTINCT u FROM unnest(p_names) u LOOP
        DELETE FROM "distlock".history h WHERE h.id IN (
            SELECT o.id FROM "distlock".history o WHERE o.name = n ORDER BY o.id DESC OFFSET p_most LIMIT 1000 FOR UPDATE SKIP LOCKED);
    END LOOP;
    DELETE FROM "distlock".history h WHERE h.id IN (
        SELECT o.id FROM "distlock".history o WHERE o.written < clock_timestamp() - make_interval(days => p_days)
        ORDER BY o.written LIMIT 16 FOR UPDATE SKIP LOCKED);
END $$;

CREATE OR REPLACE FUNCTION "distlock".read_history(p_name text, p_most integer, p_days integer) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT line FROM "distlock".history
    WHERE name = p_name AND written > clock_timestamp() - make_interval(days => p_days) ORDER BY id DESC LIMIT p_most
$$;

-- The version of the tables and functions, which a client checks when it connects.
CREATE OR REPLACE FUNCTION "distlock".version() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 1 $$;

REVOKE ALL ON FUNCTION "distlock"._sweep(date), "distlock"._open(text), "distlock"._may_grant(text), "distlock"._store("distlock".locks),
    "distlock"._purge(text, text, text), "distlock"._release(text, text, bigint, text) FROM PUBLIC;
COMMIT;
