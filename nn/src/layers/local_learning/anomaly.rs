//! Anomaly scores of predicted and observed sets.

use trefoil::DType;

use super::{STEP_FUNCTION, check_binary, check_last, check_share, check_size, clear, constant_of};
use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{InitContext, Layer, Param, Visitor};

const OP: &str = "AnomalyDetector";

/// Scores of the last steps whose mean the likelihood judges.
const RECENT: usize = 10;
/// Scores to which the normal distribution of the likelihood is fitted, at most.
const WINDOW: usize = 8640;
/// Steps before the first fit: 288 of learning and 100 more.
const PROBATION: usize = 388;
/// Steps from one fit to the next.
const REFIT: usize = 100;
/// Least mean and variance of a fit.
const FLOORS: [f64; 2] = [0.03, 3e-4];

/// Statistics of the scores that an [`AnomalyDetector`] remembers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnomalyStatistics {
    /// Number of scores.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Standard deviation (of the population).
    pub std: f64,
    /// Least score.
    pub min: f64,
    /// Largest score.
    pub max: f64,
}

/// Anomaly score of hierarchical temporal memory (Lavin and Ahmad, 2015; Ahmad et al., 2017): what is active, and what had been predicted to
/// be, side by side in `[.., 2n]` of 0 and 1, become `[1]`, the mean over the rows of the share of the active that was not predicted, 0 where
/// nothing is active. Every call, in training and in evaluation, is a step of a series: the smoothed score moves, and the score joins the
/// history. Other values than 0 and 1 are reported by the next call that waits for the device. The gradient of the input is 0.
///
/// Buffers (f32): `smoothed` = 0, `history [capacity]` = 0, a ring, and `count` = 0 (i64), the number of steps; with a
/// [likelihood](Self::likelihood) also `window [8640]`, `mean` and `variance` = 0. [`reset_state`](Layer::reset_state) clears them.
#[derive(Debug)]
pub struct AnomalyDetector {
    size: usize,
    threshold: f64,
    smoothing: f64,
    jaccard: bool,
    smoothed: Param,
    history: Param,
    count: Param,
    likelihood: Option<Likelihood>,
}

/// The scores to which a normal distribution is fitted, and that distribution.
#[derive(Debug)]
struct Likelihood {
    window: Param,
    mean: Param,
    variance: Param,
}

fn zeros(like: &Tensor, shape: &[usize]) -> Result<Param> {
    Ok(Param::buffer(Tensor::zeros(like.device(), DType::F32, shape)?))
}

impl AnomalyDetector {
    /// For inputs of this size (2n), with a history of 100 scores and a smoothing factor of 0.1. Errors: a size that is 0 or odd; a threshold
    /// outside of [0, 1].
    pub fn new(cx: &InitContext, input_size: usize, anomaly_threshold: f64) -> Result<Self> {
        if input_size == 0 || !input_size.is_multiple_of(2) {
            return Err(invalid(OP, "input_size", "an even number above 0", format!("{input_size}")));
        }
        check_share(OP, "anomaly_threshold", anomaly_threshold)?;
        let count = Tensor::zeros(cx.device(), DType::I64, &[])?;
        Ok(AnomalyDetector {
            size: input_size,
            threshold: anomaly_threshold,
            smoothing: 0.1,
            jaccard: false,
            smoothed: zeros(&count, &[])?,
            history: zeros(&count, &[100])?,
            count: Param::buffer(count),
            likelihood: None,
        })
    }

    /// Sets how many scores are remembered. Errors: 0.
    pub fn history_capacity(mut self, history_capacity: usize) -> Result<Self> {
        check_size(OP, "history_capacity", history_capacity)?;
        self.history = zeros(&self.count.get(), &[history_capacity])?;
        Ok(self)
    }

    /// Sets the weight of a new score in the smoothed one. Errors: outside of [0, 1].
    pub fn smoothing_factor(mut self, smoothing_factor: f64) -> Result<Self> {
        check_share(OP, "smoothing_factor", smoothing_factor)?;
        self.smoothing = smoothing_factor;
        Ok(self)
    }

    /// Scores by the Jaccard distance: the share of those active or predicted that are not both.
    pub fn jaccard(mut self) -> Self {
        self.jaccard = true;
        self
    }

    /// Gives the anomaly likelihood in place of the score: the probability that a normal variable is below the mean of the last 10 scores.
    /// Its mean and variance are those of the last 8640 scores, at least 0.03 and 0.0003, determined after 388 steps and every 100 steps
    /// from there; before that the likelihood is 0.5.
    pub fn likelihood(mut self) -> Result<Self> {
        let like = self.count.get();
        let (window, mean, variance) = (zeros(&like, &[WINDOW])?, zeros(&like, &[])?, zeros(&like, &[])?);
        self.likelihood = Some(Likelihood { window, mean, variance });
        Ok(self)
    }

    /// The score of each row, `[.., 2n] -> [..]` (f32). Nothing is remembered. Errors: another last axis.
    pub fn scores(&self, x: &Tensor) -> Result<Tensor> {
        check_last(OP, x, self.size)?;
        check_binary(OP, x)?;
        let halves = x.detach().to_dtype(DType::F32)?.chunk(-1, 2)?;
        let (active, predicted) = (&halves[0], &halves[1]);
        let both = active.mul(predicted)?.sum_axes(&[-1], false)?;
        let active = active.sum_axes(&[-1], false)?;
        let all = match self.jaccard {
            true => active.add(&predicted.sum_axes(&[-1], false)?)?.sub(&both)?,
            false => active,
        };
        // Where there is none, none is missing: 0 / 1.
        all.sub(&both)?.div(&all.clamp(Some(1.0), None)?)
    }

    /// Whether the smoothed score is above the threshold. Waits for the device.
    pub fn is_anomaly(&self) -> Result<bool> {
        Ok(f64::from(self.smoothed_score()?) > self.threshold)
    }

    /// The smoothed score. Waits for the device.
    pub fn smoothed_score(&self) -> Result<f32> {
        self.smoothed.get().item()
    }

    /// Statistics of the scores in the history, none before the first. Waits for the device.
    pub fn statistics(&self) -> Result<Option<AnomalyStatistics>> {
        let seen = usize::try_from(self.count.get().item::<i64>()?).unwrap_or(0);
        let ring = self.history.get().to_vec::<f32>()?;
        let scores: Vec<f64> = ring.into_iter().take(seen).map(f64::from).collect();
        if scores.is_empty() {
            return Ok(None);
        }
        let count = scores.len();
        let mean = scores.iter().sum::<f64>() / count as f64;
        let variance = scores.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / count as f64;
        let (min, max) =
            (scores.iter().copied().fold(1.0, f64::min), scores.iter().copied().fold(0.0, f64::max));
        Ok(Some(AnomalyStatistics { count, mean, std: variance.sqrt(), min, max }))
    }

    /// A step of the series; what forward gives, a scalar.
    fn step(&self, score: Tensor) -> Result<Tensor> {
        let smoothed = self.smoothed.get();
        smoothed.assign(&smoothed.lerp(&score, self.smoothing)?)?;
        let (count, before) = (self.count.get(), self.count.get().copy()?);
        count.assign(&count.add(&count.ones_like()?)?)?;
        write(&self.history, &before, &score)?;
        match &self.likelihood {
            Some(likelihood) => likelihood.step(&score, &before, &count),
            None => Ok(score),
        }
    }
}

impl Likelihood {
    fn step(&self, score: &Tensor, before: &Tensor, count: &Tensor) -> Result<Tensor> {
        write(&self.window, before, score)?;
        let (window, mean, variance) = (self.window.get(), self.mean.get(), self.variance.get());
        let d = window.device();
        // With the distribution of the last fit.
        let last = Tensor::arange(d, DType::I64, 0.0, 1.0, RECENT)?;
        let recent = window
            .index_select(0, &modulo(&before.sub(&last)?.add(&last.full_like(WINDOW as f64)?)?, WINDOW)?)?;
        let z = recent.mean()?.sub(&mean)?.div(&variance.mul_scalar(2.0)?.sqrt()?)?;
        let likely = z.erfc()?.mul_scalar(-0.5)?.add_scalar(1.0)?;
        let judged = count.gt_scalar(PROBATION as f64)?;
        let likely = likely.where_(&judged, &likely.full_like(0.5)?)?;

        let past = count.sub(&count.full_like(PROBATION as f64)?)?;
        let due = past.ge_scalar(0.0)?.logical_and(&modulo(&past, REFIT)?.eq_scalar(0.0)?)?;
        let filled = count.to_dtype(DType::F32)?.clamp(None, Some(WINDOW as f64))?;
        let there = Tensor::arange(d, DType::F32, 0.0, 1.0, WINDOW)?.lt(&filled)?.to_dtype(DType::F32)?;
        let average = |x: Tensor| x.mul(&there)?.sum()?.div(&filled);
        let fitted = average(window.clone())?;
        let spread = average(window.sub(&fitted)?.square()?)?;
        for (p, now, floor) in [(mean, fitted, FLOORS[0]), (variance, spread, FLOORS[1])] {
            p.assign(&now.clamp(Some(floor), None)?.where_(&due, &p)?)?;
        }
        Ok(likely)
    }
}

/// The rest of integers that are not negative.
fn modulo(x: &Tensor, n: usize) -> Result<Tensor> {
    let n = x.full_like(n as f64)?;
    x.sub(&x.div_floor(&n)?.mul(&n)?)
}

/// Writes a scalar into a ring, at the place of the step with this number.
fn write(ring: &Param, step: &Tensor, value: &Tensor) -> Result<()> {
    let ring = ring.get();
    let at = modulo(step, ring.numel())?.reshape(&[1])?;
    ring.assign(&ring.index_copy(0, &at, &value.reshape(&[1])?)?)
}

impl Layer for AnomalyDetector {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if x.numel() == 0 {
            return Err(invalid(OP, "x", "at least one row", format!("shape {:?}", x.shape())));
        }
        let y = no_grad(|| self.step(self.scores(x)?.mean()?)?.reshape(&[1])?.to_dtype(x.dtype()))?;
        Ok(constant_of("anomaly_detector", y, x))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.buffer("smoothed", &self.smoothed);
        v.buffer("history", &self.history);
        v.buffer("count", &self.count);
        if let Some(l) = &self.likelihood {
            v.buffer("window", &l.window);
            v.buffer("mean", &l.mean);
            v.buffer("variance", &l.variance);
        }
    }

    fn reset_state(&self) {
        [&self.smoothed, &self.history, &self.count].into_iter().for_each(clear);
        if let Some(l) = &self.likelihood {
            [&l.window, &l.mean, &l.variance].into_iter().for_each(clear);
        }
    }

    fn no_gradient(&self) -> Option<String> {
        Some(STEP_FUNCTION.into())
    }
}
