//! Echo state networks.

use std::sync::Mutex;

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil::ops::random::Rng;
use trefoil::ops::rnn::{Recurrence, RnnCell};

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, is_trial};
use crate::functional::{RnnParams, RnnState, steps_to_run};
use crate::layers::attention::scores::{batched, check_width};
use crate::layers::containers::checkpointed::is_repeated;
use crate::module::{Init, InitContext, Layer, Param, Visitor};

const OP: &str = "Reservoir";

/// Reservoir of an echo state network (Jaeger, 2001), a recurrent network whose weights are drawn once and never trained; a trained linear
/// layer behind it reads its states. h_t = (1 - a) h_{t-1} + a tanh(W_in x_t + W h_{t-1}) with the leaking rate a (Jaeger et al., 2007):
/// `[B, T, in] -> [B, T, size]`, rows of the batch being sequences of their own; `[T, in]` and one step `[in]` work too. Gradients flow to
/// the input.
///
/// State: the buffers `w_in [size, in]`, from U(-0.5, 0.5) times the input scaling, and `w_res [size, size]`, whose entries are 0 but for a
/// share of them, from U(-0.5, 0.5), and which is scaled to a spectral radius (largest magnitude of an eigenvalue, complex ones included).
/// It is multiplied as a dense matrix, which at the usual sizes takes less time than a sparse one.
#[derive(Debug)]
pub struct Reservoir {
    inputs: usize,
    size: usize,
    leak: f64,
    detach: bool,
    stateful: bool,
    w_in: Param,
    w_res: Param,
    carried: Mutex<Option<Tensor>>,
}

/// How the weights of a [`Reservoir`] are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReservoirWeights {
    /// Share of the pairs of units that are connected.
    pub connection_probability: f64,
    /// Largest magnitude of an eigenvalue of the weights between units.
    pub spectral_radius: f64,
    /// Factor of the weights of the input.
    pub input_scaling: f64,
}

impl Default for ReservoirWeights {
    /// A tenth of the connections, a radius of 0.9, a scaling of 1.
    fn default() -> Self {
        ReservoirWeights { connection_probability: 0.1, spectral_radius: 0.9, input_scaling: 1.0 }
    }
}

impl Reservoir {
    /// `reservoir_size` units with weights of the default description and a leaking rate of 1. Errors: as [`with`](Reservoir::with).
    pub fn new(cx: &InitContext, input_size: usize, reservoir_size: usize) -> Result<Self> {
        Self::with(cx, input_size, reservoir_size, &ReservoirWeights::default())
    }

    /// As [`new`](Reservoir::new) with weights of another description. Waits for the device. Errors: a size of 0; a probability outside of
    /// (0, 1], a radius or scaling that is not a finite number above 0; no connections in circles, so that there is no radius to scale.
    pub fn with(
        cx: &InitContext,
        input_size: usize,
        reservoir_size: usize,
        weights: &ReservoirWeights,
    ) -> Result<Self> {
        let &ReservoirWeights { connection_probability, spectral_radius, input_scaling } = weights;
        for (arg, n) in [("input_size", input_size), ("reservoir_size", reservoir_size)] {
            if n == 0 {
                return Err(invalid(OP, arg, "at least 1", "0"));
            }
        }
        share("connection_probability", connection_probability)?;
        for (arg, x) in [("spectral_radius", spectral_radius), ("input_scaling", input_scaling)] {
            if !(x > 0.0 && x.is_finite()) {
                return Err(invalid(OP, arg, "a finite number above 0", format!("{x}")));
            }
        }
        let drawn = |scale: f64, columns: usize| {
            let init = Init::Uniform { lo: -0.5 * scale, hi: 0.5 * scale };
            init.tensor(cx, &[reservoir_size, columns], columns, reservoir_size)
        };
        let w_in = drawn(input_scaling, input_size)?;
        let w_res = connected(cx, &drawn(1.0, reservoir_size)?, connection_probability)?;
        Ok(Reservoir {
            inputs: input_size,
            size: reservoir_size,
            leak: 1.0,
            detach: false,
            stateful: false,
            w_in: Param::buffer(w_in),
            w_res: Param::buffer(scaled_to(&w_res, spectral_radius)?),
            carried: Mutex::default(),
        })
    }

    setters! {
        /// Whether no gradient flows to the input (default false).
        detach_input: bool => detach;
    }

    /// Sets how much of a state is new in each step. Errors: outside of (0, 1].
    pub fn leaking_rate(mut self, rate: f64) -> Result<Self> {
        self.leak = share("leaking_rate", rate)?;
        Ok(self)
    }

    /// Starts where the last call ended, without gradients, until [`reset_state`](Layer::reset_state); the batch must keep its size.
    pub fn stateful(mut self) -> Self {
        self.stateful = true;
        self
    }

    /// The weights `[out, size]` of a linear layer without bias behind a reservoir, by ridge regression: of all W the one with the least
    /// |states W^T - targets|^2 + beta |W|^2, for states `[.., size]` and targets `[.., out]`. Solved on the host in f64. Errors: shapes that do
    /// not fit; a negative beta; states that do not determine W, with a beta of 0.
    pub fn ridge_readout(states: &Tensor, targets: &Tensor, beta: f64) -> Result<Tensor> {
        if !(beta >= 0.0 && beta.is_finite()) {
            return Err(invalid(OP, "beta", "a finite number of at least 0", format!("{beta}")));
        }
        let (&[.., size], &[.., outputs]) = (states.shape(), targets.shape()) else {
            return Err(invalid(OP, "states", "shapes [.., size] and [.., out]", "a scalar"));
        };
        let lead = |t: &Tensor| t.shape()[..t.rank() - 1].to_vec();
        if lead(states) != lead(targets) || size == 0 || outputs == 0 {
            let want = format!("shape {:?} with an axis of outputs", lead(states));
            return Err(invalid(OP, "targets", want, format!("shape {:?}", targets.shape())));
        }
        let rows = |t: &Tensor, width: usize| {
            t.detach().to_dtype(t.dtype().accumulator())?.reshape(&[t.numel() / width, width])
        };
        let (s, y) = (rows(states, size)?, rows(targets, outputs)?);
        let host = |t: Tensor| t.to_dtype(DType::F64)?.to_vec::<f64>();
        let mut gram = host(s.t()?.matmul(&s)?)?;
        let mut weights = host(y.t()?.matmul(&s)?)?;
        (0..size).for_each(|i| gram[i * size + i] += beta);
        solve(&mut gram, size, &mut weights)?;
        let weights = Tensor::from_slice(states.device(), &weights, &[outputs, size])?;
        weights.to_dtype(states.dtype())
    }

    /// All states of sequences `[B, T, in]` from a first one `[B, size]` (none: zeros).
    fn run(&self, x: &Tensor, initial: Option<Tensor>) -> Result<Tensor> {
        let (w_in, w_res) = (self.w_in.get(), self.w_res.get());
        if self.leak == 1.0 {
            let weights = RnnParams { w_ih: w_in, w_hh: w_res, b_ih: None, b_hh: None };
            let initial = initial.map(|h| RnnState { h, c: None });
            let how = Recurrence::new().batch_first(true);
            return Ok(x.rnn(RnnCell::Tanh, &how, &weights, initial.as_ref(), None)?.0);
        }
        let driven = x.linear(&w_in, None, Activation::Identity, Precision::Ieee)?;
        let mut h = match initial {
            Some(h) => h,
            None => Tensor::zeros(x.device(), x.dtype(), &[x.shape()[0], self.size])?,
        };
        let (steps, mut all) = (x.shape()[1], vec![]);
        let run = steps_to_run(OP, x, steps)?;
        for t in 0..run {
            let own = h.linear(&w_res, None, Activation::Identity, Precision::Ieee)?;
            let z = driven.select(1, t)?.add(&own)?.tanh()?;
            h = h.lerp(&z, self.leak)?;
            all.push(h.clone());
        }
        match run == steps {
            true => Tensor::stack(1, &all.iter().collect::<Vec<_>>()),
            false => x.like(&[x.shape()[0], steps, self.size]),
        }
    }

    /// The state of the last call, where it is carried on. Errors: one of another batch.
    fn initial(&self, batch: usize) -> Result<Option<Tensor>> {
        if !self.stateful {
            return Ok(None);
        }
        if is_repeated() {
            // The second forward would start from the state that the first one has carried on.
            return Err(invalid(OP, "stateful", "false in a checkpointed segment", "true"));
        }
        let carried = self.carried.lock().unwrap_or_else(|p| p.into_inner()).clone();
        match carried {
            Some(h) if h.shape()[0] != batch => {
                let want = format!("a batch of {} until reset_state", h.shape()[0]);
                Err(invalid(OP, "x", want, format!("{batch}")))
            }
            h => Ok(h),
        }
    }
}

/// Error unless a number is in (0, 1].
fn share(arg: &'static str, x: f64) -> Result<f64> {
    if x > 0.0 && x <= 1.0 {
        return Ok(x);
    }
    Err(invalid(OP, arg, "a number in (0, 1]", format!("{x}")))
}

/// The entries that are connections, each with this probability; 0 elsewhere.
fn connected(cx: &InitContext, w: &Tensor, probability: f64) -> Result<Tensor> {
    let chance = Tensor::full(w.device(), DType::F32, w.shape(), probability)?;
    let mask = chance.bernoulli(Rng::new(cx.seed()).at(cx.next_stream(), 0))?;
    w.mul(&mask.to_dtype(w.dtype())?)
}

/// The largest magnitude of an eigenvalue of a square matrix by Gelfand's formula, |W^k|^(1/k) for large k: squared again and again, with the
/// logarithms of the norms put aside, the power 2^24 takes 24 products. Waits for the device.
fn spectral_radius(w: &Tensor) -> Result<f64> {
    let mut power = w.to_dtype(w.dtype().accumulator())?;
    let (mut log, mut part) = (0.0, 1.0);
    for _ in 0..=24 {
        let norm = power.norm(2.0)?.to_dtype(DType::F32)?.item::<f32>()?;
        if norm == 0.0 {
            return Ok(0.0);
        }
        log += part * f64::from(norm).ln();
        part *= 0.5;
        power = power.mul_scalar(1.0 / f64::from(norm))?;
        power = power.matmul(&power)?;
    }
    Ok(log.exp())
}

/// The matrix with this spectral radius. Errors: one whose radius is 0.
fn scaled_to(w: &Tensor, radius: f64) -> Result<Tensor> {
    if is_trial(w.device()) {
        return Ok(w.clone());
    }
    let own = no_grad(|| spectral_radius(w))?;
    if own == 0.0 {
        let want = "enough connections for a spectral radius above 0";
        return Err(invalid(OP, "connection_probability", want, "a matrix without circles"));
    }
    w.mul_scalar(radius / own)
}

/// Puts in place of each row b of `rows` the solution of A x = b, by the factors of Cholesky of the symmetric A. Errors: an A that is not
/// positive definite.
fn solve(a: &mut [f64], n: usize, rows: &mut [f64]) -> Result<()> {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    for i in 0..n {
        let (before, row) = a.split_at_mut(i * n);
        for j in 0..i {
            row[j] = (row[j] - dot(&row[..j], &before[j * n..j * n + j])) / before[j * n + j];
        }
        let pivot = row[i] - dot(&row[..i], &row[..i]);
        // Where nearly all digits cancel there is no pivot; NaN is none either.
        let definite = pivot > 1e-14 * row[i].abs();
        if !definite {
            return Err(invalid(
                OP,
                "beta",
                "a number above 0 for states that depend on each other",
                "too little",
            ));
        }
        row[i] = pivot.sqrt();
    }
    for b in rows.chunks_exact_mut(n) {
        for i in 0..n {
            b[i] = (b[i] - dot(&b[..i], &a[i * n..i * n + i])) / a[i * n + i];
        }
        for i in (0..n).rev() {
            let behind: f64 = (i + 1..n).map(|k| a[k * n + i] * b[k]).sum();
            b[i] = (b[i] - behind) / a[i * n + i];
        }
    }
    Ok(())
}

impl Layer for Reservoir {
    /// Errors: another width or rank; no steps; a stateful layer whose batch changes.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() == 1 {
            return self.forward(&x.unsqueeze(0)?)?.squeeze(0);
        }
        let (sequences, single) = batched(OP, "x", x)?;
        check_width(OP, "x", &sequences, self.inputs)?;
        let initial = self.initial(sequences.shape()[0])?;
        let y = self.run(&if self.detach { sequences.detach() } else { sequences }, initial)?;
        if self.stateful {
            let last = y.detach().select(1, y.shape()[1] - 1)?.contiguous()?;
            *self.carried.lock().unwrap_or_else(|p| p.into_inner()) = Some(last);
        }
        if single { y.squeeze(0) } else { Ok(y) }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.buffer("w_in", &self.w_in);
        v.buffer("w_res", &self.w_res);
    }

    fn reset_state(&self) {
        *self.carried.lock().unwrap_or_else(|p| p.into_inner()) = None;
    }
}
