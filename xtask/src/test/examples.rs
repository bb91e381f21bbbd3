//! The step that runs every example but services, and compares its output with the README.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Outcome, suite};
use crate::cmd::Cmd;
use crate::manifest;
use crate::tally::Tally;

/// An example that hangs must not hang the run.
const LONGEST: Duration = Duration::from_secs(60);

/// Services, which do not end by themselves: their own tests run them.
const SERVICES: [&str; 2] = ["orders", "service"];

/// An example of one of the crates.
#[derive(Debug, PartialEq, Eq)]
struct Example {
    package: String,
    name: String,
}

impl Example {
    /// Returns the command to type.
    fn cmd(&self) -> Cmd {
        Cmd::cargo(&["run", "-q", "-p", &self.package, "--all-features", "--example", &self.name])
    }

    /// Returns the built example: compiled for its package alone, half the dependencies would be built again.
    fn built(&self) -> Cmd {
        Cmd::new(&suite::target_directory().join("debug/examples").join(&self.name).to_string_lossy())
    }
}

/// Builds all examples and runs those that end, even after a failure.
pub(super) fn run() -> Outcome {
    let readme = fs::read_to_string("README.md").unwrap_or_default();
    let examples = find(Path::new("crates"));
    if examples.is_empty() {
        println!("no examples found");
    }
    let mut again = Vec::new();
    let build = Cmd::cargo(&["build", "-q", "--workspace", "--all-features", "--examples"]);
    if !build.succeeds() {
        return Outcome::new(Tally::one(false), build.to_string());
    }
    for example in examples.iter().filter(|example| !SERVICES.contains(&example.name.as_str())) {
        if let Err(problem) = check(example, &readme) {
            eprintln!("example {}: {problem}", example.name);
            again.push(example.cmd().to_string());
        }
    }
    for name in promised(&readme).filter(|name| examples.iter().all(|example| example.name != *name)) {
        eprintln!("README.md shows the output of the example {name}, and there is no such example");
        again.push("cargo xtask test examples".into());
    }
    Outcome { tally: Tally::one(again.is_empty()), again }
}

fn check(example: &Example, readme: &str) -> Result<(), String> {
    println!("example {}", example.name);
    let printed = example.built().limit(LONGEST).read().ok_or("it failed")?;
    match expected(readme, &example.name)? {
        Some(expected) if !is_same(&expected, &printed) => {
            Err(format!("README.md says that it prints\n{expected}\nbut it printed\n{printed}"))
        }
        _ => Ok(()),
    }
}

fn is_same(expected: &str, printed: &str) -> bool {
    expected.trim_end().lines().map(str::trim_end).eq(printed.trim_end().lines().map(str::trim_end))
}

const MARKER: &str = "<!-- output: example ";

/// Returns the names of the examples whose output the README shows.
fn promised(readme: &str) -> impl Iterator<Item = &str> {
    readme.lines().filter_map(|line| line.trim().strip_prefix(MARKER)?.strip_suffix("-->")).map(str::trim)
}

/// Returns the fenced block after the example's marker, if there is a marker.
fn expected(readme: &str, name: &str) -> Result<Option<String>, String> {
    let marker = format!("{MARKER}{name} -->");
    let mut lines = readme.lines().skip_while(|line| line.trim() != marker).skip(1);
    if !readme.lines().any(|line| line.trim() == marker) {
        return Ok(None);
    }
    if !lines.find(|line| !line.trim().is_empty()).is_some_and(|line| line.starts_with("```")) {
        return Err(format!("no fenced block follows `{marker}` in README.md"));
    }
    Ok(Some(lines.take_while(|line| !line.starts_with("```")).map(|line| format!("{line}\n")).collect()))
}

fn find(crates: &Path) -> Vec<Example> {
    let mut found: Vec<Example> = children(crates).iter().flat_map(|directory| of_crate(directory)).collect();
    found.sort_by(|a, b| (&a.package, &a.name).cmp(&(&b.package, &b.name)));
    found
}

fn of_crate(directory: &Path) -> Vec<Example> {
    let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap_or_default();
    let Some(package) = manifest::package_name(&manifest) else { return Vec::new() };
    let is_example = |path: &PathBuf| path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists();
    let files = children(&directory.join("examples")).into_iter().filter(is_example);
    let names = files.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()));
    names.map(|name| Example { package: package.into(), name }).collect()
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str =
        "# x\n<!-- output: example hello -->\n\n```text\none\n\ntwo\n```\n<!-- output: example odd -->\nno\n";

    #[test]
    fn the_block_after_the_marker_is_the_expected_output() {
        assert_eq!(expected(README, "hello"), Ok(Some("one\n\ntwo\n".into())));
        assert_eq!(expected(README, "other"), Ok(None));
        assert!(expected(README, "odd").unwrap_err().contains("no fenced block"));
        assert_eq!(promised(README).collect::<Vec<_>>(), ["hello", "odd"]);
    }

    #[test]
    fn only_white_space_at_line_ends_may_differ() {
        assert!(is_same("one\ntwo\n", "one  \ntwo\n\n"));
        assert!(!is_same("one\ntwo\n", "one\n"));
        assert!(!is_same("one\n", "one\ntwo\n"));
    }

    #[test]
    fn examples_are_files_or_directories_with_a_main() {
        let root = std::env::temp_dir().join(format!("xtask-examples-{}", std::process::id()));
        let examples = root.join("some-directory/examples");
        fs::create_dir_all(examples.join("big")).unwrap();
        fs::create_dir_all(examples.join("data")).unwrap();
        fs::write(root.join("some-directory/Cargo.toml"), "[package]\nname = \"demo\"\n").unwrap();
        fs::write(examples.join("small.rs"), "").unwrap();
        fs::write(examples.join("big/main.rs"), "").unwrap();
        let example = |name: &str| Example { package: "demo".into(), name: name.into() };
        assert_eq!(find(&root), [example("big"), example("small")]);
        fs::remove_dir_all(root).unwrap();
    }
}
