//! Recurrent networks: signatures and checks.

op_family! {
    /// Recurrent cells and sequences.
    pub trait RnnOps : Rnn => RNN_OPS {
    }
}
