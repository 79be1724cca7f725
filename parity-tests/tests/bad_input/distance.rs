//! Distances.

use super::*;

pub(super) fn distance(_: &mut Bed<'_>) {}
