//! Kernels of meshes.

use super::kernels;

kernels! {
    family: Mesh;
}
