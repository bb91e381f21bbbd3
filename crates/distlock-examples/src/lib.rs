//! Examples that need crates which the library's own tests do not need: see `examples/`.
