//! Normalization: signatures and checks.

op_family! {
    /// Normalization over batches, rows, groups and instances.
    pub trait NormOps : Norm => NORM_OPS {
    }
}
