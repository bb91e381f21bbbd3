-- Notes of ticks beside locks.

-- Stores the note of a tick for the attempt that holds the lock, in place of the tick's last one. The lock's row is locked first, so
-- no other attempt is granted the lock until this has ended. p_most: how many notes a lock may have. Outcomes: stored, also where
-- exactly this note was stored before; refused, as the attempt does not hold the lock, or a tick that is done would be started; full.
CREATE OR REPLACE FUNCTION "distlock".note_tick(p_name text, p_attempt text, p_tick text, p_forget_ms bigint, p_done boolean,
    p_note text, p_most integer) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l "distlock".locks;
    before "distlock".ticks;
    t timestamptz;
    now_ms bigint;
BEGIN
    SELECT * INTO l FROM "distlock".locks WHERE name = p_name FOR NO KEY UPDATE;
    t := clock_timestamp();
    now_ms := "distlock"._us(t) / 1000;
    SELECT * INTO before FROM "distlock".ticks WHERE name = p_name AND tick = p_tick AND forget_ms > now_ms;
    IF before.note = p_note THEN
        RETURN 'stored';
    ELSIF before.is_done AND NOT p_done OR (l.attempt = p_attempt AND l.expires > t) IS NOT TRUE
        AND NOT EXISTS (SELECT FROM "distlock".holders WHERE name = p_name AND attempt = p_attempt AND expires > t)
    THEN
        RETURN 'refused';
    ELSIF before.note IS NULL
        AND (SELECT count(*) FROM "distlock".ticks WHERE name = p_name AND forget_ms > now_ms) >= p_most
    THEN
        RETURN 'full';
    END IF;
    INSERT INTO "distlock".ticks (name, tick, forget_ms, is_done, note) VALUES (p_name, p_tick, p_forget_ms, p_done, p_note)
    ON CONFLICT (name, tick) DO UPDATE
    SET forget_ms = excluded.forget_ms, is_done = excluded.is_done, note = excluded.note;
    -- The table grows only here, so it is swept here. The last step: nothing is waited for while other locks' notes are locked.
    WITH old AS (SELECT o.name, o.tick FROM "distlock".ticks o WHERE o.forget_ms <= now_ms
        ORDER BY o.forget_ms LIMIT 16 FOR UPDATE SKIP LOCKED)
    DELETE FROM "distlock".ticks k USING old WHERE k.name = old.name AND k.tick = old.tick;
    RETURN 'stored';
END $$;

-- Returns the server's clock, and the notes of a lock that are not forgotten; p_tick: of this tick alone. A note that is longer
-- than any of ours was written by hand.
CREATE OR REPLACE FUNCTION "distlock".read_ticks(p_name text, p_tick text, p_most integer)
RETURNS TABLE (o_now_ms bigint, o_note text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    o_now_ms := "distlock"._us(clock_timestamp()) / 1000;
    -- One row without a note, so that there is one.
    RETURN NEXT;
    RETURN QUERY SELECT o_now_ms, k.note FROM "distlock".ticks k
        WHERE k.name = p_name AND (p_tick IS NULL OR k.tick = p_tick) AND k.forget_ms > o_now_ms AND octet_length(k.note) <= 4096
        ORDER BY k.tick LIMIT p_most;
END $$;

-- Returns the notes that are not forgotten behind one note, of locks whose names begin with p_start, in the order of names.
CREATE OR REPLACE FUNCTION "distlock".list_ticks(p_start text, p_after text, p_after_tick text, p_most integer)
RETURNS TABLE (o_name text, o_tick text, o_note text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_ms bigint := "distlock"._us(clock_timestamp()) / 1000;
BEGIN
    RETURN QUERY SELECT k.name, k.tick, k.note FROM "distlock".ticks k
        WHERE k.name >= p_start AND (k.name, k.tick) > (p_after, p_after_tick) AND starts_with(k.name, p_start)
        AND k.forget_ms > now_ms AND octet_length(k.note) <= 4096
        ORDER BY k.name, k.tick LIMIT p_most;
END $$;
