//! Convolution.

use super::Kernel;

pub(super) const ROWS: &[&[Kernel]] = &[];
