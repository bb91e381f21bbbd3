//! A nested request for the same lock is refused at once and never waits, however the lock is named the second time.

use distlock_testkit::servers::{EtcdServer, RedisServer};

use crate::machine::{Machine, finish};

/// Runs a command under the lock `outer`, which requests the lock `inner`: both are flags and a name.
fn nest(machine: &Machine, outer: &[&str], inner: &str) -> crate::machine::Done {
    let script = format!("\"$DISTLOCK\" run --wait 10 {inner} true");
    let words: Vec<&str> = ["run"].iter().chain(outer).copied().chain(["-c", &script]).collect();
    finish(&mut machine.distlock(&words))
}

#[track_caller]
fn assert_refused(machine: &Machine, outer: &[&str], inner: &str) {
    let done = nest(machine, outer, inner);
    let is_refused = done.code == 75 && done.stderr.contains("runs under it already");
    assert!(is_refused, "{outer:?}, then {inner}: {} {}", done.code, done.stderr);
}

#[test]
fn a_path_is_the_same_lock_however_it_is_written_inside_itself() {
    let machine = Machine::new();
    std::fs::create_dir_all(machine.path("dir/below")).unwrap();
    std::os::unix::fs::symlink(machine.path("dir"), machine.path("link")).unwrap();
    std::os::unix::fs::symlink("dir/l", machine.path("file-link")).unwrap();
    let absolute = machine.text("dir/l");
    let spellings = ["./dir/l", &absolute, "dir/../dir/l", "dir//l", "link/l", "./link/below/../l", "./file-link"];
    for spelling in spellings {
        assert_refused(&machine, &["./dir/l"], spelling);
        assert_refused(&machine, &[spelling], &absolute);
    }
    let script = "cd dir/below; \"$DISTLOCK\" run --wait 10 ../l true";
    let done = machine.run(&["run", "dir/l", "-c", script]);
    assert!(done.code == 75 && done.stderr.contains("runs under it already"), "{}", done.stderr);
    // A file with other contents has its holder record beside it.
    machine.write("notes", "somebody's notes");
    assert_refused(&machine, &["./notes"], &machine.text("notes"));
    assert_eq!(nest(&machine, &["./dir/l"], "./dir/other").code, 0, "another file is another lock");
    assert_eq!(nest(&machine, &["./l"], "l").code, 0, "a bare name is a lock in the lock directory");
}

#[test]
fn a_directory_is_the_same_however_it_is_written() {
    let machine = Machine::new();
    let dir = machine.text("locks");
    std::fs::create_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(&dir, machine.path("link")).unwrap();
    let urls = [
        format!("file://{dir}"),
        format!("file://{dir}/"),
        format!("FILE://{dir}"),
        format!("file://{dir}/../locks?ttl=30s"),
        format!("file://{}", machine.text("link")),
        format!("file://{}", dir.replace("/locks", "/%6Cocks")),
    ];
    for url in &urls {
        assert_refused(&machine, &["--url", &urls[0], "job"], &format!("--url '{url}' job"));
        assert_refused(&machine, &["--url", url, "job"], "job");
        assert_refused(&machine, &["job"], &format!("--url '{url}' job"));
    }
    let script = format!("DISTLOCK_LOCK_DIR='{}' \"$DISTLOCK\" run --wait 10 job true", machine.text("link"));
    let done = machine.run(&["run", "job", "-c", &script]);
    assert!(done.code == 75 && done.stderr.contains("runs under it already"), "{}", done.stderr);
    let elsewhere = format!("--url 'file://{}' job", machine.text("elsewhere"));
    assert_eq!(nest(&machine, &["job"], &elsewhere).code, 0, "another directory has other locks");
}

#[test]
fn ancestors_with_any_lock_name_and_owner_are_recognized() {
    let machine = Machine::new();
    for name in ["x".repeat(512), "% #=@".repeat(102), "é".repeat(256)] {
        assert_refused(&machine, &[&name], &format!("'{name}'"));
        assert_refused(&machine, &["--owner", &"=% ".repeat(85), &name], &format!("'{name}'"));
    }
    let same_owner = nest(&machine, &["--owner", "me", "a"], "--owner me b");
    assert_eq!(same_owner.code, 0, "an owner may have two locks: {}", same_owner.stderr);
}

#[test]
fn a_redis_is_the_same_by_any_of_its_names() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let address = server.address();
    let port = address.port();
    for url in [
        format!("redis://{address}"),
        format!("valkey://{address}/0"),
        format!("REDIS://localhost:{port}/?db=0&ttl=60s"),
        format!("redis://127.1.2.3:{port}"),
    ] {
        if machine.code(&["ls", "--url", &url]) != 0 {
            // Not every machine's server listens on every address.
            continue;
        }
        assert_refused(&machine, &["job"], &format!("--url '{url}' job"));
        assert_refused(&machine, &["--url", &url, "job"], "job");
    }
    let script = format!(
        "unset DISTLOCK_URL; DISTLOCK_DRIVER=redis DISTLOCK_ENDPOINTS={address} \"$DISTLOCK\" run -w 10 job true"
    );
    let done = machine.run(&["run", "job", "-c", &script]);
    assert!(done.code == 75 && done.stderr.contains("runs under it already"), "{}", done.stderr);
    let other = nest(&machine, &["job"], &format!("--url redis://{address}/1 job"));
    assert_eq!(other.code, 0, "another database has other locks: {}", other.stderr);
}

#[test]
fn an_etcd_is_the_same_by_any_of_its_names() {
    let server = EtcdServer::start();
    let url = server.url();
    let machine = Machine::with_server(url.clone());
    let prefixed = format!("{}?prefix=jobs/", url.trim_end_matches('/'));
    assert_refused(&machine, &["job"], &format!("--url '{}' job", url.trim_end_matches('/')));
    assert_refused(&machine, &["--url", &prefixed, "job"], &format!("--url '{}/jobs/' job", url.trim_end_matches('/')));
    assert_eq!(nest(&machine, &["job"], &format!("--url '{prefixed}' job")).code, 0, "another prefix is another lock");
}

#[test]
fn an_ancestor_of_an_older_version_is_recognized_by_its_lock_name() {
    let machine = Machine::new();
    let script = "unset DISTLOCK_CHAIN_HOLDERS; \"$DISTLOCK\" run --wait 10 job true";
    let done = machine.run(&["run", "job", "-c", script]);
    assert!(done.code == 75 && done.stderr.contains("runs under it already"), "{}", done.stderr);
}
