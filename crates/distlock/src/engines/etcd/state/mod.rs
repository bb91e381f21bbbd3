//! What this client knows of its attempts and entries. Fields are private: other files report events and act on what is
//! returned.

pub(crate) mod attempt;
pub(crate) mod attempts;
pub(crate) mod effect;
pub(crate) mod entry;
pub(crate) mod hold_watch;
pub(crate) mod key_numbers;
pub(crate) mod phase;
