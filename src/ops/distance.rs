//! Distances: signatures and checks.

op_family! {
    /// Distances and similarities of vectors.
    pub trait DistanceOps : Distance => DISTANCE_OPS {
    }
}
