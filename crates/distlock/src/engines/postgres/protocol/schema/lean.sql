-- The short way for exclusive locks that are free and have no queue: one statement that writes one row. An update of
-- these views, which have one row of constants, is rewritten to an update of the lock's row, with the rights of the views' owner, and
-- costs no call of a function. Where it returns no row nothing has happened, and its sender calls claim() or release().

-- Takes the lock. No transaction relies on an earlier hold where xmax is 0: the row lock of "distlock".hold() is in xmax, a release
-- carries it over to the row's next version, and a row that is free cannot be relied on anew. A wait for another transaction's lock
-- of the row ends without a grant, or, where that transaction changed nothing, with a lease that is counted from before the wait.
CREATE OR REPLACE VIEW "distlock".lean_claim AS
SELECT ''::text AS name, ''::text AS attempt, 0::bigint AS lease_ms, 0::bigint AS not_after, ''::text AS channel, ''::text AS record,
    0::bigint AS token;

CREATE OR REPLACE RULE take AS ON UPDATE TO "distlock".lean_claim DO INSTEAD
UPDATE "distlock".locks l SET token = greatest((date_part('epoch', clock_timestamp()) * 1000000)::bigint, l.token + 1), mode = 'x',
    attempt = NEW.attempt, since = clock_timestamp(), expires = clock_timestamp() + NEW.lease_ms * interval '1 millisecond',
    handed = false, channel = NEW.channel, record = NEW.record,
    used_on = "distlock"._day((date_part('epoch', clock_timestamp()) * 1000000)::bigint)
WHERE l.name = NEW.name AND l.mode IS NULL AND NOT l.queued AND l.xmax = 0
    AND (date_part('epoch', clock_timestamp()) * 1000000)::bigint > l.token
    AND (date_part('epoch', clock_timestamp()) * 1000000)::bigint <= NEW.not_after
RETURNING ''::text, ''::text, 0::bigint, 0::bigint, ''::text, ''::text, l.token;

-- Frees the lock.
CREATE OR REPLACE VIEW "distlock".lean_release AS SELECT ''::text AS name, ''::text AS attempt, true AS is_released;

CREATE OR REPLACE RULE free AS ON UPDATE TO "distlock".lean_release DO INSTEAD
UPDATE "distlock".locks l SET mode = NULL, attempt = NULL, since = NULL, expires = NULL, handed = false, channel = NULL, record = NULL,
    used_on = "distlock"._day((date_part('epoch', clock_timestamp()) * 1000000)::bigint)
WHERE l.name = NEW.name AND l.attempt = NEW.attempt AND NOT l.queued AND l.expires > clock_timestamp()
RETURNING ''::text, ''::text, true;

GRANT SELECT, UPDATE ON "distlock".lean_claim, "distlock".lean_release TO PUBLIC;
