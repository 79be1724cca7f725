//! Pooling.

use super::*;

pub(super) fn pool(_: &mut Bed<'_>) {}
