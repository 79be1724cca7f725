//! Mel frequencies and what is made of them.

use std::f64::consts::PI;

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_device};

/// Which mel of a frequency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MelScale {
    /// 2595 log10(1 + f / 700), of HTK.
    #[default]
    Htk,
    /// f / (200 / 3) up to 1 kHz, logarithmic above, of Slaney's Auditory Toolbox and librosa.
    Slaney,
}

/// Slaney's scale: hertz per mel of its linear part, where that ends, and the logarithm of a mel's ratio beyond.
const LINEAR: f64 = 200.0 / 3.0;
const KNEE: f64 = 1000.0;

impl MelScale {
    fn mel(self, hertz: f64) -> f64 {
        match self {
            MelScale::Htk => 2595.0 * (1.0 + hertz / 700.0).log10(),
            MelScale::Slaney if hertz >= KNEE => KNEE / LINEAR + (hertz / KNEE).ln() / (6.4f64.ln() / 27.0),
            MelScale::Slaney => hertz / LINEAR,
        }
    }

    fn hertz(self, mel: f64) -> f64 {
        match self {
            MelScale::Htk => 700.0 * (10f64.powf(mel / 2595.0) - 1.0),
            MelScale::Slaney if mel >= KNEE / LINEAR => {
                KNEE * (6.4f64.ln() / 27.0 * (mel - KNEE / LINEAR)).exp()
            }
            MelScale::Slaney => mel * LINEAR,
        }
    }
}

/// Triangular filters on a scale of mels: 128 of HTK's scale from 0 to half the sample rate, each 1 at its middle, unless set otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MelFilterbank {
    /// Bins of the spectrum, from frequency 0 to half the sample rate.
    pub bins: usize,
    /// Samples per second.
    pub sample_rate: usize,
    /// Number of filters.
    pub n_mels: usize,
    /// The least frequency.
    pub f_min: f64,
    /// The largest frequency; half the sample rate if it is not given.
    pub f_max: Option<f64>,
    /// The scale on which the filters' middles are equally far apart.
    pub scale: MelScale,
    /// Whether filters are divided by half their width, so that all have the same area.
    pub slaney_norm: bool,
}

impl MelFilterbank {
    /// Filters for spectra of so many bins.
    pub const fn new(bins: usize, sample_rate: usize) -> Self {
        let scale = MelScale::Htk;
        MelFilterbank { bins, sample_rate, n_mels: 128, f_min: 0.0, f_max: None, scale, slaney_norm: false }
    }

    /// Sets the number of filters.
    pub const fn n_mels(mut self, n: usize) -> Self {
        self.n_mels = n;
        self
    }

    /// Sets the range of frequencies.
    pub const fn range(mut self, f_min: f64, f_max: f64) -> Self {
        (self.f_min, self.f_max) = (f_min, Some(f_max));
        self
    }

    /// Sets the scale.
    pub const fn scale(mut self, scale: MelScale) -> Self {
        self.scale = scale;
        self
    }

    /// Sets whether all filters have the same area.
    pub const fn slaney_norm(mut self, on: bool) -> Self {
        self.slaney_norm = on;
        self
    }

    /// The filters [bins, n_mels] row by row.
    fn weights(&self) -> Result<Vec<f64>> {
        let (half, f_max) =
            ((self.sample_rate / 2) as f64, self.f_max.unwrap_or(self.sample_rate as f64 / 2.0));
        let fits = self.bins.checked_mul(self.n_mels).is_some_and(|n| (1..=1 << 26).contains(&n));
        if !fits || !(0.0..f_max).contains(&self.f_min) || f_max.is_infinite() {
            let expected = "bins, filters (at most 2^26 weights) and 0 <= f_min < f_max";
            return Err(invalid("mel_filterbank", "p", expected, format!("{self:?}")));
        }
        let (low, high) = (self.scale.mel(self.f_min), self.scale.mel(f_max));
        let step = (high - low) / (self.n_mels + 1) as f64;
        let edges: Vec<f64> = (0..self.n_mels + 2).map(|i| self.scale.hertz(low + i as f64 * step)).collect();
        let weight = |bin: usize, i: usize| {
            let f = half * bin as f64 / (self.bins - 1).max(1) as f64;
            let (rise, fall) = (
                (f - edges[i]) / (edges[i + 1] - edges[i]),
                (edges[i + 2] - f) / (edges[i + 2] - edges[i + 1]),
            );
            let area = if self.slaney_norm { 2.0 / (edges[i + 2] - edges[i]) } else { 1.0 };
            rise.min(fall).max(0.0) * area
        };
        Ok((0..self.bins)
            .flat_map(|bin| (0..self.n_mels).map(move |i| (bin, i)))
            .map(|(b, i)| weight(b, i))
            .collect())
    }
}

impl Tensor {
    /// The weights `[bins, n_mels]` of triangular filters, computed on the host. Source `torchaudio.functional.melscale_fbanks`. Errors: `Invalid`
    /// for frequencies out of order, no bins or filters, a dtype that is no float.
    pub fn mel_filterbank(device: &Device, dtype: DType, p: &MelFilterbank) -> Result<Tensor> {
        table("mel_filterbank", device, dtype, &p.weights()?, &[p.bins, p.n_mels])
    }

    /// The matrix `[n_mels, n_mfcc]` of the cosine transform (DCT-II), orthonormal with `ortho`, computed on the host. Source
    /// `torchaudio.functional.create_dct`. Errors: `Invalid` for sizes of 0 or more than 2^26 elements, a dtype that is no float.
    pub fn dct_matrix(
        device: &Device,
        dtype: DType,
        n_mfcc: usize,
        n_mels: usize,
        ortho: bool,
    ) -> Result<Tensor> {
        const OP: &str = "dct_matrix";
        if !n_mfcc.checked_mul(n_mels).is_some_and(|n| (1..=1 << 26).contains(&n)) {
            return Err(invalid(OP, "n_mfcc", "1 to 2^26 elements", format!("{n_mels} rows of {n_mfcc}")));
        }
        let factor = |k: usize| match (ortho, k) {
            (false, _) => 2.0,
            (true, 0) => (1.0 / n_mels as f64).sqrt(),
            (true, _) => (2.0 / n_mels as f64).sqrt(),
        };
        let entry = |e: usize| {
            let (i, k) = (e / n_mfcc, e % n_mfcc);
            factor(k) * (PI / n_mels as f64 * (i as f64 + 0.5) * k as f64).cos()
        };
        let all: Vec<f64> = (0..n_mels * n_mfcc).map(entry).collect();
        table(OP, device, dtype, &all, &[n_mels, n_mfcc])
    }

    /// Spectra `[.., bins, frames]` weighted by the filters `[bins, n_mels]` of [`mel_filterbank`](Tensor::mel_filterbank): `[.., n_mels, frames]`.
    /// Source `torchaudio.transforms.MelScale`. Errors: `Invalid` for another number of bins.
    pub fn mel_scale(&self, filters: &Tensor) -> Result<Tensor> {
        same_device("mel_scale", self, filters)?;
        filters.t()?.matmul(self)
    }

    /// Cepstral coefficients `[.., n_mfcc, frames]` of a mel spectrogram (powers) `[.., n_mels, frames]`: the cosine transform `[n_mels, n_mfcc]` of
    /// [`dct_matrix`](Tensor::dct_matrix) of its decibels, at most 80 below the largest, or with `log_mels` of log(x + 1e-6). Source
    /// `torchaudio.transforms.MFCC`. Errors: `Invalid` for another number of filters.
    pub fn mfcc(&self, dct: &Tensor, log_mels: bool) -> Result<Tensor> {
        same_device("mfcc", self, dct)?;
        let logarithms =
            if log_mels { self.add_scalar(1e-6)?.ln()? } else { self.power_to_db(1.0, 1e-10, Some(80.0))? };
        dct.t()?.matmul(&logarithms)
    }

    /// Slopes of lines fitted to the `window` frames around each, of features `[.., frames]` whose first and last frame go on beyond their ends.
    /// Source `torchaudio.functional.compute_deltas`. Errors: `Invalid` for a window below 3, which is odd (an even one counts as one less).
    pub fn deltas(&self, window: usize) -> Result<Tensor> {
        const OP: &str = "deltas";
        let n = window.saturating_sub(1) / 2;
        if n == 0 || n > 1 << 20 || self.rank() == 0 {
            let got = format!("window {window}, shape {:?}", self.shape());
            return Err(invalid(OP, "window", "3 to 2^21 frames, of a tensor with frames", got));
        }
        let mut pads = vec![(0, 0); self.rank()];
        pads[self.rank() - 1] = (n as isize, n as isize);
        let around = self.pad(trefoil::ops::shape::PadMode::Replicate, &pads)?.unfold(-1, 2 * n + 1, 1)?;
        let squares = (n * (n + 1) * (2 * n + 1)) as f64 / 3.0;
        let slope =
            Tensor::arange(self.device(), self.dtype(), -(n as f64) / squares, 1.0 / squares, 2 * n + 1)?;
        around.mul(&slope)?.sum_axes(&[-1], false)
    }
}

/// A tensor of numbers that the host computed.
pub(super) fn table(
    op: &'static str,
    device: &Device,
    dtype: DType,
    all: &[f64],
    shape: &[usize],
) -> Result<Tensor> {
    match dtype {
        DType::F64 => Tensor::from_slice(device, all, shape),
        d if d.is_float() => {
            let single: Vec<f32> = all.iter().map(|&x| x as f32).collect();
            Tensor::from_slice(device, &single, shape)?.to_dtype(d)
        }
        d => Err(invalid(op, "dtype", "a floating-point type", format!("{d}"))),
    }
}
