//! Has the library take its primitives from shuttle: see `crates/distlock/src/sync.rs`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=shuttle");
    // Its features belong to the other package; here it has none.
    println!("cargo::rustc-check-cfg=cfg(feature, values(any()))");
}
