//! Builds the library with the primitives of shuttle: see `crates/distlock/src/sync.rs`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=shuttle");
    // The library's features belong to the other package; this one has none.
    println!("cargo::rustc-check-cfg=cfg(feature, values(any()))");
}
