//! HIP on CUDA.
