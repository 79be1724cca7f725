//! Unit tests of modules that need nothing else of the crate, compiled here with their modules: the whole library is not built a second time for
//! them.
#![allow(missing_docs, dead_code, unreachable_pub)]

#[path = "../src/glob.rs"]
mod glob;
#[path = "../src/plot.rs"]
mod plot;
