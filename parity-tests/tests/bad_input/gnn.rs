//! Graphs.

use super::*;

pub(super) fn gnn(_: &mut Bed<'_>) {}
