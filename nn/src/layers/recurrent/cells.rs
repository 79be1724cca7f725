//! Single steps of recurrences.

use once_cell::sync::OnceCell;

use trefoil::ops::gemm::Precision;
use trefoil::ops::rnn::{Recurrence, RnnCell};

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::{RnnParams, RnnState};
use crate::layers::attention::scores::check_width;
use crate::layers::recurrent::stack::listed;
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Weights for the input and the state, and their biases.
#[derive(Debug)]
struct Params {
    weights: [Param; 2],
    biases: Option<[Param; 2]>,
}

/// What all cells are made of.
#[derive(Debug)]
struct Cell {
    kind: &'static str,
    cx: InitContext,
    cell: RnnCell,
    hidden: usize,
    bias: bool,
    init: Option<[Init; 2]>,
    precision: Precision,
    params: OnceCell<Params>,
}

impl Cell {
    fn new(kind: &'static str, cx: &InitContext, cell: RnnCell, hidden: usize) -> Result<Self> {
        if hidden == 0 {
            return Err(invalid(kind, "hidden_size", "at least 1", "0"));
        }
        let (cx, precision) = (cx.clone(), Precision::Ieee);
        Ok(Cell { kind, cx, cell, hidden, bias: true, init: None, precision, params: OnceCell::new() })
    }

    fn inputs(self, input: usize) -> Result<Self> {
        if input == 0 {
            return Err(invalid(self.kind, "input", "at least 1", "0"));
        }
        self.params(input)?;
        Ok(self)
    }

    fn params(&self, input: usize) -> Result<&Params> {
        self.params.get_or_try_init(|| {
            let (h, rows) = (self.hidden, self.cell.gates() * self.hidden);
            let bound = 1.0 / (h as f64).sqrt();
            let uniform = Init::Uniform { lo: -bound, hi: bound };
            let [weight, bias] = self.init.unwrap_or([uniform, uniform]);
            let weights = [
                weight.param(&self.cx, &[rows, input], input, h)?,
                weight.param(&self.cx, &[rows, h], h, h)?,
            ];
            let one = || bias.param(&self.cx, &[rows], h, h);
            let biases = if self.bias { Some([one()?, one()?]) } else { None };
            Ok(Params { weights, biases })
        })
    }

    /// The states that a list of tensors stands for.
    fn state(&self, list: &[Tensor]) -> Result<Option<RnnState>> {
        match (list, self.cell == RnnCell::Lstm) {
            ([], _) => Ok(None),
            ([h], false) => Ok(Some(RnnState { h: h.clone(), c: None })),
            ([h, c], true) => Ok(Some(RnnState { h: h.clone(), c: Some(c.clone()) })),
            (_, lstm) => {
                let expected = if lstm { "x, or x, h and c" } else { "x, or x and h" };
                Err(invalid(self.kind, "inputs", expected, format!("{} tensors", list.len() + 1)))
            }
        }
    }

    fn step(&self, x: &Tensor, state: Option<&RnnState>) -> Result<RnnState> {
        let single = x.rank() == 1;
        if !single && x.rank() != 2 {
            return Err(invalid(self.kind, "x", "shape [B, I] or [I]", format!("{:?}", x.shape())));
        }
        let wide = |t: &Tensor| if single && t.rank() == 1 { t.unsqueeze(0) } else { Ok(t.clone()) };
        let x = wide(x)?;
        let &[batch, width] = x.shape() else {
            return Err(invalid(self.kind, "x", "shape [B, I]", format!("{:?}", x.shape())));
        };
        if width == 0 {
            return Err(invalid(self.kind, "x", "at least 1 feature", format!("{:?}", x.shape())));
        }
        let p = self.params(width)?;
        let [w_ih, w_hh] = [&p.weights[0], &p.weights[1]].map(Param::get);
        check_width(self.kind, "x", &x, w_ih.shape()[1])?;
        let [b_ih, b_hh] = [0, 1].map(|i| p.biases.as_ref().map(|b| b[i].get()));
        let before = match state {
            None => None,
            Some(s) => {
                let s = RnnState { h: wide(&s.h)?, c: s.c.as_ref().map(wide).transpose()? };
                let want = [batch, self.hidden];
                let fits = s.h.shape() == want && s.c.as_ref().is_none_or(|c| c.shape() == want);
                if !fits || s.c.is_some() != (self.cell == RnnCell::Lstm) {
                    let cell = if self.cell == RnnCell::Lstm { " with a cell state" } else { "" };
                    let got = format!("{:?}", s.h.shape());
                    return Err(invalid(self.kind, "state", format!("shape {want:?}{cell}"), got));
                }
                Some(s)
            }
        };
        let how = Recurrence::new().precision(self.precision);
        let weights = RnnParams { w_ih, w_hh, b_ih, b_hh };
        let (_, s) = x.unsqueeze(0)?.rnn(self.cell, &how, &weights, before.as_ref(), None)?;
        if !single {
            return Ok(s);
        }
        Ok(RnnState { h: s.h.squeeze(0)?, c: s.c.map(|c| c.squeeze(0)).transpose()? })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        let Some(p) = self.params.get() else { return };
        v.param("weight_ih", &p.weights[0]);
        v.param("weight_hh", &p.weights[1]);
        if let Some([ih, hh]) = &p.biases {
            v.param("bias_ih", ih);
            v.param("bias_hh", hh);
        }
    }
}

macro_rules! cell {
    ($(#[$doc:meta])* $name:ident, $cell:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Cell);

        impl $name {
            /// Inputs of width `input`, states of width `hidden`, with biases. Errors: a size of 0.
            pub fn new(cx: &InitContext, input: usize, hidden: usize) -> Result<Self> {
                Ok($name(Cell::new(stringify!($name), cx, $cell, hidden)?.inputs(input)?))
            }

            /// The first step fixes the width of the input and makes the parameters. Errors: a size of 0.
            pub fn lazy(cx: &InitContext, hidden: usize) -> Result<Self> {
                Ok($name(Cell::new(stringify!($name), cx, $cell, hidden)?))
            }

            /// Without biases.
            pub fn no_bias(mut self) -> Self {
                self.0.bias = false;
                if let Some(p) = self.0.params.get_mut() {
                    p.biases = None;
                }
                self
            }

            /// Sets how weights and biases are filled and fills them anew.
            pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
                self.0.init = Some([weight, bias]);
                match self.0.params.take() {
                    Some(p) => {
                        let input = p.weights[0].get().shape()[1];
                        Ok($name(self.0.inputs(input)?))
                    }
                    None => Ok(self),
                }
            }

            /// Sets the arithmetic of the products.
            pub fn precision(mut self, precision: Precision) -> Self {
                self.0.precision = precision;
                self
            }

            /// The state after one step of input `[B, I]` (or `[I]`) from a state `[B, H]`, or from zeros. Gradients flow through both;
            /// steps in a row are backpropagation through time, which [`RnnState::detach`] cuts. Errors: `Invalid` for shapes that do not
            /// fit.
            pub fn step(&self, x: &Tensor, state: Option<&RnnState>) -> Result<RnnState> {
                self.0.step(x, state)
            }
        }

        impl Layer for $name {
            /// The hidden state after one step from zeros.
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                Ok(self.step(x, None)?.h)
            }

            /// `[x]`, or x followed by a state, to the next state: h, and c of an LSTM.
            fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
                let Some((x, state)) = inputs.split_first() else {
                    return Err(invalid(self.0.kind, "inputs", "at least 1 tensor", "none"));
                };
                let next = self.step(x, self.0.state(state)?.as_ref())?;
                Ok(listed(vec![], vec![next]))
            }

            fn visit(&self, v: &mut Visitor<'_>) {
                self.0.visit(v);
            }
        }
    };
}

cell! {
    /// One step of long short-term memory, `torch.nn.LSTMCell`: `[B, I]` and states `[B, H]` to states.
    ///
    /// State: `weight_ih [4 H, I]`, `weight_hh [4 H, H]`, `bias_ih [4 H]`, `bias_hh [4 H]`, rows in the order i, f, g, o, drawn from
    /// U(-1/sqrt(H), 1/sqrt(H)). Whole sequences run faster through [`Lstm`](crate::layers::Lstm).
    LstmCell, RnnCell::Lstm
}

cell! {
    /// One step of a gated recurrent unit, `torch.nn.GRUCell`: `[B, I]` and a state `[B, H]` to the next state.
    ///
    /// State: `weight_ih [3 H, I]`, `weight_hh [3 H, H]`, `bias_ih [3 H]`, `bias_hh [3 H]`, rows in the order r, z, n, drawn from
    /// U(-1/sqrt(H), 1/sqrt(H)). Whole sequences run faster through [`Gru`](crate::layers::Gru).
    GruCell, RnnCell::Gru
}

cell! {
    /// One step of Elman's network with tanh, `torch.nn.RNNCell`: `[B, I]` and a state `[B, H]` to the next state.
    ///
    /// State: `weight_ih [H, I]`, `weight_hh [H, H]`, `bias_ih [H]`, `bias_hh [H]`, drawn from U(-1/sqrt(H), 1/sqrt(H)). Whole sequences run
    /// faster through [`Recurrent`](crate::layers::Recurrent).
    RecurrentCell, RnnCell::Tanh
}

impl RecurrentCell {
    /// With relu in place of tanh.
    pub fn relu(mut self) -> Self {
        self.0.cell = RnnCell::Relu;
        self
    }
}
