//! What the child finds in its environment about the lock that it runs under.

use std::process::Command;
use std::time::Duration;

use distlock::{FencingToken, Key, without_passwords};

use crate::ancestry::{Ancestry, CHAIN, Held};

/// The engine's URL; it stays in the child's environment without its password.
pub const URL: &str = "DISTLOCK_URL";

/// The password; it does not stay.
const PASSWORD: &str = "DISTLOCK_PASSWORD";

/// A lock that is held, as the child is told.
#[derive(Debug, Clone)]
pub struct Identity<'a> {
    /// The lock.
    pub name: &'a Key,
    /// Its fencing token.
    pub token: FencingToken,
    /// The owner.
    pub owner: &'a str,
    /// The lease; `None` when the engine has none.
    pub ttl: Option<Duration>,
    /// Which slot of a semaphore it is.
    pub slot: Option<u32>,
    /// The engine's name, in which there are no secrets.
    pub engine: &'a str,
}

impl Identity<'_> {
    /// Tells `command`, and takes credentials out of what it inherits from `inherited`, this process's environment.
    pub fn apply(&self, command: &mut Command, inherited: impl Fn(&str) -> Option<String>) {
        command.env("DISTLOCK_LOCK_NAME", self.name.as_str());
        command.env("DISTLOCK_TOKEN", self.token.to_string());
        command.env("DISTLOCK_OWNER", self.owner);
        command.env("DISTLOCK_HELD", "1");
        match self.ttl {
            Some(ttl) => command.env("DISTLOCK_TTL_MS", ttl.as_millis().to_string()),
            // An outer lock may have one.
            None => command.env_remove("DISTLOCK_TTL_MS"),
        };
        match self.slot {
            Some(slot) => command.env("DISTLOCK_SLOT", slot.to_string()),
            // An outer lock may be a semaphore.
            None => command.env_remove("DISTLOCK_SLOT"),
        };
        let held = Held { engine: self.engine.into(), name: self.name.as_str().into(), token: self.token };
        let ancestors = Ancestry::parse(&inherited(CHAIN).unwrap_or_default());
        command.env(CHAIN, ancestors.with(held).to_string());
        command.env_remove(PASSWORD);
        // Removed altogether, a nested distlock would lock on this machine only and tell nobody.
        if let Some(url) = inherited(URL) {
            let handed_on = without_passwords(&url);
            if handed_on != url {
                command.env(URL, handed_on);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn environment_of(url: &'static str) -> BTreeMap<String, Option<String>> {
        let name = Key::new("nightly").unwrap();
        let ttl = Some(Duration::from_secs(30));
        let identity = Identity {
            name: &name,
            token: FencingToken::new(7),
            owner: "me",
            ttl,
            slot: Some(2),
            engine: &distlock::redact(url),
        };
        let mut command = Command::new("true");
        identity.apply(&mut command, |name| (name == URL).then(|| url.into()));
        let text = |value: &std::ffi::OsStr| value.to_str().unwrap().to_string();
        command.get_envs().map(|(name, value)| (text(name), value.map(text))).collect()
    }

    #[test]
    fn the_child_is_told_what_it_holds() {
        let environment = environment_of("redis://h/");
        let expected = [
            ("DISTLOCK_LOCK_NAME", "nightly"),
            ("DISTLOCK_TOKEN", "7"),
            ("DISTLOCK_OWNER", "me"),
            ("DISTLOCK_TTL_MS", "30000"),
            ("DISTLOCK_HELD", "1"),
            ("DISTLOCK_SLOT", "2"),
            ("DISTLOCK_CHAIN", "7@redis://h/#nightly"),
        ];
        for (name, value) in expected {
            assert_eq!(environment[name].as_deref(), Some(value), "{name}");
        }
        assert!(!environment.contains_key(URL), "a URL without secrets is inherited as it is");
    }

    #[test]
    fn no_password_reaches_the_child() {
        let environment = environment_of("redis://me:hunter2@h/");
        assert_eq!(environment[URL].as_deref(), Some("redis://me@h/"));
        assert_eq!(environment["DISTLOCK_PASSWORD"], None, "removed");
        assert!(!format!("{environment:?}").contains("hunter2"));
    }
}
