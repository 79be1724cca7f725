//! Optimizer steps with sparse gradients, on the rows that a batch touched: signatures and checks.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;
use crate::ops::optimizer::*;

io_struct! {
    /// A parameter of which a batch touched some rows; all its views are contiguous.
    #[derive(Debug)]
    pub struct RowSlot<'a> {
        /// Parameter `[N, ..]`, updated in place: f32, f16, bf16 or f64.
        pub w: ViewMut<'a>,
        /// Rows that the gradient has, `[k]` in any order, repeated ones too: i32 or i64.
        pub ids: View<'a>,
        /// Gradient of these rows `[k, ..]`; those of one id are added up first. f32, f16, bf16 or f64, as in [`ParamSlot`].
        pub rows: View<'a>,
        /// State of the shape of `w` in the order of [`OptimRule::states`], f32 (f64 for f64 parameters).
        pub state: [Option<ViewMut<'a>>; STATES] = [const { None }; STATES],
        /// f16 or bf16 copy of the parameter; its touched rows are written in the same pass.
        pub copy: Option<ViewMut<'a>>,
    }
}

op_family! {
    /// Optimizer steps with sparse gradients. What [`Step`] holds acts as in [`OptimizerOps::optimizer_step`].
    pub trait SparseOptimizerOps : Optimizer => SPARSE_OPTIMIZER_OPS {
        /// One step of `rule` for the rows that `ids` name; all others keep parameter and state, so that decay and momentum act when a row is
        /// touched. Gradients of one row are added up in the order of their positions, in f32 (f64). Rules that act per element: all but LARS,
        /// LAMB, Adan, Sophia and adaptive ones. An id out of range changes nothing and is reported as `IndexOutOfRange` by the next call that
        /// waits. Oracle `torch.optim.SparseAdam` (whose eps is outside of the bias correction), else the dense rule on these rows.
        fn optimizer_step_rows(&self, rule: &OptimRule, step: &Step<'_>, param: RowSlot<'_>) -> Result<()>;
    }
}

/// Checks of [`SparseOptimizerOps::optimizer_step_rows`]: number of rows and their length.
pub(crate) fn check_rows(rule: &OptimRule, step: &Step<'_>, p: &RowSlot<'_>) -> Result<[usize; 2]> {
    const OP: &str = "optimizer_step_rows";
    if let OptimRule::Lars { .. }
    | OptimRule::Lamb { .. }
    | OptimRule::Adan { .. }
    | OptimRule::Sophia { .. }
    | OptimRule::SophiaCurvature { .. }
    | OptimRule::Adaptive(_) = rule
    {
        return Err(GpuError::invalid(OP, "rule", "a rule that has a sparse form", format!("{rule:?}")));
    }
    check_shared(OP, rule, step)?;
    if step.numbers.is_some() {
        return Err(GpuError::invalid(OP, "numbers", "nothing: a step of rows takes its rate and count by value", "numbers"));
    }
    let w = p.w.as_view();
    check_grad_type(OP, "rows", &w, &p.rows)?;
    let [n, tail @ ..] = w.shape() else {
        return Err(GpuError::invalid(OP, "w", "at least one axis", "a scalar"));
    };
    check::one_of(OP, "ids", &p.ids, &[DType::I32, DType::I64])?;
    let k = p.ids.numel();
    check::shape(OP, "ids", &p.ids, &[k])?;
    check::shape(OP, "rows", &p.rows, &[&[k], tail].concat())?;
    let mut vectors = vec![("w", w), ("rows", p.rows), ("ids", p.ids)];
    let states = check_states(OP, rule.states(), &p.state, &w)?;
    for (arg, v) in &states {
        check::shape(OP, arg, v, w.shape())?;
    }
    vectors.extend(states);
    if let Some(c) = &p.copy {
        let v = c.as_view();
        check::one_of(OP, "copy", &v, &[DType::F16, DType::Bf16])?;
        check::shape(OP, "copy", &v, w.shape())?;
        vectors.push(("copy", v));
    }
    check_apart(OP, &vectors)?;
    Ok([*n, tail.iter().product()])
}
