//! Movement and creation. What a [`Layout`](crate::Layout) can express (reshape, permute, slice, expand, diagonal, windows, pixel shuffle)
//! is a view plus [`ShapeOps::strided_copy`](crate::ops::shape::ShapeOps::strided_copy); only the rest has kernels of its own.

use crate::ops::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// How [`ShapeOps::pad`] fills what lies outside.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum PadMode {
    /// A constant.
    Constant(f64),
    /// Mirrored without repeating the border; needs padding below the size.
    Reflect,
    /// The border value.
    Replicate,
    /// Wrapped around what negative padding leaves; needs padding not above its size.
    Circular,
}

/// Which triangle [`ShapeOps::triangle`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Triangle {
    /// On and below diagonal k.
    Lower,
    /// On and above diagonal k.
    Upper,
}

op_family! {
    /// Movement and creation: exact and deterministic, any dtype, any strides unless stated.
    pub trait ShapeOps : Shape => SHAPE_OPS {
        /// y = x element by element, both of one shape and dtype and of any strides (`x.contiguous()`, permute, transpose, slice, set_slice).
        /// Transposes go through tiles. With `accumulate` (floats only): y += x.
        fn strided_copy(&self, x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// Concatenates along `axis`; the other sizes agree; empty inputs are allowed. Oracle `torch.cat`.
        fn concat(&self, axis: usize, xs: &[View<'_>], y: ViewMut<'_>) -> Result<()>;
        /// y = value everywhere, converted to y's dtype (`full`, `zeros`). Integers take the truncated value.
        fn fill(&self, value: f64, y: ViewMut<'_>) -> Result<()>;
        /// y = the element with this bit pattern (little-endian, as many bytes as y's dtype has); keeps NaN payloads and i64 values (`fill_buffer`).
        fn fill_bytes(&self, pattern: &[u8], y: ViewMut<'_>) -> Result<()>;
        /// `y[i] = start + i*step` over a vector. Oracle `torch.arange`.
        fn arange(&self, start: f64, step: f64, y: ViewMut<'_>) -> Result<()>;
        /// `y[i]` from start to end in equal steps, computed from the nearer end, the ends exact. Oracle `torch.linspace`.
        fn linspace(&self, start: f64, end: f64, y: ViewMut<'_>) -> Result<()>;
        /// Pads axis i of x by `pads[i] = (before, after)`; negative crops. y has the padded shape. Oracle `F.pad`. `Invalid` for reflect padding
        /// not below the size, or circular padding above the size that cropping leaves (PyTorch reads uninitialised memory there).
        fn pad(&self, mode: PadMode, pads: &[(isize, isize)], x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradient of [`ShapeOps::pad`]: each cell of x gathers all positions that read it.
        fn pad_bwd(&self, mode: PadMode, pads: &[(isize, isize)], dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Reverses `axes`. Its own gradient. Oracle `torch.flip`.
        fn flip(&self, axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// Rotates `axes[i]` by `shifts[i]` (positive: towards higher positions). The gradient rolls by the negative. Oracle `torch.roll`.
        fn roll(&self, shifts: &[isize], axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// Keeps one triangle of the last two axes relative to diagonal `k`, zeros elsewhere. Its own gradient. Oracle `torch.tril`, `torch.triu`.
        fn triangle(&self, side: Triangle, k: isize, x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// Repeats each element of `axis`: `repeats` times, or `counts[i]` times (i32 per element; their sum must be y's size, which the
        /// device checks: a mismatch is `IndexOutOfRange`). Oracle `torch.repeat_interleave`.
        fn repeat_interleave(&self, axis: usize, repeats: usize, counts: Option<View<'_>>, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradient of [`ShapeOps::repeat_interleave`]: sums the copies.
        fn repeat_interleave_bwd(&self, axis: usize, repeats: usize, counts: Option<View<'_>>, dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Gradient of windows of `size` every `step` along `axis` (the window is dy's last axis): overlap-add into dx.
        fn unfold_bwd(&self, axis: usize, size: usize, step: usize, dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
    }
}

/// A gradient-mode output: accumulation is for floats.
pub(crate) fn check_mode(op: &'static str, arg: &'static str, y: &GradMut<'_>) -> Result<()> {
    if y.accumulate { check::float(op, arg, &y.out.as_view()) } else { Ok(()) }
}

/// Two operands of one shape and dtype, the second an output that may be exactly the first where `in_place`.
fn check_map(op: &'static str, x: &View<'_>, y: &GradMut<'_>, in_place: bool) -> Result<()> {
    let v = y.out.as_view();
    check::shape(op, "y", &v, x.shape())?;
    check::dtype(op, "y", &v, x.dtype())?;
    check_mode(op, "y", y)?;
    let inputs = [("x", *x)];
    match in_place {
        true => check::elementwise_output(op, "y", &y.out, &inputs),
        false => check::separate_output(op, "y", &y.out, &inputs),
    }
}

/// Checks of [`ShapeOps::strided_copy`].
pub(crate) fn check_strided_copy(x: &View<'_>, y: &GradMut<'_>) -> Result<()> {
    check_map("strided_copy", x, y, true)
}

/// Checks of [`ShapeOps::concat`].
pub(crate) fn check_concat(axis: usize, xs: &[View<'_>], y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "concat";
    let v = y.as_view();
    check::axis(OP, &v, axis)?;
    let mut total = 0;
    for x in xs {
        check::dtype(OP, "xs", x, v.dtype())?;
        let mut want = v.shape().to_vec();
        want[axis] = x.shape().get(axis).copied().unwrap_or(0);
        check::shape(OP, "xs", x, &want)?;
        total += want[axis];
    }
    let mut want = v.shape().to_vec();
    want[axis] = total;
    check::shape(OP, "y", &v, &want)?;
    let inputs: Vec<_> = xs.iter().map(|x| ("xs", *x)).collect();
    check::separate_output(OP, "y", y, &inputs)
}

/// Checks of [`ShapeOps::fill`].
pub(crate) fn check_fill(y: &ViewMut<'_>) -> Result<()> {
    check::separate_output("fill", "y", y, &[])
}

/// Checks of [`ShapeOps::fill_bytes`].
pub(crate) fn check_fill_bytes(pattern: &[u8], y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "fill_bytes";
    if pattern.len() != y.dtype().size() {
        let want = format!("{} bytes, one element of {}", y.dtype().size(), y.dtype());
        return Err(GpuError::invalid(OP, "pattern", want, format!("{}", pattern.len())));
    }
    check::separate_output(OP, "y", y, &[])
}

fn check_vector(op: &'static str, y: &ViewMut<'_>, params: [(&'static str, f64); 2]) -> Result<()> {
    if y.shape().len() != 1 {
        return Err(GpuError::invalid(op, "y", "a vector", format!("shape {:?}", y.shape())));
    }
    for (arg, value) in params {
        if !value.is_finite() || (!y.dtype().is_float() && (value.fract() != 0.0 || value.abs() > 9e15)) {
            let want = if y.dtype().is_float() { "a finite number" } else { "a whole number below 2^53" };
            return Err(GpuError::invalid(op, arg, want, format!("{value}")));
        }
    }
    check::separate_output(op, "y", y, &[])
}

/// Checks of [`ShapeOps::arange`].
pub(crate) fn check_arange(start: f64, step: f64, y: &ViewMut<'_>) -> Result<()> {
    if step == 0.0 {
        return Err(GpuError::invalid("arange", "step", "a step that is not 0", "0"));
    }
    check_vector("arange", y, [("start", start), ("step", step)])
}

/// Checks of [`ShapeOps::linspace`].
pub(crate) fn check_linspace(start: f64, end: f64, y: &ViewMut<'_>) -> Result<()> {
    check::float("linspace", "y", &y.as_view())?;
    check_vector("linspace", y, [("start", start), ("end", end)])
}

/// Sizes and pads of a padding: `x` is the smaller side (dx in the gradient), `y` the padded one (dy in the gradient).
fn check_pads(
    op: &'static str,
    padded: &'static str,
    mode: PadMode,
    pads: &[(isize, isize)],
    x: &[usize],
    y: &View<'_>,
) -> Result<()> {
    if pads.len() != x.len() {
        return Err(GpuError::invalid(op, "pads", format!("{} pairs", x.len()), format!("{}", pads.len())));
    }
    let mut want = vec![];
    for (&n, &(before, after)) in x.iter().zip(pads) {
        // At most the size may be mirrored (less one), what cropping leaves of it be wrapped.
        let most = match mode {
            PadMode::Reflect => (n as isize - 1).max(0),
            PadMode::Circular => (n as isize).saturating_add(before.min(0)).saturating_add(after.min(0)),
            _ => isize::MAX,
        };
        // What stands on one side alone must not leave the range either: kernels take places relative to it.
        let inside = |v: &isize| v.unsigned_abs() < 1 << 62;
        let size = [before, after].iter().all(inside).then(|| n as isize + before + after);
        let Some(size) = size.filter(|&s| s >= 0 && most >= 0 && before <= most && after <= most) else {
            let rule = if most == isize::MAX {
                "a size of at least 0".into()
            } else {
                format!("padding of at most {most}")
            };
            let got = format!("({before}, {after}) around {n}");
            return Err(GpuError::invalid(op, "pads", rule, got));
        };
        if n == 0 && size > 0 && !matches!(mode, PadMode::Constant(_)) {
            return Err(GpuError::invalid(
                op,
                "pads",
                "elements to repeat",
                format!("an axis of size 0 padded to {size}"),
            ));
        }
        want.push(size as usize);
    }
    check::shape(op, padded, y, &want)
}

/// Checks of [`ShapeOps::pad`].
pub(crate) fn check_pad(mode: PadMode, pads: &[(isize, isize)], x: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "pad";
    let v = y.as_view();
    check_pads(OP, "y", mode, pads, x.shape(), &v)?;
    check::dtype(OP, "y", &v, x.dtype())?;
    check::separate_output(OP, "y", y, &[("x", *x)])
}

/// Checks of [`ShapeOps::pad_bwd`].
pub(crate) fn check_pad_bwd(
    mode: PadMode,
    pads: &[(isize, isize)],
    dy: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<()> {
    const OP: &str = "pad_bwd";
    let v = dx.out.as_view();
    check::float(OP, "dy", dy)?;
    check_pads(OP, "dy", mode, pads, v.shape(), dy)?;
    check::dtype(OP, "dx", &v, dy.dtype())?;
    check::separate_output(OP, "dx", &dx.out, &[("dy", *dy)])
}

fn check_axes(op: &'static str, axes: &[usize], rank: usize) -> Result<()> {
    let repeated = axes.iter().enumerate().any(|(i, a)| axes[..i].contains(a));
    if repeated || axes.iter().any(|&a| a >= rank) {
        let want = format!("different axes below {rank}");
        return Err(GpuError::invalid(op, "axes", want, format!("{axes:?}")));
    }
    Ok(())
}

/// Checks of [`ShapeOps::flip`].
pub(crate) fn check_flip(axes: &[usize], x: &View<'_>, y: &GradMut<'_>) -> Result<()> {
    check_axes("flip", axes, x.shape().len())?;
    check_map("flip", x, y, false)
}

/// Checks of [`ShapeOps::roll`].
pub(crate) fn check_roll(shifts: &[isize], axes: &[usize], x: &View<'_>, y: &GradMut<'_>) -> Result<()> {
    check_axes("roll", axes, x.shape().len())?;
    if shifts.len() != axes.len() {
        let want = format!("{} shifts, one per axis", axes.len());
        return Err(GpuError::invalid("roll", "shifts", want, format!("{}", shifts.len())));
    }
    check_map("roll", x, y, false)
}

/// Checks of [`ShapeOps::triangle`].
pub(crate) fn check_triangle(x: &View<'_>, y: &GradMut<'_>) -> Result<()> {
    if x.shape().len() < 2 {
        return Err(GpuError::invalid(
            "triangle",
            "x",
            "at least two axes",
            format!("shape {:?}", x.shape()),
        ));
    }
    check_map("triangle", x, y, true)
}

/// Checks of a repetition: `x` has the elements (dx in the gradient), `y` the copies (dy in the gradient).
fn check_repeats(
    op: &'static str,
    copies: &'static str,
    axis: usize,
    repeats: usize,
    counts: Option<&View<'_>>,
    x: &View<'_>,
    y: &View<'_>,
) -> Result<()> {
    check::axis(op, x, axis)?;
    check::dtype(op, copies, y, x.dtype())?;
    let n = x.shape()[axis];
    let mut want = x.shape().to_vec();
    match counts {
        Some(c) => {
            check::dtype(op, "counts", c, DType::I32)?;
            check::shape(op, "counts", c, &[n])?;
            check::contiguous(op, "counts", c)?;
            let size = y.shape().get(axis).copied().unwrap_or(0);
            if n == 0 && size > 0 {
                return Err(GpuError::invalid(
                    op,
                    copies,
                    "no element",
                    format!("size {size} along axis {axis}"),
                ));
            }
            want[axis] = size;
        }
        None => {
            let Some(size) = n.checked_mul(repeats) else {
                return Err(GpuError::invalid(
                    op,
                    "repeats",
                    "a size that fits",
                    format!("{repeats} times {n}"),
                ));
            };
            want[axis] = size;
        }
    }
    check::shape(op, copies, y, &want)
}

/// Checks of [`ShapeOps::repeat_interleave`].
pub(crate) fn check_repeat_interleave(
    axis: usize,
    repeats: usize,
    counts: Option<&View<'_>>,
    x: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "repeat_interleave";
    check_repeats(OP, "y", axis, repeats, counts, x, &y.as_view())?;
    let inputs = [("x", *x), ("counts", *counts.unwrap_or(x))];
    check::separate_output(OP, "y", y, &inputs)
}

/// Checks of [`ShapeOps::repeat_interleave_bwd`].
pub(crate) fn check_repeat_interleave_bwd(
    axis: usize,
    repeats: usize,
    counts: Option<&View<'_>>,
    dy: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<()> {
    const OP: &str = "repeat_interleave_bwd";
    check::float(OP, "dy", dy)?;
    check_repeats(OP, "dy", axis, repeats, counts, &dx.out.as_view(), dy)?;
    let inputs = [("dy", *dy), ("counts", *counts.unwrap_or(dy))];
    check::separate_output(OP, "dx", &dx.out, &inputs)
}

/// Checks of [`ShapeOps::unfold_bwd`].
pub(crate) fn check_unfold_bwd(
    axis: usize,
    size: usize,
    step: usize,
    dy: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<()> {
    const OP: &str = "unfold_bwd";
    let v = dx.out.as_view();
    check::float(OP, "dy", dy)?;
    check::dtype(OP, "dx", &v, dy.dtype())?;
    check::axis(OP, &v, axis)?;
    if step == 0 {
        return Err(GpuError::invalid(OP, "step", "a step of at least 1", "0"));
    }
    let n = v.shape()[axis];
    if size > n {
        return Err(GpuError::invalid(OP, "size", format!("a window of at most {n}"), format!("{size}")));
    }
    let mut want = v.shape().to_vec();
    want[axis] = (n - size) / step + 1;
    want.push(size);
    check::shape(OP, "dy", dy, &want)?;
    check::separate_output(OP, "dx", &dx.out, &[("dy", *dy)])
}
