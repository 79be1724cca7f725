//! Proof machinery of trefoil: golden suites, random parity against the CPU in f64, finite differences.
//!
//! See `README.md` of this crate for what runs when, and for the format of reports.

pub mod backends;
pub mod cases;
pub mod compare;
pub mod device;
pub mod gradient;
pub mod oracle;
pub mod record;
pub mod reference;
pub mod report;
pub mod runner;
pub mod sampler;
pub mod suite;
pub mod suites;
pub mod tolerance;
pub mod units;
pub mod variants;
