//! From a URL, TOML, variables or fields to a locker.
//!
//! `fields` is what the user says, `settings` what that means when it is checked, and `registry` the one table of
//! engines.

pub(crate) mod connect;
pub(crate) mod fields;
pub(crate) mod limits;
mod names;
mod reading;
pub(crate) mod redact;
pub(crate) mod registry;
mod settings;
#[cfg(test)]
mod tests;
mod url;
mod value;
