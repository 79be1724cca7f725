//! Kernels of resampling.

use super::kernels;

kernels! {
    family: Resample;
}
