//! Meshes: signatures and checks.

op_family! {
    /// Convolution on meshes.
    pub trait MeshOps : Mesh => MESH_OPS {
    }
}
