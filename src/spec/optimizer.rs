//! Names of the update rules in `kernels/common/optimizer/*rules.h`.

/// Update rules, by the name of their C function.
pub(crate) const RULES: &[&str] = &[
    "gk_rule_sgd",
    "gk_rule_momentum",
    "gk_rule_adam",
    "gk_rule_adamw",
    "gk_rule_amsgrad",
    "gk_rule_nadam",
    "gk_rule_radam",
    "gk_rule_asgd",
    "gk_rule_rprop",
    "gk_rule_adamax",
    "gk_rule_lamb",
    "gk_rule_lars",
    "gk_rule_rmsprop",
    "gk_rule_rmsprop_momentum",
    "gk_rule_rmsprop_centered",
    "gk_rule_rmsprop_centered_momentum",
    "gk_rule_adagrad",
    "gk_rule_adadelta",
    "gk_rule_lion",
    "gk_rule_ftrl",
    "gk_rule_prox_elastic",
    "gk_rule_prox_box",
];

/// Update rules with up to four states or with numbers kept between steps, by the name of their C function.
pub(crate) const ADAPTIVE_RULES: &[&str] = &[
    "gk_rule_adan",
    "gk_rule_sophia",
    "gk_rule_curvature",
    "gk_rule_hyper",
    "gk_rule_free_sgd",
    "gk_rule_free_adamw",
    "gk_rule_dadapt_sgd",
    "gk_rule_dadapt_adam",
    "gk_rule_prodigy",
];

/// Rules with a sparse form, in the order of the numbers in `optimizer/sparse.c`.
pub(crate) const SPARSE_RULES: &[&str] = &[
    "gk_rule_sgd",
    "gk_rule_momentum",
    "gk_rule_adam",
    "gk_rule_adamw",
    "gk_rule_amsgrad",
    "gk_rule_nadam",
    "gk_rule_radam",
    "gk_rule_asgd",
    "gk_rule_rprop",
    "gk_rule_adamax",
    "gk_rule_rmsprop",
    "gk_rule_rmsprop_momentum",
    "gk_rule_rmsprop_centered",
    "gk_rule_rmsprop_centered_momentum",
    "gk_rule_adagrad",
    "gk_rule_adadelta",
    "gk_rule_lion",
    "gk_rule_ftrl",
    "gk_rule_prox_elastic",
    "gk_rule_prox_box",
];
