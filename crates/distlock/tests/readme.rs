//! The README's snippet is the one that the examples run.

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
