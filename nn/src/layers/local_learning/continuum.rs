//! The continuum memory system of nested learning.

use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use super::{Seen, check_last, check_rate, check_size};
use crate::core::autograd::{grad_enabled, no_grad};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{Init, InitContext, Layer, LocalLearning, Param, Visitor};

const OP: &str = "ContinuumMemorySystem";

/// Most levels.
const LEVELS: usize = 10;

/// Continuum memory system (Behrouz et al., 2025): a chain of blocks act(x W^T + b), `[.., F] -> [.., H]`, each updated on a clock of its own,
/// so that the first adapts fast and the last slowly. [`LocalLearning::learn`], called after the backward pass, adds the gradients of the last
/// forward in training to a sum per level; every `chunk_size`-th time the level moves by its learning rate times that sum, which begins anew.
/// With chunks of 1 this is gradient descent. A model of nothing else has no parameters for an [`Optimizer`](crate::Optimizer): its loop calls
/// backward and [`LayerExt::learn`](crate::LayerExt::learn) alone.
///
/// The blocks are buffers, so that optimizers leave them to this rule; gradients pass through them to the input. State per level l:
/// `levels.l.weight [H, F or H]` from N(0, 2 / fan_in), `levels.l.bias [H]` = 0, the sums `levels.l.weight_grad` and `levels.l.bias_grad` = 0
/// (f32; f64 for f64), and `levels.l.count` = 0 (i64), how many gradients they hold.
#[derive(Debug)]
pub struct ContinuumMemorySystem {
    inputs: usize,
    levels: Vec<Level>,
    act: Activation,
    training: AtomicBool,
    /// Weights and biases, with the gradients that the backward pass leaves there.
    seen: Seen<Vec<[Tensor; 2]>>,
}

#[derive(Debug)]
struct Level {
    params: [Param; 2],
    sums: [Param; 2],
    count: Param,
    chunk: usize,
    learning_rate: f64,
}

impl Level {
    fn new(cx: &InitContext, inputs: usize, outputs: usize, at: usize) -> Result<Self> {
        let normal = Init::Normal { mean: 0.0, std: (2.0 / inputs as f64).sqrt() };
        let params = [
            normal.tensor(cx, &[outputs, inputs], inputs, outputs)?,
            Init::Zeros.tensor(cx, &[outputs], inputs, outputs)?,
        ];
        let sum =
            |p: &Tensor| Tensor::zeros(p.device(), p.dtype().accumulator(), p.shape()).map(Param::buffer);
        Ok(Level {
            sums: [sum(&params[0])?, sum(&params[1])?],
            params: params.map(Param::buffer),
            count: Param::buffer(Tensor::zeros(cx.device(), DType::I64, &[])?),
            chunk: 10usize.pow(at as u32),
            learning_rate: 10f64.powi(-2 - at as i32),
        })
    }

    /// Adds gradients to the sums, and moves the parameters where the chunk is complete.
    fn add(&self, grads: [Tensor; 2]) -> Result<()> {
        let count = self.count.get();
        let next = count.add(&count.ones_like()?)?;
        let due = next.eq_scalar(self.chunk as f64)?;
        for ((param, sum), grad) in self.params.iter().zip(&self.sums).zip(grads) {
            let (param, sum) = (param.get(), sum.get());
            let total = sum.add(&grad.to_dtype(sum.dtype())?)?;
            let moved = param.to_dtype(sum.dtype())?.add_scaled(&total, -self.learning_rate)?;
            param.assign(&moved.to_dtype(param.dtype())?.where_(&due, &param)?)?;
            sum.assign(&total.masked_fill(&due, 0.0)?)?;
        }
        count.assign(&next.masked_fill(&due, 0.0)?)
    }
}

impl ContinuumMemorySystem {
    /// `in_features -> hidden_dim` through a number of levels, with chunks of 1, 10, 100, .. gradients, learning rates of 1e-2, 1e-3, 1e-4, ..
    /// and relu. Errors: a size of 0; no level, or more than 10.
    pub fn new(cx: &InitContext, in_features: usize, hidden_dim: usize, num_levels: usize) -> Result<Self> {
        check_size(OP, "in_features", in_features)?;
        check_size(OP, "hidden_dim", hidden_dim)?;
        if !(1..=LEVELS).contains(&num_levels) {
            return Err(invalid(OP, "num_levels", format!("1 to {LEVELS}"), format!("{num_levels}")));
        }
        let level = |at| Level::new(cx, if at == 0 { in_features } else { hidden_dim }, hidden_dim, at);
        Ok(ContinuumMemorySystem {
            inputs: in_features,
            levels: (0..num_levels).map(level).collect::<Result<_>>()?,
            act: Activation::Relu,
            training: AtomicBool::new(true),
            seen: Seen::default(),
        })
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets the number of gradients per update of each level. Errors: another number of levels, a chunk of 0.
    pub fn chunk_sizes(mut self, chunk_sizes: &[usize]) -> Result<Self> {
        self.check_count("chunk_sizes", chunk_sizes.len())?;
        for (level, &chunk) in self.levels.iter_mut().zip(chunk_sizes) {
            check_size(OP, "chunk_sizes", chunk)?;
            level.chunk = chunk;
        }
        Ok(self)
    }

    /// Sets the learning rate of each level. Errors: another number of levels; a rate that is negative or not finite.
    pub fn level_lr(mut self, level_lr: &[f64]) -> Result<Self> {
        self.check_count("level_lr", level_lr.len())?;
        for (level, &lr) in self.levels.iter_mut().zip(level_lr) {
            check_rate(OP, "level_lr", lr)?;
            level.learning_rate = lr;
        }
        Ok(self)
    }

    fn check_count(&self, arg: &'static str, n: usize) -> Result<()> {
        if n == self.levels.len() {
            return Ok(());
        }
        Err(invalid(OP, arg, format!("{}, one for each level", self.levels.len()), format!("{n}")))
    }

    /// Moves the level behind `level` by a hundredth of the way to it: 0.99 of its own weights and 0.01 of those of `level`. Errors: no level
    /// behind it, blocks of other shapes.
    pub fn consolidate(&self, level: usize) -> Result<()> {
        let Some([from, to]) = self.levels.get(level..).and_then(|rest| rest.first_chunk::<2>()) else {
            let expected = format!("a level before the last of {}", self.levels.len());
            return Err(invalid(OP, "level", expected, format!("{level}")));
        };
        let (a, b) = (from.params[0].get(), to.params[0].get());
        if a.shape() != b.shape() {
            let got = format!("{:?} and {:?}", a.shape(), b.shape());
            return Err(invalid(OP, "level", "two blocks of one shape", got));
        }
        no_grad(|| {
            from.params.iter().zip(&to.params).try_for_each(|(from, to)| {
                let to = to.get();
                to.assign(&to.lerp(&from.get(), 0.01)?)
            })
        })
    }
}

impl Layer for ContinuumMemorySystem {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_last(OP, x, self.inputs)?;
        let learning = self.training.load(Ordering::Relaxed) && grad_enabled();
        let read = |p: &Param| if learning { p.get().with_grad() } else { p.get() };
        let params: Vec<[Tensor; 2]> =
            self.levels.iter().map(|l| [read(&l.params[0]), read(&l.params[1])]).collect();
        let y =
            params.iter().try_fold(x.clone(), |z, [w, b]| z.linear(w, Some(b), self.act, Precision::Ieee))?;
        if learning {
            self.seen.put(params);
        }
        Ok(y)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (i, level) in self.levels.iter().enumerate() {
            let ([weight, bias], [weight_grad, bias_grad]) = (&level.params, &level.sums);
            let parts =
                [("weight", weight), ("bias", bias), ("weight_grad", weight_grad), ("bias_grad", bias_grad)];
            for (name, p) in parts.into_iter().chain([("count", &level.count)]) {
                v.buffer(&format!("levels.{i}.{name}"), p);
            }
        }
        v.training(&self.training);
    }

    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        Some(self)
    }
}

impl LocalLearning for ContinuumMemorySystem {
    /// Nothing without a backward pass through the last forward in training.
    fn learn(&self) -> Result<()> {
        let params = self.seen.take().unwrap_or_default();
        no_grad(|| {
            self.levels.iter().zip(params).try_for_each(|(level, [w, b])| match (w.grad(), b.grad()) {
                (Some(w), Some(b)) => level.add([w, b]),
                _ => Ok(()),
            })
        })
    }
}
