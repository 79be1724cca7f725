//! Kernels of graphs.

use super::kernels;

kernels! {
    family: Gnn;
}
