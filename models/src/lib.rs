//! The protocols as models, each a test: every order of messages, losses and pauses within small bounds. A crate of its
//! own, since a checker wants optimised code.
