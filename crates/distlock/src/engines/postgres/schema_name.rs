//! The name of the engine's schema.

/// The longest name of a schema in bytes; the server would cut a longer one.
const MAX_SCHEMA_BYTES: usize = 63;

/// Checks the name of a schema.
pub(crate) fn check_schema(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the name is empty".into());
    }
    if name.len() > MAX_SCHEMA_BYTES {
        return Err(format!("the name has {} bytes, at most {MAX_SCHEMA_BYTES} are allowed", name.len()));
    }
    match name.find(char::is_control) {
        Some(at) => Err(format!("a control character at byte {at}")),
        None if name.starts_with("pg_") => Err("names that begin with pg_ are the server's own".into()),
        // It would end the text of a function.
        None if name.contains("$$") => Err("two dollar signs in a row".into()),
        None => Ok(()),
    }
}
