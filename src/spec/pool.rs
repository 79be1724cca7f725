//! Kernels of pooling.

use super::kernels;

kernels! {
    family: Pool;
}
