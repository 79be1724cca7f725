//! Unit tests of modules that need nothing else of the crate, compiled here with their modules: the whole library is not built a second time for
//! them.
#![allow(missing_docs, dead_code, unreachable_pub)]

#[path = "../src/core/glob.rs"]
mod glob;
#[path = "../src/report/plot.rs"]
mod plot;
