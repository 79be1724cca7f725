//! Attention: signatures and checks.

op_family! {
    /// Scaled dot-product attention.
    pub trait AttentionOps : Attention => ATTENTION_OPS {
    }
}
