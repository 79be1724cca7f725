//! Order: signatures and checks.

op_family! {
    /// Sorting, selection and search.
    pub trait SortOps : Sort => SORT_OPS {
    }
}
