//! Kernels of normalization.

use super::kernels;

kernels! {
    family: Norm;
}
