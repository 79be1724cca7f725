//! Conditional random fields.

mod constraints;
pub(crate) mod field;
mod lattice;

pub use self::constraints::TagScheme;
