//! Nodes that are dead, frozen, slow, or come back; split votes.

use std::future::IntoFuture;
use std::net::TcpListener;
use std::sync::Arc;

use distlock::backend::redis::Redis;
use distlock::backend::redlock::Redlock;
use distlock::{ErrorKind, HoldState, Locker, LossReason, Mode};
use distlock_testkit::history::{History, Hold};
use distlock_testkit::proxy::{Direction, Door, Flow, Proxy};
use distlock_testkit::servers::{Data, RedisServer, RedlockNodes};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bench::{
    Bench, NODE_TIMEOUT, TEST_LIMIT, TTL, check_on_3_and_5, eventually, locker_of, ms, now, sleep, unlock,
};

#[tokio::test]
async fn f44_split_votes_are_withdrawn_at_once_and_every_client_is_served() {
    check_on_3_and_5(async |bench| {
        let all = bench.all();
        // Each client has another nearest node, so that each client gets one vote before it hears of the others.
        let clients: Vec<Vec<Proxy>> = all.iter().map(|_| proxies(&bench)).collect();
        let mut lockers = Vec::new();
        for ways in &clients {
            lockers.push(locker_of(Redlock::of(ways.iter().map(|way| Redis::tcp("127.0.0.1", way.port())))).await);
        }
        let to_far_nodes = |flow: Flow| {
            for (number, ways) in clients.iter().enumerate() {
                let far = ways.iter().enumerate().filter(|(at, _)| *at != number);
                far.for_each(|(_, way)| way.set(Direction::Requests, flow));
            }
        };
        to_far_nodes(Flow::Hold);
        let tries = lockers.iter().map(|locker| tokio::spawn(locker.try_lock("a").ttl(TEST_LIMIT * 2).into_future()));
        let tries = tries.collect::<Vec<_>>();
        eventually("every node has voted", || all.iter().all(|at| bench.has(*at, "a"))).await;
        to_far_nodes(Flow::Pass);
        for tried in tries {
            assert!(tried.await.expect("no panic").expect("no failure").is_none(), "one vote is no majority");
        }
        to_far_nodes(Flow::Delay(ms(150)));
        bench.expect_nothing_left(&all).await;
        let history = Arc::new(History::default());
        let mut tasks = JoinSet::new();
        for (number, locker) in lockers.into_iter().enumerate() {
            tasks.spawn(take_turns(locker, number as u32, history.clone()));
        }
        timeout(TEST_LIMIT * 3, tasks.join_all()).await.expect("every task finished its rounds");
        assert_eq!(history.holds(), TURNS * all.len());
        history.check().expect("a clean history");
        bench.expect_nothing_left(&all).await;
    })
    .await;
}

const TURNS: usize = 2;

async fn take_turns(locker: Locker, client: u32, history: Arc<History>) {
    for _ in 0..TURNS {
        let asked = now();
        let guard = locker.lock("a").ttl(TEST_LIMIT).wait(TEST_LIMIT * 2).await.expect("granted");
        let (granted, token) = (now(), guard.fencing_token().get());
        tokio::task::yield_now().await;
        let end = now();
        unlock(guard).await;
        let (key, queued, mode, slot) = ("a".into(), None, Mode::Exclusive, None);
        history.hold(Hold { key, client, asked, queued, granted, token, end, mode, slot });
    }
}

fn proxies(bench: &Bench) -> Vec<Proxy> {
    bench.nodes.ports().map(|port| Proxy::start(([127, 0, 0, 1], port).into())).collect()
}

#[tokio::test]
async fn f45_nodes_are_healed_before_others_of_a_bare_majority_die() {
    check_on_3_and_5(async |mut bench| {
        let (few, last) = (bench.minority(), bench.proxies.len() - 1);
        few.iter().for_each(|at| bench.nodes[*at].kill9());
        let (locker, other) = (bench.direct().await, bench.direct().await);
        let guard = locker.lock("a").await.expect("a majority is enough");
        few.iter().for_each(|at| bench.nodes[*at].restart(Data::Lost));
        eventually("the nodes that came back have the lock", || few.iter().all(|at| bench.has(*at, "a"))).await;
        (0..few.len()).for_each(|at| bench.nodes[at].kill9());
        sleep(TTL * 2).await;
        assert_eq!(guard.state(), HoldState::Held, "it stands on the nodes that were healed");
        assert!(other.try_lock("a").await.is_ok_and(|guard| guard.is_none()), "two holders");
        unlock(guard).await;
        bench.expect_nothing_left(&(few.len()..=last).collect::<Vec<_>>()).await;
    })
    .await;
}

/// With one and with two of five nodes in trouble, locks are taken, renewed and released normally.
async fn check_of_five(trouble: impl Fn(&mut Bench, usize), relief: impl Fn(&mut Bench, usize)) {
    for some in [&[1][..], &[1, 3]] {
        let mut bench = Bench::start(5);
        let locker = bench.behind(some).await;
        let held = locker.lock("held").ttl(TEST_LIMIT * 2).await.expect("granted");
        some.iter().for_each(|at| trouble(&mut bench, *at));
        let mut times = Vec::new();
        for _ in 0..15 {
            let asked = now();
            let guard = locker.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted");
            times.push(now().since(asked));
            held.check().expect("held");
            unlock(guard).await;
        }
        held.extend(TEST_LIMIT * 2).await.expect("renewed");
        unlock(held).await;
        times.sort();
        assert!(times[7] < ms(100), "{some:?} take time: {times:?}");
        // Also before the connections of the silent nodes are given up.
        assert!(times[14] < NODE_TIMEOUT.mul_f64(0.8), "{some:?} take time: {times:?}");
        // They come back; each delayed claim arrives before its release.
        some.iter().for_each(|at| relief(&mut bench, *at));
        bench.expect_nothing_left(&bench.all()).await;
    }
}

#[tokio::test]
async fn two_dead_nodes_of_five_neither_delay_nor_lose_locks() {
    check_of_five(|bench, at| bench.nodes[at].kill9(), |bench, at| bench.nodes[at].restart(Data::Lost)).await;
}

#[tokio::test]
async fn two_frozen_nodes_of_five_neither_delay_nor_lose_locks() {
    check_of_five(|bench, at| bench.nodes[at].stop(), |bench, at| bench.nodes[at].cont()).await;
}

#[tokio::test]
async fn two_slow_nodes_of_five_neither_delay_nor_lose_locks() {
    check_of_five(|bench, at| bench.proxies[at].delay(ms(150)), |bench, at| bench.proxies[at].pass()).await;
}

#[tokio::test]
async fn two_late_nodes_of_five_neither_delay_nor_lose_locks() {
    let late = Flow::Delay(NODE_TIMEOUT * 2);
    let make_late = |bench: &mut Bench, at: usize| bench.proxies[at].set(Direction::Replies, late);
    check_of_five(make_late, |bench, at| bench.proxies[at].pass()).await;
}

#[tokio::test]
async fn a_majority_that_replies_too_late_grants_and_keeps_nothing() {
    check_on_3_and_5(async |bench| {
        let most = bench.majority();
        let locker = bench.behind(&most).await;
        // Requests arrive, and the nodes' replies come far too late.
        bench.each(&most, |proxy| proxy.set(Direction::Replies, Flow::Delay(NODE_TIMEOUT * 2)));
        let error = locker.try_lock("a").ttl(TEST_LIMIT * 2).await.expect_err("a minority is no majority");
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        bench.each(&most, Proxy::pass);
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}

/// The first claim of a try reaches all nodes, and most replies are lost. One node cannot be reached by the second claim,
/// which therefore says nothing about what the first one left there.
#[tokio::test]
async fn a_node_that_only_the_first_claim_of_a_try_reached_keeps_nothing() {
    let bench = Bench::start(5);
    let most = bench.majority();
    let locker = bench.behind(&most).await;
    bench.each(&most, Proxy::drop_replies);
    let (node, cut_off) = (&bench.nodes[most[0]], &bench.proxies[most[0]]);
    let scripts = || node.calls("evalsha") + node.calls("eval");
    let before = scripts();
    let tried = tokio::spawn(locker.try_lock("a").ttl(TEST_LIMIT * 2).into_future());
    eventually("the first claim has reached the node", || scripts() > before).await;
    cut_off.door(Door::Refuse);
    cut_off.cut();
    let error = tried.await.expect("no panic").expect_err("a minority is no majority");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    cut_off.door(Door::Open);
    bench.each(&most, Proxy::pass);
    bench.expect_nothing_left(&bench.all()).await;
}

#[tokio::test]
async fn with_a_majority_down_no_claim_is_granted_and_the_holder_is_notified() {
    let mut bench = Bench::start(3);
    let locker = bench.direct().await;
    let guard = locker.lock("a").await.expect("granted");
    bench.nodes[0].kill9();
    bench.nodes[2].kill9();
    let reason = timeout(TTL * 2, guard.lost()).await.expect("notified");
    assert_eq!(reason, LossReason::Expired);
    let asked = now();
    let error = locker.try_lock("b").await.expect_err("one of three");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(now().since(asked) < ms(3000));
    let text = error.to_string();
    assert!(text.contains("redlock: ") && text.contains("2 must"), "{text}");
    for port in bench.nodes.ports() {
        assert!(text.contains(&format!("127.0.0.1:{port}: ")), "{text}");
    }
}

#[tokio::test]
async fn all_nodes_down_is_a_clear_error_and_restarted_nodes_serve_again() {
    let mut bench = Bench::with(vec![RedisServer::options().persistent(); 3]);
    bench.nodes.settle();
    let locker = bench.direct().await;
    (0..3).for_each(|at| bench.nodes[at].kill9());
    let error = locker.try_lock("a").await.expect_err("no server is reachable");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
    let error = Locker::connect(&bench.nodes.url()).await.expect_err("no server is reachable");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of 3 nodes are connected"), "{error}");
    (0..3).for_each(|at| bench.nodes[at].restart(Data::Kept));
    let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("they are back and their quarantine is over");
    unlock(guard).await;
}

#[tokio::test]
async fn each_node_has_its_own_credentials_and_none_is_leaked() {
    let options = ["one", "two", "three"].map(|password| RedisServer::options().password(password)).to_vec();
    let bench = Bench::with(options);
    bench.nodes.settle();
    let ports: Vec<_> = bench.nodes.ports().collect();
    let url = |third: &str| {
        format!("redlock://:one@127.0.0.1:{},:two@127.0.0.1:{},:{third}@127.0.0.1:{}", ports[0], ports[1], ports[2])
    };
    let locker = Locker::connect(&url("three")).await.expect("connected");
    unlock(locker.lock("a").await.expect("granted")).await;
    let wrong = url("wrong").replace(":one@", ":wrong@");
    let error = Locker::connect(&wrong).await.expect_err("two of three refuse");
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong@"), "{error}");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn nodes_are_reached_over_tls_only() {
    let certs = distlock_testkit::servers::Certs::new();
    let connect = async |nodes: &RedlockNodes| {
        let mut config = distlock::Config::from_url(&nodes.url().replace("redlock://", "redlocks://"))?;
        config.tls_ca = Some(certs.ca());
        Locker::from_config(&config).await
    };
    let encrypted = RedlockNodes::with(vec![RedisServer::options().tls(&certs); 3]);
    encrypted.settle();
    unlock(connect(&encrypted).await.expect("connected").lock("a").await.expect("granted")).await;
    let plain = RedlockNodes::start(3);
    plain.settle();
    let error = connect(&plain).await.expect_err("not encrypted");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn an_invalid_number_of_nodes_is_refused_before_dialling() {
    let nodes: Vec<_> = (0..11).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a port")).collect();
    nodes.iter().for_each(|node| node.set_nonblocking(true).expect("set"));
    let ports: Vec<_> = nodes.iter().map(|node| node.local_addr().expect("bound").port()).collect();
    let twice = [ports[0], ports[1], ports[0]];
    for (ports, by_url, by_builder) in [
        (&ports[..2], "2 nodes; below 3", "nodes: 2; below 3"),
        (&ports[..4], "4 nodes; an even one", "nodes: 4; an even one"),
        (&ports[..], "11 nodes; each one costs a round trip", "nodes: 11; each one costs a round trip"),
        (&twice[..], "host 3 is host 1 again; each node has one vote", "is there twice; each node has one vote"),
    ] {
        let places: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let connected = Locker::connect(&format!("redlock://{}", places.join(","))).await.map(drop);
        let built = Redlock::of(ports.iter().map(|port| Redis::tcp("127.0.0.1", *port))).build().map(drop);
        for (outcome, reason) in [(connected, by_url), (built, by_builder)] {
            let error = outcome.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
    assert!(nodes.iter().all(|node| node.accept().is_err()), "a node was dialled");
}
