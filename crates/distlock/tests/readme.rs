//! The README's snippet is the one that the examples run, and its table of features is what cargo says.
//!
//! `DISTLOCK_WRITE_README=1 cargo test -p distlock --test readme` writes the table anew.

use std::collections::BTreeSet;
use std::process::Command;

const BEGIN: &str = "<!-- weight begin -->\n";
const END: &str = "<!-- weight end -->";

fn read(path: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    std::fs::read_to_string(format!("{root}/{path}")).expect(path)
}

#[test]
fn the_readme_snippet_is_the_example() {
    let readme = read("README.md");
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a snippet");
    let example = read("crates/distlock/examples/five_lines.rs");
    let run = example.split("// README begin\n").nth(1).and_then(|rest| rest.split("// README end").next());
    let run: Vec<_> = run.expect("the marked lines").lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let shown: Vec<_> = shown.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(shown, run);
}

/// Returns how many crates the library is built from with these features, itself included.
fn crates(features: &str) -> usize {
    let arguments = ["tree", "--offline", "--locked", "-p", "distlock", "-e", "normal", "--prefix", "none"];
    let tree = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--no-default-features", "--features", features])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo tree");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let names = String::from_utf8(tree.stdout).expect("text");
    names.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect::<BTreeSet<_>>().len()
}

fn weight_table() -> String {
    let bare = crates("");
    let mut table = format!("| feature | crates | more |\n|---|---|---|\n| none: memory and file | {bare} | – |\n");
    for (features, shown) in [
        ("config", "`config` (default)"),
        ("redis", "`redis`"),
        ("etcd", "`etcd`"),
        ("postgres", "`postgres`"),
        ("redis,tls", "`redis` and `tls`"),
        ("metrics", "`metrics`"),
        ("serde,blocking,spans", "`serde`, `blocking`, `spans`"),
        ("config,redis,etcd,postgres,tls,metrics,serde,blocking,spans", "all"),
    ] {
        let count = crates(features);
        table += &format!("| {shown} | {count} | {} |\n", count - bare);
    }
    table
}

#[test]
fn the_readme_says_what_each_feature_weighs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = read("README.md");
    let (before, rest) = readme.split_once(BEGIN).expect("where the table begins");
    let (shown, after) = rest.split_once(END).expect("where it ends");
    let table = weight_table();
    if std::env::var_os("DISTLOCK_WRITE_README").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).expect("written");
        return;
    }
    assert_eq!(shown, table, "write it anew with DISTLOCK_WRITE_README=1, see CONTRIBUTING.md");
}
