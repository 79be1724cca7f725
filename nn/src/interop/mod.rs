//! Models of other programs.

#[cfg(feature = "loom")]
pub mod loom;
#[cfg(feature = "volta")]
pub mod volta;
