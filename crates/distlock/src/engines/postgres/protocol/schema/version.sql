-- The version of the tables and functions, which a client checks when it connects.
CREATE OR REPLACE FUNCTION "distlock".version() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 3 $$;

-- The oldest version whose clients can use this schema: this one, or the one before if every statement of its clients is there
-- and means the same. A client that finds the next version after its own asks for it; those before version 3 do not.
CREATE OR REPLACE FUNCTION "distlock".compatible_from() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 3 $$;
