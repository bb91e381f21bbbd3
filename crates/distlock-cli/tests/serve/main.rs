//! `distlock serve` with real clients: HTTP, Python and Node, on real servers, with processes that are stopped and killed.
#![allow(missing_docs)]

mod clients;
mod distrust;
mod faults;
mod input;
mod kit;
mod life;
mod places;
mod schema;
