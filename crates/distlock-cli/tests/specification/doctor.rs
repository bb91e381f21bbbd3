//! `doctor`: each misconfiguration is seeded on real servers and found; on a good set-up it is silent.

mod etcd;
mod redis;
mod redlock;

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::machine::Machine;

/// What doctor says about an engine, but for what is fine.
pub(crate) struct Examined {
    code: i32,
    findings: Vec<Value>,
}

pub(crate) fn examine(url: &str) -> Examined {
    // How fast a server answers says something of the machine that the tests run on, too.
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
    /// As if there were no such check.
    pub(crate) fn without(mut self, check: &str) -> Examined {
        let before = self.findings.len();
        self.findings.retain(|finding| finding["check"] != check);
        if self.findings.is_empty() && before > 0 {
            assert_eq!(self.code, 1, "for {check} alone");
            self.code = 0;
        }
        self
    }

    /// The names of the checks that found something, each with how much it matters.
    fn troubles(&self) -> Vec<(&str, &str)> {
        let text = |finding: &'_ Value, field| finding[field].as_str().map(str::to_owned);
        debug_assert!(self.findings.iter().all(|finding| text(finding, "found").is_some()));
        self.findings.iter().map(|f| (f["check"].as_str().unwrap(), f["severity"].as_str().unwrap())).collect()
    }

    /// Nothing was found.
    #[track_caller]
    pub(crate) fn expect_silence(&self) {
        assert!(self.findings.is_empty() && self.code == 0, "{}: {:#?}", self.code, self.findings);
    }

    /// Exactly this was found, in so many words, once or several times; and the code says how bad it is.
    #[track_caller]
    pub(crate) fn expect_only(&self, check: &str, severity: &str, words: &str) {
        let mut troubles = self.troubles();
        troubles.dedup();
        assert_eq!(troubles, [(check, severity)], "{:#?}", self.findings);
        self.expect_among(check, severity, words);
    }

    /// This was found, perhaps among what follows from it.
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
fn this_machine_and_memory_have_little_to_look_at() {
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
fn a_lock_directory_that_everybody_may_empty() {
    let machine = Machine::new();
    machine.write("shared/x", "");
    let (dir, url) = (machine.path("shared"), format!("file://{}", machine.text("shared")));
    let set = |mode| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o777);
    examine(&url).expect_only("directory", "warning", "mode 777");
    set(0o1777);
    examine(&url).expect_silence();
}
