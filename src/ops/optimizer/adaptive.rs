//! Optimizers that estimate their own step size: signatures and checks.

use crate::buffer::ViewMut;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::check;
use crate::ops::optimizer::*;

op_family! {
    /// Optimizers that estimate their own step size. What [`Step`] holds acts as in [`OptimizerOps::optimizer_step`].
    pub trait AdaptiveOptimizerOps : Optimizer => ADAPTIVE_OPTIMIZER_OPS {
        /// One step of a rule that keeps numbers in `memory` (one per name of [`AdaptiveRule::memory`], f32, or f64 for f64 parameters).
        /// Products and norms run over all tensors of the list, in a fixed order, without a host read.
        fn adaptive_step(
            &self,
            rule: &AdaptiveRule,
            step: &Step<'_>,
            memory: ViewMut<'_>,
            params: &mut [ParamSlot<'_>],
        ) -> Result<()>;
    }
}

/// Checks of [`AdaptiveOptimizerOps::adaptive_step`].
pub(crate) fn check_adaptive(
    rule: &AdaptiveRule,
    step: &Step<'_>,
    memory: &ViewMut<'_>,
    params: &[ParamSlot<'_>],
) -> Result<()> {
    const OP: &str = "adaptive_step";
    check_shared(OP, &OptimRule::Adaptive(*rule), step)?;
    check_numbers(OP, step, params.first().map(|p| p.w.dtype()))?;
    let vectors = check_slots(OP, rule.states(), params)?;
    let m = memory.as_view();
    check::one_of(OP, "memory", &m, &[DType::F32, DType::F64])?;
    check::shape(OP, "memory", &m, &[rule.memory().len()])?;
    check::contiguous(OP, "memory", &m)?;
    if let Some(p) = params.first() {
        check::dtype(OP, "memory", &m, p.w.dtype().accumulator())?;
    }
    check::separate_output(OP, "memory", memory, &vectors)
}
