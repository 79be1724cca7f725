//! Other sample rates by interpolation with windowed sinc functions.

use std::f64::consts::PI;

use trefoil::DType;
use trefoil::ops::conv::Conv;
use trefoil::ops::shape::PadMode;

use super::mel::table;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_device};

/// The window of the sinc functions of [`Resample`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ResampleWindow {
    /// cos^2.
    #[default]
    Hann,
    /// Kaiser's, of this beta.
    Kaiser(f64),
}

impl ResampleWindow {
    /// At a place from -1 to 1.
    fn at(self, x: f64) -> f64 {
        match self {
            ResampleWindow::Hann => (x * PI / 2.0).cos().powi(2),
            ResampleWindow::Kaiser(beta) => bessel_i0(beta * (1.0 - x * x).max(0.0).sqrt()) / bessel_i0(beta),
        }
    }
}

/// The series of (x / 2)^2k / k!^2.
fn bessel_i0(x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..1000 {
        term *= (x / (2.0 * f64::from(k))).powi(2);
        sum += term;
        if term <= sum * f64::EPSILON {
            break;
        }
    }
    sum
}

/// How sharp the filter of [`Resample`] is: 6 zeros of the sinc function to either side, up to 0.99 of the lower of the two Nyquist frequencies,
/// under a Hann window, unless set otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ResampleOptions {
    /// Zeros of the sinc function to either side.
    pub width: usize,
    /// Share of the lower Nyquist frequency that passes.
    pub rolloff: f64,
    /// Window of the sinc function.
    pub window: ResampleWindow,
}

impl Default for ResampleOptions {
    fn default() -> Self {
        ResampleOptions { width: 6, rolloff: 0.99, window: ResampleWindow::Hann }
    }
}

impl ResampleOptions {
    /// Sets the zeros to either side.
    pub const fn width(mut self, zeros: usize) -> Self {
        self.width = zeros;
        self
    }

    /// Sets the share of frequencies that passes.
    pub const fn rolloff(mut self, share: f64) -> Self {
        self.rolloff = share;
        self
    }

    /// Sets the window.
    pub const fn window(mut self, window: ResampleWindow) -> Self {
        self.window = window;
        self
    }
}

/// A change of the sample rate; holds its filters, one for each place of a new sample between two old ones. Source
/// `torchaudio.transforms.Resample`.
#[derive(Debug, Clone)]
pub struct Resample {
    /// `[to, 1, taps]`.
    filters: Tensor,
    from: usize,
    to: usize,
    margin: usize,
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Resample {
    /// Filters for signals of a dtype, from one rate to another, computed on the host. Errors: `Invalid` for rates or a width of 0, a share that is
    /// not above 0, or filters of more than 2^26 numbers: of rates with a small common divisor.
    pub fn new(
        device: &Device,
        dtype: DType,
        from: usize,
        to: usize,
        p: &ResampleOptions,
    ) -> Result<Resample> {
        const OP: &str = "resample";
        let divisor = gcd(from, to).max(1);
        let (from, to) = (from / divisor, to / divisor);
        let base = from.min(to) as f64 * p.rolloff;
        let margin = (p.width as f64 * from as f64 / base).ceil();
        let numbers = (2.0 * margin + from as f64) * to as f64;
        let fits = numbers <= (1 << 26) as f64;
        if from == 0 || to == 0 || p.width == 0 || p.rolloff <= 0.0 || !fits {
            let got = format!("{from} to {to} after division by what they share, {p:?}");
            return Err(invalid(
                OP,
                "from",
                "rates, a width and a rolloff above 0, at most 2^26 numbers",
                got,
            ));
        }
        let (margin, width) = (margin as usize, p.width as f64);
        let taps = 2 * margin + from;
        let weight = |phase: usize, tap: usize| {
            let at = (tap as f64 - margin as f64) / from as f64 - phase as f64 / to as f64;
            let t = (at * base).clamp(-width, width);
            let sinc = if t == 0.0 { 1.0 } else { (PI * t).sin() / (PI * t) };
            sinc * p.window.at(t / width) * base / from as f64
        };
        let all: Vec<f64> = (0..to * taps).map(|e| weight(e / taps, e % taps)).collect();
        Ok(Resample { filters: table(OP, device, dtype, &all, &[to, 1, taps])?, from, to, margin })
    }

    /// Signals `[.., T]` at the new rate: `[.., ceil(T to / from)]`. Errors: `Invalid` for a device or a dtype other than the filters'.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        same_device("resample", x, &self.filters)?;
        let Some((&length, lead)) = x.shape().split_last() else {
            return Err(invalid("resample", "x", "signals [.., T]", "a scalar"));
        };
        if self.from == self.to {
            return x.copy();
        }
        let signals = x.reshape(&[lead.iter().product(), 1, length])?;
        let ends = (self.margin as isize, (self.margin + self.from) as isize);
        let padded = signals.pad(PadMode::Constant(0.0), &[(0, 0), (0, 0), ends])?;
        let phases = padded.conv(&self.filters, None, &Conv::new().stride(self.from))?;
        let target = self.to.saturating_mul(length).div_ceil(self.from);
        let all = phases.t()?.flatten(1, 2)?;
        all.narrow(-1, 0, target)?.reshape(&[lead, &[target]].concat())
    }
}
