//! Optimizer steps in other forms: with numbers that are kept between steps, on the rows that a batch touched, with packed states.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;
use crate::ops::optimizer::*;
use crate::ops::optimizer_rules::*;
use crate::ops::random::Rng;

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
    pub state: [Option<ViewMut<'a>>; STATES],
    /// f16 or bf16 copy of the parameter; its touched rows are written in the same pass.
    pub copy: Option<ViewMut<'a>>,
}

/// A parameter whose moments are stored in fewer bits; all its views are contiguous.
#[derive(Debug)]
pub struct PackedSlot<'a> {
    /// Parameter `[n]`, updated in place: f32, f16 or bf16.
    pub w: ViewMut<'a>,
    /// Gradient, in dtypes as in [`ParamSlot`].
    pub g: View<'a>,
    /// First moment: bf16, or u8 codes. In every slot of a call the same, and the same as `v`.
    pub m: ViewMut<'a>,
    /// Second moment.
    pub v: ViewMut<'a>,
    /// For codes: largest |m|, then largest sqrt(v), of each block of [`PACKED_BLOCK`] elements, `[2, ceil(n / PACKED_BLOCK)]` f32.
    pub scales: Option<ViewMut<'a>>,
    /// f16 or bf16 copy of the new parameter, written in the same pass.
    pub copy: Option<ViewMut<'a>>,
}

/// Elements that share a scale in [`PackedSlot`].
pub const PACKED_BLOCK: usize = 256;

op_family! {
    /// Optimizer steps in other forms. What [`Step`] holds acts as in [`OptimizerOps::optimizer_step`].
    pub trait OptimizerFormOps : Optimizer => OPTIMIZER_FORM_OPS {
        /// One step of a rule that keeps numbers in `memory` (one per name of [`AdaptiveRule::memory`], f32, or f64 for f64 parameters).
        /// Products and norms run over all tensors of the list, in a fixed order, without a host read.
        fn adaptive_step(
            &self,
            rule: &AdaptiveRule,
            step: &Step<'_>,
            memory: ViewMut<'_>,
            params: &mut [ParamSlot<'_>],
        ) -> Result<()>;
        /// One step of `rule` for the rows that `ids` name; all others keep parameter and state, so that decay and momentum act when a row is
        /// touched. Gradients of one row are added up in the order of their positions, in f32 (f64). Rules that act per element: all but LARS,
        /// LAMB, Adan, Sophia and adaptive ones. An id out of range changes nothing and is reported as `IndexOutOfRange` by the next call that
        /// waits. Oracle `torch.optim.SparseAdam` (whose eps is outside of the bias correction), else the dense rule on these rows.
        fn optimizer_step_rows(&self, rule: &OptimRule, step: &Step<'_>, param: RowSlot<'_>) -> Result<()>;
        /// One step of Adam or AdamW with moments in bf16 or in 8-bit codes. States start as zeros, u8 ones too.
        ///
        /// Codes (Dettmers et al., 2022, with other codes): per block of [`PACKED_BLOCK`] elements m = c/127 times the largest |m|, c a signed
        /// byte, and v = (c/255 times the largest sqrt(v))^2. A v above 0 never becomes 0, which would make the next step huge.
        ///
        /// With `rng` v is rounded at random between its neighbours, so that increments below their distance add up: element i of
        /// tensor j (empty ones do not count) uses word i%4 of block offset + i/4 of stream + j, and is rounded up where u is below the fraction.
        /// Without, to nearest.
        fn optimizer_step_packed(
            &self,
            rule: &OptimRule,
            step: &Step<'_>,
            rng: Option<&Rng<'_>>,
            params: &mut [PackedSlot<'_>],
        ) -> Result<()>;
    }
}

/// Checks of [`OptimizerFormOps::adaptive_step`].
pub(crate) fn check_adaptive(
    rule: &AdaptiveRule,
    step: &Step<'_>,
    memory: &ViewMut<'_>,
    params: &[ParamSlot<'_>],
) -> Result<()> {
    const OP: &str = "adaptive_step";
    check_shared(OP, &OptimRule::Adaptive(*rule), step)?;
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

/// Checks of [`OptimizerFormOps::optimizer_step_rows`]: number of rows and their length.
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

/// Checks of [`OptimizerFormOps::optimizer_step_packed`].
pub(crate) fn check_packed(
    rule: &OptimRule,
    step: &Step<'_>,
    rng: Option<&Rng<'_>>,
    params: &[PackedSlot<'_>],
) -> Result<()> {
    const OP: &str = "optimizer_step_packed";
    if !matches!(rule, OptimRule::Adam { .. } | OptimRule::AdamW { .. }) {
        return Err(GpuError::invalid(OP, "rule", "Adam or AdamW", format!("{rule:?}")));
    }
    check_shared(OP, rule, step)?;
    if let Some(v) = rng.and_then(|r| r.device_offset.as_ref()) {
        one(OP, "rng", v, DType::I64)?;
    }
    let mut written = vec![];
    let types =
        |p: &PackedSlot<'_>| (p.w.dtype(), p.g.dtype(), p.m.dtype(), p.copy.as_ref().map(ViewMut::dtype));
    let first = params.first().map(types);
    for p in params {
        let w = p.w.as_view();
        check::one_of(OP, "w", &w, &[DType::F32, DType::F16, DType::Bf16])?;
        check_grad_type(OP, "g", &w, &p.g)?;
        let (m, v) = (p.m.as_view(), p.v.as_view());
        check::one_of(OP, "m", &m, &[DType::Bf16, DType::U8])?;
        check::dtype(OP, "v", &v, m.dtype())?;
        if first != Some(types(p)) {
            return Err(GpuError::invalid(OP, "params", "the same dtypes in every slot", w.dtype().name()));
        }
        let mut vectors = vec![("w", w), ("g", p.g), ("m", m), ("v", v)];
        if let Some(c) = &p.copy {
            let c = c.as_view();
            check::one_of(OP, "copy", &c, &[DType::F16, DType::Bf16])?;
            vectors.push(("copy", c));
        }
        for (arg, v) in &vectors {
            if v.numel() != w.numel() {
                let (want, got) = (format!("{} elements", w.numel()), format!("{}", v.numel()));
                return Err(GpuError::invalid(OP, arg, want, got));
            }
        }
        match (&p.scales, m.dtype()) {
            (Some(s), DType::U8) => {
                let s = s.as_view();
                check::dtype(OP, "scales", &s, DType::F32)?;
                check::shape(OP, "scales", &s, &[2, w.numel().div_ceil(PACKED_BLOCK)])?;
                vectors.push(("scales", s));
            }
            (None, DType::U8) => {
                return Err(GpuError::invalid(OP, "scales", "scales of the codes", "nothing"));
            }
            (Some(_), _) => return Err(GpuError::invalid(OP, "scales", "nothing beside bf16", "scales")),
            (None, _) => {}
        }
        check_apart(OP, &vectors)?;
        written.push(w);
    }
    distinct(OP, "w", written.iter())
}
