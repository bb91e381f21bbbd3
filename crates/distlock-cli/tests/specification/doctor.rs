//! `doctor`: each misconfiguration is seeded on real servers and found; a good set-up has no findings.

mod etcd;
mod postgres;
mod redis;
mod redlock;

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::machine::Machine;

/// The findings of doctor about an engine, except those that are fine.
pub(crate) struct Examined {
    code: i32,
    findings: Vec<Value>,
}

pub(crate) fn examine(url: &str) -> Examined {
    // The latency of a server also depends on the machine that runs the tests.
    examine_with_latency(url).without("latency")
}

pub(crate) fn examine_with_latency(url: &str) -> Examined {
    let done = Machine::new().run(&["doctor", "--json", "--connect-timeout", "3s", url]);
    assert_eq!(done.stderr, "");
    let findings: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(!findings.is_empty(), "it looked at something");
    let troubles = findings.into_iter().filter(|finding| finding["severity"] != "fine").collect();
    Examined { code: done.code, findings: troubles }
}

impl Examined {
    /// Removes the findings of `check`.
    pub(crate) fn without(mut self, check: &str) -> Examined {
        let before = self.findings.len();
        self.findings.retain(|finding| finding["check"] != check);
        if self.findings.is_empty() && before > 0 {
            assert_eq!(self.code, 1, "for {check} alone");
            self.code = 0;
        }
        self
    }

    /// Returns the checks with findings, each with its severity.
    fn troubles(&self) -> Vec<(&str, &str)> {
        let text = |finding: &'_ Value, field| finding[field].as_str().map(str::to_owned);
        debug_assert!(self.findings.iter().all(|finding| text(finding, "found").is_some()));
        self.findings.iter().map(|f| (f["check"].as_str().unwrap(), f["severity"].as_str().unwrap())).collect()
    }

    /// Asserts that there are no findings.
    #[track_caller]
    pub(crate) fn expect_silence(&self) {
        assert!(self.findings.is_empty() && self.code == 0, "{}: {:#?}", self.code, self.findings);
    }

    /// Asserts that all findings are of `check` with these words, and that the exit code matches the severity.
    #[track_caller]
    pub(crate) fn expect_only(&self, check: &str, severity: &str, words: &str) {
        let mut troubles = self.troubles();
        troubles.dedup();
        assert_eq!(troubles, [(check, severity)], "{:#?}", self.findings);
        self.expect_among(check, severity, words);
    }

    /// Asserts that this finding is among the findings.
    #[track_caller]
    pub(crate) fn expect_among(&self, check: &str, severity: &str, words: &str) {
        let is_it = |f: &&Value| f["check"] == check && f["severity"] == severity;
        let mut found = self.findings.iter().filter(is_it);
        let has_words = |f: &Value| f["found"].as_str().is_some_and(|found| found.contains(words));
        let found = found.find(|f| has_words(f)).unwrap_or_else(|| panic!("{check}: {:#?}", self.findings));
        for part in ["place", "why", "fix"] {
            assert_ne!(found[part], "", "{part}");
        }
        let code = if self.findings.iter().any(|f| f["severity"] == "unsafe") { 2 } else { 1 };
        assert_eq!(self.code, code, "{:#?}", self.findings);
    }
}

#[test]
fn this_machine_and_memory_have_few_checks() {
    let machine = Machine::new();
    let done = machine.run(&["doctor"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "1 checks: 0 unsafe, 0 warning, 0 note, 1 fine\n"));
    let done = machine.run(&["doctor", "-v"]);
    assert!(done.stdout.contains("fine     directory") && done.stdout.contains("this machine"), "{}", done.stdout);
    let done = machine.run(&["doctor", "mem://"]);
    assert!(done.code == 0 && done.stdout.contains("no other process sees them"), "{}", done.stdout);
    assert_eq!(machine.run(&["doctor", "-q", "mem://"]).stdout, "");
    assert_eq!(machine.code(&["doctor", "nonsense"]), 78);
    assert_eq!(machine.code(&["doctor", "mem://", "--url", "mem://"]), 64);
}

#[test]
fn a_world_writable_lock_directory() {
    let machine = Machine::new();
    machine.write("shared/x", "");
    let (dir, url) = (machine.path("shared"), format!("file://{}", machine.text("shared")));
    let set = |mode| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o777);
    examine(&url).expect_only("directory", "warning", "mode 777");
    set(0o1777);
    examine(&url).expect_silence();
}
