//! Layers, autograd and training.
