//! A layer of spiking neurons.

use std::sync::Mutex;

use trefoil::DType;

use super::neuron::{Dynamics, Neuron, SpikeReset, Step};
use super::surrogate::Surrogate;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::steps_to_run;
use crate::layers::containers::checkpointed::is_repeated;
use crate::layers::linear::dense::Dense;
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "Spiking";

/// A linear layer whose results are the currents of spiking neurons, stepped over time: `[T, B, in]` to spikes (0 or 1) `[T, B, out]`, one
/// step `[B, in]` to `[B, out]`. Gradients of spikes are [surrogates](Surrogate) (Neftci et al., 2019); `snntorch.Leaky` behind `nn.Linear`.
///
/// Neurons start at rest in each call, unless the layer is [stateful](Spiking::stateful). They compute in f32 (f64 for f64). A potential
/// that grows beyond all numbers goes into the spikes as NaN, where [`TrainOptions::anomaly`](crate::trainer::TrainOptions) finds it.
///
/// State: `weight [out, in]` and `bias [out]`, from U(-1/sqrt(in), 1/sqrt(in)).
#[derive(Debug)]
pub struct Spiking {
    linear: Dense,
    dynamics: Dynamics,
    batch_first: bool,
    stateful: bool,
    carried: Mutex<Option<SpikingState>>,
}

/// What neurons carry from one step to the next: tensors `[B, out]`, the potential first.
#[derive(Debug, Clone)]
pub struct SpikingState(Vec<Tensor>);

impl SpikingState {
    /// The tensors: the potential, then what else the model has.
    pub fn tensors(&self) -> &[Tensor] {
        &self.0
    }
}

/// Result of [`Spiking::run`].
#[derive(Debug, Clone)]
pub struct SpikingOutput {
    /// 1 where a neuron spiked, else 0: `[T, B, out]` in the dtype of the input.
    pub spikes: Tensor,
    /// Potentials `[T, B, out]` as they were compared with the threshold.
    pub membrane: Tensor,
    /// The state after the last step.
    pub state: SpikingState,
}

impl Spiking {
    /// `in_features -> out_features` neurons of a kind, with a threshold of 1 that spikes subtract, and no refractory steps. Errors: a size
    /// of 0; a beta outside of [0, 1].
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize, neuron: Neuron) -> Result<Self> {
        if let Neuron::LeakyIntegrateAndFire { beta } = neuron
            && !(0.0..=1.0).contains(&beta)
        {
            return Err(invalid(OP, "beta", "a number in [0, 1]", format!("{beta}")));
        }
        Ok(Spiking {
            linear: Dense::new(cx, in_features, out_features)?,
            dynamics: Dynamics {
                neuron,
                threshold: 1.0,
                reset: SpikeReset::Subtract,
                refractory: 0,
                surrogate: Surrogate::default(),
                dt: neuron.usual_dt(),
                detach_reset: true,
            },
            batch_first: false,
            stateful: false,
            carried: Mutex::default(),
        })
    }

    setters! {
        /// Whether gradients leave out what spikes do to the neuron itself (default true).
        detach_reset: bool => dynamics.detach_reset;
        /// Whether sequences are `[B, T, ..]` in place of `[T, B, ..]` (default false), as the inputs of networks in JSON are.
        batch_first: bool => batch_first;
    }

    /// Error unless the neuron is one whose threshold is an option.
    fn integrates(&self, option: &'static str) -> Result<()> {
        if self.dynamics.neuron.integrates() {
            return Ok(());
        }
        let want = "integrate-and-fire neurons (others have their own)";
        Err(invalid(OP, option, want, format!("{:?}", self.dynamics.neuron)))
    }

    /// Sets the potential above which a neuron spikes. Errors: not a finite number; a neuron that has its own.
    pub fn threshold(mut self, threshold: f64) -> Result<Self> {
        self.integrates("threshold")?;
        if !threshold.is_finite() {
            return Err(invalid(OP, "threshold", "a finite number", format!("{threshold}")));
        }
        self.dynamics.threshold = threshold;
        Ok(self)
    }

    /// Sets what a spike does to the potential. Errors: a neuron that has its own reset.
    pub fn reset(mut self, reset: SpikeReset) -> Result<Self> {
        self.integrates("reset")?;
        self.dynamics.reset = reset;
        Ok(self)
    }

    /// Sets for how many steps after a spike a neuron takes no current and does not spike. Errors: a neuron that has its own.
    pub fn refractory_steps(mut self, steps: usize) -> Result<Self> {
        self.integrates("refractory_steps")?;
        self.dynamics.refractory = steps;
        Ok(self)
    }

    /// Sets the gradient that stands for that of a spike. Errors: a sharpness that is not a finite number above 0.
    pub fn surrogate(mut self, surrogate: Surrogate) -> Result<Self> {
        surrogate.check(OP)?;
        self.dynamics.surrogate = surrogate;
        Ok(self)
    }

    /// Sets the step of time in ms (default 1; 0.01 for Hodgkin and Huxley). Errors: not a finite number above 0; integrate-and-fire neurons,
    /// which have no time of their own.
    pub fn dt(mut self, dt: f64) -> Result<Self> {
        if self.dynamics.neuron.integrates() {
            let got = format!("{:?}", self.dynamics.neuron);
            return Err(invalid(OP, "dt", "a neuron that is a differential equation", got));
        }
        if !(dt > 0.0 && dt.is_finite()) {
            return Err(invalid(OP, "dt", "a finite number above 0", format!("{dt}")));
        }
        self.dynamics.dt = dt;
        Ok(self)
    }

    /// Starts where the last call ended, without gradients, as long as the batch keeps its size; until
    /// [`reset_state`](Layer::reset_state).
    pub fn stateful(mut self) -> Self {
        self.stateful = true;
        self
    }

    /// Runs over `[T, B, in]` (or with the batch first) from a state (none: at rest, or the carried one). Gradients flow to input, state and
    /// parameters. Errors: `Invalid` for shapes that do not fit, and no steps.
    pub fn run(&self, x: &Tensor, initial: Option<&SpikingState>) -> Result<SpikingOutput> {
        let axes = if self.batch_first { "[B, T, in]" } else { "[T, B, in]" };
        let &[first, second, _] = x.shape() else {
            return Err(invalid(OP, "x", format!("shape {axes}"), format!("shape {:?}", x.shape())));
        };
        let (steps, batch, time) = if self.batch_first { (second, first, 1) } else { (first, second, 0) };
        if steps == 0 {
            return Err(invalid(OP, "x", "at least one step", "none"));
        }
        let currents = hooks::layer("", &self.linear, x)?.to_dtype(x.dtype().accumulator())?;
        let shape = [batch, currents.shape()[2]];
        let mut state = match initial {
            Some(s) => self.fitting(s, &shape, currents.dtype())?,
            None => match self.carried(&shape)? {
                Some(s) => s.0,
                None => self.dynamics.initial(&currents.select(time, 0)?)?,
            },
        };
        let (mut spikes, mut membrane) = (vec![], vec![]);
        let run = steps_to_run(OP, x, steps)?;
        for t in 0..run {
            let Step { spike, membrane: u, state: next } =
                self.dynamics.step(&currents.select(time, t)?, &state)?;
            spikes.push(spike);
            membrane.push(u);
            state = next;
        }
        if self.stateful {
            let kept = SpikingState(state.iter().map(Tensor::detach).collect());
            *self.carried.lock().unwrap_or_else(|p| p.into_inner()) = Some(kept);
        }
        let stacked = |all: &[Tensor]| match run == steps {
            true => Tensor::stack(time, &all.iter().collect::<Vec<_>>())?.to_dtype(x.dtype()),
            false => x.like(&[first, second, shape[1]]),
        };
        Ok(SpikingOutput {
            spikes: stacked(&spikes)?,
            membrane: stacked(&membrane)?,
            state: SpikingState(state),
        })
    }

    /// A given state. Errors: one of another kind of neuron or another batch.
    fn fitting(&self, s: &SpikingState, shape: &[usize], dtype: DType) -> Result<Vec<Tensor>> {
        match s.0.iter().find(|t| t.shape() != shape || t.dtype() != dtype) {
            Some(t) => {
                let got = format!("{} of shape {:?}", t.dtype(), t.shape());
                Err(invalid(OP, "initial", format!("{dtype} of shape {shape:?}"), got))
            }
            None => Ok(s.0.clone()),
        }
    }

    /// The state of the last call, where it is to be carried on and fits.
    fn carried(&self, shape: &[usize]) -> Result<Option<SpikingState>> {
        if self.stateful && is_repeated() {
            // The second forward would start from states that the first one has carried on.
            return Err(invalid(OP, "stateful", "false in a checkpointed segment", "true"));
        }
        let carried = self.carried.lock().unwrap_or_else(|p| p.into_inner());
        Ok(carried.clone().filter(|s| s.0.iter().all(|t| t.shape() == shape)))
    }

    /// Spikes and potentials of a sequence or one step.
    fn outputs(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        if x.rank() == 2 {
            let time = isize::from(self.batch_first);
            let SpikingOutput { spikes, membrane, .. } = self.run(&x.unsqueeze(time)?, None)?;
            return Ok([spikes.squeeze(time)?, membrane.squeeze(time)?]);
        }
        let SpikingOutput { spikes, membrane, .. } = self.run(x, None)?;
        Ok([spikes, membrane])
    }
}

impl Layer for Spiking {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [spikes, _] = self.outputs(x)?;
        Ok(spikes)
    }

    /// `[x]` to spikes and potentials.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => Ok(self.outputs(x)?.into()),
            _ => Err(invalid(OP, "inputs", "1 tensor", format!("{} tensors", inputs.len()))),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.linear.visit(v);
    }

    fn reset_state(&self) {
        *self.carried.lock().unwrap_or_else(|p| p.into_inner()) = None;
    }
}
