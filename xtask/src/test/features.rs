//! The step that checks the library with no feature, and with each feature alone, for errors and warnings.

use super::Outcome;
use crate::cmd::Cmd;
use crate::manifest;
use crate::tally::Tally;

const MANIFEST: &str = "crates/distlock/Cargo.toml";

/// Checks every single-feature set, even after a failure.
pub(super) fn run() -> Outcome {
    let text = std::fs::read_to_string(MANIFEST).unwrap_or_default();
    let failed: Vec<String> = matrix(&text).iter().filter(|cmd| !cmd.succeeds()).map(ToString::to_string).collect();
    Outcome { tally: Tally::one(failed.is_empty()), again: failed }
}

fn matrix(manifest: &str) -> Vec<Cmd> {
    // Clippy compiles as `check` does, in the same time.
    let bare = Cmd::cargo(&["clippy", "-q", "-p", "distlock", "--no-default-features"]);
    let features = manifest::keys(manifest, "features").into_iter().filter(|feature| *feature != "default");
    let alone = features.map(|feature| bare.clone().args(&["--features", feature])).collect::<Vec<_>>();
    std::iter::once(bare).chain(alone).map(|cmd| cmd.args(&["--", "-D", "warnings"])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_check_without_features_and_one_for_each() {
        let matrix = matrix("[features]\ndefault = [\"config\"]\nconfig = []\nredis = []\n");
        let shown: Vec<String> = matrix.iter().map(ToString::to_string).collect();
        let bare = "cargo clippy -q -p distlock --no-default-features";
        let sets = ["", " --features config", " --features redis"];
        assert_eq!(shown, sets.map(|set| format!("{bare}{set} -- -D warnings")));
    }
}
