-- Runs before anything is changed.
DO $$
DECLARE
    found integer;
BEGIN
    -- An older program must not put its functions in place of newer ones.
    BEGIN
        found := "distlock".version();
    EXCEPTION WHEN undefined_function THEN
        found := 0;
    END;
    IF found > 3 THEN
        RAISE EXCEPTION 'distlock: the schema has version %, which is newer than version 3', found
            USING ERRCODE = 'DL002', HINT = 'use the newer version of distlock';
    END IF;
    -- Claims wait while this waits for a lock: a backup that reads the schema must not make them wait for long.
    PERFORM set_config('lock_timeout', '2s', true);
    -- A claim locks a view and then the table behind it. In another order, set-up and claim would wait for each other.
    BEGIN
        LOCK TABLE "distlock".lean_claim, "distlock".lean_release IN ACCESS EXCLUSIVE MODE;
    EXCEPTION WHEN undefined_table THEN
        NULL;
    END;
END $$;
