//! Models of other programs.

pub mod loom;
pub mod volta;
