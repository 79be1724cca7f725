//! Random numbers and dropout, all from Philox4x32-10 (Salmon et al., 2011), equal on every backend.
//!
//! Element i uses block `offset + i/4` (mod 2^64) and word `i % 4` of philox(counter = [block lo, block hi, stream lo, stream hi],
//! key = [seed lo, seed hi]). A call over n elements consumes ceil(n/4) blocks unless stated.

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

io_struct! {
    /// Where a random call reads its numbers.
    #[derive(Debug, Clone, Copy)]
    pub struct Rng<'a> {
        /// Key.
        pub seed: u64,
        /// Upper half of the counter: an independent sequence.
        pub stream: u64 = 0,
        /// Lower half of the counter at which the call starts.
        pub offset: u64 = 0,
        /// One i64 on the device that is added to `offset`, so that a recorded launch can draw new numbers.
        pub device_offset: Option<View<'a>>,
    }
}

impl Rng<'_> {
    /// The same with another stream and offset.
    pub const fn at(mut self, stream: u64, offset: u64) -> Self {
        self.stream = stream;
        self.offset = offset;
        self
    }
}

/// Distributions of [`RandomOps::random`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Distribution {
    /// Raw words as i32 bit patterns.
    Bits,
    /// [lo, hi)
    Uniform {
        /// lower bound, included
        lo: f64,
        /// upper bound, excluded
        hi: f64,
    },
    /// Box-Muller on word pairs
    Normal {
        /// mean
        mean: f64,
        /// standard deviation
        std: f64,
    },
    /// u8: u < p
    Bernoulli {
        /// probability of 1
        p: f64,
    },
    /// integers in [lo, hi) (i32 or i64) by multiply-high
    Int {
        /// lower bound, included
        lo: i64,
        /// upper bound, excluded; hi - lo at most 2^32
        hi: i64,
    },
    /// -ln(u)/rate, u in (0, 1]
    Exponential {
        /// rate, above 0
        rate: f64,
    },
    /// -ln(-ln u)
    Gumbel,
}

/// The keep mask that dropout's backward uses.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum DropoutMask<'a> {
    /// u8 mask written by the forward.
    Saved(View<'a>),
    /// Regenerated from the forward's generator state.
    Regenerate(Rng<'a>),
}

/// Weights of [`RandomOps::categorical`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Weights<'a> {
    /// Non-negative weights [rows, K]: inverse CDF over running f32 sums.
    Probs(View<'a>),
    /// Logits [rows, K]: Gumbel-max with element row*K + k (one sample per row).
    Logits(View<'a>),
}

io_struct! {
    /// Operands of [`RandomOps::bias_dropout`], contiguous floats of one dtype.
    #[derive(Debug)]
    pub struct BiasDropout<'a> {
        /// Input, at least one axis.
        pub x: View<'a>,
        /// One entry per column of the last axis.
        pub bias: View<'a>,
        /// Added at the end, x's shape.
        pub residual: Option<View<'a>>,
        /// Result, x's shape.
        pub y: ViewMut<'a>,
        /// Keep mask (u8), x's shape.
        pub mask: Option<ViewMut<'a>>,
    }
}

op_family! {
    /// Random numbers. Contiguous outputs. Oracle: the definitions above.
    pub trait RandomOps : Random => RANDOM_OPS {
        /// Fills y with independent draws; dtypes as the distribution says (floats for the continuous ones).
        fn random(&self, dist: Distribution, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()>;
        /// `y[i] = u_i < p[i]` (u8) with a tensor of probabilities of y's shape.
        fn bernoulli(&self, p: View<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()>;
        /// A permutation of 0..n (i32 or i64): element i has the key `(w[2i], w[2i+1], i)`; y lists the elements by rising key. Consumes ceil(n/2) blocks.
        fn permutation(&self, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y [rows, n] (i64 or i32) samples per row. Probs: sample i = row*n + j counts the k with cum_k <= u_i * total; a row without weight is `IndexOutOfRange`.
        fn categorical(&self, weights: Weights<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y = keep ? x/(1-p) : 0, keep iff u < 1-p (both f32); optionally the u8 mask. p in [0, 1], p = 1 gives zeros. Oracle: mask from the definition.
        fn dropout(&self, p: f64, rng: Rng<'_>, x: View<'_>, y: ViewMut<'_>, mask: Option<ViewMut<'_>>) -> Result<()>;
        /// dx = keep ? dy/(1-p) : 0.
        fn dropout_bwd(&self, p: f64, mask: DropoutMask<'_>, dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// y = residual + dropout(x + bias), bias over the last axis; optionally the u8 mask. Otherwise as [`RandomOps::dropout`].
        fn bias_dropout(&self, p: f64, rng: Rng<'_>, io: BiasDropout<'_>) -> Result<()>;
        /// dx = keep ? dy/(1-p) : 0 and dbias = the sum of dx (as stored) over the leading axes; the residual's gradient is dy.
        fn bias_dropout_bwd(&self, p: f64, mask: DropoutMask<'_>, dy: View<'_>, dx: Option<GradMut<'_>>, dbias: Option<GradMut<'_>>) -> Result<()>;
    }
}

/// dtypes that a distribution fills.
fn outputs(dist: Distribution) -> &'static [DType] {
    match dist {
        Distribution::Bits => &[DType::I32],
        Distribution::Bernoulli { .. } => &[DType::U8],
        Distribution::Int { .. } => &[DType::I32, DType::I64],
        _ => &[DType::F32, DType::F16, DType::Bf16, DType::F64],
    }
}

pub(crate) fn check_rng(op: &'static str, rng: &Rng<'_>) -> Result<()> {
    let Some(v) = &rng.device_offset else { return Ok(()) };
    check::dtype(op, "rng.device_offset", v, DType::I64)?;
    if v.numel() == 1 { Ok(()) } else { check::shape(op, "rng.device_offset", v, &[1]) }
}

fn check_probability(op: &'static str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(GpuError::invalid(op, "p", "a probability in [0, 1]", format!("{p}")))
}

/// Checks of [`RandomOps::random`].
pub(crate) fn check_random(dist: Distribution, rng: &Rng<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "random";
    let v = y.as_view();
    check_rng(OP, rng)?;
    check::one_of(OP, "y", &v, outputs(dist))?;
    check::contiguous(OP, "y", &v)?;
    let bad = |arg, want: &str, got: String| Err(GpuError::invalid(OP, arg, want, got));
    match dist {
        Distribution::Uniform { lo, hi } if !(lo <= hi && (hi - lo).is_finite()) => {
            bad("hi", "a finite bound not below lo", format!("lo {lo}, hi {hi}"))
        }
        Distribution::Int { lo, hi } if hi <= lo || hi.wrapping_sub(lo) as u64 > 1 << 32 => {
            bad("hi", "a bound above lo by at most 2^32", format!("lo {lo}, hi {hi}"))
        }
        Distribution::Int { lo, hi }
            if v.dtype() == DType::I32 && (lo < i32::MIN as i64 || hi > i32::MAX as i64 + 1) =>
        {
            bad("hi", "bounds that i32 holds", format!("lo {lo}, hi {hi}"))
        }
        Distribution::Exponential { rate } if rate.is_nan() || rate <= 0.0 => {
            bad("rate", "a positive rate", format!("{rate}"))
        }
        Distribution::Normal { std, .. } if std.is_nan() || std < 0.0 => {
            bad("std", "a deviation not below 0", format!("{std}"))
        }
        Distribution::Bernoulli { p } => check_probability(OP, p),
        _ => Ok(()),
    }
}

/// Checks of [`RandomOps::bernoulli`].
pub(crate) fn check_bernoulli(p: &View<'_>, rng: &Rng<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "bernoulli";
    let v = y.as_view();
    check_rng(OP, rng)?;
    check::one_of(OP, "p", p, &[DType::F32, DType::F16, DType::Bf16])?;
    check::dtype(OP, "y", &v, DType::U8)?;
    check::shape(OP, "y", &v, p.shape())?;
    check::contiguous(OP, "p", p)?;
    check::contiguous(OP, "y", &v)?;
    check::separate_output(OP, "y", y, &[("p", *p)])
}

/// Checks of [`RandomOps::permutation`].
pub(crate) fn check_permutation(rng: &Rng<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "permutation";
    let v = y.as_view();
    check_rng(OP, rng)?;
    check::one_of(OP, "y", &v, &[DType::I32, DType::I64])?;
    check::contiguous(OP, "y", &v)?;
    if v.shape().len() != 1 {
        return Err(GpuError::invalid(OP, "y", "a vector", format!("shape {:?}", v.shape())));
    }
    if v.numel() > i32::MAX as usize {
        return Err(GpuError::invalid(OP, "y", "at most 2^31 - 1 elements", format!("{}", v.numel())));
    }
    Ok(())
}

/// Checks of [`RandomOps::categorical`]; returns rows, K and samples per row.
pub(crate) fn check_categorical(w: &Weights<'_>, rng: &Rng<'_>, y: &ViewMut<'_>) -> Result<[usize; 3]> {
    const OP: &str = "categorical";
    let (Weights::Probs(p) | Weights::Logits(p)) = w;
    let v = y.as_view();
    check_rng(OP, rng)?;
    check::float(OP, "weights", p)?;
    check::contiguous(OP, "weights", p)?;
    check::one_of(OP, "y", &v, &[DType::I32, DType::I64])?;
    check::contiguous(OP, "y", &v)?;
    let &[rows, k] = p.shape() else {
        return Err(GpuError::invalid(OP, "weights", "shape [rows, K]", format!("{:?}", p.shape())));
    };
    let count = match v.shape() {
        &[r] if r == rows => 1,
        &[r, n] if r == rows => n,
        s => return Err(GpuError::invalid(OP, "y", format!("shape [{rows}, n]"), format!("{s:?}"))),
    };
    if k == 0 {
        return Err(GpuError::invalid(OP, "weights", "at least one class", format!("{:?}", p.shape())));
    }
    if matches!(w, Weights::Logits(_)) && count != 1 {
        return Err(GpuError::invalid(OP, "y", "one sample per row of logits", format!("{count}")));
    }
    check::separate_output(OP, "y", y, &[("weights", *p)])?;
    Ok([rows, k, count])
}

/// Checks of [`RandomOps::dropout`].
pub(crate) fn check_dropout(
    p: f64,
    rng: &Rng<'_>,
    x: &View<'_>,
    y: &ViewMut<'_>,
    mask: Option<&ViewMut<'_>>,
) -> Result<()> {
    const OP: &str = "dropout";
    check_probability(OP, p)?;
    check_rng(OP, rng)?;
    dropout_pair(OP, x, ("y", y))?;
    let Some(m) = mask else { return Ok(()) };
    let v = m.as_view();
    check::dtype(OP, "mask", &v, DType::U8)?;
    check::shape(OP, "mask", &v, x.shape())?;
    check::contiguous(OP, "mask", &v)?;
    check::separate_output(OP, "mask", m, &[("x", *x), ("y", y.as_view())])
}

/// Checks of [`RandomOps::dropout_bwd`].
pub(crate) fn check_dropout_bwd(
    p: f64,
    mask: &DropoutMask<'_>,
    dy: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<()> {
    const OP: &str = "dropout_bwd";
    check_probability(OP, p)?;
    dropout_pair(OP, dy, ("dx", &dx.out))?;
    match mask {
        DropoutMask::Regenerate(rng) => check_rng(OP, rng),
        DropoutMask::Saved(m) => {
            check::dtype(OP, "mask", m, DType::U8)?;
            check::shape(OP, "mask", m, dy.shape())?;
            check::contiguous(OP, "mask", m)?;
            check::separate_output(OP, "dx", &dx.out, &[("mask", *m)])
        }
    }
}

/// Checks of [`RandomOps::bias_dropout`].
pub(crate) fn check_bias_dropout(p: f64, rng: &Rng<'_>, io: &BiasDropout<'_>) -> Result<()> {
    const OP: &str = "bias_dropout";
    check_probability(OP, p)?;
    check_rng(OP, rng)?;
    dropout_pair(OP, &io.x, ("y", &io.y))?;
    let Some(&n) = io.x.shape().last() else {
        return Err(GpuError::invalid(OP, "x", "at least one axis", "a scalar"));
    };
    let v = io.y.as_view();
    check::shape(OP, "bias", &io.bias, &[n])?;
    check::dtype(OP, "bias", &io.bias, io.x.dtype())?;
    check::contiguous(OP, "bias", &io.bias)?;
    check::separate_output(OP, "y", &io.y, &[("bias", io.bias)])?;
    let mut inputs = vec![("x", io.x), ("bias", io.bias), ("y", v)];
    if let Some(r) = io.residual {
        check::shape(OP, "residual", &r, io.x.shape())?;
        check::dtype(OP, "residual", &r, io.x.dtype())?;
        check::contiguous(OP, "residual", &r)?;
        check::elementwise_output(OP, "y", &io.y, &[("residual", r)])?;
        inputs.push(("residual", r));
    }
    let Some(m) = &io.mask else { return Ok(()) };
    let v = m.as_view();
    check::dtype(OP, "mask", &v, DType::U8)?;
    check::shape(OP, "mask", &v, io.x.shape())?;
    check::contiguous(OP, "mask", &v)?;
    check::separate_output(OP, "mask", m, &inputs)
}

/// Checks of [`RandomOps::bias_dropout_bwd`].
pub(crate) fn check_bias_dropout_bwd(
    p: f64,
    mask: &DropoutMask<'_>,
    dy: &View<'_>,
    dx: Option<&GradMut<'_>>,
    dbias: Option<&GradMut<'_>>,
) -> Result<()> {
    const OP: &str = "bias_dropout_bwd";
    check_probability(OP, p)?;
    check::float(OP, "dy", dy)?;
    check::contiguous(OP, "dy", dy)?;
    let Some(&n) = dy.shape().last() else {
        return Err(GpuError::invalid(OP, "dy", "at least one axis", "a scalar"));
    };
    let mut inputs = vec![("dy", *dy)];
    match mask {
        DropoutMask::Regenerate(rng) => check_rng(OP, rng)?,
        DropoutMask::Saved(m) => {
            check::dtype(OP, "mask", m, DType::U8)?;
            check::shape(OP, "mask", m, dy.shape())?;
            check::contiguous(OP, "mask", m)?;
            inputs.push(("mask", *m));
        }
    }
    for (arg, g, shape) in [("dx", dx, dy.shape()), ("dbias", dbias, &[n][..])] {
        let Some(g) = g else { continue };
        let v = g.out.as_view();
        check::shape(OP, arg, &v, shape)?;
        check::dtype(OP, arg, &v, dy.dtype())?;
        check::contiguous(OP, arg, &v)?;
        check::separate_output(OP, arg, &g.out, &inputs)?;
        inputs.push((arg, v));
    }
    Ok(())
}

fn dropout_pair(op: &'static str, x: &View<'_>, (arg, y): (&'static str, &ViewMut<'_>)) -> Result<()> {
    let v = y.as_view();
    check::float(op, "x", x)?;
    check::contiguous(op, "x", x)?;
    check::dtype(op, arg, &v, x.dtype())?;
    check::shape(op, arg, &v, x.shape())?;
    check::contiguous(op, arg, &v)?;
    check::elementwise_output(op, arg, y, &[("x", *x)])
}
