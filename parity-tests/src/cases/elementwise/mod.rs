//! Functions of one, two and three tensors, casts.

use super::Kernel;

mod binary;
mod unary;

pub(super) const TABLES: &[&[&[Kernel]]] = &[binary::ROWS, unary::ROWS];
