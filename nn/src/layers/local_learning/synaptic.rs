//! Synapses with spike-timing-dependent plasticity.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Seen, check_rate, check_size, check_vectors, clear};
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{Init, InitContext, Layer, LocalLearning, Param, Visitor};

const OP: &str = "SynapticPlasticity";

/// Options of [`SynapticPlasticity`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StdpOptions {
    /// Potentiation A+ where a spike follows one before the synapse.
    pub ltp_rate: f64,
    /// Depression A- where a spike precedes one before the synapse.
    pub ltd_rate: f64,
    /// Pull towards `w_target`.
    pub homeostasis_rate: f64,
    /// Weight at rest.
    pub w_target: f64,
    /// Least weight.
    pub w_min: f64,
    /// Largest weight.
    pub w_max: f64,
    /// Factor of the traces per step, in [0, 1).
    pub trace_decay: f64,
    /// Exponent of the distance to the bounds: 0 for hard bounds, 1 for multiplicative ones.
    pub mu: f64,
    /// Both sides are the same neurons, whose synapses onto themselves stay as they are.
    pub recurrent: bool,
    /// The output is the input, which the synapses only observe.
    pub identity: bool,
    /// Current above which a neuron behind the synapses spikes, where its spikes are not given.
    pub spike_threshold: f64,
    /// A spike sets its trace to 1 (pairs of nearest spikes) in place of adding 1 (all pairs).
    pub nearest: bool,
    /// Rate of [`LocalLearning::learn`].
    pub learning_rate: f64,
}

impl Default for StdpOptions {
    fn default() -> Self {
        StdpOptions {
            ltp_rate: 0.005,
            ltd_rate: 0.0025,
            homeostasis_rate: 1e-4,
            w_target: 0.5,
            w_min: 0.0,
            w_max: 1.0,
            trace_decay: 0.95,
            mu: 1.0,
            recurrent: false,
            identity: false,
            spike_threshold: 0.5,
            nearest: false,
            learning_rate: 1.0,
        }
    }
}

impl StdpOptions {
    fn check(&self) -> Result<()> {
        for (arg, rate) in [
            ("ltp_rate", self.ltp_rate),
            ("ltd_rate", self.ltd_rate),
            ("homeostasis_rate", self.homeostasis_rate),
            ("mu", self.mu),
            ("learning_rate", self.learning_rate),
        ] {
            check_rate(OP, arg, rate)?;
        }
        for (arg, x) in [("w_target", self.w_target), ("spike_threshold", self.spike_threshold)] {
            if !x.is_finite() {
                return Err(invalid(OP, arg, "a finite number", format!("{x}")));
            }
        }
        let StdpOptions { w_min, w_max, .. } = *self;
        if !(w_min < w_max && w_min.is_finite() && w_max.is_finite()) {
            return Err(invalid(
                OP,
                "w_min",
                format!("a finite number below w_max = {w_max}"),
                format!("{w_min}"),
            ));
        }
        if !(0.0..1.0).contains(&self.trace_decay) {
            return Err(invalid(OP, "trace_decay", "a number in [0, 1)", format!("{}", self.trace_decay)));
        }
        Ok(())
    }
}

/// Synapses with pair-based spike-timing-dependent plasticity (Song et al., 2000; Morrison et al., 2008): spikes `[n_pre]` or `[B, n_pre]`
/// become currents x W, `[n_post]` or `[B, n_post]` (the spikes themselves with [`identity`](StdpOptions::identity)). Gradients pass to the input, and
/// none to the weights, which [the rule](Self::learn_from) alone changes.
///
/// Buffers (f32; f64 for f64): `weight [n_pre, n_post]` from U(w_min, w_max), and `pre_trace [n_pre]` and `post_trace [n_post]` = 0, which
/// [`reset_state`](Layer::reset_state) clears.
#[derive(Debug)]
pub struct SynapticPlasticity {
    sizes: [usize; 2],
    options: StdpOptions,
    weight: Param,
    traces: [Param; 2],
    training: AtomicBool,
    seen: Seen<Tensor>,
}

impl SynapticPlasticity {
    /// Synapses from `n_pre` to `n_post` neurons. Errors: a size of 0; rates and bounds out of range; `recurrent` with two sizes.
    pub fn new(cx: &InitContext, n_pre: usize, n_post: usize, options: StdpOptions) -> Result<Self> {
        check_size(OP, "n_pre", n_pre)?;
        check_size(OP, "n_post", n_post)?;
        options.check()?;
        if options.recurrent && n_pre != n_post {
            let got = format!("{n_pre} and {n_post} neurons");
            return Err(invalid(OP, "recurrent", "the same neurons on both sides", got));
        }
        let cx = cx.clone().dtype(cx.param_dtype().accumulator());
        let uniform = Init::Uniform { lo: options.w_min, hi: options.w_max };
        let buffer =
            |init: Init, shape: &[usize]| Ok::<_, NnError>(Param::buffer(init.tensor(&cx, shape, 1, 1)?));
        Ok(SynapticPlasticity {
            sizes: [n_pre, n_post],
            options,
            weight: buffer(uniform, &[n_pre, n_post])?,
            traces: [buffer(Init::Zeros, &[n_pre])?, buffer(Init::Zeros, &[n_post])?],
            training: AtomicBool::new(true),
            seen: Seen::default(),
        })
    }

    fn currents(&self, spikes: &Tensor) -> Result<Tensor> {
        spikes.matmul(&self.weight.get().to_dtype(spikes.dtype())?)
    }

    /// One step of the rule from the spikes before the synapses, `[n_pre]` or `[B, n_pre]`, and behind them, `[n_post]` or `[B, n_post]`;
    /// without the latter, neurons spike whose current is above the threshold. The traces decay; the weights move by the rate times A+ trace_pre
    /// post (w_max - w)^mu - A- pre trace_post (w - w_min)^mu - homeostasis (w - w_target), within their bounds; then the spikes join the
    /// traces. Of a batch, means count. Errors: other sizes, batches that differ; a rate that is negative or not finite.
    pub fn learn_from(&self, pre: &Tensor, post: Option<&Tensor>, learning_rate: f64) -> Result<()> {
        check_rate(OP, "learning_rate", learning_rate)?;
        check_vectors(OP, "pre", pre, self.sizes[0])?;
        if let Some(post) = post {
            check_vectors(OP, "post", post, self.sizes[1])?;
            if pre.shape()[..pre.rank() - 1] != post.shape()[..post.rank() - 1] {
                let expected = format!("as many rows as `pre` of shape {:?}", pre.shape());
                return Err(invalid(OP, "post", expected, format!("shape {:?}", post.shape())));
            }
        }
        if pre.numel() == 0 {
            return Ok(());
        }
        no_grad(|| {
            let post = match post {
                Some(post) => post.clone(),
                None => self.currents(pre)?.gt_scalar(self.options.spike_threshold)?.to_dtype(pre.dtype())?,
            };
            self.step(&self.mean(pre)?, &self.mean(&post)?, learning_rate)
        })
    }

    /// The mean over a batch. The rule is linear in the spikes, so that its mean is that of the mean.
    fn mean(&self, spikes: &Tensor) -> Result<Tensor> {
        let spikes = spikes.detach().to_dtype(self.weight.get().dtype())?;
        if spikes.rank() == 2 { spikes.mean_axes(&[0], false) } else { Ok(spikes) }
    }

    fn step(&self, pre: &Tensor, post: &Tensor, learning_rate: f64) -> Result<()> {
        let o = &self.options;
        let w = self.weight.get();
        let traces = [&self.traces[0], &self.traces[1]].map(Param::get);
        let decayed = [traces[0].mul_scalar(o.trace_decay)?, traces[1].mul_scalar(o.trace_decay)?];
        let bounded = |pairs: Tensor, distance: Tensor| match o.mu {
            0.0 => Ok(pairs),
            1.0 => pairs.mul(&distance),
            mu => pairs.mul(&distance.pow_scalar(mu)?),
        };
        let up = bounded(decayed[0].outer(post)?, w.rsub_scalar(o.w_max)?)?.mul_scalar(o.ltp_rate)?;
        let down = bounded(pre.outer(&decayed[1])?, w.sub_scalar(o.w_min)?)?;
        let dw =
            up.add_scaled(&down, -o.ltd_rate)?.add_scaled(&w.sub_scalar(o.w_target)?, -o.homeostasis_rate)?;
        let dw = if o.recurrent { dw.sub(&dw.tril(0)?.triu(0)?)? } else { dw };
        w.assign(&w.add_scaled(&dw, learning_rate)?.clamp(Some(o.w_min), Some(o.w_max))?)?;
        for ((trace, decayed), spikes) in traces.iter().zip(decayed).zip([pre, post]) {
            let joined = match o.nearest {
                // 1 where there is a spike.
                true => decayed.add(&spikes.mul(&decayed.rsub_scalar(1.0)?)?)?,
                false => decayed.add(spikes)?,
            };
            trace.assign(&joined)?;
        }
        Ok(())
    }
}

impl Layer for SynapticPlasticity {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_vectors(OP, "x", x, self.sizes[0])?;
        if self.training.load(Ordering::Relaxed) {
            self.seen.put(x.detach());
        }
        if self.options.identity { Ok(x.clone()) } else { self.currents(x) }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.buffer("weight", &self.weight);
        v.buffer("pre_trace", &self.traces[0]);
        v.buffer("post_trace", &self.traces[1]);
        v.training(&self.training);
    }

    fn reset_state(&self) {
        self.seen.take();
        self.traces.iter().for_each(clear);
    }

    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        Some(self)
    }
}

impl LocalLearning for SynapticPlasticity {
    fn learn(&self) -> Result<()> {
        match self.seen.take() {
            Some(pre) => self.learn_from(&pre, None, self.options.learning_rate),
            None => Ok(()),
        }
    }
}
