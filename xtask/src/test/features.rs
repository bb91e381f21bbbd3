//! The step that compiles the library with no feature, and with each feature alone.

use super::Outcome;
use crate::cmd::Cmd;
use crate::manifest;
use crate::tally::Tally;

const MANIFEST: &str = "crates/distlock/Cargo.toml";

/// Compiles every single-feature set, whatever failed before.
pub(super) fn run() -> Outcome {
    let text = std::fs::read_to_string(MANIFEST).unwrap_or_default();
    let failed: Vec<String> = matrix(&text).iter().filter(|cmd| !cmd.succeeds()).map(ToString::to_string).collect();
    Outcome { tally: Tally::one(failed.is_empty()), again: failed }
}

fn matrix(manifest: &str) -> Vec<Cmd> {
    let bare = Cmd::cargo(&["check", "-q", "-p", "distlock", "--no-default-features"]);
    let features = manifest::keys(manifest, "features").into_iter().filter(|feature| *feature != "default");
    let alone = features.map(|feature| bare.clone().args(&["--features", feature])).collect::<Vec<_>>();
    std::iter::once(bare).chain(alone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_check_without_features_and_one_for_each() {
        let matrix = matrix("[features]\ndefault = [\"config\"]\nconfig = []\nredis = []\n");
        let shown: Vec<String> = matrix.iter().map(ToString::to_string).collect();
        let bare = "cargo check -q -p distlock --no-default-features";
        assert_eq!(shown, [bare.into(), format!("{bare} --features config"), format!("{bare} --features redis")]);
    }
}
