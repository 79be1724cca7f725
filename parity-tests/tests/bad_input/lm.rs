//! Language models.

use super::*;

pub(super) fn lm(_: &mut Bed<'_>) {}
