//! Scans and segments.

use super::*;

pub(super) fn scan(_: &mut Bed<'_>) {}
