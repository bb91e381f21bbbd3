//! What the engine and the database say to each other: the schema, the statements, names and values.

pub(super) mod requests;
pub(super) mod schema;
pub(super) mod time;
pub(super) mod value;
