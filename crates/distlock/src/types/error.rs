//! The one error type: what happened, to which lock, held by whom, and what to do next.

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::types::event::LossReason;
use crate::types::key::Key;
use crate::types::owner::Holder;

/// A result of this crate: its error is an [`Error`] unless it says otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure an [`Error`] is, and so what to do.
///
/// Only [`ErrorKind::Unknown`] leaves open whether the request was applied; every other kind is definite.
///
/// | kind | what to do |
/// |---|---|
/// | `Timeout` | the lock is held: try later, or report [the holder](Error::holder) |
/// | `Lost` | stop the work; what was written since the loss may be refused by its fencing token |
/// | `Unknown` | a claim: treat the lock as not held, and retry; a release: it continues in the background |
/// | `Unavailable` | retry later: the engine was not reached, and nothing was applied |
/// | `AlreadyHeld` | use [`as_new_owner`](crate::LockRequest::as_new_owner) or [`reentrant`](crate::LockRequest::reentrant) |
/// | `NotHeld` | the hold has ended, or was never this owner's |
/// | `InvalidInput`, `Config`, `Unsupported` | correct the call, the configuration or the choice of engine |
/// | `Auth` | correct the credentials or the rights; the text names what is missing |
/// | `Foreign` | another program uses the key: choose another name or prefix |
/// | `Closed` | make a new [`Locker`](crate::Locker) |
/// | `Backend` | read the text and its source |
///
/// ```
/// use distlock::ErrorKind;
///
/// // The word of logs and metrics, and of serde with the feature `serde`.
/// assert_eq!(ErrorKind::AlreadyHeld.to_string(), "already_held");
/// # #[cfg(feature = "serde")]
/// assert_eq!(serde_json::to_string(&ErrorKind::AlreadyHeld).unwrap(), "\"already_held\"");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ErrorKind {
    /// This owner holds the lock already, and the request is not re-entrant.
    AlreadyHeld,
    /// This owner does not hold the lock.
    NotHeld,
    /// The wait ended before the lock was free: the engine reported another holder, or the grant came too late to be
    /// used.
    Timeout,
    /// The lock was lost.
    Lost,
    /// The engine did not reply: the request may or may not have been applied.
    Unknown,
    /// The engine cannot be reached or refuses for now; the request was not applied.
    Unavailable,
    /// The engine cannot do this.
    Unsupported,
    /// An argument is invalid; nothing was changed.
    InvalidInput,
    /// Data of another program is stored at the lock's place; it was not changed.
    Foreign,
    /// The configuration is invalid; nothing was sent.
    Config,
    /// The engine refused the credentials or the right to do this.
    Auth,
    /// The locker was closed.
    Closed,
    /// The engine failed in a way that has no kind of its own.
    Backend,
}

impl ErrorKind {
    /// Returns the word for it that logs and metrics use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::AlreadyHeld => "already_held",
            ErrorKind::NotHeld => "not_held",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Lost => "lost",
            ErrorKind::Unknown => "unknown",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::InvalidInput => "invalid_input",
            ErrorKind::Foreign => "foreign",
            ErrorKind::Config => "config",
            ErrorKind::Auth => "auth",
            ErrorKind::Closed => "closed",
            ErrorKind::Backend => "backend",
        }
    }
}

/// Writes [`ErrorKind::as_str`].
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A failure: its kind, the lock it is about, the holder if known, and what to do next.
///
/// ```
/// use std::time::Duration;
/// use distlock::{ErrorKind, Locker};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// # let (locker, other) = (Locker::connect("mem://error").await?, Locker::connect("mem://error").await?);
/// # let held = other.lock("invoice:42").label("monthly run").await?;
/// let error = locker.lock("invoice:42").wait(Duration::ZERO).await.unwrap_err();
/// match error.kind() {
///     ErrorKind::Timeout => println!("try later: {error}"), // names the holder and its label
///     ErrorKind::Unknown => println!("treat it as not held: {error}"),
///     _ if error.is_retryable() => println!("the engine is unreachable: {error}"),
///     _ => return Err(error),
/// }
/// # assert_eq!(error.holder().and_then(|holder| holder.token), Some(held.fencing_token()));
/// # assert!(error.to_string().contains("monthly run"), "{error}");
/// # Ok(()) }
/// ```
///
/// Its text has no password. `Debug` adds the kind and the cause.
pub struct Error(Box<Details>);

#[derive(Clone)]
struct Details {
    kind: ErrorKind,
    message: Cow<'static, str>,
    key: Option<Key>,
    holder: Option<Holder>,
    loss: Option<LossReason>,
    help: Option<Cow<'static, str>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// Whether the engine has ended the attempt.
    is_attempt_over: bool,
}

impl Error {
    /// Returns an error of `kind`. The message says what happened.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let (message, is_attempt_over) = (message.into(), false);
        let (key, holder, loss, help, source) = (None, None, None, None, None);
        Error(Box::new(Details { kind, message, key, holder, loss, help, source, is_attempt_over }))
    }

    /// Returns an error of a request that was not applied and may be retried.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Unavailable, message)
    }

    /// Returns an error of a request that may or may not have been applied.
    pub fn unknown(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Unknown, message)
    }

    /// Returns the error of an invalid argument or configuration field.
    pub(crate) fn invalid(field: &str, problem: impl fmt::Display) -> Self {
        Error::new(ErrorKind::InvalidInput, format!("{field}: {problem}"))
    }

    pub(crate) fn closed() -> Self {
        Error::new(ErrorKind::Closed, "the locker was closed").with_help("make a new Locker")
    }

    pub(crate) fn lost(reason: LossReason) -> Self {
        let mut error = Error::new(ErrorKind::Lost, format!("the lock was lost: {}", reason.describe()))
            .with_help("stop the work it protected; whatever checks the fencing token refuses what comes late");
        error.0.loss = Some(reason);
        error
    }

    /// Sets the lock that the error is about, unless it is set already.
    #[must_use]
    pub fn with_key(mut self, key: &Key) -> Self {
        self.0.key.get_or_insert_with(|| key.clone());
        self
    }

    /// Sets the holder of the lock.
    #[must_use]
    pub fn with_holder(mut self, holder: Option<Holder>) -> Self {
        self.0.holder = holder;
        self
    }

    /// Sets the advice what to do next.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<Cow<'static, str>>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// Marks the attempt as released by the engine itself, for example because its grant came too late. That release
    /// may still arrive, so the core claims with a new attempt.
    #[must_use]
    pub fn with_attempt_over(mut self) -> Self {
        self.0.is_attempt_over = true;
        self
    }

    /// Returns whether the engine has ended the attempt: see [`with_attempt_over`](Error::with_attempt_over).
    #[must_use]
    pub fn is_attempt_over(&self) -> bool {
        self.0.is_attempt_over
    }

    /// Returns a copy for observers.
    pub(crate) fn duplicate(&self) -> Error {
        Error(self.0.clone())
    }

    /// Returns what kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the lock the error is about.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.0.key.as_ref()
    }

    /// Returns the holder at the engine's last reply, if known: at most a second before the error. The times in it
    /// are as of the error.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// Returns what to do next, where the error says so. It is also in the text of the error.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// Returns why the lock was lost, for [`ErrorKind::Lost`].
    #[must_use]
    pub fn loss_reason(&self) -> Option<&LossReason> {
        self.0.loss.as_ref()
    }

    /// Returns whether the same call may succeed later without any change by the caller.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self.0.kind {
            ErrorKind::Timeout | ErrorKind::Unknown | ErrorKind::Unavailable => true,
            ErrorKind::AlreadyHeld
            | ErrorKind::NotHeld
            | ErrorKind::Lost
            | ErrorKind::Unsupported
            | ErrorKind::InvalidInput
            | ErrorKind::Foreign
            | ErrorKind::Config
            | ErrorKind::Auth
            | ErrorKind::Closed
            | ErrorKind::Backend => false,
        }
    }

    /// Returns whether the request behind this error may have been applied.
    #[must_use]
    pub fn may_be_applied(&self) -> bool {
        self.0.kind == ErrorKind::Unknown
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.0.key {
            write!(f, "lock {key:?}: ")?;
        }
        f.write_str(&self.0.message)?;
        if let Some(holder) = &self.0.holder {
            write!(f, "; held by {holder}")?;
        }
        if let Some(help) = &self.0.help {
            write!(f, " ({help})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self}", self.0.kind)?;
        // Most messages quote their cause; it is not repeated.
        if let Some(source) = self.0.source.as_ref().map(ToString::to_string).filter(|it| !self.0.message.contains(it))
        {
            write!(f, ": {source}")?;
        }
        f.write_str(")")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
