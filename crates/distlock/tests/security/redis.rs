//! Hostile Redis servers, and hostile data on honest ones.

use distlock::Locker;
use distlock_testkit::servers::RedisServer;

use crate::liar::{Lie, expect_errors};
use crate::twister::twist;
use crate::{count_panics, in_time, use_all};

/// The bound on memory. The lies come as fast as the machine can send them.
const MOST_MEMORY_MB: u64 = 700;

fn lies() -> Vec<Lie> {
    let once = |begins: &[u8]| Lie { begins: begins.to_vec(), goes_on: Vec::new() };
    let endless = |begins: &[u8]| Lie { begins: begins.to_vec(), goes_on: vec![b'a'; 4096] };
    vec![
        once(b"\x00\xff\xfegarbage\r\n\r\n"),
        once(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        once(b":99999999999999999999999999\r\n"),
        once(b"$-7\r\n$9223372036854775807\r\n"),
        once(b"*2147483647\r\n"),
        once(b"%9223372036854775807\r\n"),
        once(&b"*1\r\n".repeat(200_000)),
        once(b">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$5\r\ngrant\r\n+OK\r\n"),
        Lie { begins: Vec::new(), goes_on: b"+OK\r\n".to_vec() },
        endless(b"$9223372036854775807\r\n"),
        endless(b"+"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_server_with_arbitrary_replies_causes_an_error_and_bounded_memory() {
    count_panics();
    let server = RedisServer::start();
    expect_errors("redis", server.address(), lies(), 300, MOST_MEMORY_MB).await;
}

/// A server that returns another script's hash for every hash: no other server is asked to run that script.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_server_cannot_choose_the_scripts_of_other_servers() {
    count_panics();
    let (hostile, honest) = (RedisServer::start(), RedisServer::start());
    let other = "redis.call('SET', 'misled', 1) return { ARGV[1], 'what is not understood' }";
    let hash = honest.command(&["SCRIPT", "LOAD", other]).text();
    let address = twist(hostile.address(), move |words| {
        let asks = |word: &[u8]| words.iter().any(|said| said.windows(word.len()).any(|part| part == word));
        let answer = format!("local r = {{}} for i = 1, 100 do r[i] = '{hash}' end return r");
        (asks(b"sha1hex") || asks(b"LOAD")).then(|| vec![b"EVAL".to_vec(), answer.into_bytes(), b"0".to_vec()])
    });
    let met = in_time("hostile", Locker::connect(&format!("redis://{address}"))).await.expect("connected");
    let _ = in_time("hostile", met.try_lock("a")).await;
    let locker = in_time("honest", Locker::connect(&honest.url())).await.expect("connected");
    let guard = in_time("honest", locker.try_lock("a")).await.expect("our own script ran").expect("free");
    guard.unlock().await.expect("released");
    assert_eq!(honest.command(&["EXISTS", "misled"]).int(), 0);
}

/// Data that another client can write where locks are kept.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_data_in_redis_are_an_error_or_a_foreign_lock() {
    count_panics();
    let server = RedisServer::start();
    let locker = Locker::connect(&server.url()).await.expect("connected");
    let id = "0123456789abcdef0123456789abcdef";
    let record = r#"{"owner":"x","host":"h","pid":1,"user":"u","since_ms":1}"#;
    let deep = format!("{id} 5 - {{\"owner\":{}", "[".repeat(100_000));
    let values: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"\xff\x00\xfe".to_vec(),
        vec![b'x'; 1 << 20],
        format!("{id} 18446744073709551616 - {record}").into_bytes(),
        format!("{id}+99999999999999999999999999999 {id} {record}").into_bytes(),
        format!("{id} -1 - {record}").into_bytes(),
        format!("{id} 5 - {{").into_bytes(),
        deep.into_bytes(),
        b"distlock group s".to_vec(),
        b"distlock group p999999999999999999999".to_vec(),
        b"distlock group r".to_vec(),
    ];
    for value in values {
        let what = format!("value {:?}", String::from_utf8_lossy(&value[..value.len().min(60)]));
        server.command(&["FLUSHALL"]);
        server.command(&[b"SET".as_slice(), b"a", &value, b"PX", b"600000"]);
        use_all(&locker, "a", &what).await;
    }
    for (kind, words) in [
        ("a waiter of garbage", vec!["HSET {a}:w 0123456789abcdef0123456789abcdef garbage", "ZADD {a}:q nan x"]),
        ("a queue of garbage", vec!["ZADD {a}:q 1 x 2 y", "HSET {a}:w x 1 y 2 handed z"]),
        ("a far ticket", vec!["ZADD {a}:q 1e308 x", "HSET {a}:w x 99999999999999999999"]),
        ("holders of garbage", vec!["SET a distlock_group", "HSET {a}:h x y #0 z", "ZADD {a}:e inf x"]),
        (
            "lists everywhere",
            vec!["LPUSH a 1", "LPUSH {a}:q 1", "LPUSH {a}:w 1", "LPUSH {distlock}:f 1", "LPUSH {a}:h 1"],
        ),
        ("a long queue", vec!["EVAL 'for i=1,20000 do redis.call(\"ZADD\",\"{a}:q\",i,i) end' 0"]),
    ] {
        server.command(&["FLUSHALL"]);
        for line in words {
            let words: Vec<&str> = line.split(' ').collect();
            server.command(&words);
        }
        use_all(&locker, "a", kind).await;
    }
    server.command(&["FLUSHALL"]);
    let entry = |label: &str| format!(r#"{{"at_ms":1,"what":"lost","token":1,"label":"{label}",{}"#, &record[1..]);
    for label in ["ours", r"\u001b[2J\nforged"] {
        server.command(&["XADD", "{a}:j", "*", "e", &entry(label)]);
    }
    let entries = in_time("a hostile history", locker.inspect().history("a", 10)).await.expect("an answer");
    let labels: Vec<_> = entries.iter().map(|entry| entry.record.label.as_deref()).collect();
    assert_eq!(labels, [Some("ours")]);
    server.command(&["FLUSHALL"]);
    let guard = in_time("afterwards", locker.lock("a")).await.expect("nothing stays broken");
    assert!(guard.unlock().await.is_ok());
}
