//! Tools for tests, of this crate and of what builds on it; no program needs them.
//!
//! [`MockDriver`] stands in for a device: it records what an engine asks for and fails on request. [`Recorder`] tells which operations a
//! composition uses. [`driver_suite`] is what every implementation of [`Driver`](crate::driver::Driver) has to pass.

mod driver_suite;
mod mock;
mod recorder;

pub use driver_suite::driver_suite;
pub use mock::{Call, MockDriver, OwnedArg};
pub use recorder::Recorder;
