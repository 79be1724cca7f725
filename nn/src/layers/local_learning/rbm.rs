//! Restricted Boltzmann machines.

use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use super::{Seen, check_last, check_rate, check_size, rows};
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result};
use crate::core::index_check::Values;
use crate::core::tensor::Tensor;
use crate::functional::check_values;
use crate::layers::regularization::noise::RandomStream;
use crate::module::{Init, InitContext, Layer, LocalLearning, Param, Visitor};

const OP: &str = "Rbm";

/// Restricted Boltzmann machine of binary units, trained by contrastive divergence (Hinton, 2002): visible values `[.., V]` in [0, 1] become
/// the probabilities sigmoid(v W^T + c) of the hidden units, `[.., H]`. Values outside of [0, 1] are reported by the next call that waits for
/// the device. Stacks are trained greedily, one layer at a time.
///
/// State: `weight [H, V]` from N(0, 0.01^2), `visible_bias [V]` = 0 and `hidden_bias [H]` = 0, buffers that [the rule](Self::learn_from)
/// changes; of a [trainable](Self::trainable) layer `weight` and `hidden_bias` are parameters. With [`persistent`](Self::persistent) chains
/// the buffer `chains [N, V]` = 0. Samples are drawn by the rule alone, from a random stream of the layer's own.
#[derive(Debug)]
pub struct Rbm {
    visible: usize,
    steps: usize,
    learning_rate: f64,
    weight: Param,
    visible_bias: Param,
    hidden_bias: Param,
    chains: Option<Param>,
    trainable: bool,
    rng: RandomStream,
    training: AtomicBool,
    seen: Seen<Tensor>,
}

impl Rbm {
    /// `visible -> hidden` units, one step of sampling, a learning rate of 0.01. Errors: a size of 0.
    pub fn new(cx: &InitContext, visible: usize, hidden: usize) -> Result<Self> {
        check_size(OP, "visible", visible)?;
        check_size(OP, "hidden", hidden)?;
        let normal = Init::Normal { mean: 0.0, std: 0.01 };
        let zeros = |n: usize| Ok::<_, NnError>(Param::buffer(Init::Zeros.tensor(cx, &[n], 1, 1)?));
        Ok(Rbm {
            visible,
            steps: 1,
            learning_rate: 0.01,
            weight: Param::buffer(normal.tensor(cx, &[hidden, visible], visible, hidden)?),
            visible_bias: zeros(visible)?,
            hidden_bias: zeros(hidden)?,
            chains: None,
            trainable: false,
            rng: RandomStream::new(cx),
            training: AtomicBool::new(true),
            seen: Seen::default(),
        })
    }

    /// Sets the steps of Gibbs sampling, k of CD-k. Errors: 0.
    pub fn steps(mut self, k: usize) -> Result<Self> {
        check_size(OP, "k", k)?;
        self.steps = k;
        Ok(self)
    }

    /// Sets the learning rate of [`LocalLearning::learn`]. Errors: negative or not finite.
    pub fn learning_rate(mut self, learning_rate: f64) -> Result<Self> {
        check_rate(OP, "learning_rate", learning_rate)?;
        self.learning_rate = learning_rate;
        Ok(self)
    }

    /// Persistent contrastive divergence (Tieleman, 2008): sampling goes on from this many chains in place of the data. Errors: 0.
    pub fn persistent(mut self, chains: usize) -> Result<Self> {
        check_size(OP, "persistent_chains", chains)?;
        let w = self.weight.get();
        self.chains = Some(Param::buffer(Tensor::zeros(w.device(), w.dtype(), &[chains, self.visible])?));
        Ok(self)
    }

    /// Trained by gradients, as for fine-tuning in a network: `weight` and `hidden_bias` become parameters, and only
    /// [`learn_from`](Self::learn_from) applies the rule.
    pub fn trainable(mut self) -> Self {
        let parameter = |p: &Param| Param::new(p.get());
        (self.weight, self.hidden_bias) = (parameter(&self.weight), parameter(&self.hidden_bias));
        self.trainable = true;
        self
    }

    /// Probabilities of the hidden units, `[.., V] -> [.., H]`: what forward gives.
    fn hidden(&self, v: &Tensor) -> Result<Tensor> {
        v.linear(&self.weight.get(), Some(&self.hidden_bias.get()), Activation::Sigmoid, Precision::Ieee)
    }

    /// Probabilities sigmoid(h W + b) of the visible units, `[.., H] -> [.., V]`. Errors: another number of hidden units.
    pub fn reconstruct(&self, h: &Tensor) -> Result<Tensor> {
        h.matmul(&self.weight.get())?.add(&self.visible_bias.get())?.sigmoid()
    }

    /// Free energy -v.b - sum softplus(v W^T + c) of visible values, `[.., V] -> [..]`. Errors: another number of visible units.
    pub fn free_energy(&self, v: &Tensor) -> Result<Tensor> {
        check_last(OP, v, self.visible)?;
        let (w, c) = (self.weight.get(), self.hidden_bias.get());
        let hidden = v.linear(&w, Some(&c), Activation::Identity, Precision::Ieee)?.softplus()?;
        v.matmul(&self.visible_bias.get())?.add(&hidden.sum_axes(&[-1], false)?)?.neg()
    }

    /// Units that are on, with these probabilities.
    fn sample(&self, p: &Tensor) -> Result<Tensor> {
        let on = p.to_dtype(DType::F32)?.bernoulli(self.rng.take(p.numel()))?;
        on.to_dtype(p.dtype())
    }

    /// One step of contrastive divergence from visible values `[.., V]`: after k steps of Gibbs sampling from the data (or the persistent
    /// chains) to v_k, the weights move by lr (h(v)^T v - h(v_k)^T v_k), the biases by lr (v - v_k) and lr (h(v) - h(v_k)), means over the
    /// rows. Errors: another number of visible units; k = 0; a rate that is negative or not finite.
    pub fn learn_from(&self, v: &Tensor, learning_rate: f64, k: usize) -> Result<()> {
        check_last(OP, v, self.visible)?;
        check_size(OP, "k", k)?;
        check_rate(OP, "learning_rate", learning_rate)?;
        check_range(v)?;
        no_grad(|| self.diverge(v, learning_rate, k))
    }

    fn diverge(&self, v: &Tensor, learning_rate: f64, k: usize) -> Result<()> {
        let data = &rows(&v.detach(), self.visible)?;
        if data.shape()[0] == 0 {
            return Ok(());
        }
        let from_data = self.hidden(data)?;
        let mut model = data.clone();
        let mut from_model = match &self.chains {
            Some(chains) => self.hidden(&chains.get())?,
            None => from_data.clone(),
        };
        for _ in 0..k {
            model = self.sample(&self.reconstruct(&self.sample(&from_model)?)?)?;
            from_model = self.hidden(&model)?;
        }
        if let Some(chains) = &self.chains {
            chains.get().assign(&model)?;
        }
        let products = |h: &Tensor, v: &Tensor| h.t()?.matmul(v)?.div_scalar(v.shape()[0] as f64);
        let mean = |t: &Tensor| t.mean_axes(&[0], false);
        let step = |p: &Param, data: Tensor, model: Tensor| {
            let p = p.get();
            p.assign(&p.add_scaled(&data.sub(&model)?, learning_rate)?)
        };
        step(&self.weight, products(&from_data, data)?, products(&from_model, &model)?)?;
        step(&self.visible_bias, mean(data)?, mean(&model)?)?;
        step(&self.hidden_bias, mean(&from_data)?, mean(&from_model)?)
    }
}

/// Has the device examine that all values are in [0, 1]; others are reported by the next call that waits.
fn check_range(v: &Tensor) -> Result<()> {
    let good = v.ge_scalar(0.0)?.logical_and(&v.le_scalar(1.0)?)?;
    let allows = |v: f64| (0.0..=1.0).contains(&v);
    check_values(v, &good, Values { op: OP, expected: "a value in [0, 1]", allows })
}

impl Layer for Rbm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_last(OP, x, self.visible)?;
        check_range(x)?;
        if !self.trainable && self.training.load(Ordering::Relaxed) {
            self.seen.put(x.detach());
        }
        self.hidden(x)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        let show = if self.trainable { Visitor::param } else { Visitor::buffer };
        show(v, "weight", &self.weight);
        v.buffer("visible_bias", &self.visible_bias);
        show(v, "hidden_bias", &self.hidden_bias);
        if let Some(chains) = &self.chains {
            v.buffer("chains", chains);
        }
        self.rng.visit(v);
        v.training(&self.training);
    }

    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        if self.trainable { None } else { Some(self) }
    }
}

impl LocalLearning for Rbm {
    fn learn(&self) -> Result<()> {
        match self.seen.take() {
            Some(v) => self.diverge(&v, self.learning_rate, self.steps),
            None => Ok(()),
        }
    }
}
