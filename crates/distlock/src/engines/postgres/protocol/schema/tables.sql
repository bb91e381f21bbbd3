-- The tables of the engine. A lock's row in "distlock".locks is the serialisation point of that lock: every change of a lock
-- begins by locking it FOR NO KEY UPDATE. A grant to a new holder needs FOR UPDATE, which "distlock".hold() keeps out.

-- One row per lock name. It outlives the hold, so that tokens rise, and is swept a week after its last use. No column that
-- changes with a hold is indexed, so every update is a HOT update.
CREATE TABLE IF NOT EXISTS "distlock".locks (
    name    text COLLATE "C" PRIMARY KEY,
    -- The last token granted.
    token   bigint  NOT NULL DEFAULT 0,
    -- Of the holders: x (exclusive), s (shared), p<n> (slot of n), p0<n> (slots of several sizes, none larger than n), r<owner in
    -- hex> (re-entrant); NULL: the lock is free.
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

-- Notes of ticks: what ran once, and for how long it is remembered. A note is not a lock: the row of its lock may be swept before it.
CREATE TABLE IF NOT EXISTS "distlock".ticks (
    name      text COLLATE "C" NOT NULL,
    tick      text COLLATE "C" NOT NULL,
    -- When the note is forgotten, in milliseconds of the server's clock.
    forget_ms bigint  NOT NULL,
    is_done   boolean NOT NULL,
    note      text    NOT NULL,
    PRIMARY KEY (name, tick)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX IF NOT EXISTS ticks_forget_ms ON "distlock".ticks (forget_ms);

-- Of version 1.
DROP FUNCTION IF EXISTS "distlock".claim_one(text, bigint, text, text, text, bigint, bigint, bigint, text);
DROP FUNCTION IF EXISTS "distlock".release_one(text, text, text);
