//! Attention.

use super::*;

pub(super) fn attention(_: &mut Bed<'_>) {}
