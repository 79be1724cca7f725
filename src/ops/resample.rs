//! Resampling: signatures and checks.

op_family! {
    /// Interpolation and sampling of images and volumes.
    pub trait ResampleOps : Resample => RESAMPLE_OPS {
    }
}
