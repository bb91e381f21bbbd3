-- What the functions of the engine share. None is called by clients.

-- Returns a time in microseconds; NULL for one that was written by hand and is not finite. Its volatility and its single use of
-- the argument let the planner put the expression in place of the call, which would cost more than a lock.
CREATE OR REPLACE FUNCTION "distlock"._us(t timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (nullif(nullif(date_part('epoch', t), float8 'infinity'), float8 '-infinity') * 1000000)::bigint
$$;

-- Returns the day of a time in microseconds.
CREATE OR REPLACE FUNCTION "distlock"._day(us bigint) RETURNS date
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT date '1970-01-01' + (us / 86400000000)::integer $$;

-- Returns the number of the advisory lock that the listener of a channel holds as its sign of life.
CREATE OR REPLACE FUNCTION "distlock"._sign(channel text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT hashtextextended('"distlock" ' || channel, 0) $$;

-- Returns whether a process listens at a channel. A waiter that polls has none, and lives by its heartbeat alone.
CREATE OR REPLACE FUNCTION "distlock"._listens(channel text) RETURNS boolean
LANGUAGE sql VOLATILE AS $$ SELECT channel IS NULL OR NOT pg_try_advisory_xact_lock_shared("distlock"._sign(channel)) $$;

-- Drops a few locks that were not used since a day, with what their dead holders and waiters have left. A lease that ended by itself
-- was used until then. The last step of a transaction: it locks rows of other locks, out of the order of names.
CREATE OR REPLACE FUNCTION "distlock"._sweep(p_before date) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    l record;
    t timestamptz := clock_timestamp();
    week_ago timestamptz := t - interval '7 days';
BEGIN
    FOR l IN SELECT k.name FROM "distlock".locks k WHERE k.used_on < p_before AND (k.expires IS NULL OR k.expires < week_ago)
        AND NOT EXISTS (SELECT FROM "distlock".holders h WHERE k.mode IS NOT NULL AND h.name = k.name AND h.expires > week_ago)
        AND NOT EXISTS (SELECT FROM "distlock".waiters w WHERE k.queued AND w.name = k.name AND w.alive > t)
        LIMIT 4 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM "distlock".waiters w WHERE w.name = l.name;
        DELETE FROM "distlock".holders h WHERE h.name = l.name;
        DELETE FROM "distlock".locks k WHERE k.name = l.name;
    END LOOP;
END $$;

-- Makes the row of a lock and returns it locked. The token of a new row is 0 until it is granted.
CREATE OR REPLACE FUNCTION "distlock"._open(p_name text) RETURNS "distlock".locks
LANGUAGE plpgsql AS $$
DECLARE
    l "distlock".locks;
    today date := "distlock"._day("distlock"._us(clock_timestamp()));
BEGIN
    LOOP
        SELECT * INTO l FROM "distlock".locks WHERE name = p_name FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO "distlock".locks (name, used_on) VALUES (p_name, today) ON CONFLICT (name) DO NOTHING RETURNING * INTO l;
        IF FOUND THEN
            -- Of a row that was deleted by hand. What a transaction relies on is not waited for.
            DELETE FROM "distlock".waiters WHERE name = p_name;
            DELETE FROM "distlock".holders WHERE id IN (
                SELECT id FROM "distlock".holders WHERE name = p_name FOR UPDATE SKIP LOCKED);
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
        used_on = "distlock"._day("distlock"._us(clock_timestamp()))
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
        -- A row that was written by hand may have no end.
        IF (l.expires > p_now) IS NOT TRUE AND p_may_grant THEN
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

-- Returns whether two claims can meet on one lock, given their modes and records. A semaphore goes with itself alone; its size may
-- differ between claims that both resize it.
CREATE OR REPLACE FUNCTION "distlock"._agree(a text, a_record text, b text, b_record text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT a = b OR left(a, 1) <> 'p' AND left(b, 1) <> 'p'
        OR left(a, 1) = left(b, 1) AND strpos(a_record, '"resizes":true') > 0 AND strpos(b_record, '"resizes":true') > 0
$$;

-- Returns the mode of a semaphore's holder.
CREATE OR REPLACE FUNCTION "distlock"._size(p_record text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 'p' || coalesce(substring(p_record FROM '"slot":[{]"of":([0-9]+)[}]'), '0') $$;

-- Returns the mode of a holder that a claim does not agree with, if there is one.
CREATE OR REPLACE FUNCTION "distlock"._disagreement(l "distlock".locks, p_mode text, p_record text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    IF "distlock"._agree(l.mode, '', p_mode, '') THEN
        RETURN NULL;
    ELSIF left(l.mode, 1) <> 'p' OR left(p_mode, 1) <> 'p' THEN
        RETURN l.mode;
    END IF;
    RETURN (SELECT "distlock"._size(h.record) FROM "distlock".holders h
        WHERE h.name = l.name AND NOT "distlock"._agree("distlock"._size(h.record), h.record, p_mode, p_record) LIMIT 1);
END $$;

-- Returns whether a claim in a mode may enter beside the holders, if it agrees with them.
CREATE OR REPLACE FUNCTION "distlock"._has_room(l "distlock".locks, p_may_grant boolean, p_mode text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF l.mode IS NULL THEN
        RETURN p_may_grant;
    ELSIF left(l.mode, 1) = 'p' AND left(p_mode, 1) = 'p' THEN
        -- By its own size, whatever those of the holders are.
        RETURN (SELECT count(*) FROM "distlock".holders WHERE name = l.name) < substr(p_mode, 2)::bigint;
    END IF;
    RETURN l.mode = p_mode AND p_mode <> 'x';
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
    IF left(p_mode, 1) = 'p' AND l.mode <> p_mode AND EXISTS (
        SELECT FROM "distlock".holders h WHERE h.name = l.name AND "distlock"._size(h.record) <> p_mode)
    THEN
        l.mode := 'p0' || greatest(substr(l.mode, 2)::integer, substr(p_mode, 2)::integer);
    ELSE
        l.mode := p_mode;
    END IF;
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
        ELSIF coalesce(l.mode, w.mode) <> w.mode AND "distlock"._disagreement(l, w.mode, w.record) IS NOT NULL THEN
            -- It is refused when it claims.
            IF w.attempt IS DISTINCT FROM p_me AND w.channel IS NOT NULL THEN
                PERFORM pg_notify(w.channel, 'retry ' || w.attempt);
            END IF;
            o_next := w.attempt;
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
