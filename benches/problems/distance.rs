//! Distances.

use super::*;

pub(super) const ROWS: &[Row] = &[];
