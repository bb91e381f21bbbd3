//! The README's table of capabilities equals what the engines declare.
//!
//! `DISTLOCK_WRITE_README=1 cargo test -p distlock --all-features --test capabilities` rewrites it.
#![cfg(all(feature = "redis", feature = "etcd", feature = "postgres"))]

use distlock::backend::{Backend, Capabilities};
use distlock_testkit::capability_table::table;
use distlock_testkit::conformance::skips;

const BEGIN: &str = "<!-- capabilities begin -->\n";
const END: &str = "<!-- capabilities end -->";

/// Returns all engines, without the servers that they would need.
fn engines() -> [(&'static str, Capabilities); 6] {
    let redis = distlock::backend::redis::Redis::tcp("127.0.0.1", 1).build().expect("an engine");
    let nodes = [1, 2, 3].map(|port| distlock::backend::redis::Redis::tcp("127.0.0.1", port));
    let redlock = distlock::backend::redlock::Redlock::of(nodes).build().expect("an engine");
    let etcd = distlock::backend::etcd::Etcd::builder(["127.0.0.1:1"]).build().expect("an engine");
    let postgres = distlock::backend::postgres::Postgres::tcp("127.0.0.1", 1).build().expect("an engine");
    let file = distlock::backend::file::FileBackend::host("/nowhere");
    let memory = distlock::backend::memory::Memory::new();
    [
        (memory.name(), memory.capabilities()),
        (file.name(), file.capabilities()),
        (redis.name(), redis.capabilities()),
        (redlock.name(), redlock.capabilities()),
        (etcd.name(), etcd.capabilities()),
        (postgres.name(), postgres.capabilities()),
    ]
}

#[tokio::test]
async fn the_readme_table_equals_the_declared_capabilities() {
    let engines = engines();
    for (engine, able) in &engines {
        skips(able).iter().for_each(|(case, need)| println!("{engine} skips {case}: {need}"));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(path).expect("the README");
    let (before, rest) = readme.split_once(BEGIN).expect("where the table begins");
    let (shown, after) = rest.split_once(END).expect("where it ends");
    let table = table(&engines);
    if std::env::var_os("DISTLOCK_WRITE_README").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).expect("written");
        return;
    }
    assert_eq!(shown, table, "write it anew with DISTLOCK_WRITE_README=1, see CONTRIBUTING.md");
}
