//! Kernels of attention.

use super::kernels;

kernels! {
    family: Attention;
}
