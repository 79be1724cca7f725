//! Functions of `kernels/common/state_space`.

/// What a step does to a state.
pub(crate) const STATE_RULES: &[&str] =
    &["gk_rule_gla", "gk_rule_gla_key", "gk_rule_delta", "gk_rule_selective", "gk_rule_ssd"];

/// Those whose factors are per head: matrix cores serve them.
pub(crate) const MATRIX_RULES: &[&str] = &["gk_rule_gla", "gk_rule_delta", "gk_rule_ssd"];

/// The rule whose gradients have a kernel of their own.
pub(crate) const SELECTIVE_RULE: &[&str] = &["gk_rule_selective"];

/// Those whose gradients share another one.
pub(crate) const LINEAR_RULES: &[&str] = &["gk_rule_gla", "gk_rule_gla_key", "gk_rule_delta", "gk_rule_ssd"];
