//! Language models.

use super::Kernel;

pub(super) const ROWS: &[&[Kernel]] = &[];
