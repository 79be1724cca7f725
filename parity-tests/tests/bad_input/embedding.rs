//! Embedding.

use super::*;

pub(super) fn embedding(_: &mut Bed<'_>) {}
