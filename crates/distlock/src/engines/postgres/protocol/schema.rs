//! The schema: its SQL, its name, its version.

use std::fmt;

use crate::engines::postgres::schema_name::check_schema;
use crate::types::error::{Error, ErrorKind, Result};

/// The version of the tables and functions that this client speaks to: that of `schema/version.sql`.
pub(in crate::engines) const VERSION: i32 = 3;

/// The schema's name where none is given.
pub(in crate::engines) const DEFAULT_SCHEMA: &str = "distlock";

const PARTS: [&str; 9] = [
    include_str!("schema/before.sql"),
    include_str!("schema/tables.sql"),
    include_str!("schema/internal.sql"),
    include_str!("schema/lean.sql"),
    include_str!("schema/claim.sql"),
    include_str!("schema/hold.sql"),
    include_str!("schema/inspect.sql"),
    include_str!("schema/ticks.sql"),
    include_str!("schema/version.sql"),
];

/// The name under which the files have the schema.
const PLACEHOLDER: &str = "\"distlock\"";

/// The name of a schema, quoted as SQL needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engines) struct Schema(String);

impl Schema {
    /// # Errors
    /// Kind `Config` when no schema can have this name.
    pub(in crate::engines) fn new(name: &str) -> Result<Schema> {
        match check_schema(name) {
            Ok(()) => Ok(Schema(format!("\"{}\"", name.replace('"', "\"\"")))),
            Err(fault) => Err(Error::new(ErrorKind::Config, format!("schema: {fault}"))),
        }
    }

    /// Returns the statements that make the schema, or bring it up to date, in one transaction. They can be repeated.
    pub(in crate::engines) fn sql(&self) -> String {
        format!(
            "-- The locks of distlock, version {VERSION}. A user of them needs: GRANT USAGE ON SCHEMA {self} TO …;\n\
             BEGIN;\n{}COMMIT;\n",
            self.statements()
        )
    }

    /// Returns the same without a transaction around it. Sent as one message they are one all the same, and a failure
    /// leaves no transaction open in the session.
    pub(in crate::engines) fn statements(&self) -> String {
        let parts = PARTS.map(|part| self.in_file(part)).join("\n");
        let serialise = "SELECT pg_advisory_xact_lock(hashtextextended('distlock setup', 0));";
        let rights = self.in_file(RIGHTS);
        format!("{serialise}\nCREATE SCHEMA IF NOT EXISTS {self};\n\n{parts}\n{rights}")
    }

    fn in_file(&self, text: &str) -> String {
        let literal = format!("'{PLACEHOLDER} ' ||");
        // Not one replacement after the other: the name may have the placeholder in it.
        let parts: Vec<String> = text.split(&literal).map(|part| part.replace(PLACEHOLDER, &self.0)).collect();
        // Inside a text the quotes of the name would end it.
        parts.join(&format!("'{} ' ||", self.0.replace('\'', "''")))
    }
}

/// A user needs the right to use the schema and no other, also where functions are not everybody's by default. No user calls
/// the last ones; the functions that do run with the rights of their owner.
const RIGHTS: &str = "\
GRANT EXECUTE ON FUNCTION \"distlock\".version(), \"distlock\".compatible_from(), \"distlock\"._us(timestamptz), \"distlock\"._day(bigint),
    \"distlock\"._sign(text), \"distlock\".hold(text, bigint), \"distlock\".release(text, text[], text[]),
    \"distlock\".claim(text, bigint, text[], text[], text[], bigint[], bigint[], bigint[], text[]),
    \"distlock\".claim_all(text, bigint, text[], text[], bigint[], bigint[], text[]), \"distlock\".renew(text[], text[], bigint[]),
    \"distlock\".adopt(text, bigint, text, text, bigint, text, text, bigint, text), \"distlock\".amend(text, text, text),
    \"distlock\".force_release(text, bigint), \"distlock\".show(text, text, integer), \"distlock\".read_history(text, integer, integer),
    \"distlock\".write_history(text[], text[], integer, integer), \"distlock\".read_ticks(text, text, integer),
    \"distlock\".note_tick(text, text, text, bigint, boolean, text, integer), \"distlock\".list_ticks(text, text, text, integer) TO PUBLIC;
REVOKE ALL ON FUNCTION \"distlock\"._sweep(date), \"distlock\"._open(text), \"distlock\"._may_grant(text), \"distlock\"._store(\"distlock\".locks),
    \"distlock\"._purge(text, text, text), \"distlock\"._release(text, text, bigint, text) FROM PUBLIC;
";

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_and_a_bad_one_is_refused() {
        assert_eq!(Schema::new("My \"locks\"").unwrap().to_string(), "\"My \"\"locks\"\"\"");
        for bad in ["", "two\nlines", "pg_locks", "a$$b", &"x".repeat(64)] {
            assert_eq!(Schema::new(bad).unwrap_err().kind(), ErrorKind::Config, "{bad}");
        }
    }

    #[test]
    fn every_object_is_in_the_schema_that_is_asked_for() {
        let sql = Schema::new("o'locks").unwrap().sql();
        assert!(!sql.contains(PLACEHOLDER), "{sql}");
        assert!(sql.contains("CREATE SCHEMA IF NOT EXISTS \"o'locks\";"));
        assert!(sql.contains("'\"o''locks\" ' || channel"), "the name inside a text");
        let named_alike = Schema::new("a\"distlock\"b'c").unwrap().sql();
        assert!(named_alike.contains("'\"a\"\"distlock\"\"b''c\" ' || channel"), "{named_alike}");
        let version =
            format!("version() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT {VERSION} $$");
        assert!(sql.contains(&version), "the version is that of version.sql");
        assert!(sql.contains(&format!("IF found > {VERSION} THEN")), "and of before.sql");
    }
}
