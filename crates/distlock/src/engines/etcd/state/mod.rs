//! What this client knows of its attempts.

pub(crate) mod attempts;
pub(crate) mod key_numbers;
