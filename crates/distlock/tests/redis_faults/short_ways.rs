//! The short ways of claims and releases compared with the full ones: the same requests on two servers, one of which never
//! takes a short way; the same outcomes, the same keys, as many messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::IntoFuture;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use distlock_testkit::servers::{RedisServer, Reply, RespClient};

use crate::bench::{Bench, TEST_LIMIT};
use crate::queue::until;

const SHARED: [&str; 2] =
    ["local guard, is_sharded = nil, false\n", include_str!("../../src/engines/redis/protocol/bounds.lua")];
const CLAIM: [&str; 2] = [
    include_str!("../../src/engines/redis/protocol/claim_short.lua"),
    include_str!("../../src/engines/redis/protocol/claim.lua"),
];
const RELEASE: [&str; 2] = [
    include_str!("../../src/engines/redis/protocol/release_short.lua"),
    include_str!("../../src/engines/redis/protocol/release.lua"),
];
const FUNCTIONS: &str = include_str!("../../src/engines/redis/protocol/shared.lua");

/// What the outcome of a call begins with that failed as a whole.
const FAILED: &str = "failed: ";
const LOCKS: [&str; 2] = ["a", "b"];
const FENCE: &str = "{distlock}:f";
/// Channels of processes: the first two are listened to.
const CHANNELS: [&str; 4] = ["aaaa", "bbbb", "dead", "-"];
const RUNS: u64 = 24;
const STEPS: u64 = 60;

/// What differs between the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ways {
    Full,
    Short,
    /// The short ways with one text replaced by another.
    Broken(&'static str, &'static str),
}

/// Returns a script.
fn script([short, full]: [&str; 2], ways: Ways) -> String {
    let short = match ways {
        Ways::Short => short.to_owned(),
        Ways::Broken(is, becomes) => short.replace(is, becomes),
        Ways::Full => {
            let from = short.find("for i = 1, ").expect("the loop over all requests");
            let to = from + short[from..].find(" do\n").expect("its end");
            [&short[..from], "for i = 1, 0", &short[to..]].concat()
        }
    };
    [&SHARED.concat(), short.as_str(), FUNCTIONS, full].concat()
}

fn keys(lock: &str) -> [String; 6] {
    [
        lock.into(),
        format!("{{{lock}}}:q"),
        format!("{{{lock}}}:w"),
        FENCE.into(),
        format!("{{{lock}}}:h"),
        format!("{{{lock}}}:e"),
    ]
}

/// Deterministic pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % sides as u64).expect("few")
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len())]
    }
}

#[derive(Debug, Clone)]
struct Request {
    lock: &'static str,
    attempt: String,
    channel: &'static str,
    flags: String,
    /// No two alike, so that it is no question of a millisecond whose ends first.
    lease_ms: u64,
}

/// One of the two servers.
struct Side {
    server: RedisServer,
    client: RespClient,
    listener: TcpStream,
    claim: String,
    release: String,
    /// Whether tokens rise: not once the fence is lost that was ahead of the clock.
    has_fence: bool,
    /// The last holder of each lock, and its token.
    tokens: BTreeMap<&'static str, (String, u64)>,
}

impl Side {
    fn start(ways: Ways) -> Side {
        let server = RedisServer::start();
        let mut listener = TcpStream::connect(server.address()).expect("connected");
        listener.set_read_timeout(Some(TEST_LIMIT)).expect("set");
        for channel in &CHANNELS[..2] {
            listener.write_all(format!("SUBSCRIBE distlock:wake:{channel}\r\n").as_bytes()).expect("written");
            let mut reply = [0; 512];
            assert!(listener.read(&mut reply).expect("subscribed") > 0);
        }
        let client = server.client().expect("connected");
        let (claim, release) = (script(CLAIM, ways), script(RELEASE, ways));
        Side { server, client, listener, claim, release, has_fence: true, tokens: BTreeMap::new() }
    }

    fn command(&mut self, words: &[&str]) -> Reply {
        self.client.command(words).expect("a reply")
    }

    fn claim(&mut self, requests: &[Request]) -> Vec<String> {
        let now = self.command(&["TIME"]).array()[0].to_string();
        let late = (now.parse::<u64>().expect("seconds") + 60).to_string() + "000000";
        let mut words = vec!["EVAL".to_owned(), self.claim.clone(), (6 * requests.len()).to_string()];
        words.extend(requests.iter().flat_map(|request| keys(request.lock)));
        words.extend(["7".into(), requests[0].channel.into()]);
        for request in requests {
            let lapses = if request.lease_ms % 1500 == 0 { "\"lapses\":true," } else { "" };
            let record = format!("{{\"owner\":\"{}\",{lapses}\"since_ms\":1763000000123}}", &request.attempt[28..]);
            let Request { attempt, flags, lease_ms, .. } = request.clone();
            words.extend([attempt, lease_ms.to_string(), late.clone(), flags, record]);
        }
        self.run(&words, 2)
    }

    fn release(&mut self, requests: &[Request]) -> Vec<String> {
        let mut words = vec!["EVAL".to_owned(), self.release.clone(), (6 * requests.len()).to_string()];
        words.extend(requests.iter().flat_map(|request| keys(request.lock)));
        words.push("7".into());
        words.extend(requests.iter().map(|request| request.attempt.clone()));
        self.run(&words, 1)
    }

    fn run(&mut self, words: &[String], skipped: usize) -> Vec<String> {
        let reply = self.client.command(words).expect("a reply");
        if let Some(error) = reply.error() {
            return vec![format!("{FAILED}{error}")];
        }
        if let Reply::Bulk(_) = &reply {
            return vec![of_text(&reply.to_string())];
        }
        reply.array()[skipped..].iter().map(outcome).collect()
    }

    /// Returns everything that is stored, without times.
    fn state(&mut self) -> BTreeMap<String, String> {
        let names = self.command(&["KEYS", "*"]);
        let mut state = BTreeMap::new();
        for name in names.array().iter().map(ToString::to_string).filter(|name| name != FENCE) {
            let text = match self.command(&["TYPE", &name]).to_string().as_str() {
                "string" => self.command(&["GET", &name]).to_string(),
                "zset" if name.ends_with(":q") => self.command(&["ZRANGE", &name, "0", "-1"]).to_string(),
                "zset" => words(&self.command(&["ZRANGE", &name, "0", "-1"]), 1),
                "hash" => words(&self.command(&["HGETALL", &name]), 2),
                other => other.to_owned(),
            };
            let expires = self.command(&["PTTL", &name]).int();
            assert!(expires > 0 || text == "film", "{name} stays for ever");
            assert!(!name.ends_with(":q") && !name.ends_with(":w") || expires <= 30_000, "{name}: {expires}");
            state.insert(name, without_times(&text));
        }
        state
    }

    /// Returns whether the tokens of each lock rise.
    fn tokens_rise(&mut self) -> bool {
        let mut all_rise = true;
        if !self.has_fence {
            return true;
        }
        for lock in LOCKS {
            let value = self.command(&["GET", lock]).to_string();
            let Some((attempt, rest)) = value.split_once([' ', '+']).filter(|(attempt, _)| attempt.len() == 32) else {
                continue;
            };
            let token = rest.split(' ').next().and_then(|token| token.parse().ok()).expect("a token");
            let before = self.tokens.insert(lock, (attempt.to_owned(), token));
            all_rise &=
                before.is_none_or(|(holder, last)| if holder == attempt { token == last } else { token > last });
        }
        all_rise
    }

    fn messages(&mut self) -> u64 {
        self.server.calls("publish")
    }

    /// Renews what is held, so that no lease ends while the test runs.
    fn renew(&mut self, claims: &[Request]) {
        let mut held = BTreeSet::new();
        for lock in LOCKS {
            let value = self.command(&["GET", lock]).to_string();
            held.insert(value.chars().take(32).collect::<String>());
            let inside = self.command(&["HKEYS", &keys(lock)[4]]);
            held.extend(inside.array().iter().map(ToString::to_string));
        }
        for claim in claims.iter().filter(|claim| held.contains(&claim.attempt)) {
            self.claim(std::slice::from_ref(claim));
        }
    }
}

/// Returns the parts of a reply, `size` words each, in an order of their own.
fn words(reply: &Reply, size: usize) -> String {
    let part = |words: &[Reply]| match words {
        // The lease of the last holder is a time; so is which holder of a group is the last.
        [field, note] if field.to_string() == "handed" => {
            let note = note.to_string();
            let is_handed = note.ends_with(" h") || note.ends_with(" hl");
            if is_handed { format!("handed {note}") } else { "handed".into() }
        }
        words => Reply::Array(words.to_vec()).to_string(),
    };
    let parts: BTreeSet<String> = reply.array().chunks(size).map(part).collect();
    parts.into_iter().collect::<Vec<_>>().join("\n")
}

/// Returns `text` with `T` for every number of 13 digits and more.
fn without_times(text: &str) -> String {
    let is_time = |word: &str| word.len() >= 13 && word.len() < 32 && word.bytes().all(|byte| byte.is_ascii_digit());
    let parts = text.split_inclusive([' ', '\n', '+']).map(|part| {
        let word = part.trim_end_matches([' ', '\n', '+']);
        if is_time(word) { part.replace(word, "T") } else { part.to_owned() }
    });
    parts.collect()
}

/// Returns an outcome without times. The short ways say less of a place than the full ones.
fn outcome(reply: &Reply) -> String {
    match reply {
        Reply::Int(1 | 2) => "released ".into(),
        Reply::Int(_) => "granted".into(),
        Reply::Array(parts) if parts[0].to_string() == "busy" => {
            let is_first = parts[2].int() == 0;
            without_times(&format!("busy first {is_first} {} {}", parts[3], parts[4]))
        }
        Reply::Array(parts) if parts[0].to_string() == "granted" => "granted".into(),
        Reply::Array(parts) => parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// Returns the outcome in a reply to one request that is a text: `nonce now_us pttl_ms place value`, or `nonce 2`.
fn of_text(reply: &str) -> String {
    let words: Vec<&str> = reply.splitn(5, ' ').collect();
    match words[..] {
        ["7", "2"] => "released ".into(),
        ["7", now, left, place, value] if now.len() == 16 && left.parse::<u64>().is_ok() => {
            without_times(&format!("busy first {} {value} string", place == "0"))
        }
        _ => panic!("{reply}: no outcome of a short way"),
    }
}

/// A request; a plain one for most of the runs.
fn request(dice: &mut Dice, number: u64, is_plain: bool) -> Request {
    let attempt = format!("{:024x}{number:08x}", dice.roll(1 << 20) as u64);
    let modes: &[&str] = if is_plain { &["x"] } else { &["x", "x", "s", "r61"] };
    let delays: &[&str] = if is_plain { &["0"] } else { &["0", "0", "0", "500"] };
    let channels = if is_plain { &CHANNELS[..3] } else { &CHANNELS };
    let (mode, delay) = (dice.pick(modes), dice.pick(delays));
    let heartbeat = dice.pick(&["10000", "10000", "20000", "30000", "0"]);
    let (flags, lease_ms) = (format!("{mode} {heartbeat} {delay}"), 10_000 + 500 * number);
    Request { lock: dice.pick(&LOCKS), attempt, channel: dice.pick(channels), flags, lease_ms }
}

/// Does the same to both servers that happens to them without us.
fn disturb(dice: &mut Dice, sides: &mut [Side; 2]) {
    let [_, queue, waiters, fence, ..] = keys(dice.pick(&LOCKS));
    let lock = dice.pick(&LOCKS);
    let seconds = sides[0].command(&["TIME"]).array()[0].to_string();
    let ahead = |by: u64| (seconds.parse::<u64>().expect("seconds") + by).to_string() + "000000";
    let place = sides[0].command(&["ZRANGE", &queue, "0", "0"]);
    let first = place.array().first().map(ToString::to_string).unwrap_or_default();
    let (soon, hour, days) = (ahead(20), ahead(3600), ahead(300_000));
    let silent = "10000 1000000000000 aaaa 0 x {\"owner\":\"silent\"}";
    let is_odd = !matches!(sides[0].command(&["GET", &fence]).to_string().get(..1), Some("" | "1") | None);
    let is_odd = is_odd || sides[0].command(&["GET", lock]).to_string() == "film";
    let command: Vec<&str> = match dice.roll(11) {
        _ if is_odd => vec!["DEL", &fence, lock],
        0 => vec!["DEL", lock],
        1 => vec!["SET", lock, "film", "NX", "EX", "600"],
        2 => vec!["SET", &fence, if dice.roll(3) > 0 { &soon } else { &hour }],
        3 => vec!["SET", &fence, &days],
        4 => vec!["SET", &fence, "9film film film!"],
        5 => vec!["DEL", &fence],
        _ if first.is_empty() => vec!["DEL", lock],
        6 => vec!["HSET", &waiters, &first, silent],
        // As after the clock was set back.
        7 | 8 => vec!["ZADD", &queue, "XX", &hour, &first],
        _ => vec!["HDEL", &waiters, &first],
    };
    for side in sides {
        side.command(&command);
        side.tokens.clear();
        side.has_fence &= command[0] != "DEL" || !command.contains(&fence.as_str());
    }
}

/// Takes up to `count` claims to release: most often those that hold a lock.
fn take_some(dice: &mut Dice, side: &mut Side, claims: &mut Vec<Request>, count: usize) -> Vec<Request> {
    let values = LOCKS.map(|lock| side.command(&["GET", lock]).to_string());
    let mut taken = Vec::new();
    for _ in 0..count.min(claims.len()) {
        let value = dice.pick(&[&values[0], &values[1]]);
        let holder = claims.iter().position(|claim| value.starts_with(&claim.attempt)).filter(|_| dice.roll(4) > 0);
        let place = holder.unwrap_or_else(|| dice.roll(claims.len()));
        taken.push(claims.remove(place));
    }
    taken
}

/// Sends random requests to both servers. Returns where their outcomes or keys differ first.
fn difference(sides: &mut [Side; 2], run: u64) -> Option<String> {
    let (mut dice, mut claims) = (Dice(run), Vec::<Request>::new());
    for side in sides.iter_mut() {
        side.command(&["FLUSHALL"]);
        side.tokens.clear();
        side.has_fence = true;
    }
    for step in 0..STEPS {
        // The scripts compare times of whole milliseconds.
        std::thread::sleep(Duration::from_millis(2));
        let count = dice.pick(&[1, 1, 1, 2, 3]);
        let said: Vec<Vec<String>> = match dice.roll(16) {
            0 | 15 => {
                disturb(&mut dice, sides);
                Vec::new()
            }
            1..8 if !claims.is_empty() => {
                let ended = take_some(&mut dice, &mut sides[0], &mut claims, count);
                sides.iter_mut().map(|side| side.release(&ended)).collect()
            }
            8 if !claims.is_empty() => {
                let again = [claims[dice.roll(claims.len())].clone()];
                sides.iter_mut().map(|side| side.claim(&again)).collect()
            }
            _ => {
                let mut new: Vec<_> =
                    (0..count as u64).map(|i| request(&mut dice, step * 8 + i, !run.is_multiple_of(3))).collect();
                let channel = new[0].channel;
                new.iter_mut().for_each(|request| request.channel = channel);
                claims.extend(new.iter().cloned());
                sides.iter_mut().map(|side| side.claim(&new)).collect()
            }
        };
        let has_failed = said.iter().flatten().any(|outcome| outcome.starts_with(FAILED));
        if has_failed || said.windows(2).any(|two| two[0] != two[1]) {
            return Some(format!("run {run}, step {step}: {said:#?}"));
        }
        let states: Vec<_> = sides.iter_mut().map(Side::state).collect();
        if states[0] != states[1] {
            return Some(format!("run {run}, step {step}: {states:#?}"));
        }
        if sides.iter_mut().any(|side| !side.tokens_rise()) {
            return Some(format!("run {run}, step {step}: tokens do not rise"));
        }
        sides.iter_mut().for_each(|side| side.renew(&claims));
    }
    None
}

#[tokio::test]
async fn random_requests_end_on_the_short_ways_as_on_the_full_ones() {
    let mut sides = [Side::start(Ways::Short), Side::start(Ways::Full)];
    for run in 0..RUNS {
        assert_eq!(difference(&mut sides, run), None);
    }
    let walks = [0, 1].map(|side: usize| sides[side].server.calls("hmget"));
    assert!(walks[0] + 30 < walks[1], "the full ways walk the queue by HMGET: {walks:?}");
    let messages = sides.each_mut().map(Side::messages);
    assert!(messages[0] > 100 && messages[0] >= messages[1], "{messages:?}");
    assert!(sides.iter().all(|side| side.listener.peer_addr().is_ok()));
}

/// What the short ways leave to the full ones, each left out once.
const BROKEN: [(&str, &str); 13] = [
    // Claims: repeats of the holder, delays, modes, foreign values, tickets behind the clock, the mark of a queue.
    (" or sub(value, 1, 32) == attempt then", " then"),
    (" or sub(flags, -2) ~= ' 0' then", " then"),
    ("sub(flags, 1, 2) ~= 'x '", "false"),
    ("type(value) ~= 'string' or string.match(value, '^%x+()[ +]%d+ %S+ {') ~= 33", "false"),
    ("if last[#last] ~= attempt then", "if false then"),
    ("if sub(value, 33, 33) == ' ' and", "if false and"),
    // Releases: silent waiters, deaf waiters, modes and delays, fences, the mark of a queue, intended ends, what was held.
    (" or alive_until <= now_ms then", " then"),
    (" or heard == 0 then", " then"),
    ("(%x+) 0 x (){", "(%x+) %d+ %S+ (){"),
    (" or last >= now_digits", ""),
    ("(behind and '+' or ' ')", "' '"),
    ("and ' hl' or ' h'", "and ' h' or ' h'"),
    ("  known = held\n", ""),
];

#[tokio::test]
async fn a_short_way_that_leaves_less_to_the_full_one_is_noticed() {
    for (is, becomes) in BROKEN {
        assert_eq!(CLAIM[0].matches(is).count() + RELEASE[0].matches(is).count(), 1, "{is}");
        let mut sides = [Side::start(Ways::Broken(is, becomes)), Side::start(Ways::Full)];
        // What happens in a run depends on the clock a little: some flaws need more of them at times.
        assert!((0..8 * RUNS).any(|run| difference(&mut sides, run).is_some()), "{is}: not noticed");
    }
}

fn plain(number: u64, channel: &'static str) -> Request {
    Request { lock: "a", attempt: format!("{number:032x}"), channel, flags: "x 10000 0".into(), lease_ms: 30_000 }
}

/// The two keys of a queue expire independently: one that would go before the newest waiter lives as long as the other.
#[tokio::test]
async fn a_queue_that_expires_soon_is_prolonged_by_the_next_waiter() {
    for ways in [Ways::Short, Ways::Full] {
        let mut side = Side::start(ways);
        side.claim(&[plain(1, "aaaa")]);
        side.claim(&[plain(2, "aaaa")]);
        let [_, queue, waiters, ..] = keys("a");
        for key in [&queue, &waiters] {
            side.command(&["PEXPIRE", key, "5000"]);
            let said = side.claim(&[plain(3, "bbbb")]);
            assert!(said[0].starts_with("busy"), "{ways:?}: {said:?}");
            for key in [&queue, &waiters] {
                let left = side.command(&["PTTL", key]).int();
                assert!(left > 5_000, "{ways:?}: {key} goes before a waiter that is alive: {left} ms");
            }
            side.release(&[plain(3, "bbbb")]);
        }
    }
}

/// The note about the last taker may be all that is left of the waiters.
#[tokio::test]
async fn a_note_about_the_last_taker_expires() {
    for ways in [Ways::Short, Ways::Full] {
        let mut side = Side::start(ways);
        (1..4).for_each(|number| drop(side.claim(&[plain(number, "aaaa")])));
        let waiters = &keys("a")[2];
        side.command(&["HDEL", waiters, &plain(3, "aaaa").attempt]);
        side.release(&[plain(1, "aaaa")]);
        assert!(side.command(&["GET", "a"]).to_string().starts_with(&plain(2, "aaaa").attempt), "handed over");
        let left = side.command(&["PTTL", waiters]).int();
        assert!(left != -1, "{ways:?}: the note stays for ever");
    }
}

#[tokio::test]
async fn a_contended_cycle_makes_few_calls() {
    const CYCLES: u64 = 50;
    let bench = Bench::start();
    let [one, two, three] = [bench.direct().await, bench.direct().await, bench.direct().await];
    let mut guard = one.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let queued = |places: i64| bench.command("ZCARD {a}:q").int() == places;
    let lockers = [two, three, one];
    let wait = |number: u64| {
        let locker = &lockers[usize::try_from(number % 3).expect("few")];
        let request = locker.lock("a").owner(format!("owner-{number}")).ttl(TEST_LIMIT).wait(TEST_LIMIT);
        tokio::spawn(request.into_future())
    };
    // Each locker has seen that others wait: its claims and releases are not tried by the lean scripts.
    let mut waiting = VecDeque::new();
    for number in 0..3 {
        waiting.push_back(wait(number));
        until("a place behind the others", || queued(waiting.len() as i64)).await;
    }
    bench.command("CONFIG RESETSTAT");
    for cycle in 0..CYCLES {
        guard.unlock().await.expect("released");
        let next = waiting.pop_front().expect("a waiter").await.expect("no panic");
        guard = next.expect("granted");
        waiting.push_back(wait(cycle + 3));
        until("three waiters", || queued(3)).await;
    }
    let calls = |name| bench.server.calls(name);
    assert_eq!(["publish", "zadd", "zrem", "hdel"].map(calls), [CYCLES; 4]);
    assert_eq!(["hmget", "exists", "zscore"].map(calls), [0; 3], "the full ways");
    assert!((2 * CYCLES..3 * CYCLES).contains(&calls("evalsha")), "and few renewals: {}", calls("evalsha"));
    drop(waiting);
    guard.unlock().await.expect("released");
}
