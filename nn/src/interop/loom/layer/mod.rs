//! One layer of a network: its parameters, where Loom's weights lie in them, and what it computes.

mod forward;
pub(super) mod weights;

use trefoil::ops::activation::Activation;
use trefoil::ops::norm::RowNorm;
use trefoil::ops::rnn::RnnCell;

use self::forward::{flat, scaled};
use self::weights::Slot;
use super::plan::{Op, times};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::SoftmaxVariant;
use crate::module::{Layer, Param, Visitor, hooks};

/// A layer of a [`LoomNetwork`](super::LoomNetwork): `[batch, n]` to `[batch, m]`, flat samples as Loom has them.
///
/// State names follow PyTorch: `weight [out, in]` and `bias` of dense and convolutions, `weight_ih`, `weight_hh`, `bias` of rnn and lstm (gates
/// i, f, g, o), `q_proj.weight` to `out_proj.bias` of mha, `gate_proj`, `up_proj`, `down_proj` of swiglu, `weight` (and `bias`) of norms,
/// `weight [V, D]` of embedding, `branches.0.` and so on of parallel and sequential.
#[derive(Debug)]
pub struct LoomLayer {
    op: Op,
    path: String,
    params: Vec<(String, Param)>,
    slots: Vec<Slot>,
    softmax: Option<SoftmaxVariant>,
    children: Vec<LoomLayer>,
}

impl LoomLayer {
    pub(super) fn op(&self) -> &Op {
        &self.op
    }

    /// Place in the file.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Layers inside of a parallel or sequential one.
    pub fn branches(&self) -> &[LoomLayer] {
        &self.children
    }
}

impl Layer for LoomLayer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let &[batch, n] = x.shape() else {
            return Err(invalid(self.kind(), "x", "shape [batch, n]", format!("{:?}", x.shape())));
        };
        let wants = |want: usize| match n == want {
            true => Ok(()),
            false => {
                Err(invalid(self.kind(), "x", format!("shape [batch, {want}]"), format!("{:?}", x.shape())))
            }
        };
        let rows_of = |want: usize| match x.numel().is_multiple_of(want) {
            true => Ok(()),
            false => Err(invalid(self.kind(), "x", format!("rows of {want}"), format!("{:?}", x.shape()))),
        };
        match &self.op {
            Op::Dense { inputs, act, .. } => {
                // What a convolution without filters passes on counts as zeros.
                let zeros = if n == 0 {
                    Some(Tensor::zeros(x.device(), x.dtype(), &[batch, *inputs])?)
                } else {
                    None
                };
                let x = zeros.as_ref().unwrap_or(x);
                if zeros.is_none() {
                    wants(*inputs)?;
                }
                scaled(self.project(x, 0, act.act)?, act.scale)
            }
            Op::Conv1d { window, act } | Op::Conv2d { window, act } => {
                match window.size.is_empty() {
                    true if n.is_multiple_of(window.channels) => {}
                    true => wants(n / window.channels * window.channels)?,
                    false => wants(times(window.channels, &window.size))?,
                }
                self.conv(x, window, act)
            }
            Op::Rnn { input, steps, .. } => {
                wants(times(*input, &[*steps]))?;
                self.recurrence(RnnCell::Tanh, x, [*input, *steps])
            }
            Op::Lstm { input, steps, .. } => {
                wants(times(*input, &[*steps]))?;
                self.recurrence(RnnCell::Lstm, x, [*input, *steps])
            }
            Op::Mha(h) => {
                match h.one_sequence {
                    true => rows_of(h.d)?,
                    false if n.is_multiple_of(h.d) => {}
                    false => rows_of(usize::MAX)?,
                }
                self.attention(x, h)
            }
            Op::Softmax { plan, whole: false } => self.softmax(x, plan),
            Op::Softmax { plan, whole: true } => {
                self.softmax(&x.reshape(&[1, x.numel()])?, plan)?.reshape(&[batch, n])
            }
            Op::LayerNorm { n: width, eps, batch_rows } => {
                rows_of(*width)?;
                self.norm(x, *width, &RowNorm::layer().eps(*eps), batch_rows.then_some(batch))
            }
            Op::RmsNorm { n: width, eps } => {
                rows_of(*width)?;
                self.norm(x, *width, &RowNorm::rms().eps(*eps), None)
            }
            Op::SwiGlu { inputs, .. } => {
                rows_of(*inputs)?;
                let x = x.reshape(&[x.numel() / inputs, *inputs])?;
                let gate = self.project(&x, 0, Activation::Identity)?;
                let up = self.project(&x, 2, Activation::Identity)?;
                let h = up.gated_by(&gate, Activation::Swish { beta: 1.0 })?;
                flat(&self.project(&h, 4, Activation::Identity)?, batch)
            }
            Op::Embedding { vocab, .. } => self.embedding(x, *vocab),
            Op::Parallel { combine, .. } => self.combine(x, combine),
            Op::Sequential { .. } => {
                let each =
                    |x: Tensor, (i, c): (usize, &LoomLayer)| hooks::layer(&format!("branches.{i}"), c, &x);
                self.children.iter().enumerate().try_fold(x.clone(), each)
            }
            Op::Activate(act) => scaled(x.activation(act.act)?, act.scale),
            // A residual layer adds what the network remembers; alone it has nothing to add.
            Op::Residual | Op::Pass => Ok(x.clone()),
            Op::Vanish => Tensor::zeros(x.device(), x.dtype(), &[batch, 0]),
        }
    }

    fn kind(&self) -> &'static str {
        match self.op {
            Op::Dense { .. } => "Dense",
            Op::Conv1d { .. } | Op::Vanish => "Conv1d",
            Op::Conv2d { .. } => "Conv2d",
            Op::Rnn { .. } => "Rnn",
            Op::Lstm { .. } => "Lstm",
            Op::Mha(_) => "Mha",
            Op::Softmax { .. } => "Softmax",
            Op::LayerNorm { .. } => "LayerNorm",
            Op::RmsNorm { .. } => "RmsNorm",
            Op::SwiGlu { .. } => "SwiGlu",
            Op::Embedding { .. } => "Embedding",
            Op::Parallel { .. } => "Parallel",
            Op::Sequential { .. } => "Sequential",
            Op::Residual => "Residual",
            Op::Activate(_) => "Activation",
            Op::Pass => "Identity",
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (name, p) in &self.params {
            v.param(name, p);
        }
        if let Some(s) = &self.softmax {
            s.visit(v);
        }
        for (i, c) in self.children.iter().enumerate() {
            v.child(&format!("branches.{i}"), c);
        }
    }
}

/// Whether a layer carries the residual of [`Flags::implicit_residual`](super::Flags::implicit_residual) along, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skip {
    /// Sets it to its input.
    Set,
    /// Adds it to its input, and sets it to its output where there was one.
    Before,
    /// Adds it to its output, and sets it to the sum.
    After,
    None,
}

impl LoomLayer {
    pub(super) fn skip(&self) -> Skip {
        match self.op {
            Op::RmsNorm { .. } => Skip::Set,
            Op::LayerNorm { .. } => Skip::Before,
            Op::Mha(_) | Op::SwiGlu { .. } => Skip::After,
            _ => Skip::None,
        }
    }
}
