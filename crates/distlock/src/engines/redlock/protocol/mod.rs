//! The scripts that a node runs, and their typed requests and replies.

pub(crate) mod batch;
pub(crate) mod claim;
pub(crate) mod force_release;
pub(crate) mod lean;
pub(crate) mod note;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod reply;
pub(crate) mod scripts;
