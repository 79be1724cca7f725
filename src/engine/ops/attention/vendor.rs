//! Attention by a vendor library: which calls it is asked for, what is done around its calls, and the check of its results.

use super::plan::{AttentionBwdProblem, VENDOR};
use super::{Call, UNBOUNDED, wide};
use crate::backend::BackendExt;
use crate::buffer::{Buffer, GradMut, View, ViewMut};
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
        if !self.lse.iter().all(|l| aligned16(l) && l.layout().is_contiguous()) {
            return Some("the logarithms do not lie side by side from a multiple of 16 bytes on");
        }
        None
    }
}

impl Call<'_> {
    /// Whether later keys are hidden, if that is all that is; else why the library is not asked.
    fn only_causal(&self, operands: &Operands<'_>) -> std::result::Result<bool, Reason> {
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
        if !problem.aligned || !operands.qkvo.iter().all(|t| wide(t) == 1) {
            return Err("rows do not begin at multiples of 16 bytes".into());
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
        let causal = self.only_causal(operands)?;
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

/// Operands of the problem that checks a library: q, k, v, o, the gradients of o, q, k and v, and the logarithms.
struct Checked {
    tensors: Vec<Buffer>,
    lse: Buffer,
}

impl Checked {
    fn new(engine: &Engine, dtype: DType) -> Result<Self> {
        let [b, heads, kv_heads, l, d] = CHECKED;
        let all = [heads, kv_heads, kv_heads, heads, heads, heads, kv_heads, kv_heads].into_iter().zip(1..);
        let noise = |(h, seed)| engine.noise(dtype, b * h * l * d, seed);
        let tensors = all.map(noise).collect::<Result<Vec<_>>>()?;
        Ok(Checked { tensors, lse: engine.scratch(DType::F32, b * heads * l)? })
    }

    fn shape(&self, i: usize) -> [usize; 4] {
        let [b, heads, kv_heads, l, d] = CHECKED;
        [b, if [1, 2, 6, 7].contains(&i) { kv_heads } else { heads }, l, d]
    }

    fn view(&self, i: usize) -> Result<View<'_>> {
        self.tensors[i].shaped(&self.shape(i))
    }

    fn target(&self, i: usize) -> Result<ViewMut<'_>> {
        self.tensors[i].alias_mut().reshape(&self.shape(i))
    }

    fn operands(&self) -> Result<Operands<'_>> {
        let [b, heads, _, l, _] = CHECKED;
        let qkvo = [self.view(0)?, self.view(1)?, self.view(2)?, self.view(3)?];
        Ok(Operands { qkvo, lse: Some(self.lse.shaped(&[b, heads, l])?) })
    }

    /// Runs the kernels of this library.
    fn run_own(&self, engine: &Engine, p: &Attention<'_>, backward: bool) -> Result<()> {
        let [b, heads, _, l, _] = CHECKED;
        let mut io = AttentionIo::new(self.view(0)?, self.view(1)?, self.view(2)?, self.target(3)?);
        io.lse = Some(self.lse.alias_mut().reshape(&[b, heads, l])?);
        engine.own_attention(p, io)?;
        if !backward {
            return Ok(());
        }
        let Operands { qkvo: [q, k, v, o], .. } = self.operands()?;
        let mut io = AttentionBwd::new(self.view(4)?, q, k, v, o, self.lse.shaped(&[b, heads, l])?);
        io.dq = Some(self.target(5)?.into());
        io.dk = Some(self.target(6)?.into());
        io.dv = Some(self.target(7)?.into());
        engine.own_attention_bwd(p, io)
    }

    /// What a pass writes.
    fn results(&self, engine: &Engine, backward: bool) -> Result<Vec<f64>> {
        let [o, dq, dk, dv] = [3, 5, 6, 7].map(|i| &self.tensors[i]);
        let written = if backward { vec![dq, dk, dv] } else { vec![o, &self.lse] };
        let mut values = vec![];
        for x in written {
            with_dtype!(x.dtype(), T =>
                values.extend(engine.download::<T>(x.view())?.into_iter().map(HostElement::to_f64)));
        }
        Ok(values)
    }
}

impl Engine {
    /// Compares a small problem of the same kind with the kernels of this library.
    fn vet_attention(&self, lib: &dyn VendorAttention, like: &VendorAttentionProblem) -> Result<bool> {
        let (p, backward) = (Attention::new().causal(Causal::TopLeft), like.gradients.is_some());
        let checked = Checked::new(self, like.dtype)?;
        checked.run_own(self, &p, backward)?;
        let want = checked.results(self, backward)?;
        let operands = checked.operands()?;
        let Operands { qkvo: [q, k, v, o], lse } = operands;
        let gradients = [checked.view(4)?, checked.view(5)?, checked.view(6)?, checked.view(7)?];
        let problem = operands.describe(true, backward.then(|| gradients.each_ref().map(tensor)));
        if let Err(why) = lib.applicable(&problem) {
            log::debug!("{}: the check's problem is refused: {why}", lib.name());
            return Ok(false);
        }
        let mut tensors = vec![q, k, v, o, lse.unwrap_or(o)];
        tensors.extend(gradients.iter().filter(|_| backward));
        self.dnn_call_attention(lib, &problem, p.factor(CHECKED[4]) as f32, &tensors)?;
        let tolerance = if like.dtype == DType::F16 { 4e-3 } else { 3e-2 };
        let close = |(g, w): (&f64, &f64)| (g - w).abs() <= tolerance * (1.0 + w.abs());
        Ok(checked.results(self, backward)?.iter().zip(&want).all(close))
    }
}
