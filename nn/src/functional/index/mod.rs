//! Reading and writing elements by index or mask.

mod gather;
pub(crate) mod range;
pub(crate) mod select;
