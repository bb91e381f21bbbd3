//! The README's snippet, as it stands there.

use distlock::{FencingToken, Locker};

async fn charge(token: FencingToken) -> distlock::Result<()> {
    println!("charging with token {token}");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> distlock::Result<()> {
    #[rustfmt::skip]
    async fn snippet() -> distlock::Result<()> {
        // README begin
        let locker = Locker::connect("mem://").await?;                             // or redis://, etcd://, postgres://, file://

        let guard = locker.lock("invoice:42").await?;                              // waits; drop the future to give up
        guard.try_run(charge(guard.fencing_token())).await?;                       // the work is dropped if the lock is lost
        guard.unlock().await?;                                                     // the only confirmed release

        if let Some(_guard) = locker.try_lock("job:nightly").await? { /* won */ }  // None: held by another owner
        // README end
        Ok(())
    }
    snippet().await
}
