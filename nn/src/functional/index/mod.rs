//! Reading and writing elements by index or mask.

mod flat;
mod gather;
pub(crate) mod range;
pub(crate) mod select;
