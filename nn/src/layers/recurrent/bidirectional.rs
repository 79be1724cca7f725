//! A recurrent layer in both directions.

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::RnnState;
use crate::layers::recurrent::stack::{RecurrentLayer, RecurrentStack, listed, sequence_and_lengths};
use crate::module::{Layer, Visitor};

/// How the outputs of both directions become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Merge {
    /// Side by side: `[B, T, 2 H]`.
    #[default]
    Concat,
    /// Their sum.
    Sum,
    /// Their product.
    Mul,
    /// Their mean.
    Average,
    /// Two outputs.
    None,
}

/// A recurrent layer that reads its sequence in both directions; Keras' `Bidirectional`, `torch.nn.LSTM(bidirectional=True)`. With several
/// layers each one reads the merged outputs of the one below. With lengths, the second direction starts at a row's last step.
///
/// State: that of the inner layer, and its names with `_reverse` for the second direction, whose parameters are drawn on their own.
#[derive(Debug)]
pub struct Bidirectional {
    ahead: RecurrentStack,
    back: RecurrentStack,
    merge: Merge,
}

const OP: &str = "Bidirectional";

impl Bidirectional {
    /// Runs `inner` in both directions, outputs side by side. Its upper layers are made anew, as they read twice the width.
    pub fn new(inner: impl RecurrentLayer) -> Result<Self> {
        Self::of(inner.into_stack())
    }

    pub(crate) fn of(ahead: RecurrentStack) -> Result<Self> {
        let width = 2 * ahead.hidden;
        let ahead = ahead.between(width)?;
        let back = ahead.twin()?;
        Ok(Bidirectional { ahead, back, merge: Merge::Concat })
    }

    /// Another layer for the second direction. Errors: another width of the states or number of layers.
    pub fn backward_inner(self, inner: impl RecurrentLayer) -> Result<Self> {
        self.backward_of(inner.into_stack())
    }

    pub(crate) fn backward_of(mut self, back: RecurrentStack) -> Result<Self> {
        if (back.hidden, back.layers) != (self.ahead.hidden, self.ahead.layers) {
            let want = format!("{} layers of width {}", self.ahead.layers, self.ahead.hidden);
            let got = format!("{} layers of width {}", back.layers, back.hidden);
            return Err(invalid(OP, "backward_inner", want, got));
        }
        self.back = back;
        let merge = self.merge;
        self.merge(merge)
    }

    /// Sets how outputs are merged; upper layers are made anew where the width that they read changes. Errors: [`Merge::None`] with several
    /// layers.
    pub fn merge(self, merge: Merge) -> Result<Self> {
        if merge == Merge::None && self.ahead.layers > 1 {
            let got = format!("none with {} layers", self.ahead.layers);
            return Err(invalid(OP, "merge_mode", "a merge of what the layer above reads", got));
        }
        let width = if merge == Merge::Concat { 2 } else { 1 } * self.ahead.hidden;
        Ok(Bidirectional { ahead: self.ahead.between(width)?, back: self.back.between(width)?, merge })
    }

    fn merged(&self, a: Tensor, b: Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![match self.merge {
            Merge::Concat => Tensor::concat(-1, &[&a, &b])?,
            Merge::Sum => a.add(&b)?,
            Merge::Mul => a.mul(&b)?,
            Merge::Average => a.add(&b)?.mul_scalar(0.5)?,
            Merge::None => return Ok(vec![a, b]),
        }])
    }

    /// Runs over `x` `[B, T, I]` (or `[T, I]`): the output (two with [`Merge::None`]) and the final states, layer by layer, in each the
    /// forward direction first. Initial states come in the same order. Arguments and errors as [`Lstm::run`](crate::layers::Lstm::run).
    pub fn run(
        &self,
        x: &Tensor,
        initial: &[RnnState],
        lengths: Option<&Tensor>,
    ) -> Result<(Vec<Tensor>, Vec<RnnState>)> {
        let layers = self.ahead.layers;
        self.ahead.drive(x, initial, lengths, 2 * layers, |x, initial, lengths| {
            let (mut y, mut states) = (vec![x.clone()], vec![]);
            for k in 0..layers {
                let Some(x) = y.pop() else { break };
                let (a, sa) = self.ahead.layer(k, &x, initial.get(2 * k), lengths, false)?;
                let (b, sb) = self.back.layer(k, &x, initial.get(2 * k + 1), lengths, true)?;
                let last = k + 1 == layers;
                y = match last && !self.ahead.sequences {
                    true => self.merged(sa.h.clone(), sb.h.clone())?,
                    false => self.merged(a, b)?,
                };
                if !last {
                    y = y.into_iter().map(|t| self.ahead.pass(k, t)).collect::<Result<_>>()?;
                }
                states.extend([sa, sb]);
            }
            Ok((y, states))
        })
    }
}

impl Layer for Bidirectional {
    /// Errors beside those of [`run`](Bidirectional::run): two outputs, which [`forward_all`](Layer::forward_all) gives.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.merge == Merge::None {
            return Err(invalid(OP, "merge_mode", "a merge that gives one output", "none"));
        }
        let (y, _) = self.run(x, &[], None)?;
        y.into_iter().next().ok_or_else(|| invalid(OP, "x", "an output", "none"))
    }

    /// `[x]` or `[x, lengths]` to the output (or two) followed by h (and c) of each state.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, lengths) = sequence_and_lengths(OP, inputs)?;
        let (y, state) = self.run(x, &[], lengths)?;
        Ok(listed(y, state))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.ahead.visit(v, "");
        self.back.visit(v, "_reverse");
    }

    fn reset_state(&self) {
        self.ahead.reset_state();
    }
}
