//! Processes of one machine with different mounts.

use std::collections::BTreeMap;

use crate::machine::{Machine, finish};

/// A separate machine: its first process is this shell, its `/run` and `/tmp` are empty. `/run/user` runs the program
/// as an unprivileged user, `/run/unit` the same in a unit with `PrivateTmp=yes`, which systemd sets up in this way.
const MACHINE: &str = r#"
mount -t tmpfs -o mode=755 tmpfs /run && touch /run/program && mount --bind "$DISTLOCK" /run/program || exit 99
mount -t tmpfs -o mode=1777 tmpfs /tmp && mkdir -p -m 1777 /tmp/systemd-private-1-job.service/tmp || exit 99
chmod 1777 /tmp/systemd-private-1-job.service/tmp
cat > /run/user <<'end'
#!/bin/sh
exec setpriv --reuid 4711 --regid 4711 --clear-groups env -u DISTLOCK_LOCK_DIR HOME=/ XDG_CONFIG_HOME=/ /run/program "$@"
end
cat > /run/unit <<'end'
#!/bin/sh
exec unshare --mount sh -c 'mount --bind /tmp/systemd-private-1-job.service/tmp /tmp && exec /run/user "$@"' sh "$@"
end
chmod 755 /run/user /run/unit
mkfifo /run/input
cd /
# Holds the lock `job` as a process outside of any unit; ends when descriptor 3 is closed.
hold() {
  rm -f /run/record
  /run/user hold job < /run/input > /run/record &
  exec 3> /run/input
  until test -s /run/record; do sleep 0.02; done
}
# Says how a command ended, and what it said.
try() {
  name=$1; shift
  "$@" > /run/said 2>&1
  echo "$name $? $(tr '\n' ' ' < /run/said)"
}
"#;

/// Returns the output and the code of each command of `script`, by its name.
fn on_a_machine(script: &str) -> BTreeMap<String, (i32, String)> {
    let machine = Machine::new();
    let script = format!("{MACHINE}{script}");
    let done =
        finish(&mut machine.command("unshare", &["--mount", "--pid", "--fork", "--mount-proc", "sh", "-uc", &script]));
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{}", done.stdout);
    let said = done.stdout.lines().map(|line| {
        let mut words = line.splitn(3, ' ');
        let (name, code) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        (name.to_owned(), (code, words.next().unwrap_or_default().to_owned()))
    });
    said.collect()
}

/// A unit with a private `/tmp` has other locks than the rest of the machine. This cannot be prevented there, so it is
/// reported, and `--scope` refuses it.
#[test]
fn f81_a_lock_in_a_private_tmp_is_reported_and_refused_with_scope_needs_root() {
    let said = on_a_machine(
        "hold
        try outside /run/user run -n -q job true
        try inside /run/unit run -n -q job true
        try doctor /run/unit doctor
        try scope /run/unit run --scope host job true
        try path /run/unit run --scope host /tmp/x.lock true
        try url /run/unit run --scope host --url file:///tmp/locks job true
        try doctor-outside /run/user doctor
        try scope-outside /run/user run --scope host other true
        exec 3>&-
        wait",
    );
    let code = |name: &str| said[name].0;
    assert_eq!((code("outside"), code("inside")), (75, 0), "two hold it: {said:?}");
    let (code_of_doctor, words) = &said["doctor"];
    assert_eq!(*code_of_doctor, 2, "{words}");
    for word in ["unsafe", "mount", "/tmp/distlock-4711", "systemd-private-1-job.service", "/run/distlock"] {
        assert!(words.contains(word), "{word}: {words}");
    }
    for refused in ["scope", "path", "url"] {
        let (code, words) = &said[refused];
        assert!(
            *code == 78 && words.contains("--scope") && words.contains("systemd-private"),
            "{refused} {code}: {words}"
        );
    }
    let (code_outside, words) = &said["doctor-outside"];
    assert!(*code_outside == 0 && words.contains("note") && words.contains("PrivateTmp=yes"), "{words}");
    assert_eq!(code("scope-outside"), 0, "{said:?}");
}

/// The directory that deploy/tmpfiles.d creates is shared by all processes.
#[test]
fn f81_the_directory_created_at_boot_is_shared_by_all_needs_root() {
    const MADE_AT_BOOT: &str = include_str!("../../../../deploy/tmpfiles.d/distlock.conf");
    let lines: Vec<_> = MADE_AT_BOOT.lines().filter(|line| !line.starts_with('#')).collect();
    let [line] = lines[..] else { panic!("{lines:?}") };
    let ["d", path, mode, "root", "root", "-"] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let said = on_a_machine(&format!(
        "mkdir {path} && chmod {mode} {path}
        hold
        try inside /run/unit run -n -q job true
        try doctor /run/unit doctor
        try doctor-outside /run/user doctor
        try scope /run/unit run --scope host other true
        exec 3>&-
        wait
        try afterwards /run/unit run -n -q job true"
    ));
    let codes: Vec<_> = said.iter().map(|(name, (code, _))| (name.as_str(), *code)).collect();
    let expected = [("afterwards", 0), ("doctor", 0), ("doctor-outside", 0), ("inside", 75), ("scope", 0)];
    assert_eq!(codes, expected, "{said:?}");
    // A thread of its own writes the note about the engine, before the report or after it.
    assert!(said["doctor"].1.contains("1 checks: 0 unsafe, 0 warning, 0 note"), "{said:?}");
}
