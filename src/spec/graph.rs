//! Functions of `kernels/common/graph`.

/// What a message of `aggregate` can be, from the general one to those known when the unit is compiled.
pub(crate) const AGGREGATES: &[&str] = &["gk_agg_any", "gk_agg_copy", "gk_agg_scaled", "gk_agg_shared"];
/// Those of extremes, which have no degrees.
pub(crate) const EXTREME_AGGREGATES: &[&str] = &["gk_agg_any", "gk_agg_copy", "gk_agg_scaled"];

/// The general message alone.
pub(crate) const ANY_AGGREGATE: &[&str] = &["gk_agg_any"];
