//! Many locks held at once: what they cost the server and this process, and how soon a loss is told.

use std::time::{Duration, Instant};

use distlock::LockGuard;
use distlock_testkit::servers::EtcdServer;

use super::{TTL, engine};
use crate::process::{cpu_ms, cpu_ms_of};

const HELD: usize = 10_000;
const TASKS: usize = 50;
/// The time in which all watches of young holds are opened.
const SETTLING: Duration = Duration::from_secs(5);
/// How many holds are taken away, one after the other.
const TAKEN_AWAY: usize = 20;

pub(super) async fn measure(server: &EtcdServer) {
    let (locker, handle) = engine(&server.address().to_string());
    let (start, server_cpu) = (Instant::now(), cpu_ms_of(server.pid()));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let locker = locker.clone();
        tasks.spawn(async move {
            let mut guards: Vec<LockGuard> = Vec::new();
            for number in 0..HELD / TASKS {
                guards.push(locker.lock(format!("held:{task}:{number}")).await.expect("granted"));
            }
            guards
        });
    }
    let guards = tasks.join_all().await.into_iter().flatten().collect::<Vec<_>>();
    println!("{HELD} locks taken in {:?}, server CPU {} ms", start.elapsed(), cpu_ms_of(server.pid()) - server_cpu);
    let (cpu, server_cpu) = (cpu_ms(), cpu_ms_of(server.pid()));
    tokio::time::sleep(SETTLING).await;
    println!(
        "the next {SETTLING:?}: server CPU {} ms, client CPU {} ms, {} watches",
        cpu_ms_of(server.pid()) - server_cpu,
        cpu_ms() - cpu,
        server.metric("etcd_debugging_mvcc_watcher_total").unwrap_or(f64::NAN)
    );
    let (before, cpu, server_cpu, start) = (handle.requests(), cpu_ms(), cpu_ms_of(server.pid()), Instant::now());
    tokio::time::sleep(TTL * 3).await;
    let seconds = start.elapsed().as_secs_f64();
    let sent = handle.requests() - before;
    let most = seconds / (TTL.as_secs_f64() / 3.0 * 0.9);
    let share = |spent: u64| spent as f64 / seconds / 10.0;
    println!(
        "{HELD} held for {seconds:.0} s: {sent} requests (aim: one per third of the TTL, {most:.0}), client {:.1} % of one \
         core, server {:.1} %",
        share(cpu_ms() - cpu),
        share(cpu_ms_of(server.pid()) - server_cpu)
    );
    assert!(guards.iter().all(|guard| !guard.is_lost()), "a lock was lost");
    tell_losses(server, &guards).await;
    let start = Instant::now();
    drop(guards);
    let all = if locker.close().await.is_ok() { "all" } else { "not all" };
    println!("{HELD} locks released in {:?}, {all} confirmed", start.elapsed());
}

/// Deletes the keys of some holds, and takes the time until their guards know.
async fn tell_losses(server: &EtcdServer, guards: &[LockGuard]) {
    let mut times = Vec::new();
    for guard in guards.iter().rev().take(TAKEN_AWAY) {
        let keys = format!("{}/", guard.key());
        let etcdctl = server.etcdctl();
        let deleted = tokio::task::spawn_blocking(move || {
            etcdctl.run(&["del", "--prefix", &keys]);
            Instant::now()
        });
        guard.lost().await;
        let lost = Instant::now();
        times.push(lost.saturating_duration_since(deleted.await.expect("deleted")));
    }
    times.sort();
    println!(
        "a key deleted by another client: told {:?} after the end of `etcdctl del` (median of {TAKEN_AWAY}), at most {:?}",
        times[times.len() / 2],
        times[times.len() - 1]
    );
}
