//! Says on a terminal what takes longer than a second.

use std::time::Duration;

use tokio::time::sleep;

use crate::note::{Note, Notes};

/// How long a user waits without a word.
const SILENCE: Duration = Duration::from_secs(1);

/// Awaits `work`. On a terminal, `note` is printed once if the work takes longer than a second.
pub(crate) async fn watched<T>(
    notes: &mut Notes,
    note: impl Future<Output = Note>,
    work: impl Future<Output = T>,
) -> T {
    tokio::pin!(work);
    if notes.are_seen() {
        let late = async {
            sleep(SILENCE).await;
            note.await
        };
        tokio::select! {
            biased;
            done = &mut work => return done,
            note = late => notes.say(&note),
        }
    }
    work.await
}
