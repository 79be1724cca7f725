//! Engine.
mod ops;
/// Engine.
#[derive(Debug)]
pub struct Engine;
