//! Order.

use super::*;

pub(super) fn sort(_: &mut Bed<'_>) {}
