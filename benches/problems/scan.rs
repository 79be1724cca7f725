//! Scans and segments.

use super::*;

pub(super) const ROWS: &[Row] = &[];
