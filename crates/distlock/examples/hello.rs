//! The README's five lines, on the engine that needs no server.

use distlock::Locker;
use distlock::backend::memory::Memory;

#[tokio::main(flavor = "current_thread")]
async fn main() -> distlock::Result<()> {
    let locker = Locker::new(Memory::new())?;

    let guard = locker.lock("invoice:42").await?;
    println!("holding {} with token {}", guard.key(), guard.fencing_token());
    println!("another owner gets {:?}", locker.clone().try_lock("invoice:42").await?);
    guard.unlock().await?;
    println!("free again");
    locker.close().await
}
