//! Language models.

use super::*;

pub(super) const ROWS: &[Row] = &[];
