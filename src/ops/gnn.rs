//! Graphs: signatures and checks.

op_family! {
    /// Message passing on graphs.
    pub trait GnnOps : Gnn => GNN_OPS {
    }
}
