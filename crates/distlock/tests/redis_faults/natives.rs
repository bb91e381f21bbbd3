//! Native commands: found out by using them, so that a user without the right to one gets scripts.

use distlock::{Config, Finding, examine};
use distlock_testkit::servers::{RedisCluster, RedisServer, Reply};

/// Returns the native compare-and-delete that a server lists, if it has one.
pub(crate) fn listed(server: &RedisServer) -> Option<&'static str> {
    let names = ["DELIFEQ", "DELEX"];
    let info = server.command(&[&["COMMAND", "INFO"], &names[..]].concat());
    let has = |(_, info): &(&'static str, &Reply)| matches!(info, Reply::Array(parts) if !parts.is_empty());
    names.into_iter().zip(info.array()).find(has).map(|(name, _)| name)
}

/// Returns what doctor says about native commands, one finding for each server.
async fn reported(url: &str) -> Vec<String> {
    let findings = examine(&Config::from_url(url).expect("a good URL")).await.expect("examined");
    let about = findings.iter().filter(|finding| finding.check == "native commands");
    about.map(|finding: &Finding| finding.found.clone()).collect()
}

fn expected(native: Option<&str>) -> String {
    match native {
        Some(name) => format!("{name} releases locks without waiters, scripts all others"),
        None => "none; scripts release locks".into(),
    }
}

#[tokio::test]
async fn the_native_commands_of_a_server_are_found_out() {
    let server = RedisServer::start();
    assert_eq!(reported(&server.url()).await, [expected(listed(&server))]);
}

#[tokio::test]
async fn the_native_commands_of_a_cluster_are_found_out_on_each_node() {
    let cluster = RedisCluster::start();
    let native = expected(listed(&cluster.nodes()[0]));
    assert_eq!(reported(&cluster.url()).await, vec![native; cluster.nodes().len()]);
}

#[tokio::test]
async fn a_native_command_that_the_user_may_not_send_is_not_used() {
    let server = RedisServer::start();
    if let Some(name) = listed(&server) {
        server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", &format!("-{name}")]);
        assert_eq!(reported(&server.url_of("app", "secret")).await, [expected(None)]);
    }
    // Nothing is left of the attempts.
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
}

#[tokio::test]
async fn without_the_right_to_list_commands_native_ones_are_tried() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-command"]);
    assert_eq!(reported(&server.url_of("app", "secret")).await, [expected(listed(&server))]);
}
