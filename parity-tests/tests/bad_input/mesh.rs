//! Meshes.

use super::*;

pub(super) fn mesh(_: &mut Bed<'_>) {}
