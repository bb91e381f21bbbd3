//! The environment variables that describe the lock to the child.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use distlock::{Config, FencingToken, Key};

use crate::ancestry::{Ancestry, ChainLink, HolderId};

/// The hold that the variables describe.
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
    /// The engine's name, without secrets.
    pub engine: &'a str,
}

impl Identity<'_> {
    /// Sets the variables of `command`, and removes credentials from those that it inherits from `inherited`, this
    /// process's environment.
    pub fn apply(&self, command: &mut Command, inherited: impl Fn(&str) -> Option<OsString>) {
        command.env("DISTLOCK_LOCK_NAME", self.name.as_str());
        command.env("DISTLOCK_TOKEN", self.token.to_string());
        command.env("DISTLOCK_OWNER", self.owner);
        command.env("DISTLOCK_HELD", "1");
        match self.ttl {
            Some(ttl) => command.env("DISTLOCK_TTL_MS", ttl.as_millis().to_string()),
            // An outer lock may have set it.
            None => command.env_remove("DISTLOCK_TTL_MS"),
        };
        match self.slot {
            Some(slot) => command.env("DISTLOCK_SLOT", slot.to_string()),
            // An outer lock may be a semaphore.
            None => command.env_remove("DISTLOCK_SLOT"),
        };
        let held = ChainLink { engine: self.engine.into(), name: self.name.as_str().into(), token: self.token };
        let holder = HolderId::of_this_process(self.token, self.owner);
        command.envs(Ancestry::read(&inherited).with(held, holder).variables());
        // The rest of each variable stays: without it a nested distlock would silently lock on this machine only.
        for (variable, rest) in Config::vars_without_passwords(inherited) {
            match rest {
                Some(rest) => command.env(variable, rest),
                None => command.env_remove(variable),
            };
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
        identity.apply(&mut command, |name| match name {
            "DISTLOCK_URL" => Some(url.into()),
            "DISTLOCK_PASSWORD" => Some("hunter2".into()),
            _ => None,
        });
        let text = |value: &std::ffi::OsStr| value.to_str().unwrap().to_string();
        command.get_envs().map(|(name, value)| (text(name), value.map(text))).collect()
    }

    #[test]
    fn the_variables_describe_the_lock() {
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
        let process = distlock::Process::current();
        let holders = format!("7=me={}={}", process.pid, process.host);
        assert_eq!(environment["DISTLOCK_CHAIN_HOLDERS"].as_deref(), Some(holders.as_str()));
        for (name, value) in expected {
            assert_eq!(environment[name].as_deref(), Some(value), "{name}");
        }
        assert!(!environment.contains_key("DISTLOCK_URL"), "a URL without secrets is inherited as it is");
    }

    #[test]
    fn no_password_reaches_the_child() {
        let environment = environment_of("redis://me:hunter2@h/");
        assert_eq!(environment["DISTLOCK_URL"].as_deref(), Some("redis://me@h/"));
        assert_eq!(environment["DISTLOCK_PASSWORD"], None, "removed");
        assert!(!format!("{environment:?}").contains("hunter2"));
    }
}
