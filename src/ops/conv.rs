//! Convolution: signatures and checks.

op_family! {
    /// Convolution of one to three axes, its transpose, and their unfolded form.
    pub trait ConvOps : Conv => CONV_OPS {
    }
}
