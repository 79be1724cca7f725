//! Discrete Fourier transforms and short-time Fourier transforms of f32 and f64.
//!
//! Complex tensors hold pairs (real, imaginary) along a last axis of 2, as `torch.view_as_real` gives them; axes count without it.

mod complex;

use trefoil::DType;
use trefoil::ops::conv::Conv;
use trefoil::ops::fourier::Fft;
use trefoil::ops::shape::PadMode;

use self::complex::complex_rank;
use crate::core::autograd::BackwardCtx;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axes, is_trial, same_device};

/// Which direction of a transform is divided by the number of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FftNorm {
    /// The inverse one.
    #[default]
    Backward,
    /// The forward one.
    Forward,
    /// Both, by the root of the number.
    Ortho,
}

impl FftNorm {
    /// The factor of a transform of `n` elements.
    fn scale(self, n: usize, inverse: bool) -> f64 {
        match (self, inverse) {
            (FftNorm::Ortho, _) => 1.0 / (n as f64).sqrt(),
            (FftNorm::Backward, true) | (FftNorm::Forward, false) => 1.0 / n as f64,
            _ => 1.0,
        }
    }
}

/// One of the transforms of [`FourierOps`](trefoil::ops::fourier::FourierOps).
#[derive(Debug, Clone, Copy)]
enum Transform {
    Complex { axis: usize },
    ToBins,
    ToReals { n: usize },
}

impl Transform {
    fn name(self) -> &'static str {
        match self {
            Transform::Complex { .. } => "fft",
            Transform::ToBins => "rfft",
            Transform::ToReals { .. } => "irfft",
        }
    }

    /// The transform that carries gradients of this one for inputs of this shape.
    fn adjoint(self, p: Fft, shape: &[usize]) -> (Self, Fft) {
        match self {
            Transform::Complex { .. } => (self, p.inverse(!p.inverse)),
            // A bin that stands for two is one output of the one direction, and two inputs of the other.
            Transform::ToBins => {
                (Transform::ToReals { n: shape.last().copied().unwrap_or_default() }, p.inner(0.5 * p.inner))
            }
            Transform::ToReals { .. } => (Transform::ToBins, p.inner(2.0 * p.inner)),
        }
    }

    fn run(self, x: &Tensor, p: Fft) -> Result<Tensor> {
        let source = x.contiguous()?;
        let mut shape = source.shape().to_vec();
        match self {
            Transform::Complex { .. } => {}
            Transform::ToBins => {
                if let Some(n) = shape.last_mut() {
                    *n = *n / 2 + 1;
                }
                shape.push(2);
            }
            Transform::ToReals { n } => {
                shape.pop();
                if let Some(bins) = shape.last_mut() {
                    *bins = n;
                }
            }
        }
        let y = source.like(&shape)?;
        let [xo, yo] = [&source, &y].map(Tensor::operand);
        let (from, to, device) = (xo.view()?, yo.grad(false)?, source.device());
        match self {
            Transform::Complex { axis } => device.fft(&p, axis, from, to)?,
            Transform::ToBins => device.rfft(&p, from, to)?,
            Transform::ToReals { .. } => device.irfft(&p, from, to)?,
        }
        Ok(y.record(self.name(), &[x], || {
            let (adjoint, p) = self.adjoint(p, source.shape());
            move |cx: &mut BackwardCtx<'_>| {
                let dx = adjoint.run(&cx.dy()?, p)?;
                cx.give(0, dx)
            }
        }))
    }
}

/// Parameters of [`Tensor::stft`] and [`Tensor::istft`]: a hop of a quarter of the frame, frames centred, bins of real signals unless set otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stft {
    /// Elements of a frame.
    pub n_fft: usize,
    /// Elements from one frame to the next.
    pub hop: usize,
    /// Whether frame t is centred at element t * hop, the signal being mirrored at its ends.
    pub center: bool,
    /// Whether results are divided by the root of `n_fft`.
    pub normalized: bool,
    /// Whether there are `n_fft / 2 + 1` bins; otherwise all `n_fft`.
    pub onesided: bool,
}

impl Stft {
    /// Frames of `n_fft` elements.
    pub const fn new(n_fft: usize) -> Self {
        Stft { n_fft, hop: n_fft / 4, center: true, normalized: false, onesided: true }
    }

    /// Sets the distance of frames.
    pub const fn hop(mut self, hop: usize) -> Self {
        self.hop = hop;
        self
    }

    /// Sets whether frames are centred.
    pub const fn center(mut self, on: bool) -> Self {
        self.center = on;
        self
    }

    /// Sets whether results are divided by the root of `n_fft`.
    pub const fn normalized(mut self, on: bool) -> Self {
        self.normalized = on;
        self
    }

    /// Sets whether only the bins of real signals are there.
    pub const fn onesided(mut self, on: bool) -> Self {
        self.onesided = on;
        self
    }

    fn check(&self, op: &'static str, window: &Tensor) -> Result<()> {
        if self.n_fft == 0 || self.hop == 0 {
            let got = format!("n_fft {}, hop {}", self.n_fft, self.hop);
            return Err(invalid(op, "n_fft", "n_fft and hop above 0", got));
        }
        match window.shape() {
            [n] if (1..=self.n_fft).contains(n) => Ok(()),
            s => Err(invalid(op, "window", format!("1 to {} elements", self.n_fft), format!("{s:?}"))),
        }
    }

    /// The window centred in a frame, zeros around it.
    fn framed(&self, window: &Tensor) -> Result<Tensor> {
        let n = window.shape()[0];
        let before = (self.n_fft - n) / 2;
        window.pad(PadMode::Constant(0.0), &[(before as isize, (self.n_fft - n - before) as isize)])
    }

    fn factor(&self) -> f64 {
        if self.normalized { 1.0 / (self.n_fft as f64).sqrt() } else { 1.0 }
    }

    /// Frames [B, F, n_fft] added up where they lie: [B, n_fft + hop (F - 1)].
    fn overlap_add(&self, frames: &Tensor) -> Result<Tensor> {
        let count = frames.shape()[1];
        let len = self.n_fft + self.hop * (count - 1);
        frames.transpose(1, 2)?.col2im(&[len], &[self.n_fft], &Conv::new().stride(self.hop))?.squeeze(1)
    }
}

impl Tensor {
    /// Discrete Fourier transform of complex numbers `[.., 2]` along an axis; the same shape. Source `torch.fft.fft`. Errors: `Invalid` for other
    /// dtypes than f32 and f64, no pairs, an axis out of range, a length above 2^19.
    pub fn fft(&self, along: isize, norm: FftNorm) -> Result<Tensor> {
        self.fftn(&[along], norm)
    }

    /// The inverse of [`Tensor::fft`]. Source `torch.fft.ifft`.
    pub fn ifft(&self, along: isize, norm: FftNorm) -> Result<Tensor> {
        self.ifftn(&[along], norm)
    }

    /// [`Tensor::fft`] along several axes. Source `torch.fft.fftn`.
    pub fn fftn(&self, over: &[isize], norm: FftNorm) -> Result<Tensor> {
        self.complex_transforms("fft", over, norm, false)
    }

    /// The inverse of [`Tensor::fftn`]. Source `torch.fft.ifftn`.
    pub fn ifftn(&self, over: &[isize], norm: FftNorm) -> Result<Tensor> {
        self.complex_transforms("ifft", over, norm, true)
    }

    fn complex_transforms(
        &self,
        op: &'static str,
        over: &[isize],
        norm: FftNorm,
        inverse: bool,
    ) -> Result<Tensor> {
        let over = axes(op, over, complex_rank(op, self)?)?;
        let one = |x: Tensor, &axis: &usize| {
            let p = Fft::new().inverse(inverse).scale(norm.scale(x.shape()[axis], inverse));
            Transform::Complex { axis }.run(&x, p)
        };
        over.iter().try_fold(self.clone(), one)
    }

    /// The bins `n/2 + 1` of the transform of real numbers along an axis: complex `[.., n/2 + 1, .., 2]`. Source `torch.fft.rfft`. Errors: as
    /// [`Tensor::fft`].
    pub fn rfft(&self, along: isize, norm: FftNorm) -> Result<Tensor> {
        self.rfftn(&[along], norm)
    }

    /// [`Tensor::rfft`] along the last of these axes, [`Tensor::fft`] along the others. Source `torch.fft.rfftn`.
    pub fn rfftn(&self, over: &[isize], norm: FftNorm) -> Result<Tensor> {
        const OP: &str = "rfft";
        let over = axes(OP, over, self.rank())?;
        let Some((&last, others)) = over.split_last() else {
            return Err(invalid(OP, "axes", "at least one axis", "none"));
        };
        let p = Fft::new().scale(norm.scale(self.shape()[last], false));
        let bins = Transform::ToBins.run(&self.transpose(last as isize, -1)?, p)?;
        // The axis that was exchanged with the last one is back before the pairs' axis.
        let bins = bins.transpose(last as isize, -2)?;
        let others: Vec<isize> = others.iter().map(|&a| a as isize).collect();
        bins.fftn(&others, norm)
    }

    /// n real numbers whose transform has these bins `[.., n/2 + 1, .., 2]` along an axis; imaginary parts of the first bin and, for even n, of the last
    /// are ignored. Source `torch.fft.irfft`. Errors: as [`Tensor::fft`]; `Invalid` for another number of bins.
    pub fn irfft(&self, n: usize, along: isize, norm: FftNorm) -> Result<Tensor> {
        self.irfftn(n, &[along], norm)
    }

    /// [`Tensor::ifft`] along all but the last of these axes, then [`Tensor::irfft`] along that. Source `torch.fft.irfftn`.
    pub fn irfftn(&self, n: usize, over: &[isize], norm: FftNorm) -> Result<Tensor> {
        const OP: &str = "irfft";
        let over = axes(OP, over, complex_rank(OP, self)?)?;
        let Some((&last, others)) = over.split_last() else {
            return Err(invalid(OP, "axes", "at least one axis", "none"));
        };
        let others: Vec<isize> = others.iter().map(|&a| a as isize).collect();
        let bins = self.ifftn(&others, norm)?.transpose(last as isize, -2)?;
        let p = Fft::new().scale(norm.scale(n.max(1), true));
        Transform::ToReals { n }.run(&bins, p)?.transpose(last as isize, -1)
    }

    /// Frequency 0 in the middle of these axes, which are rolled by half their size; the axis of pairs, where there is one, counts here. Source
    /// `torch.fft.fftshift`. Errors: `Invalid` for an axis out of range.
    pub fn fftshift(&self, over: &[isize]) -> Result<Tensor> {
        self.rolled("fftshift", over, |n| (n / 2) as isize)
    }

    /// The inverse of [`Tensor::fftshift`]. Source `torch.fft.ifftshift`.
    pub fn ifftshift(&self, over: &[isize]) -> Result<Tensor> {
        self.rolled("ifftshift", over, |n| -((n / 2) as isize))
    }

    fn rolled(&self, op: &'static str, over: &[isize], by: impl Fn(usize) -> isize) -> Result<Tensor> {
        let places = axes(op, over, self.rank())?;
        let shifts: Vec<isize> = places.iter().map(|&a| by(self.shape()[a])).collect();
        self.roll(&shifts, over)
    }

    /// Transforms of windowed frames of real signals `[.., T]`: complex `[.., bins, frames, 2]`. `window` has at most `n_fft` elements and is centred
    /// in the frame. Source `torch.stft`. Errors: `Invalid` for sizes that do not fit, a signal shorter than a frame.
    pub fn stft(&self, window: &Tensor, p: &Stft) -> Result<Tensor> {
        const OP: &str = "stft";
        same_device(OP, self, window)?;
        p.check(OP, window)?;
        let mut x = self.clone();
        if p.center {
            let mut pads = vec![(0, 0); x.rank()];
            if let Some(last) = pads.last_mut() {
                *last = ((p.n_fft / 2) as isize, (p.n_fft / 2) as isize);
            }
            x = x.pad(PadMode::Reflect, &pads)?;
        }
        let frames = x.unfold(-1, p.n_fft, p.hop)?.mul(&p.framed(window)?)?;
        let scale = Fft::new().scale(p.factor());
        let bins = match p.onesided {
            true => Transform::ToBins.run(&frames, scale)?,
            false => {
                let pairs = Tensor::stack(-1, &[&frames, &frames.zeros_like()?])?;
                Transform::Complex { axis: pairs.rank() - 2 }.run(&pairs, scale)?
            }
        };
        bins.transpose(-3, -2)
    }

    /// The signals `[B, T]` of transforms `[B, bins, frames, 2]` as [`Tensor::stft`] makes them: frames are windowed, added up and divided by the sum
    /// of the squares of their windows. `length` is T; without it T is what the frames cover. Source `torch.istft`. Errors: `Invalid` for sizes
    /// that do not fit, where that sum vanishes, for which it is read by the host.
    pub fn istft(&self, window: &Tensor, p: &Stft, length: Option<usize>) -> Result<Tensor> {
        const OP: &str = "istft";
        same_device(OP, self, window)?;
        p.check(OP, window)?;
        let bins = if p.onesided { p.n_fft / 2 + 1 } else { p.n_fft };
        let count = match *self.shape() {
            [_, b, count, 2] if b == bins && count > 0 => count,
            _ => {
                let expected = format!("shape [B, {bins}, frames, 2]");
                return Err(invalid(OP, "x", expected, format!("{:?}", self.shape())));
            }
        };
        let x = self.transpose(1, 2)?;
        let scale = Fft::new().scale(1.0 / (p.n_fft as f64 * p.factor()));
        let frames = match p.onesided {
            true => Transform::ToReals { n: p.n_fft }.run(&x, scale)?,
            false => Transform::Complex { axis: 2 }.run(&x, scale.inverse(true))?.select(-1, 0)?,
        };
        let window = p.framed(window)?;
        let sum = p.overlap_add(&frames.mul(&window)?)?;
        let squares = p.overlap_add(&window.square()?.expand(&[1, count, p.n_fft])?)?;
        let covered = sum.shape()[1];
        let start = if p.center { p.n_fft / 2 } else { 0 };
        let end = length.map_or(covered - start, |n| (start + n).min(covered)).max(start);
        let kept = squares.narrow(1, start, end - start)?;
        if !is_trial(kept.device())
            && kept.numel() > 0
            && kept.detach().min()?.to_dtype(DType::F32)?.item::<f32>()? < 1e-11
        {
            return Err(invalid(OP, "window", "squares that add up to more than 1e-11 everywhere", "a gap"));
        }
        let y = sum.narrow(1, start, end - start)?.div(&kept)?;
        let missing = length.map_or(0, |n| n.saturating_sub(end - start));
        y.pad(PadMode::Constant(0.0), &[(0, 0), (0, missing as isize)])
    }
}
