//! Spectrograms, their change in time, and filters of spectra.

use std::f64::consts::TAU;

use trefoil::DType;
use trefoil::ops::shape::PadMode;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};
use crate::functional::fourier::{FftNorm, Stft};

/// Parameters of [`Tensor::spectrogram`]: powers, as they are, unless set otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Spectrogram {
    /// Frames and their transforms.
    pub stft: Stft,
    /// Power of the magnitudes: 1 for amplitudes, 2 for powers.
    pub power: f64,
    /// Zeros before and behind the signal.
    pub pad: usize,
    /// Whether amplitudes are divided by the window's norm.
    pub window_norm: bool,
}

impl Spectrogram {
    /// Powers of these transforms.
    pub const fn new(stft: Stft) -> Self {
        Spectrogram { stft, power: 2.0, pad: 0, window_norm: false }
    }

    /// Sets the power of the magnitudes.
    pub const fn power(mut self, power: f64) -> Self {
        self.power = power;
        self
    }

    /// Sets the number of zeros at the ends.
    pub const fn pad(mut self, zeros: usize) -> Self {
        self.pad = zeros;
        self
    }

    /// Sets whether amplitudes are divided by the window's norm.
    pub const fn window_norm(mut self, on: bool) -> Self {
        self.window_norm = on;
        self
    }
}

impl Tensor {
    /// Powers `[.., bins, frames]` of the short-time Fourier transforms of signals `[.., T]`; [`stft`](Tensor::stft) gives these themselves. Source
    /// `torchaudio.functional.spectrogram`. Errors: those of [`stft`](Tensor::stft); `Invalid` for a power that is not above 0.
    pub fn spectrogram(&self, window: &Tensor, p: &Spectrogram) -> Result<Tensor> {
        const OP: &str = "spectrogram";
        if p.power.is_nan() || p.power <= 0.0 || p.pad > 1 << 40 || self.rank() == 0 {
            let got = format!("power {}, pad {}, shape {:?}", p.power, p.pad, self.shape());
            return Err(invalid(OP, "p", "a power above 0, of signals [.., T]", got));
        }
        let mut pads = vec![(0, 0); self.rank()];
        pads[self.rank() - 1] = (p.pad as isize, p.pad as isize);
        let mut bins = self.pad(PadMode::Constant(0.0), &pads)?.stft(window, &p.stft)?;
        if p.window_norm {
            bins = bins.div(&window.norm_axes(2.0, &[-1], true)?)?;
        }
        match p.power {
            1.0 => bins.complex_abs(),
            2.0 => bins.square()?.sum_axes(&[-1], false),
            power => bins.complex_abs()?.pow_scalar(power),
        }
    }

    /// Transforms `[.., bins, frames, 2]` that run `rate` times as fast at the same pitch: `[.., bins, ceil(frames / rate), 2]`. Magnitudes are
    /// interpolated; phases advance as between neighbouring frames, of which `phase_advance` `[bins, 1]` is expected (2 pi hop k / n_fft of bin k).
    /// Source `torchaudio.functional.phase_vocoder`. Errors: `Invalid` for a rate that is not above 0, other shapes.
    pub fn phase_vocoder(&self, rate: f64, phase_advance: &Tensor) -> Result<Tensor> {
        const OP: &str = "phase_vocoder";
        same_device(OP, self, phase_advance)?;
        let frames = match *self.shape() {
            [.., bins, frames, 2] if frames > 0 && *phase_advance.shape() == [bins, 1] => frames,
            _ => {
                let got = format!("{:?} and {:?}", self.shape(), phase_advance.shape());
                return Err(invalid(OP, "x", "shapes [.., bins, frames, 2] and [bins, 1]", got));
            }
        };
        let count = (frames as f64 / rate).ceil();
        if !(rate > 0.0 && count <= (1u64 << 40) as f64) {
            return Err(invalid(OP, "rate", "a number above 0, at most 2^40 frames", format!("{rate}")));
        }
        if rate == 1.0 {
            return self.copy();
        }
        let mut pads = vec![(0, 0); self.rank()];
        pads[self.rank() - 2] = (0, 2);
        let padded = self.pad(PadMode::Constant(0.0), &pads)?;
        let time = Tensor::arange(self.device(), self.dtype(), 0.0, rate, count as usize)?;
        let index = time.floor()?.to_dtype(DType::I64)?;
        let (here, next) =
            (padded.index_select(-2, &index)?, padded.index_select(-2, &index.add_scalar(1.0)?)?);
        let turn = next.complex_angle()?.sub(&here.complex_angle()?)?.sub(phase_advance)?;
        let whole = turn.detach().mul_scalar(1.0 / TAU)?.round(0)?;
        let advance = turn.sub(&whole.mul_scalar(TAU)?)?.add(phase_advance)?;
        let first = self.narrow(-2, 0, 1)?.complex_angle()?;
        let phase = Tensor::concat(-1, &[&first, &advance.narrow(-1, 0, count as usize - 1)?])?.cumsum(-1)?;
        let share = time.sub(&time.floor()?)?;
        let (a, b) = (here.complex_abs()?, next.complex_abs()?);
        a.add(&b.sub(&a)?.mul(&share)?)?.polar(&phase)
    }

    /// The images `[.., H, W]` of this tensor with their spectra multiplied by filters `[.., H, W / 2 + 1, 2]`, which broadcast: irfft2(rfft2(x)
    /// F), the mixing of tokens of global filter networks. Source Rao et al., "Global Filter Networks for Image Classification" (2021). Errors:
    /// `Invalid` for other shapes, dtypes other than f32 and f64.
    pub fn spectral_filter(&self, filter: &Tensor) -> Result<Tensor> {
        const OP: &str = "spectral_filter";
        same_device(OP, self, filter)?;
        let width = match *self.shape() {
            [.., height, width] if filter.shape().ends_with(&[height, width / 2 + 1, 2]) => width,
            _ => {
                let got = format!("{:?} and {:?}", self.shape(), filter.shape());
                return Err(invalid(OP, "filter", "shapes [.., H, W] and [.., H, W / 2 + 1, 2]", got));
            }
        };
        let bins = self.rfftn(&[-2, -1], FftNorm::Backward)?.complex_mul(filter)?;
        bins.irfftn(width, &[-2, -1], FftNorm::Backward)
    }
}
