//! Language models: signatures and checks.

op_family! {
    /// Rotary embedding, mixture of experts, fused output losses.
    pub trait LmOps : Lm => LM_OPS {
    }
}
