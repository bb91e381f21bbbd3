-- The version of the tables and functions, which a client checks when it connects.
CREATE OR REPLACE FUNCTION "distlock".version() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 3 $$;
