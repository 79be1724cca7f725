//! Attention by a vendor library: which calls it is asked for, what is done around its calls, and the check of its results.

use super::plan::{AttentionBwdProblem, VENDOR};
use super::{Call, UNBOUNDED, wide};
use crate::backend::BackendExt;
use crate::buffer::{Buffer, GradMut, View};
use crate::cpu::{HostElement, with_dtype};
use crate::driver::{AttentionTensor, VendorAttention, VendorAttentionProblem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::aligned16;
use crate::engine::plan::{Problem, Reason};
use crate::error::Result;
use crate::ops::attention::*;
use crate::ops::shape::ShapeOps;

/// Multiplications of the scores from which on the library is faster than the kernels of this one.
const LARGE: usize = 1 << 28;

/// The library's problem, or why it is not asked.
pub(super) type VendorAnswer = std::result::Result<VendorAttentionProblem, Reason>;

/// A tensor as the library is told of it. Strides of extents of 1 are as if the tensor was packed.
fn tensor(v: &View<'_>) -> AttentionTensor {
    let (n, s) = (v.shape(), v.layout().strides());
    let mut t = AttentionTensor { extents: [1; 4], strides: [1; 4] };
    for a in (0..4.min(n.len())).rev() {
        t.extents[a] = n[a];
        let packed = if a == 3 { 1 } else { t.extents[a + 1] * t.strides[a + 1] };
        t.strides[a] = if n[a] == 1 { packed } else { s[a] };
    }
    t
}

/// A gradient as the library writes it: apart, where it is added to another.
fn target(g: &GradMut<'_>) -> AttentionTensor {
    let mut t = tensor(&g.out.as_view());
    if g.accumulate {
        t = AttentionTensor::packed(t.extents);
    }
    t
}

/// The tensors of a call: q, k, v, o, and the logarithms where they are wanted.
pub(super) struct Operands<'a> {
    pub(super) qkvo: [View<'a>; 4],
    pub(super) lse: Option<View<'a>>,
}

impl Operands<'_> {
    fn describe(&self, causal: bool, gradients: Option<[AttentionTensor; 4]>) -> VendorAttentionProblem {
        let [q, k, v, o] = self.qkvo.each_ref().map(tensor);
        let (logarithms, dtype) = (self.lse.is_some(), self.qkvo[0].dtype());
        VendorAttentionProblem { q, k, v, o, gradients, logarithms, causal, dtype }
    }

    /// Why the library cannot take the operands.
    fn refused(&self) -> Option<&'static str> {
        if !self.qkvo.iter().all(|t| wide(t) == 1) {
            return Some("rows do not begin at multiples of 16 bytes");
        }
        if !self.lse.iter().all(|l| aligned16(l) && l.layout().is_contiguous()) {
            return Some("the logarithms do not lie side by side from a multiple of 16 bytes on");
        }
        None
    }
}

impl Call<'_> {
    /// Whether later keys are hidden, if that is all that is; else why the library is not asked.
    fn only_causal(&self) -> std::result::Result<bool, Reason> {
        let (b, s) = (&self.base, &self.size);
        let problem = &self.problem;
        if !problem.plain {
            return Err(
                "scores have a bias, a mask, a soft cap, dropout or a factor that is not positive".into()
            );
        }
        if self.packed || self.lengths {
            return Err("sequences have lengths".into());
        }
        if !problem.aligned {
            return Err("rows of gradients do not begin at multiples of 16 bytes".into());
        }
        match (b.left as usize, b.right as usize) {
            (UNBOUNDED, UNBOUNDED) => Ok(false),
            (UNBOUNDED, 0) if b.bottom == 0 || s.lq == s.lk => Ok(true),
            _ => Err("keys are visible within a window".into()),
        }
    }

    /// What a vendor's library is asked for, or why it is not.
    fn wanted<P: Problem>(
        &self,
        variant: usize,
        operands: &Operands<'_>,
        gradients: Option<[AttentionTensor; 4]>,
    ) -> std::result::Result<(&dyn VendorAttention, VendorAttentionProblem), Reason> {
        let engine = self.engine;
        if self.own {
            return Err("the kernels of this library are asked".into());
        }
        if !engine.may_take::<P>(self.op, variant) {
            return Err("another variant is pinned".into());
        }
        let lib = engine.driver().vendor_attention().map_err(|why| why.to_string())?;
        let causal = self.only_causal()?;
        if let Some(why) = operands.refused() {
            return Err(why.into());
        }
        let s = &self.size;
        let sides = [s.outer, s.heads, s.lq, s.lk, s.d.max(s.dv)];
        let work = sides.iter().fold(1usize, |a, &b| a.saturating_mul(b));
        if work < LARGE && !engine.must_take::<P>(self.op, variant) {
            return Err("the kernels of this library are faster where there is little to compute".into());
        }
        Ok((lib, operands.describe(causal, gradients)))
    }

    /// The vendor's part in a call, once its results were checked.
    pub(super) fn vendor<P: Problem>(
        &self,
        variant: usize,
        operands: &Operands<'_>,
        gradients: Option<[AttentionTensor; 4]>,
    ) -> VendorAnswer {
        let (lib, p) = self.wanted::<P>(variant, operands, gradients)?;
        self.engine.dnn_takes_attention(lib, &p, || self.engine.vet_attention(lib, &p))?;
        Ok(p)
    }

    /// The vendor's part in gradients: all three of q, k and v at once.
    pub(super) fn vendor_bwd(&self, operands: &Operands<'_>, io: &AttentionBwd<'_>) -> VendorAnswer {
        let (Some(dq), Some(dk), Some(dv), None) = (&io.dq, &io.dk, &io.dv, &io.dbias) else {
            return Err("other gradients than those of q, k and v are wanted".into());
        };
        let gradients = [tensor(&io.dout), target(dq), target(dk), target(dv)];
        self.vendor::<AttentionBwdProblem<'_>>(VENDOR, operands, Some(gradients))
    }

    fn library(&self) -> Result<&dyn VendorAttention> {
        self.engine.driver().vendor_attention().map_err(|why| self.engine.no_variant(self.op, why.into()))
    }

    /// The result, and the logarithms where they are wanted.
    pub(super) fn run_vendor(&self, p: &VendorAttentionProblem, operands: &Operands<'_>) -> Result<()> {
        let [q, k, v, o] = operands.qkvo;
        // Without logarithms the graph has no tensor of theirs.
        let tensors = [q, k, v, o, operands.lse.unwrap_or(o)];
        self.engine.dnn_call_attention(self.library()?, p, self.base.scale as f32, &tensors)
    }

    /// Gradients of q, k and v; what is added to is computed apart.
    pub(super) fn run_vendor_bwd(
        &self,
        p: &VendorAttentionProblem,
        operands: &Operands<'_>,
        dout: View<'_>,
        gradients: [GradMut<'_>; 3],
    ) -> Result<()> {
        let mut parts: [Option<Buffer>; 3] = [None, None, None];
        for (part, g) in parts.iter_mut().zip(&gradients) {
            if g.accumulate {
                *part = Some(self.engine.scratch(self.dtype, g.out.as_view().numel())?);
            }
        }
        let mut targets = [operands.qkvo[0]; 3];
        for (i, (g, part)) in gradients.iter().zip(&parts).enumerate() {
            targets[i] = match part {
                Some(part) => part.view().reshape(g.out.as_view().shape())?,
                None => g.out.as_view(),
            };
        }
        let [dq, dk, dv] = targets;
        let [q, k, v, o] = operands.qkvo;
        let tensors = [q, k, v, o, operands.lse.unwrap_or(o), dout, dq, dk, dv];
        self.engine.dnn_call_attention(self.library()?, p, self.base.scale as f32, &tensors)?;
        for (target, g) in targets.into_iter().zip(gradients) {
            if g.accumulate {
                self.engine.strided_copy(target, g)?;
            }
        }
        Ok(())
    }
}

/// Batches, heads, heads of keys, queries and keys, columns of the problem that checks a library.
const CHECKED: [usize; 5] = [2, 4, 2, 160, 64];

impl Engine {
    /// Compares a small problem of the same kind with the kernels of this library.
    fn vet_attention(&self, lib: &dyn VendorAttention, like: &VendorAttentionProblem) -> Result<bool> {
        let [b, h, kv, l, d] = CHECKED;
        let (dtype, p) = (like.dtype, Attention::new().causal(Causal::TopLeft));
        let (wide, narrow) = ([b, h, l, d], [b, kv, l, d]);
        let noise = |heads: usize, seed| self.noise(dtype, b * heads * l * d, seed);
        let (q, k, v, dout) = (noise(h, 1)?, noise(kv, 2)?, noise(kv, 3)?, noise(h, 4)?);
        let (q, dout) = (q.shaped(&wide)?, dout.shaped(&wide)?);
        let (k, v) = (k.shaped(&narrow)?, v.shaped(&narrow)?);
        let (o, lse) = (noise(h, 5)?, self.scratch(DType::F32, b * h * l)?);
        let read = |all: &[&Buffer]| -> Result<Vec<f64>> {
            let mut values = vec![];
            for x in all {
                with_dtype!(x.dtype(), T =>
                    values.extend(self.download::<T>(x.view())?.into_iter().map(HostElement::to_f64)));
            }
            Ok(values)
        };
        let mut io = AttentionIo::new(q, k, v, o.alias_mut().reshape(&wide)?);
        io.lse = Some(lse.alias_mut().reshape(&[b, h, l])?);
        self.own_attention(&p, io)?;
        let operands = Operands { qkvo: [q, k, v, o.shaped(&wide)?], lse: Some(lse.shaped(&[b, h, l])?) };
        let scale = p.factor(d) as f32;
        let base = [q, k, v, o.shaped(&wide)?, lse.shaped(&[b, h, l])?];
        if like.gradients.is_none() {
            let want = read(&[&o, &lse])?;
            let problem = operands.describe(true, None);
            if !self.checkable(lib, &problem) {
                return Ok(false);
            }
            self.dnn_call_attention(lib, &problem, scale, &base)?;
            return Ok(close(dtype, &read(&[&o, &lse])?, &want));
        }
        let (dq, dk, dv) = (noise(h, 6)?, noise(kv, 7)?, noise(kv, 8)?);
        let mut io = AttentionBwd::new(dout, q, k, v, operands.qkvo[3], lse.shaped(&[b, h, l])?);
        io.dq = Some(dq.alias_mut().reshape(&wide)?.into());
        io.dk = Some(dk.alias_mut().reshape(&narrow)?.into());
        io.dv = Some(dv.alias_mut().reshape(&narrow)?.into());
        self.own_attention_bwd(&p, io)?;
        let want = read(&[&dq, &dk, &dv])?;
        let gradients = [dout, dq.shaped(&wide)?, dk.shaped(&narrow)?, dv.shaped(&narrow)?];
        let problem = operands.describe(true, Some(gradients.each_ref().map(tensor)));
        if !self.checkable(lib, &problem) {
            return Ok(false);
        }
        let tensors = [base.as_slice(), &gradients].concat();
        self.dnn_call_attention(lib, &problem, scale, &tensors)?;
        Ok(close(dtype, &read(&[&dq, &dk, &dv])?, &want))
    }

    fn checkable(&self, lib: &dyn VendorAttention, p: &VendorAttentionProblem) -> bool {
        let refused = |why: &String| log::debug!("{}: the check's problem is refused: {why}", lib.name());
        lib.applicable(p).inspect_err(refused).is_ok()
    }
}

/// Whether results of one kind of arithmetic agree.
fn close(dtype: DType, got: &[f64], want: &[f64]) -> bool {
    let tolerance = if dtype == DType::F16 { 4e-3 } else { 3e-2 };
    got.iter().zip(want).all(|(g, w)| (g - w).abs() <= tolerance * (1.0 + w.abs()))
}
