//! Recurrent layers.

pub(crate) mod bidirectional;
pub(crate) mod cells;
pub(crate) mod conv_lstm;
pub(crate) mod reservoir;
pub(crate) mod stack;
