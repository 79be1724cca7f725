//! Tools for tests, of this crate and of what builds on it; no program needs them.
//!
//! [`MockDriver`] stands in for a device: it records what an engine asks for and fails on request. [`Recorder`] tells which operations a
//! composition uses, [`Replayed`] makes a graph of each and replays it. [`driver_suite`] is what every implementation of [`Driver`](crate::driver::Driver) has to pass.

mod driver_suite;
mod mock;
mod recorder;
mod replayed;

pub use driver_suite::driver_suite;
pub use mock::{Call, MockDriver, OwnedArg};
pub use recorder::Recorder;
pub use replayed::Replayed;
pub(crate) use replayed::replayed_ops;
