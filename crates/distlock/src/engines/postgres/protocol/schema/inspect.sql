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
