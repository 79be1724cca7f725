//! Optimizers of second order.
