use std::any::Any;

use super::*;
use crate::config::fields::Config;
use crate::config::redact::{redact, without_passwords};
use crate::engines::etcd::open::EtcdAddress;
use crate::engines::file::open::FileAddress;
use crate::engines::memory::open::MemoryAddress;
use crate::engines::redis::open::{RedisAddress, RedisOptions, RedisServers};
use crate::engines::redlock::open::RedlockAddress;
use crate::engines::shared::host::{Credentials, Host, ServerAddress};
use crate::types::secret::Secret;

/// The address of a URL, as the type that its engine has for it.
fn target<T: 'static>(url: &str) -> T {
    let parsed = parse(url).unwrap_or_else(|fault| panic!("{url}: {fault}"));
    let address: Box<dyn Any> = parsed.address;
    *address.downcast().unwrap_or_else(|_| panic!("{url} is of another engine"))
}

#[track_caller]
fn assert_target<T: std::fmt::Debug + PartialEq + 'static>(url: &str, expected: &T) {
    assert_eq!(&target::<T>(url), expected, "{url}");
}

fn host(name: &str, port: u16) -> Host {
    Host { name: name.into(), port }
}

fn credentials(username: &str, password: &str) -> Credentials {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Credentials { username: some(username), password: some(password).map(Secret::from) }
}

fn plain(db: u32) -> RedisOptions {
    RedisOptions { tls: false, db, protocol: None, restart_guard: None, wait_replicas: 0 }
}

fn one(name: &str, port: u16, who: Credentials, options: RedisOptions) -> RedisAddress {
    RedisAddress { servers: RedisServers::One(host(name, port)), credentials: who, options }
}

#[test]
fn local_engines_have_a_name_or_a_directory() {
    assert_target("mem://", &MemoryAddress { name: None });
    assert_target("mem://orders-1", &MemoryAddress { name: Some("orders-1".into()) });
    assert_target("file:///var/lock/app", &FileAddress { dir: Some("/var/lock/app".into()) });
    assert_target("file:///a%20b@c", &FileAddress { dir: Some("/a b@c".into()) });
}

#[test]
fn a_single_redis_has_a_host_credentials_and_a_database() {
    let nobody = Credentials::default;
    assert_target("redis://db", &one("db", 6379, nobody(), plain(0)));
    assert_target("REDIS://db/", &one("db", 6379, nobody(), plain(0)));
    assert_target("valkey://db:7/3", &one("db", 7, nobody(), plain(3)));
    assert_target("redis://db?db=4", &one("db", 6379, nobody(), plain(4)));
    assert_target("redis://[::1]:7000/1", &one("::1", 7000, nobody(), plain(1)));
    assert_target("redis://app:p%2F%40ss@db", &one("db", 6379, credentials("app", "p/@ss"), plain(0)));
    assert_target("redis://:pw@db/2", &one("db", 6379, credentials("", "pw"), plain(2)));
    for url in ["rediss://db/1", "valkeys://db/1"] {
        assert_target(url, &one("db", 6379, nobody(), RedisOptions { tls: true, ..plain(1) }));
    }
    let tuned = RedisOptions { protocol: Some(2), restart_guard: Some(true), ..plain(0) };
    assert_target("redis://db?protocol=2&restart_guard=on", &one("db", 6379, nobody(), tuned));
    let tuned = RedisOptions { protocol: Some(3), restart_guard: Some(false), ..plain(0) };
    assert_target("redis://db/?restart_guard=off&protocol=3", &one("db", 6379, nobody(), tuned));
    let tuned = RedisOptions { wait_replicas: 2, ..plain(0) };
    assert_target("redis://db?wait_replicas=2", &one("db", 6379, nobody(), tuned));
}

#[test]
fn a_redis_may_be_a_socket_a_sentinel_service_or_a_cluster() {
    let redis = |servers, who, options| RedisAddress { servers, credentials: who, options };
    let nobody = Credentials::default;
    let socket = RedisServers::Unix("/run/redis 1.sock".into());
    assert_target("redis+unix:///run/redis%201.sock?db=2", &redis(socket, nobody(), plain(2)));

    let hosts = || vec![host("h1", 26379), host("h2", 5000)];
    let service = || RedisServers::Sentinel { sentinels: hosts(), service: "my/main".into() };
    let who = || credentials("app", "pw");
    assert_target("redis+sentinel://app:pw@h1,h2:5000/my%2Fmain/3", &redis(service(), who(), plain(3)));
    assert_target("redis+sentinel://app:pw@h1,h2:5000/my%2Fmain?db=3", &redis(service(), who(), plain(3)));
    let tls = || RedisOptions { tls: true, ..plain(0) };
    assert_target("rediss+sentinel://h1,h2:5000/my%2Fmain", &redis(service(), nobody(), tls()));

    let cluster = || RedisServers::Cluster(vec![host("h1", 6379), host("::2", 7001)]);
    assert_target("redis+cluster://app:pw@h1,[::2]:7001", &redis(cluster(), who(), plain(0)));
    assert_target("rediss+cluster://h1,[::2]:7001/0", &redis(cluster(), nobody(), tls()));
}

#[test]
fn redlock_nodes_have_their_own_credentials() {
    let node = |name: &str, who| ServerAddress { host: host(name, 6379), credentials: who };
    let nodes =
        || vec![node("h1", credentials("a", "x")), node("h2", credentials("", "y")), node("h3", credentials("", ""))];
    assert_target("redlock://a:x@h1,:y@h2,h3/2", &RedlockAddress { nodes: nodes(), options: plain(2) });
    let options = RedisOptions { tls: true, ..plain(0) };
    assert_target("redlocks://a:x@h1,:y@h2,h3", &RedlockAddress { nodes: nodes(), options });
    for count in [3, 5, 7, 9] {
        let hosts: Vec<_> = (0..count).map(|i| format!("h{i}")).collect();
        let address: RedlockAddress = target(&format!("redlock://{}", hosts.join(",")));
        assert_eq!(address.nodes.len(), count);
    }
}

#[test]
fn an_etcd_cluster_has_its_prefix_in_the_path() {
    let hosts = || vec![host("h1", 2379), host("h2", 99)];
    let rest = |url: &str| {
        let ParsedUrl { prefix, ttl, history, .. } = parse(url).unwrap();
        (prefix, ttl, history)
    };
    let url = "etcd://root:pw@h1,h2:99/team%20a/locks/";
    let plain = EtcdAddress { hosts: hosts(), credentials: credentials("root", "pw"), tls: false, verbatim: false };
    assert_target(url, &plain);
    assert_eq!(rest(url), (Some("team a/locks/".into()), None, None));
    let url = "etcds://h1,h2:99?prefix=/locks/";
    let tls = EtcdAddress { hosts: hosts(), credentials: Credentials::default(), tls: true, verbatim: false };
    assert_target(url, &tls);
    assert_eq!(rest(url), (Some("/locks/".into()), None, None));
    assert_eq!(parse("etcd://h1/").unwrap().prefix, None);
    for (names, is_verbatim) in [("", false), ("?names=escaped", false), ("?names=verbatim", true)] {
        let found: EtcdAddress = target(&format!("etcd://h1/p{names}"));
        assert_eq!(found.verbatim, is_verbatim, "{names}");
    }
}

#[test]
fn every_scheme_takes_a_prefix_and_a_ttl() {
    for Scheme { name: scheme, .. } in schemes() {
        let rest = match *scheme {
            "mem" => "",
            "file" | "redis+unix" => "/dir",
            "redis+sentinel" | "rediss+sentinel" => "h1/main",
            "redlock" | "redlocks" => "h1,h2,h3",
            _ => "h1",
        };
        let parsed = parse(&format!("{scheme}://{rest}?default_ttl=1.5s&prefix=a%26b")).unwrap();
        assert_eq!(parsed.prefix.as_deref(), Some("a&b"), "{scheme}");
        assert_eq!(parsed.ttl, Some(Duration::from_millis(1500)), "{scheme}");
    }
}

#[test]
fn what_is_wrong_is_refused_with_the_part_that_is_wrong() {
    let cases = [
        ("", "no scheme; known are mem:// file:// redis:// rediss://"),
        ("localhost:6379", "no scheme"),
        ("redis:db", "no scheme"),
        ("http://db", "an unknown scheme \"http\"; known are mem:// file://"),
        ("hunter2://db", "an unknown scheme; known are"),
        ("://db", "an unknown scheme; known are"),
        (" redis://db", "a space or control character at byte 0"),
        ("redis://db\n", "a space or control character at byte 10"),
        ("mem://a/b", "a path where none belongs"),
        ("mem://u:p@a", "the name has a character"),
        ("file://dir", "a host where none belongs; write file:///dir"),
        ("file://localhost/dir", "a host where none belongs"),
        ("file://", "the path is empty"),
        ("file:///a%00b", "the path has a zero byte"),
        ("file:///a%", "the path: a '%' without two hexadecimal digits"),
        ("file:///a%+1", "the path: a '%' without two hexadecimal digits"),
        ("file:///a%é", "the path: a '%' without two hexadecimal digits"),
        ("redis://", "host 1: the host is empty"),
        ("redis:///0", "host 1: the host is empty"),
        ("redis://u:p@:bad", "host 1: the port"),
        ("redis://db:99999", "host 1: the port is not a number from 1 to 65535"),
        ("redis://::1", "host 1: more than one ':'"),
        ("redis://db/x", "the path is to name a database: not a whole number"),
        ("redis://db/-1", "the path is to name a database"),
        ("redis://db/1/2", "the path is to name a database"),
        ("redis://db/1?db=1", "the database is given twice"),
        ("redis://h1,h2", "2 hosts where one belongs"),
        ("redis://u:p/w@db", "an '@' or '#' after the hosts"),
        ("redis://u:p?w@db", "an '@' or '#' after the hosts"),
        ("redis://u:p#w@db", "an '@' or '#' after the hosts"),
        ("redis://db#x", "an '@' or '#' after the hosts"),
        ("redis+unix://run/sock", "a host where none belongs"),
        ("redis+unix://", "the path is empty"),
        ("redis+sentinel://h1", "the service name is missing"),
        ("redis+sentinel://h1//0", "the service name is missing"),
        ("redis+sentinel://h1/main/x", "the path is to name a database"),
        ("redis+sentinel://h1,u:p@h2/main", "credentials are written once"),
        ("redis+cluster://h1/1", "a cluster has database 0 only"),
        ("redis+cluster://h1?db=0", "option \"db\" is not known here"),
        ("redlock://h1", "1 nodes; below 3"),
        ("redlock://h1,h2", "2 nodes; below 3"),
        ("redlock://a,b,c,d", "4 nodes; an even one"),
        ("redlock://a,b,c,d,e,f,g,h,i,j,k", "11 nodes; each one costs"),
        ("redlock://a,b,c?wait_replicas=1", "option \"wait_replicas\" is not known here"),
        ("redlock://a,b,A:6379", "host 3 is host 1 again"),
        ("redlock://a,[::1],[0::1]:6379", "host 3 is host 2 again"),
        ("etcd://h1/a?prefix=b", "the prefix is given twice"),
        ("etcd://h1/%7Ba%7D", "the path is to be a prefix: a control character or a brace at byte 0"),
        ("mem://?history=10001", "option \"history\": 10001 is not from 0 to 10000"),
        ("mem://?history=all", "option \"history\": not a whole number from 0 to 10000"),
        (
            "etcd://h1?protocol=3",
            "option \"protocol\" is not known here; known are prefix, default_ttl, history, names",
        ),
        ("etcd://h1?names=raw", "option \"names\": neither escaped nor verbatim"),
        ("redis://db?names=verbatim", "option \"names\" is not known here"),
        (
            "redis://db?password=x",
            "option \"password\" is not known here; known are prefix, default_ttl, history, restart_guard, wait_replicas, protocol, db",
        ),
        ("redis://db?p%61ss=x", "an option is not known here"),
        ("redis://db?default_ttl=1s&ttl=2s", "option \"default_ttl\" is given twice"),
        ("redis://db?prefix=a;db=1", "option \"prefix\": an '=' in the value"),
        ("redis://db?default_ttl", "option \"default_ttl\": not a length of time"),
        ("redis://db?ttl=50ms", "option \"default_ttl\": 50ms is not accepted; accepted is 100ms to 1day"),
        ("redis://db?prefix=%0A", "option \"prefix\": a control character"),
        ("redis://db?prefix=%ff", "option \"prefix\": not UTF-8 after decoding"),
        ("redis://db?restart_guard=yes", "option \"restart_guard\": neither on nor off"),
        ("redis://db?wait_replicas=-1", "option \"wait_replicas\": not a number of replicas"),
        ("redlock://a,b,c?wait_replicas=1", "option \"wait_replicas\" is not known here"),
        ("redis://db?protocol=4", "option \"protocol\": neither 2 nor 3"),
        ("redis://db?db=+1", "option \"db\": not a whole number"),
    ];
    for (url, part) in cases {
        let fault = parse(url).expect_err(url);
        assert!(fault.starts_with(part), "{url:?}: {fault}");
    }
}

/// xorshift64: the same strings in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

#[test]
fn random_bytes_never_panic_the_parser() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut refused = 0;
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.below(40)).map(|_| random.below(256) as u8).collect();
        let text = String::from_utf8_lossy(&bytes);
        for Scheme { name, .. } in schemes() {
            let url = format!("{name}://{text}");
            refused += usize::from(parse(&url).is_err());
            assert!(!redact(&url).is_empty());
        }
        assert!(!redact(&text).is_empty());
        assert!(parse(&text).is_err(), "{text}");
    }
    assert!(refused > 100_000, "hardly anything was refused: {refused}");
}

#[test]
fn random_urls_around_a_password_never_show_it() {
    let junk = [
        "", "/", "?", "#", "@", ":", ",", "%", "%zz", "%40", "[", "]", "&", "=", " ", "\n", "é", "h", "1", "://", "db=",
    ];
    let mut random = Random(88_172_645_463_325_252);
    let all: Vec<&Scheme> = schemes().collect();
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..60_000 {
        let Scheme { name: scheme, .. } = all[random.below(all.len())];
        let mut password = String::from("hunter2-");
        (0..random.below(3)).for_each(|_| password += random.pick(&junk));
        password += "s3cret";
        let mut tail = String::new();
        (0..random.below(4)).for_each(|_| tail += random.pick(&junk));
        let url = format!("{scheme}://{}:{password}@h{tail}", random.pick(&["", "user"]));
        let shown = match Config::from_url(&url) {
            Ok(config) => {
                taken += 1;
                format!("{config:?} {:?}", config.validate())
            }
            Err(error) => {
                refused += 1;
                format!("{error} {error:?}")
            }
        };
        for shown in [shown, redact(&url)] {
            // A file has no credentials, so its path is just a path.
            let hidden = !shown.contains("hunter2") && !shown.contains("s3cret");
            assert!(hidden || (*scheme == "file" && shown.contains("dir: ")), "{url:?}: {shown}");
        }
    }
    assert!(taken > 100 && refused > 10_000, "{taken} taken, {refused} refused");
}

#[test]
fn fuzz_urls() {
    distlock_testkit::fuzz("url.txt", |input| {
        let url = String::from_utf8_lossy(input);
        let parsed = parse(&url);
        let handed_on = without_passwords(&url);
        if let Ok(parsed) = parsed {
            distlock_testkit::assert_in_proportion(input, &parsed.address);
            assert!(parse(&handed_on).is_ok(), "it is one without its passwords too: {handed_on}");
            assert_eq!(without_passwords(&handed_on), handed_on);
        }
        distlock_testkit::assert_in_proportion(input, &redact(&url));
        if let Ok(config) = Config::from_url(&url) {
            let _ = config.check();
        }
    });
}
