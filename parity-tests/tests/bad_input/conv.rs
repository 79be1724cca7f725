//! Convolution.

use super::*;

pub(super) fn conv(_: &mut Bed<'_>) {}
