//! The table of kernels.
