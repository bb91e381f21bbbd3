//! The recipes of docs/fencing.md, each with a stale holder that is refused. Those for HTTP and object stores are doc
//! tests.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use distlock_testkit::conformance::record_skip;
use distlock_testkit::servers::Directory;

/// Returns the SQL of the page: the table, and the statement with its parameters filled in.
fn sql(balance: u32, token: u64) -> (String, String) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fencing.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let blocks: Vec<_> = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    // The third is run where the engine's schema is: postgres_faults/fencing.rs.
    let [table, update, _] = blocks[..] else { panic!("a table and statements: {blocks:?}") };
    let filled = [(":balance", balance.to_string()), (":token", token.to_string()), (":id", "7".to_owned())];
    let update = filled.iter().fold(update.to_owned(), |text, (name, value)| text.replace(name, value));
    (format!("{table}\nINSERT INTO account (id, balance) VALUES (7, 0);"), update)
}

/// Feeds a program and returns its output.
fn ask(command: &mut Command, input: &str) -> String {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn sqlite_refuses_a_stale_holder() {
    let directory = Directory::new();
    let file = directory.path().join("bank");
    let run = |sql: &str| ask(Command::new("sqlite3").arg("-bail").arg(&file), sql);
    run(&sql(0, 0).0);
    let changed = |balance, token| run(&format!("{} SELECT changes();", sql(balance, token).1)).trim().to_owned();
    assert_eq!(changed(10, 34), "1");
    assert_eq!(changed(99, 33), "0", "stale");
    assert_eq!(changed(11, 34), "1", "the same holder again");
    assert_eq!(run("SELECT balance, token FROM account;").trim(), "11|34");
}

/// Returns Debian's directory of the server's programs.
fn postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    versions.map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").exists())
}

/// Returns a command for a program of PostgreSQL, which does not run as root.
fn as_nobody(program: &Path, directory: &Path) -> Command {
    const NOBODY: u32 = 65_534;
    let mut command = Command::new("setpriv");
    if std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)).is_ok() {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command.arg("--").arg(program).current_dir(directory).env_remove("PGDATA");
    command
}

#[test]
fn postgresql_refuses_a_stale_holder() {
    let Some(programs) = postgres() else {
        return record_skip("fencing/postgresql_refuses_a_stale_holder: postgresql is not installed");
    };
    let directory = Directory::new();
    let data = directory.path().join("data");
    let mut initdb = as_nobody(&programs.join("initdb"), directory.path());
    ask(initdb.arg("-D").arg(&data).args(["-U", "bank", "-A", "trust", "--no-sync", "--no-locale"]), "");
    // Single-user mode without a server: one process, one line per statement.
    let run = |sql: &str| {
        let mut single = as_nobody(&programs.join("postgres"), directory.path());
        ask(single.args(["--single", "-F", "-D"]).arg(&data).arg("postgres"), &sql.replace(";\n", ";\n\n"))
    };
    run(&format!("{}\n", sql(0, 0).0));
    let changed = |balance, token| {
        let update = sql(balance, token).1.replace(';', "");
        let said = run(&format!("WITH done AS ({update} RETURNING 1) SELECT count(*) AS changed FROM done;\n"));
        said.split("changed = \"").nth(1).and_then(|rest| rest.split('"').next()).map(str::to_owned).expect("a count")
    };
    assert_eq!(changed(10, 34), "1");
    assert_eq!(changed(99, 33), "0", "stale");
    assert_eq!(changed(11, 34), "1", "the same holder again");
    let row = run("SELECT balance, token FROM account;\n");
    assert!(row.contains("balance = \"11\"") && row.contains("token = \"34\""), "{row}");
}

#[test]
fn redis_refuses_a_stale_holder() {
    let server = distlock_testkit::servers::RedisServer::start();
    let write = |token: &str, value: &str| {
        let script = distlock::fencing::REDIS_WRITE;
        server.command(&["EVAL", script, "2", "{order:7}", "{order:7}:token", token, value]).int()
    };
    assert_eq!(write("34", "paid"), 1);
    assert_eq!(write("33", "unpaid"), 0, "stale");
    assert_eq!(write("9", "unpaid"), 0, "shorter is lower");
    assert_eq!(write("34", "sent"), 1, "the same holder again");
    // Adjacent numbers that Lua's floating-point numbers cannot distinguish.
    assert_eq!(write("18446744073709551615", "last"), 1);
    assert_eq!(write("18446744073709551614", "late"), 0);
    assert_eq!(server.command(&["GET", "{order:7}"]).text(), "last");
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread")]
async fn etcd_refuses_a_stale_holder() {
    use distlock::Locker;
    use distlock::backend::etcd::{Etcd, EtcdCompare};

    let server = distlock_testkit::servers::EtcdServer::start();
    let engine = || Etcd::builder([server.address().to_string()]).build().expect("an engine");
    let (first, second) = (engine(), engine());
    let handles = [first.handle(), second.handle()];
    let lockers = [Locker::new(first).unwrap(), Locker::new(second).unwrap()];
    let write = |held: &EtcdCompare, value: &str| {
        let key = String::from_utf8(held.key.clone()).expect("text");
        let script = format!("create(\"{key}\") = \"{}\"\n\nput order {value}\n\n\n", held.create_revision);
        ask(&mut server.etcdctl().command(&["txn"]), &script).starts_with("SUCCESS")
    };
    let stale = lockers[0].lock("order:7").await.unwrap();
    let before = handles[0].compare(stale.key(), stale.fencing_token()).expect("it is held");
    assert!(write(&before, "first"));
    lockers[1].inspect().force_release("order:7", stale.fencing_token(), "a test").await.unwrap();
    let next = lockers[1].lock("order:7").await.unwrap();
    let now = handles[1].compare(next.key(), next.fencing_token()).expect("it is held");
    assert!(write(&now, "second"));
    assert!(!write(&before, "late"), "stale");
    assert!(server.etcdctl().run(&["get", "order"]).ends_with("second"));
    next.unlock().await.unwrap();
}
