//! Functions of `kernels/common/random`.

/// Continuous distributions, by the name of their C function.
pub(crate) const DISTRIBUTIONS: &[&str] =
    &["gk_rand_uniform", "gk_rand_normal", "gk_rand_exponential", "gk_rand_gumbel"];
