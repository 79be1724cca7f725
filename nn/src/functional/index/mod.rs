//! Reading and writing elements by index or mask.

mod gather;
mod select;
