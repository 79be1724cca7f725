//! Elementwise operations.

pub(crate) mod arithmetic;
pub(crate) mod radial;
mod special;
