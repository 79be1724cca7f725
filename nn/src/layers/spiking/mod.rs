//! Spiking neurons.

pub(crate) mod layer;
pub(crate) mod neuron;
pub(crate) mod surrogate;
