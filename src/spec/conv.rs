//! Kernels of convolution.

use super::kernels;

kernels! {
    family: Conv;
}
