//! Normalization.

use super::*;

pub(super) fn norm(_: &mut Bed<'_>) {}
