//! Recurrent networks.

use super::*;

pub(super) fn rnn(_: &mut Bed<'_>) {}
