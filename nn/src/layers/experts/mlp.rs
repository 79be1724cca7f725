//! Experts that are equal networks: one product over all of them.

use trefoil::ops::activation::Activation;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::MoeRouting;
use crate::module::{Init, InitContext, Param, Visitor};

/// A description of experts that are equal networks of one or two linear layers.
#[derive(Debug, Clone, Copy)]
pub struct ExpertMlp {
    count: usize,
    hidden: Option<usize>,
    outputs: usize,
    act: Activation,
    bias: bool,
}

impl ExpertMlp {
    /// `count` experts of two linear layers with biases, and a relu between them.
    pub fn new(count: usize, hidden_features: usize, out_features: usize) -> Self {
        let hidden = Some(hidden_features);
        ExpertMlp { count, hidden, outputs: out_features, act: Activation::Relu, bias: true }
    }

    /// `count` experts of one linear layer with bias.
    pub fn linear(count: usize, out_features: usize) -> Self {
        ExpertMlp { count, hidden: None, outputs: out_features, act: Activation::Identity, bias: true }
    }

    setters! {
        /// Sets the activation behind the first layer.
        activation: Activation => act;
    }

    /// Without biases.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }
}

/// The linear layers of all experts at one depth: a weight `[E, out, in]` and a bias `[E, out]`.
#[derive(Debug)]
struct Linears {
    weight: Param,
    bias: Option<Param>,
}

impl Linears {
    fn new(cx: &InitContext, experts: usize, inputs: usize, outputs: usize, bias: bool) -> Result<Self> {
        let weight = Init::Lin.param(cx, &[experts, outputs, inputs], inputs, outputs)?;
        let bias = match bias {
            true => Some(Init::Lin.param(cx, &[experts, outputs], inputs, outputs)?),
            false => None,
        };
        Ok(Linears { weight, bias })
    }

    /// act(x W_e^T + b_e) for the rows `[A, in]` of each expert e, in their order.
    fn apply(&self, x: &Tensor, routing: &MoeRouting, act: Activation) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::get);
        x.linear_ragged(&self.weight.get(), bias.as_ref(), &routing.offsets, act)
    }
}

/// The parameters of an [`ExpertMlp`].
#[derive(Debug)]
pub(super) struct Mlps {
    first: Linears,
    second: Option<Linears>,
    act: Activation,
    pub(super) count: usize,
}

impl Mlps {
    pub(super) fn new(op: &'static str, cx: &InitContext, inputs: usize, of: &ExpertMlp) -> Result<Self> {
        let sizes = [
            ("num_experts", of.count),
            ("hidden_features", of.hidden.unwrap_or(1)),
            ("out_features", of.outputs),
        ];
        if let Some((arg, _)) = sizes.into_iter().find(|(_, n)| *n == 0) {
            return Err(invalid(op, arg, "at least 1", "0"));
        }
        let linears = |inputs, outputs| Linears::new(cx, of.count, inputs, outputs, of.bias);
        let first = linears(inputs, of.hidden.unwrap_or(of.outputs))?;
        let second = of.hidden.map(|hidden| linears(hidden, of.outputs)).transpose()?;
        Ok(Mlps { first, second, act: of.act, count: of.count })
    }

    /// All experts on their rows `[A, in]` at once.
    pub(super) fn apply(&self, x: &Tensor, routing: &MoeRouting) -> Result<Tensor> {
        let h = self.first.apply(x, routing, self.act)?;
        match &self.second {
            Some(second) => second.apply(&h, routing, Activation::Identity),
            None => Ok(h),
        }
    }

    pub(super) fn visit(&self, v: &mut Visitor<'_>) {
        let names = [("w1", "b1"), ("w2", "b2")];
        for ((weight, bias), l) in names.into_iter().zip(std::iter::once(&self.first).chain(&self.second)) {
            v.param(weight, &l.weight);
            if let Some(b) = &l.bias {
                v.param(bias, b);
            }
        }
    }
}
