//! What the files of a lock are called, and what is in them.

pub(super) mod lock_contents;
pub(super) mod lock_directory;
pub(super) mod lock_names;
pub(super) mod lock_paths;
pub(super) mod own_directory;
pub(super) mod shared_holders;
pub(super) mod ticket_queue;
