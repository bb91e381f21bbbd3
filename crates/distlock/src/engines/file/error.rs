//! What a failed file operation means to a claim: the kind of its error.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::types::error::{Error, ErrorKind};

/// Returns the error of an engine that failed to `doing` the file at `path`.
///
/// A condition that may pass by itself is `Unavailable`; what this file system cannot do is `Unsupported`; the rest,
/// such as a missing right or an impossible path, is `Backend`. The source is always the `io::Error`.
pub(super) fn file_error(doing: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let kind = match Errno::from_io_error(&error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC | Errno::DQUOT | Errno::INTR | Errno::AGAIN) => {
            ErrorKind::Unavailable
        }
        Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => ErrorKind::Unsupported,
        _ => ErrorKind::Backend,
    };
    Error::new(kind, format!("cannot {doing} {}: {error}", path.display())).with_source(error)
}

/// Whether `error` is about the one file, which is odd or not readable for this user, so that other files may still
/// work.
pub(super) fn is_about_the_file(error: &Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, PermissionDenied};
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    let Some(source) = source else { return !error.is_retryable() };
    matches!(source.kind(), IsADirectory | NotADirectory | PermissionDenied)
        || matches!(Errno::from_io_error(source), Some(Errno::LOOP | Errno::NXIO))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn what_may_pass_by_itself_is_retryable_and_the_source_is_kept() {
        let full = file_error("write", Path::new("/x"), Errno::NOSPC);
        assert!(full.is_retryable());
        let denied = file_error("create lock file", Path::new("/x"), Errno::ACCESS);
        assert_eq!(denied.kind(), ErrorKind::Backend);
        assert!(denied.to_string().starts_with("cannot create lock file /x: "), "{denied}");
        let source = denied.source().and_then(|source| source.downcast_ref::<io::Error>()).expect("an io::Error");
        assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
    }
}
