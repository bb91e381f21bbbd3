//! The names of settings, which are the same in URLs, files, variables and code.

use std::sync::Once;

/// Names of older versions, and what they are called now.
const OLD_NAMES: [(&str, &str); 1] = [("ttl", "default_ttl")];

/// Variables that `distlock run` sets for its command or reads itself: not settings.
const OTHER_VARIABLES: [&str; 9] =
    ["LOCK_DIR", "LOCK_NAME", "TOKEN", "OWNER", "TTL_MS", "HELD", "SLOT", "CHAIN", "CHAIN_HOLDERS"];

/// How the variables of this repository's own tests begin.
const TEST_VARIABLES: [&str; 6] = ["TEST", "SKIPS", "SCHEDULES", "FUZZ_", "WRITE_", "CLOCK_SHIFTS"];

/// What every variable of ours begins with.
const PREFIX: &str = "DISTLOCK_";

/// Returns the name that `name` has now. An old name is logged once.
pub(super) fn current_name(name: &str) -> &str {
    static LOGGED: Once = Once::new();
    let Some((old, new)) = OLD_NAMES.iter().find(|(old, _)| *old == name) else { return name };
    LOGGED.call_once(|| tracing::warn!(target: "distlock", "the setting {old} is called {new} now; both are accepted"));
    new
}

/// Returns the variable of a field: its name in upper case behind `DISTLOCK_`.
pub(super) fn variable(field: &str) -> String {
    format!("{PREFIX}{}", field.to_ascii_uppercase())
}

/// Returns the variable of a field, and those of its old names.
pub(super) fn variables(field: &str) -> impl Iterator<Item = String> {
    let old = OLD_NAMES.iter().filter(move |(_, new)| *new == field).map(|(old, _)| variable(old));
    std::iter::once(variable(field)).chain(old.collect::<Vec<_>>())
}

/// Returns whether `name` looks like a setting and is none: most likely a typing error.
pub(super) fn is_unknown_variable(name: &str, mut fields: impl Iterator<Item = &'static str>) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let is_field = fields.any(|field| variables(field).any(|variable| variable == name));
    !is_field && !OTHER_VARIABLES.contains(&rest) && !TEST_VARIABLES.iter().any(|test| rest.starts_with(test))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_no_setting_is_found() {
        let fields = || ["url", "default_ttl"].into_iter();
        for known in
            ["DISTLOCK_URL", "DISTLOCK_DEFAULT_TTL", "DISTLOCK_TTL", "DISTLOCK_TTL_MS", "DISTLOCK_HELD", "PATH"]
        {
            assert!(!is_unknown_variable(known, fields()), "{known}");
        }
        for unknown in ["DISTLOCK_TLL", "DISTLOCK_", "DISTLOCK_default_ttl", "DISTLOCK_URLS"] {
            assert!(is_unknown_variable(unknown, fields()), "{unknown}");
        }
    }
}
