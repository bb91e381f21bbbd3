//! Keys, values, scripts and their replies.

pub(in crate::engines) mod lean;
pub(in crate::engines) mod names;
pub(in crate::engines) mod outcome;
pub(in crate::engines) mod resp;
pub(in crate::engines) mod script;
pub(in crate::engines) mod time;
pub(in crate::engines) mod value;
