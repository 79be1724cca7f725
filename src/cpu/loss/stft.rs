//! Losses between spectrograms: a recursive transform of each signal on its own.

use std::f64::consts::TAU;

use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::loss::*;

/// A complex number.
type C = [f64; 2];

fn mul(a: C, b: C) -> C {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// e^(2 pi i k/n)
fn unit(k: usize, n: usize) -> C {
    let (s, c) = (TAU * (k % n) as f64 / n as f64).sin_cos();
    [c, s]
}

/// X_k = sum x_j e^(sign * 2 pi i jk/n) by splitting off the smallest prime factor; `sign` is -1 or 1.
fn transform(x: &[C], sign: f64) -> Result<Vec<C>> {
    let n = x.len();
    let Some(r) = (2..=n).find(|r| n.is_multiple_of(*r)) else { return x.try_to_vec() };
    let m = n / r;
    let parts: Vec<Vec<C>> =
        (0..r).map(|j| transform(&x.iter().skip(j).step_by(r).copied().try_vec()?, sign)).try_vec_ok()?;
    (0..n)
        .map(|k| {
            let terms = parts.iter().enumerate().map(|(j, part)| {
                let w = unit(j * k, n);
                mul(part[k % m], [w[0], sign * w[1]])
            });
            terms.fold([0.0, 0.0], |a, b| [a[0] + b[0], a[1] + b[1]])
        })
        .try_vec()
}

/// Frames of a resolution for signals of `len` samples.
struct Frames {
    r: StftResolution,
    window: Vec<f64>,
    len: usize,
}

impl Frames {
    fn new(r: StftResolution, len: usize) -> Result<Self> {
        let w = r.window;
        let hann = |j: usize| if w == 1 { 1.0 } else { 0.5 - 0.5 * (TAU * j as f64 / w as f64).cos() };
        Ok(Frames { r, window: (0..w).map(hann).try_vec()?, len })
    }

    /// Position in the frame, sample and weight of what frame `f` takes.
    fn taps(&self, f: usize) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        let first = (self.r.fft - self.r.window) / 2;
        self.window.iter().enumerate().map(move |(w, &weight)| {
            let end = self.len as isize - 1;
            let at = (f * self.r.hop + first + w) as isize - (self.r.fft / 2) as isize;
            let at = end - (end - at.abs()).abs();
            (first + w, at as usize, weight)
        })
    }

    /// One side of the transform of frame `f`.
    fn spectrum(&self, signal: &[f64], f: usize) -> Result<Vec<C>> {
        let mut x = filled(self.r.fft, [0.0, 0.0])?;
        for (j, at, weight) in self.taps(f) {
            x[j][0] = signal[at] * weight;
        }
        let mut y = transform(&x, -1.0)?;
        y.truncate(self.r.bins());
        Ok(y)
    }

    /// Spectra of all frames of all signals.
    fn spectra(&self, signals: &[f64]) -> Result<Vec<Vec<C>>> {
        let frames = self.r.frames(self.len);
        signals.chunks(self.len).flat_map(|x| (0..frames).map(move |f| self.spectrum(x, f))).try_vec_ok()
    }
}

fn power(x: &C) -> f64 {
    x[0] * x[0] + x[1] * x[1]
}

/// sqrt(max(|x|^2, 1e-7)); NaN stays.
fn magnitudes(spectra: &[Vec<C>]) -> Result<Vec<f64>> {
    let floor = |x: f64| if x < 1e-7 { 1e-7 } else { x };
    spectra.iter().flatten().map(|x| floor(power(x)).sqrt()).try_vec()
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}

impl StftLossOps for Kernels {
    fn stft_loss(&self, resolutions: &[StftResolution], io: StftLossFwd<'_>) -> Result<()> {
        const OP: &str = "stft_loss";
        let [_, len] = check_stft_loss(resolutions, &io)?;
        let _timed = self.count("stft_loss");
        let (p, t) = (gather_f64(OP, io.p)?, gather_f64(OP, io.t)?);
        let mut total = 0.0;
        for &r in resolutions {
            let frames = Frames::new(r, len)?;
            let (mp, mt) = (magnitudes(&frames.spectra(&p)?)?, magnitudes(&frames.spectra(&t)?)?);
            let pairs = || mp.iter().zip(&mt);
            let logs: f64 = pairs().map(|(p, t)| (t.ln() - p.ln()).abs()).sum();
            let distance = norm(pairs().map(|(p, t)| t - p));
            total += distance / norm(mt.iter().copied()) + logs / mp.len() as f64;
        }
        store_f64(OP, &io.loss, &[total / resolutions.len() as f64])
    }

    fn stft_loss_bwd(&self, resolutions: &[StftResolution], io: StftLossBwd<'_>) -> Result<()> {
        const OP: &str = "stft_loss_bwd";
        let [_, len] = check_stft_loss_bwd(resolutions, &io)?;
        let _timed = self.count("stft_loss_bwd");
        let (p, t) = (gather_f64(OP, io.p)?, gather_f64(OP, io.t)?);
        let g = gather_f64(OP, io.gy)?[0] / resolutions.len() as f64;
        let mut dp = filled(p.len(), 0.0)?;
        for &r in resolutions {
            let frames = Frames::new(r, len)?;
            let spectra = frames.spectra(&p)?;
            let (mp, mt) = (magnitudes(&spectra)?, magnitudes(&frames.spectra(&t)?)?);
            let distance = norm(mp.iter().zip(&mt).map(|(p, t)| t - p));
            let slope = if distance == 0.0 { 0.0 } else { 1.0 / distance / norm(mt.iter().copied()) };
            let per_signal = r.frames(len);
            for (f, spectrum) in spectra.iter().enumerate() {
                let mut d = filled(r.fft, [0.0, 0.0])?;
                let at_floor = |x: &C| power(x) < 1e-7;
                for (k, x) in spectrum.iter().enumerate().filter(|(_, x)| !at_floor(x)) {
                    let (p, t) = (mp[f * r.bins() + k], mt[f * r.bins() + k]);
                    let side = f64::from(i8::from(p > t) - i8::from(p < t));
                    let dm = g * (slope * (p - t) + side / p / mp.len() as f64);
                    d[k] = x.map(|x| dm * x / p);
                }
                let d = transform(&d, 1.0)?;
                let base = f / per_signal * len;
                for (j, at, weight) in frames.taps(f % per_signal) {
                    dp[base + at] += d[j][0] * weight;
                }
            }
        }
        store_grad(OP, &io.dp, &dp)
    }
}
