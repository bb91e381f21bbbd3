//! Servers that refuse commands, as managed services do: the least feature goes, and it is said which one.

use std::future::IntoFuture;
use std::time::Duration;

use distlock::{Config, Error, ErrorKind, Locker, examine};
use distlock_testkit::servers::{RedisCluster, RedisOptions, RedisServer};
use tokio::time::timeout;

use crate::bench::{TEST_LIMIT, TTL, ms, now, sleep};
use crate::log;

/// A server with a user who has all rights but some.
fn server_without(rights: &str) -> (RedisServer, String) {
    let server = RedisServer::options().user("app", "secret", &format!("~* &* +@all {rights}")).start();
    let url = server.url_of("app", "secret");
    (server, url)
}

async fn connect(url: &str) -> Result<Locker, Error> {
    let mut config = Config::from_url(url).expect("a good URL");
    (config.default_ttl, config.retry_interval) = (Some(TTL), Some(ms(50)));
    Locker::from_config(&config).await
}

async fn refusal(url: &str) -> Error {
    connect(url).await.map(drop).expect_err("refused when it connects")
}

/// Returns how long after the release of its holder a waiter of another client has the lock, at the median of several.
async fn handoff(url: &str, is_queued: impl Fn() -> bool) -> Duration {
    let (holder, other) = (connect(url).await.expect("connected"), connect(url).await.expect("connected"));
    let mut gaps = Vec::new();
    for _ in 0..5 {
        let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
        let waiting = other.lock("a").ttl(TEST_LIMIT).wait(TEST_LIMIT).into_future();
        let waiter = tokio::spawn(async move { (waiting.await.expect("granted"), now()) });
        let until = now().after(TEST_LIMIT);
        while !is_queued() {
            assert!(now() < until, "no waiter is queued");
            sleep(ms(5)).await;
        }
        // Long enough for the pauses of a waiter that polls to have their full length.
        sleep(ms(300)).await;
        guard.unlock().await.expect("released");
        let released = now();
        let (next, granted) = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic");
        gaps.push(granted.since(released));
        next.unlock().await.expect("released");
    }
    gaps.sort();
    gaps[gaps.len() / 2]
}

fn is_queued(server: &RedisServer) -> bool {
    server.command(&["EXISTS", "{a}:q"]).int() == 1
}

/// A waiter that believes that it is told claims again after a third of a heartbeat, which is seconds.
const POLLS: Duration = Duration::from_millis(1500);

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_are_not_needed_may_be_refused() {
    let (server, url) = server_without("-psubscribe -client -config -command -info -select -wait -cluster -role -acl");
    let locker = connect(&url).await.expect("connected");
    let all = connect(&server.url()).await.expect("connected").capabilities();
    assert_eq!(format!("{:?}", locker.capabilities()), format!("{all:?}"), "nothing is lost");
    assert!(handoff(&url, || is_queued(&server)).await < POLLS);
    assert_eq!(locker.inspect().list("").await.expect("listed").len(), 0);
}

#[tokio::test]
async fn a_replica_is_found_out_without_the_right_to_ask_for_roles() {
    let master = RedisServer::start();
    let options = RedisServer::options().user("app", "secret", "~* &* +@all -role -info").replica_of(master.address());
    let replica = options.start();
    let error = refusal(&replica.url_of("app", "secret")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("is no master (its role is replica)"), "{error}");
}

#[tokio::test]
async fn a_refused_database_is_an_error_at_connect() {
    let (server, url) = server_without("-select");
    connect(&url).await.expect("database 0 needs no SELECT");
    let error = refusal(&format!("{url}3")).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("refuses SELECT 3") && error.to_string().contains("database 0"), "{error}");
    let renamed = RedisServer::options().config("rename-command SELECT \"\"").start();
    let error = refusal(&format!("{}3", renamed.url())).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let findings = examine(&Config::from_url(&format!("{url}3")).unwrap()).await.expect("examined");
    assert!(findings.iter().any(|finding| finding.fix.contains("leave the database out")), "{findings:?}");
    drop(server);
}

#[tokio::test]
async fn a_refused_wait_is_an_error_at_connect_where_replicas_must_have_grants() {
    let (_server, url) = server_without("-wait");
    connect(&url).await.expect("nothing needs WAIT");
    let error = refusal(&format!("{url}?wait_replicas=1")).await;
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    assert!(error.to_string().contains("refuses WAIT, which wait_replicas=1 needs"), "{error}");
    let findings = examine(&Config::from_url(&format!("{url}?wait_replicas=1")).unwrap()).await.expect("examined");
    assert!(findings.iter().any(|finding| finding.found.contains("refused: WAIT")), "{findings:?}");
}

#[tokio::test]
async fn refused_info_is_an_error_at_connect_where_restarts_must_be_noticed() {
    let servers = [server_without("-info"), server_without("-info"), server_without("-info")];
    let url = &servers[0].1;
    connect(url).await.expect("nothing needs INFO");
    let hosts = servers.each_ref().map(|(server, _)| format!("app:secret@{}", server.address())).join(",");
    connect(&format!("redlock://{hosts}?restart_guard=off")).await.expect("nothing needs INFO");
    for url in [format!("{url}?restart_guard=on"), format!("redlock://{hosts}")] {
        let error = refusal(&url).await;
        assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
        assert!(error.to_string().contains("refuses INFO"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_poll_where_scripts_may_not_publish() {
    let log = log::begin();
    let (server, url) = server_without("-publish");
    let locker = connect(&url).await.expect("connected");
    assert!(!locker.capabilities().wakes);
    let gap = handoff(&url, || is_queued(&server)).await;
    assert!(gap < POLLS, "{gap:?}");
    let renamed = RedisServer::options().config("rename-command PUBLISH \"\"").start();
    assert!(!connect(&renamed.url()).await.expect("connected").capabilities().wakes);
    let told = log::lines(&log, "waiters poll");
    assert_eq!(told.len(), 1, "it is said once: {told:?}");
    assert!(connect(&server.url()).await.expect("connected").capabilities().wakes, "another user may publish");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_a_cluster_poll_where_sharded_messages_are_refused() {
    for right in ["ssubscribe", "spublish"] {
        let options = RedisServer::options().user("app", "secret", &format!("~* &* +@all -{right}"));
        let cluster = RedisCluster::with(&options);
        let url = cluster.url().replace("://", "://app:secret@");
        let owner = cluster.owner(cluster.slot("a"));
        let gap = handoff(&url, || is_queued(&cluster.nodes()[owner])).await;
        assert!(gap < POLLS, "{right}: {gap:?}");
        let (holder, waiter) = (connect(&url).await.expect("connected"), connect(&url).await.expect("connected"));
        let held = holder.lock("a").await.expect("granted");
        waiter.lock("a").wait(ms(700)).await.map(drop).expect_err("held");
        assert!(!waiter.capabilities().wakes, "{right}");
        held.unlock().await.expect("released");
        let findings = examine(&Config::from_url(&url).unwrap()).await.expect("examined");
        let told = findings.iter().filter(|finding| finding.check == "wakes").count();
        assert_eq!(told, cluster.nodes().len(), "{right}: {findings:?}");
    }
}

/// The commands of scripts, taken away in every way.
fn without_scripts() -> Vec<(RedisServer, String, ErrorKind)> {
    let renamed = |name: &str| RedisServer::options().config(format!("rename-command {name} \"\"")).start();
    let mut all: Vec<(RedisServer, String, ErrorKind)> = ["EVAL", "EVALSHA"]
        .map(|name| {
            let server = renamed(name);
            let url = server.url();
            (server, url, ErrorKind::Unsupported)
        })
        .into();
    for right in ["eval", "evalsha"] {
        let (server, url) = server_without(&format!("-{right}"));
        all.push((server, url, ErrorKind::Auth));
    }
    // Since Valkey 9 scripts are a module, which may be missing.
    let modular = RedisServer::options();
    let server = RedisServer::start();
    let has_module =
        server.command(&["MODULE", "LIST"]).array().iter().any(|module| format!("{module}").contains("lua"));
    if has_module {
        let server = modular.config("enable-module-command yes").start();
        server.command(&["MODULE", "UNLOAD", "lua"]);
        let url = server.url();
        all.push((server, url, ErrorKind::Unsupported));
    }
    all
}

#[tokio::test]
async fn a_server_without_scripts_says_at_connect_what_does_not_work() {
    for (server, url, kind) in without_scripts() {
        let error = refusal(&url).await;
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(error.to_string().contains("no lock can be taken, renewed, released or listed"), "{error}");
        let findings = examine(&Config::from_url(&url).unwrap()).await.expect("examined");
        let told = findings.iter().find(|finding| finding.check == "rights").expect("a finding");
        assert!(told.found.starts_with("refused: EVAL"), "{told:?}");
        drop(server);
    }
}

#[tokio::test]
async fn a_cluster_behind_one_address_is_noticed_at_connect() {
    let options: RedisOptions = RedisServer::options().user("app", "secret", "~* &* +@all -info -cluster");
    // A user may always send HELLO, but the command may be renamed away: then the server is known by what it refuses.
    for options in [options.clone(), options.config("rename-command HELLO \"\"")] {
        let cluster = RedisCluster::with(&options);
        let node = &cluster.nodes()[0];
        for url in [node.url(), node.url_of("app", "secret")] {
            let error = refusal(&url).await;
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            let expected = format!("use redis+cluster://{}", node.address());
            assert!(error.to_string().contains(&expected), "{error}");
        }
        let findings = examine(&Config::from_url(&node.url()).unwrap()).await.expect("examined");
        let told = findings.iter().find(|finding| finding.check == "cluster").expect("a finding");
        assert!(told.fix.contains("redis+cluster://"), "{told:?}");
    }
}

#[tokio::test]
async fn doctor_says_which_server_it_is() {
    let server = RedisServer::start();
    let info = |field: &str| server.info("server", field);
    let (product, version) = match (info("valkey_version"), info("redict_version")) {
        (Some(version), _) => ("Valkey", version),
        (_, Some(version)) => ("redict (neither Redis nor Valkey)", version),
        _ => ("Redis", info("redis_version").expect("a version")),
    };
    let (_blind_server, blind) = server_without("-info");
    for url in [server.url(), blind] {
        let findings = examine(&Config::from_url(&url).unwrap()).await.expect("examined");
        let told = findings.iter().find(|finding| finding.check == "version").expect("a finding");
        assert_eq!(told.found, format!("{product} {version}, no cluster"));
    }
}
