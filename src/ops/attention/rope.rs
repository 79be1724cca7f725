//! Rotary position embedding: signatures and checks.

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// Which elements of a head form a pair that is rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RopeLayout {
    /// i and i + R/2 (GPT-NeoX, Llama in its Hugging Face form).
    #[default]
    Half,
    /// 2i and 2i + 1 (GPT-J).
    Interleaved,
}

/// Rotary position embedding (Su et al., 2021, arXiv 2104.09864): pair i of R/2 is rotated by position * base^(-2i/R).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rope {
    /// Pairs.
    pub layout: RopeLayout,
    /// Base of the frequencies, above 0.
    pub base: f64,
    /// R: leading elements of a head that are rotated, even; `None` is all. The others pass.
    pub rotary_dim: Option<usize>,
    /// Position of the first token where no positions are given.
    pub offset: i64,
}

impl Rope {
    /// Halves, base 10000, the whole head, from position 0.
    pub const fn new() -> Self {
        Rope { layout: RopeLayout::Half, base: 10_000.0, rotary_dim: None, offset: 0 }
    }

    /// Sets the pairs.
    pub const fn layout(mut self, layout: RopeLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets the base.
    pub const fn base(mut self, base: f64) -> Self {
        self.base = base;
        self
    }

    /// Sets R.
    pub const fn rotary_dim(mut self, dim: usize) -> Self {
        self.rotary_dim = Some(dim);
        self
    }

    /// Sets the first position.
    pub const fn offset(mut self, offset: i64) -> Self {
        self.offset = offset;
        self
    }

    /// Turns per position of each pair.
    pub(crate) fn frequencies(&self, r: usize) -> impl Iterator<Item = f64> + use<> {
        let base = self.base;
        (0..r / 2).map(move |i| base.powf(-2.0 * i as f64 / r as f64) / std::f64::consts::TAU)
    }
}

impl Default for Rope {
    fn default() -> Self {
        Rope::new()
    }
}

/// Sizes of a checked rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RopeSize {
    pub(crate) b: usize,
    pub(crate) l: usize,
    pub(crate) h: usize,
    pub(crate) d: usize,
    pub(crate) r: usize,
    /// Step of the positions from batch to batch.
    pub(crate) step: usize,
}

op_family! {
    /// Rotary position embedding.
    pub trait RopeOps : Attention => ROPE_OPS {
        /// y = x with its pairs rotated: (a, b) -> (a cos - b sin, a sin + b cos). x and y [B, L, H, D] of any strides with a step of 1 along the last axis; y
        /// may be x. `positions` i32 `[L]` or [B, L]; without it `offset + l`. Angles are exact to f32 whatever the position. Oracle: the formula.
        fn rope(&self, p: &Rope, x: View<'_>, positions: Option<View<'_>>, y: ViewMut<'_>) -> Result<()>;
        /// Gradient of [`RopeOps::rope`]: the rotation by the negative angles.
        fn rope_bwd(&self, p: &Rope, dy: View<'_>, positions: Option<View<'_>>, dx: GradMut<'_>) -> Result<()>;
    }
}

/// Checks of [`RopeOps::rope`] and its gradient.
pub(crate) fn check_rope(
    op: &'static str,
    p: &Rope,
    (arg, x): (&'static str, &View<'_>),
    positions: Option<&View<'_>>,
    (name, y): (&'static str, &ViewMut<'_>),
) -> Result<RopeSize> {
    let &[b, l, h, d] = x.shape() else {
        return Err(GpuError::invalid(op, arg, "rank 4: [B, L, H, D]", format!("shape {:?}", x.shape())));
    };
    let v = y.as_view();
    check::float(op, arg, x)?;
    check::shape(op, name, &v, x.shape())?;
    check::dtype(op, name, &v, x.dtype())?;
    for (arg, v) in [(arg, x), (name, &v)] {
        let s = v.layout().strides();
        if v.numel() > 0 && d > 1 && s[3] != 1 {
            return Err(GpuError::invalid(
                op,
                arg,
                "a step of 1 along the last axis",
                format!("strides {s:?}"),
            ));
        }
    }
    let r = p.rotary_dim.unwrap_or(d);
    if !r.is_multiple_of(2) || r > d {
        return Err(GpuError::invalid(op, "rotary_dim", format!("an even number up to {d}"), format!("{r}")));
    }
    if !(p.base > 0.0 && p.base.is_finite()) {
        return Err(GpuError::invalid(op, "base", "a finite number above 0", format!("{}", p.base)));
    }
    if p.offset.checked_add_unsigned(l as u64).is_none() {
        let expected = format!("an offset that leaves {l} positions below 2^63");
        return Err(GpuError::invalid(op, "offset", expected, format!("{}", p.offset)));
    }
    let mut step = 0;
    check::elementwise_output(op, name, y, &[(arg, *x)])?;
    if let Some(at) = positions {
        check::dtype(op, "positions", at, DType::I32)?;
        check::contiguous(op, "positions", at)?;
        if at.shape().len() == 2 {
            check::shape(op, "positions", at, &[b, l])?;
            step = l;
        } else {
            check::shape(op, "positions", at, &[l])?;
        }
        check::separate_output(op, name, y, &[("positions", *at)])?;
    }
    Ok(RopeSize { b, l, h, d, r, step })
}
