//! Scans and segments.

use super::Kernel;

pub(super) const ROWS: &[&[Kernel]] = &[];
