//! Pooling: signatures and checks.

op_family! {
    /// Pooling with windows, adaptive and global.
    pub trait PoolOps : Pool => POOL_OPS {
    }
}
