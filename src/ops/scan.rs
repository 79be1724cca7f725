//! Scans and segments: signatures and checks.

use crate::ops::check;
use crate::ops::shape::check_mode;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// The direction of [`ScanOps::cumsum`] along its axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CumSum {
    /// Each sum leaves its own element out.
    pub exclusive: bool,
    /// From the back to the front.
    pub reverse: bool,
}

impl CumSum {
    /// Inclusive, from the front.
    pub const fn new() -> Self {
        CumSum { exclusive: false, reverse: false }
    }

    /// Sets whether each sum leaves its own element out.
    pub const fn exclusive(mut self, on: bool) -> Self {
        self.exclusive = on;
        self
    }

    /// Sets whether the scan runs from the back to the front.
    pub const fn reverse(mut self, on: bool) -> Self {
        self.reverse = on;
        self
    }

    /// The scan that turns the result's gradient into the input's: the same in the other direction.
    pub const fn backward(self) -> Self {
        self.reverse(!self.reverse)
    }
}

/// What [`ScanOps::segment_reduce`] makes of the rows of a segment.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum SegmentReduce {
    /// sum
    Sum,
    /// mean
    Mean,
    /// maximum, NaN wins
    Max,
    /// minimum, NaN wins
    Min,
    /// variance over the number of rows (biased)
    Var,
    /// sqrt(variance + eps)
    Std {
        /// Added inside the root, at least 0.
        eps: f64,
    },
}

impl SegmentReduce {
    /// The number inside the root.
    pub(crate) fn eps(self) -> f64 {
        if let SegmentReduce::Std { eps } = self { eps } else { 0.0 }
    }

    fn check(self, op: &'static str) -> Result<()> {
        let eps = self.eps();
        if eps >= 0.0 && eps.is_finite() {
            return Ok(());
        }
        Err(GpuError::invalid(op, "eps", "a finite number of at least 0", format!("{eps}")))
    }
}

io_struct! {
    /// Operands of [`ScanOps::segment_reduce_bwd`].
    #[derive(Debug)]
    pub struct SegmentReduceBwd<'a> {
        /// Upstream gradient [M, ..].
        pub dy: View<'a>,
        /// Forward's input [n, ..]; not needed by Sum and Mean.
        pub x: Option<View<'a>>,
        /// Forward's offsets.
        pub offsets: View<'a>,
        /// Gradient of the input [n, ..].
        pub dx: GradMut<'a>,
    }
}

op_family! {
    /// Prefix sums and segment reductions. Operands are contiguous. Deterministic: additions happen in an order that depends on sizes alone.
    pub trait ScanOps : Scan => SCAN_OPS {
        /// `y[k]` = sum of `x[j]` over j <= k along `axis`; j < k with `exclusive`; from the other end with `reverse`. Floats keep their dtype;
        /// integers are summed in 64 bits (wrapping) into an output of their own dtype or i64. y may be x itself if it has its dtype.
        /// An infinity or NaN reaches what follows it and nothing else. The gradient is the same call with [`CumSum::backward`] on dy (nothing is saved).
        /// Errors: `Invalid` for axis, shape, dtype, layout, overlap. Oracle `torch.cumsum`.
        fn cumsum(&self, p: CumSum, axis: usize, x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// y\[s\] = reduction of the rows offsets\[s\] <= r < offsets[s + 1] of x [n, ..] into y [M, ..]; 0 for a segment without rows.
        /// `offsets` is i32 or i64 [M + 1] on the device, rising from 0 to n; an offset that is negative, beyond n or below its predecessor is
        /// `IndexOutOfRange`. x is f32, f16, bf16 or f64. Oracle `torch.segment_reduce`, `x[a:b].var(0, correction=0)`.
        fn segment_reduce(&self, op: SegmentReduce, x: View<'_>, offsets: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Sum: dx = dy; Mean: dy / n; Max, Min: dy in equal parts to the rows that have the extreme; Var: 2 (x - mean) dy / n;
        /// Std: (x - mean) dy / (n std). Rows of no segment get 0. Nothing but x is saved. Oracle: autograd of the reduction.
        fn segment_reduce_bwd(&self, op: SegmentReduce, io: SegmentReduceBwd<'_>) -> Result<()>;
    }
}

/// Checks of [`ScanOps::cumsum`]; [outer, size of the axis, inner].
pub(crate) fn check_cumsum(axis: usize, x: &View<'_>, y: &GradMut<'_>) -> Result<[usize; 3]> {
    const OP: &str = "cumsum";
    let v = y.out.as_view();
    check::axis(OP, x, axis)?;
    check::shape(OP, "y", &v, x.shape())?;
    match x.dtype() {
        d if d.is_float() || d == DType::I64 => check::dtype(OP, "y", &v, d)?,
        d => check::one_of(OP, "y", &v, &[d, DType::I64])?,
    }
    check_mode(OP, "y", y)?;
    check::contiguous(OP, "x", x)?;
    check::contiguous(OP, "y", &v)?;
    check::elementwise_output(OP, "y", &y.out, &[("x", *x)])?;
    let s = x.shape();
    Ok([s[..axis].iter().product(), s[axis], s[axis + 1..].iter().product()])
}

/// Rows, columns and segments of a checked call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segments {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) count: usize,
}

/// Rows [n, ..], offsets [M + 1] and one row per segment [M, ..].
fn check_segments(
    op: &'static str,
    rows: (&'static str, &View<'_>),
    offsets: &View<'_>,
    of: (&'static str, &View<'_>),
) -> Result<Segments> {
    check::float(op, rows.0, rows.1)?;
    check::one_of(op, "offsets", offsets, &[DType::I32, DType::I64])?;
    let Some((&n, rest)) = rows.1.shape().split_first() else {
        return Err(GpuError::invalid(op, rows.0, "at least one axis", "none"));
    };
    let count = match offsets.shape() {
        [l] if *l > 0 => l - 1,
        s => {
            return Err(GpuError::invalid(
                op,
                "offsets",
                "a vector of at least one offset",
                format!("shape {s:?}"),
            ));
        }
    };
    let want: Vec<usize> = std::iter::once(count).chain(rest.iter().copied()).collect();
    check::shape(op, of.0, of.1, &want)?;
    check::dtype(op, of.0, of.1, rows.1.dtype())?;
    for (arg, v) in [rows, ("offsets", offsets), of] {
        check::contiguous(op, arg, v)?;
    }
    if count > i32::MAX as usize - 2 {
        return Err(GpuError::invalid(op, "offsets", "fewer than 2^31 segments", format!("{count}")));
    }
    Ok(Segments { rows: n, cols: rest.iter().product(), count })
}

/// Checks of [`ScanOps::segment_reduce`].
pub(crate) fn check_segment_reduce(
    op: SegmentReduce,
    x: &View<'_>,
    offsets: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<Segments> {
    const OP: &str = "segment_reduce";
    op.check(OP)?;
    let s = check_segments(OP, ("x", x), offsets, ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("x", *x), ("offsets", *offsets)])?;
    Ok(s)
}

/// Checks of [`ScanOps::segment_reduce_bwd`].
pub(crate) fn check_segment_reduce_bwd(op: SegmentReduce, io: &SegmentReduceBwd<'_>) -> Result<Segments> {
    const OP: &str = "segment_reduce_bwd";
    op.check(OP)?;
    let v = io.dx.out.as_view();
    let s = check_segments(OP, ("dx", &v), &io.offsets, ("dy", &io.dy))?;
    let mut inputs = vec![("dy", io.dy), ("offsets", io.offsets)];
    match &io.x {
        Some(x) => {
            check::shape(OP, "x", x, v.shape())?;
            check::dtype(OP, "x", x, v.dtype())?;
            check::contiguous(OP, "x", x)?;
            inputs.push(("x", *x));
        }
        None if matches!(op, SegmentReduce::Sum | SegmentReduce::Mean) => {}
        None => return Err(GpuError::invalid(OP, "x", "the forward's input", "None")),
    }
    check::separate_output(OP, "dx", &io.dx.out, &inputs)?;
    Ok(s)
}
