//! The kit's Redis servers support what the fault tests need.

use std::path::Path;
use std::process::Command;

use distlock_testkit::servers::{Certs, Data, RedisServer, Reply, RespClient, eventually, find_program};

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

#[test]
fn a_server_listens_on_its_own_port_and_ends_with_its_owner() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["SET", "k", "v"]), ok());
    let mut tcp = RespClient::tcp(server.address()).unwrap();
    assert_eq!(tcp.command(&["GET", "k"]).unwrap().text(), "v");
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    let (pid, directory) = (server.pid(), server.directory().to_owned());
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists() && !directory.exists());
}

#[test]
fn a_panicking_test_leaves_no_server_behind() {
    let (tell, pid) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let server = RedisServer::start();
        tell.send(server.pid()).unwrap();
        panic!("as a test that fails");
    });
    assert!(test.join().is_err());
    assert!(!Path::new(&format!("/proc/{}", pid.recv().unwrap())).exists());
}

#[test]
fn many_servers_start_at_once() {
    let servers: Vec<RedisServer> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(RedisServer::start)).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    for (number, server) in servers.iter().enumerate() {
        assert_eq!(server.command(&["SET", "number", &number.to_string()]), ok());
    }
    for (number, server) in servers.iter().enumerate() {
        assert_eq!(server.command(&["GET", "number"]).int(), i64::try_from(number).unwrap());
    }
}

#[test]
fn a_frozen_server_executes_requests_when_it_thaws() {
    let server = RedisServer::start();
    let mut client = server.client().unwrap();
    server.stop();
    client.send(&["SET", "k", "late"]).unwrap();
    server.cont();
    assert_eq!(client.receive().unwrap(), ok());
    assert_eq!(server.command(&["GET", "k"]).text(), "late");
}

#[test]
fn a_killed_server_comes_back_on_its_port_with_or_without_its_data() {
    let mut server = RedisServer::options().persistent().start();
    let (port, pid) = (server.port(), server.pid());
    server.command(&["SET", "k", "v"]);
    server.kill9();
    assert!(server.try_command(&["PING"]).is_err() && RespClient::tcp(server.address()).is_err());
    server.restart(Data::Kept);
    assert_eq!(server.command(&["GET", "k"]).text(), "v");
    server.restart(Data::Lost);
    assert!(server.command(&["GET", "k"]).is_nil());
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
}

#[test]
fn persistence_is_off_by_default() {
    let mut server = RedisServer::start();
    server.command(&["SET", "k", "v"]);
    server.restart(Data::Kept);
    assert!(server.command(&["GET", "k"]).is_nil());
}

#[test]
fn passwords_and_users_bind_all_clients_but_the_kit() {
    let server = RedisServer::options().password("s3cret").user("ann", "pw", "~a:* +get +set").start();
    let mut client = RespClient::tcp(server.address()).unwrap();
    assert!(client.command(&["GET", "k"]).unwrap().error().unwrap().starts_with("NOAUTH"));
    assert_eq!(client.command(&["AUTH", "ann", "pw"]).unwrap(), ok());
    assert_eq!(client.command(&["SET", "a:k", "v"]).unwrap(), ok());
    assert!(client.command(&["SET", "b:k", "v"]).unwrap().error().unwrap().starts_with("NOPERM"));
    assert_eq!(server.command(&["ACL", "SETUSER", "default", "off"]), ok());
    assert_eq!(server.command(&["GET", "a:k"]).text(), "v");
    assert_eq!(server.url(), format!("redis://:s3cret@127.0.0.1:{}/", server.port()));
}

#[test]
fn a_server_with_tls_shows_a_certificate_of_its_authority() {
    let (certs, others) = (Certs::new(), Certs::new());
    let server = RedisServer::options().tls(&certs).start();
    assert_eq!(server.command(&["PING"]), Reply::Simple("PONG".into()));
    let is_trusted = |authority: &Certs| {
        let mut client = Command::new(find_program("openssl", "openssl"));
        client.args(["s_client", "-verify_return_error", "-verify_ip", "127.0.0.1", "-connect"]);
        client.arg(server.address().to_string()).arg("-CAfile").arg(authority.ca());
        client.stdin(std::process::Stdio::null()).output().unwrap().status.success()
    };
    assert!(is_trusted(&certs) && !is_trusted(&others));
    assert!(server.url().starts_with("rediss://"));
}

#[test]
fn a_replica_follows_its_master() {
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(master.address()).start();
    replica.expect_in_sync();
    master.command(&["SET", "k", "v"]);
    assert_eq!(master.command(&["WAIT", "1", "5000"]).int(), 1);
    assert_eq!(replica.command(&["GET", "k"]).text(), "v");
    assert!(replica.command(&["SET", "k", "w"]).error().unwrap().starts_with("READONLY"));
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(replica.command(&["SET", "k", "w"]), ok());
}

#[test]
fn commands_are_counted_and_configuration_lines_apply() {
    let server = RedisServer::options().config("maxclients 3").start();
    for _ in 0..3 {
        server.command(&["SET", "k", "v"]);
    }
    assert_eq!((server.calls("set"), server.calls("getdel")), (3, 0));
    let mut others: Vec<RespClient> = Vec::new();
    let refused = eventually("the server to be full", || {
        let mut client = RespClient::tcp(server.address()).unwrap();
        let refused = client.command(&["PING"]).unwrap().error().map(str::to_owned);
        others.push(client);
        refused
    });
    assert!(refused.contains("max number of clients"), "{refused}");
}

#[test]
fn a_loading_server_replies_loading() {
    let mut server = RedisServer::options()
        .config("key-load-delay 20000")
        .config("loading-process-events-interval-bytes 1024")
        .start();
    server.command(&["DEBUG", "POPULATE", "2000", "key", "1000"]);
    assert_eq!(server.command(&["SAVE"]), ok());
    server.relaunch(Data::Kept);
    let refused = eventually("a server that loads", || {
        let mut client = RespClient::tcp(server.address()).ok()?;
        client.command(&["GET", "key:1"]).ok()?.error().map(str::to_owned)
    });
    assert!(refused.starts_with("LOADING"), "{refused}");
}
