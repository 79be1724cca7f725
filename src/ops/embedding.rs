//! Embedding: signatures and checks.

op_family! {
    /// Table lookup and its sparse gradient.
    pub trait EmbeddingOps : Embedding => EMBEDDING_OPS {
    }
}
