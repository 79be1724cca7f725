//! Optimizer steps with moments in 8-bit codes or bf16: signatures and checks.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;
use crate::ops::optimizer::*;
use crate::ops::random::Rng;

io_struct! {
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
}

/// Elements that share a scale in [`PackedSlot`].
pub const PACKED_BLOCK: usize = 256;

op_family! {
    /// Optimizer steps with packed moments. What [`Step`] holds acts as in [`OptimizerOps::optimizer_step`].
    pub trait PackedOptimizerOps : Optimizer => PACKED_OPTIMIZER_OPS {
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
            rng: Option<Rng<'_>>,
            params: &mut [PackedSlot<'_>],
        ) -> Result<()>;
    }
}

/// Checks of [`PackedOptimizerOps::optimizer_step_packed`].
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
    check_numbers(OP, step, params.first().map(|p| p.w.dtype()))?;
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
