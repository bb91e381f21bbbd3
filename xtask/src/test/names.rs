//! The names of the tests, as the test binaries list them.

use crate::cmd::Cmd;

/// The tests to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    /// All of them.
    All,
    /// Only ignored tests.
    Ignored,
}

/// Returns the names in the binaries that `targets` (cargo's own options) selects; `None` if they do not compile.
pub(super) fn list(targets: &[&str], listed: Listed) -> Option<Vec<String>> {
    // The same profile and features as the test step, so that nothing is compiled again.
    let cmd = Cmd::cargo(&["test", "-q", "--workspace", "--all-features"]).args(targets).args(&["--", "--list"]);
    let cmd = if listed == Listed::Ignored { cmd.args(&["--ignored"]) } else { cmd };
    Some(parse(&cmd.read()?))
}

fn parse(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_and_the_rest_is_left() {
        let output = "memory::a: test\nmemory::b: test\nspeed: benchmark\n\n2 tests, 1 benchmark\n";
        assert_eq!(parse(output), ["memory::a", "memory::b"]);
    }
}
