//! Kernels of scans and segments.

use super::kernels;

kernels! {
    family: Scan;
}
