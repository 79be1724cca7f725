//! Discrete Fourier transforms: signatures and checks.
//!
//! Complex numbers are pairs (real, imaginary) along a trailing axis of 2. Axes and shapes below count without it.

use crate::buffer::{GradMut, View};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// Which transform: the sign of the exponent and factors. Forward and unscaled unless set otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Fft {
    /// exp(+2 pi i j k / n) instead of exp(-2 pi i j k / n).
    pub inverse: bool,
    /// Factor of all results.
    pub scale: f64,
    /// Of transforms between real and complex numbers, factor of the bins that stand for two: all but the first and, where n is even, the last.
    pub inner: f64,
}

impl Fft {
    /// Forward, unscaled.
    pub const fn new() -> Self {
        Fft { inverse: false, scale: 1.0, inner: 1.0 }
    }

    /// Sets the sign of the exponent.
    pub const fn inverse(mut self, on: bool) -> Self {
        self.inverse = on;
        self
    }

    /// Sets the factor of all results.
    pub const fn scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Sets the factor of bins that stand for two.
    pub const fn inner(mut self, inner: f64) -> Self {
        self.inner = inner;
        self
    }
}

impl Default for Fft {
    fn default() -> Self {
        Self::new()
    }
}

op_family! {
    /// Discrete Fourier transforms of f32 and f64, of any length. Operands are contiguous.
    ///
    /// Each is linear, and the gradient of each is another of them: of `fft` the `fft` with the other sign, of `rfft` the `irfft` with `inner` 0.5,
    /// of `irfft` the `rfft` with `inner` 2, all with the same scale.
    pub trait FourierOps : Fourier => FOURIER_OPS {
        /// y_k = scale sum_j x_j exp(-+2 pi i j k / n) along `axis`; x and y are complex and of one shape. `inner` is not used. Source
        /// `torch.fft.fft`, `torch.fft.ifft`. Errors: `Invalid` for another shape or dtype, an axis out of range, a length above 2^19.
        fn fft(&self, p: &Fft, axis: usize, x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// The first n/2 + 1 bins of the forward transform of real numbers x [.., n] along the last axis, to complex y [.., n/2 + 1]. `inverse` is
        /// not used. Source `torch.fft.rfft`. Errors: as [`FourierOps::fft`]; `Invalid` for no elements along the axis.
        fn rfft(&self, p: &Fft, x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// Real y [.., n] = scale times the inverse transform of the bins x [.., n/2 + 1] and their conjugates; imaginary parts of the first and, for
        /// even n, of the last bin are ignored. `inverse` is not used. Source `torch.fft.irfft`. Errors: as [`FourierOps::rfft`].
        fn irfft(&self, p: &Fft, x: View<'_>, y: GradMut<'_>) -> Result<()>;
    }
}

/// What a transform reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// n complex numbers.
    Complex,
    /// n real numbers.
    Real,
    /// n/2 + 1 complex numbers, the rest being their conjugates.
    Half,
}

impl Side {
    /// Elements of a sequence of n (real, or pairs).
    pub(crate) fn len(self, n: usize) -> usize {
        if self == Side::Half { n / 2 + 1 } else { n }
    }
}

/// Checked transforms: `outer` by `inner` sequences of `n`, the elements of one `inner` apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Transforms {
    pub(crate) outer: usize,
    pub(crate) n: usize,
    pub(crate) inner: usize,
    pub(crate) from: Side,
    pub(crate) to: Side,
    /// The parameters, with the sign and, where it has no meaning, the inner factor set.
    pub(crate) p: Fft,
}

/// The longest transform.
pub(crate) const LONGEST: usize = 1 << 19;

fn operands(op: &'static str, x: &View<'_>, y: &GradMut<'_>) -> Result<()> {
    let v = y.out.as_view();
    check::one_of(op, "x", x, &[DType::F32, DType::F64])?;
    check::dtype(op, "y", &v, x.dtype())?;
    check::contiguous(op, "x", x)?;
    check::contiguous(op, "y", &v)?;
    check::separate_output(op, "y", &y.out, &[("x", *x)])
}

/// The shape without the pair's axis.
fn complex<'a>(op: &'static str, arg: &'static str, shape: &'a [usize]) -> Result<&'a [usize]> {
    match shape {
        [rest @ .., 2] if !rest.is_empty() => Ok(rest),
        s => Err(GpuError::invalid(op, arg, "pairs along the last of two or more axes", format!("{s:?}"))),
    }
}

fn length(op: &'static str, arg: &'static str, n: usize) -> Result<()> {
    match n {
        1..=LONGEST => Ok(()),
        _ => Err(GpuError::invalid(op, arg, format!("a length of 1 to {LONGEST}"), format!("{n}"))),
    }
}

/// Checks of [`FourierOps::fft`].
pub(crate) fn check_fft(p: &Fft, axis: usize, x: &View<'_>, y: &GradMut<'_>) -> Result<Transforms> {
    const OP: &str = "fft";
    operands(OP, x, y)?;
    let shape = complex(OP, "x", x.shape())?;
    check::shape(OP, "y", &y.out.as_view(), x.shape())?;
    let Some(&n) = shape.get(axis) else {
        return Err(GpuError::invalid(OP, "axis", format!("below {}", shape.len()), format!("{axis}")));
    };
    if x.numel() > 0 {
        length(OP, "x", n)?;
    }
    let size = |s: &[usize]| s.iter().product();
    let (outer, inner) = (size(&shape[..axis]), size(&shape[axis + 1..]));
    Ok(Transforms { outer, n, inner, from: Side::Complex, to: Side::Complex, p: p.inner(1.0) })
}

/// A transform between real numbers `real` and bins `bins`.
fn check_real(
    op: &'static str,
    (real_arg, real): (&'static str, &[usize]),
    (bins_arg, bins): (&'static str, &[usize]),
) -> Result<[usize; 2]> {
    let Some((&n, rows)) = real.split_last() else {
        return Err(GpuError::invalid(op, real_arg, "at least one axis", "shape []"));
    };
    length(op, real_arg, n)?;
    let expected = [rows, &[Side::Half.len(n), 2]].concat();
    if bins != expected {
        return Err(GpuError::invalid(op, bins_arg, format!("shape {expected:?}"), format!("{bins:?}")));
    }
    Ok([rows.iter().product(), n])
}

/// Checks of [`FourierOps::rfft`].
pub(crate) fn check_rfft(p: &Fft, x: &View<'_>, y: &GradMut<'_>) -> Result<Transforms> {
    const OP: &str = "rfft";
    operands(OP, x, y)?;
    let [outer, n] = check_real(OP, ("x", x.shape()), ("y", y.out.shape()))?;
    Ok(Transforms { outer, n, inner: 1, from: Side::Real, to: Side::Half, p: p.inverse(false) })
}

/// Checks of [`FourierOps::irfft`].
pub(crate) fn check_irfft(p: &Fft, x: &View<'_>, y: &GradMut<'_>) -> Result<Transforms> {
    const OP: &str = "irfft";
    operands(OP, x, y)?;
    let [outer, n] = check_real(OP, ("y", y.out.shape()), ("x", x.shape()))?;
    Ok(Transforms { outer, n, inner: 1, from: Side::Half, to: Side::Real, p: p.inverse(true) })
}
