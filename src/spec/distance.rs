//! Kernels of distances.

use super::kernels;

kernels! {
    family: Distance;
}
