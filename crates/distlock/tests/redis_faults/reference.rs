//! The Redis engine compared with the memory engine, which is the reference: the same requests, the same outcomes.

use std::collections::BTreeSet;
use std::sync::Arc;

use distlock::backend::memory::Memory;
use distlock::backend::redis::Redis;
use distlock::backend::{Backend, Claim, Claimed};
use distlock::{Clock, FencingToken, Key, Mode, OwnerId, Process, Record};

use crate::bench::{Bench, TEST_LIMIT};

const RUNS: u64 = 16;
const STEPS: u64 = 90;

/// The modes that are mixed in one run. A semaphore cannot be mixed with other modes, and sizes only where all claims resize
/// it: in the last ones.
const MIXES: [&[Mode]; 8] = [
    &[Mode::Exclusive, Mode::Shared, Mode::Shared],
    &[Mode::Exclusive, Mode::Reentrant],
    &[Mode::Exclusive, Mode::Shared, Mode::Reentrant],
    &[Mode::Slot { of: 2 }],
    &[Mode::Slot { of: 3 }, Mode::Slot { of: 2 }, Mode::Exclusive],
    &[Mode::Exclusive, Mode::Shared, Mode::Reentrant, Mode::Slot { of: 2 }],
    &[Mode::Slot { of: 3 }, Mode::Slot { of: 4 }],
    &[Mode::Slot { of: 2 }, Mode::Slot { of: 5 }, Mode::Slot { of: 3 }],
];
const FIRST_RESIZED: usize = 6;

/// Deterministic pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn claim(key: &Key, number: u64, (mode, resizes): (Mode, bool), dice: &mut Dice) -> Claim {
    let owner = if mode == Mode::Reentrant { format!("owner-{}", dice.roll(2)) } else { format!("one-{number}") };
    let owner = OwnerId::new(&owner).expect("a name");
    let record = Record::new(owner, Process::current(), Some(number.to_string().into()), Clock::system().wall());
    Claim::new(key.clone(), TEST_LIMIT * 3, dice.roll(7) > 0, Arc::new(record.with_mode(mode).with_resizes(resizes)))
}

async fn ask(engine: &impl Backend, claim: &Claim) -> String {
    match engine.claim(claim).await {
        Ok(Claimed::Granted(grant)) => format!("granted {:?}", grant.slot),
        Ok(Claimed::Busy(_)) => "busy".into(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// Returns the labels of the holders, unordered, and of the waiters, in order.
async fn state(engine: &impl Backend, key: &Key) -> (BTreeSet<String>, Vec<String>) {
    let Some(lock) = engine.get(key).await.expect("shown") else { return Default::default() };
    let label = |record: &Record| record.label.as_deref().expect("labelled").to_owned();
    let holders = lock.holders.iter().map(|holder| label(holder.record.as_ref().expect("one of ours"))).collect();
    (holders, lock.waiters.iter().map(|record| label(record)).collect())
}

async fn token_of(engine: &impl Backend, key: &Key, label: &str) -> Option<FencingToken> {
    let lock = engine.get(key).await.expect("shown")?;
    let is_it = |record: &Arc<Record>| record.label.as_deref() == Some(label);
    lock.holders.iter().find(|holder| holder.record.as_ref().is_some_and(is_it))?.token
}

#[tokio::test]
async fn a_thousand_random_requests_end_as_in_the_reference_engine() {
    let bench = Bench::start();
    let (memory, redis) = (Memory::new(), Redis::tcp("127.0.0.1", bench.server.port()).build().expect("an engine"));
    redis.ready().await.expect("connected");
    let mut grants = 0;
    for run in 0..RUNS {
        let (mut dice, number) = (Dice(run), usize::try_from(run).unwrap() % MIXES.len());
        let (mix, resizes) = (MIXES[number], number >= FIRST_RESIZED);
        let key = Key::new(format!("run-{run}")).expect("a name");
        let mut claims: Vec<Claim> = Vec::new();
        for step in 0..STEPS {
            let any = if claims.is_empty() { 0 } else { usize::try_from(dice.roll(claims.len() as u64)).unwrap() };
            let (done, wanted) = match dice.roll(20) {
                0 if !claims.is_empty() => {
                    let label = claims[any].record.label.clone().expect("labelled");
                    let tokens = (token_of(&redis, &key, &label).await, token_of(&memory, &key, &label).await);
                    let mut ends = [String::new(), String::new()];
                    if let (Some(here), Some(there)) = tokens {
                        ends[0] = format!("{:?}", redis.force_release(&key, here, "").await.is_ok());
                        ends[1] = format!("{:?}", memory.force_release(&key, there, "").await.is_ok());
                    }
                    ends.into()
                }
                1..9 if !claims.is_empty() => {
                    let claim = claims.swap_remove(any);
                    let ends = [redis.release(&claim).await, memory.release(&claim).await];
                    ends.map(|end| format!("{:?}", end.expect("no error"))).into()
                }
                9 if !claims.is_empty() => (ask(&redis, &claims[any]).await, ask(&memory, &claims[any]).await),
                _ => {
                    let mode = mix[usize::try_from(dice.roll(mix.len() as u64)).unwrap()];
                    let claim = claim(&key, step, (mode, resizes), &mut dice);
                    let ends = (ask(&redis, &claim).await, ask(&memory, &claim).await);
                    grants += u64::from(ends.0.starts_with("granted"));
                    claims.push(claim);
                    ends
                }
            };
            assert_eq!(done, wanted, "run {run}, step {step}");
            let (here, there) = (state(&redis, &key).await, state(&memory, &key).await);
            assert_eq!(here, there, "run {run}, step {step}");
            // Clients that were handed the lock confirm it, because the first lease lasts only a second.
            for claim in claims.iter().filter(|claim| here.0.contains(claim.record.label.as_deref().unwrap())) {
                assert!(ask(&redis, claim).await.starts_with("granted"), "run {run}, step {step}");
            }
        }
        for claim in &claims {
            redis.release(claim).await.expect("no error");
        }
    }
    assert!(grants > 50, "only {grants} at once");
    bench.expect_nothing_left().await;
}
