//! Resampling.

use super::*;

pub(super) fn resample(_: &mut Bed<'_>) {}
