//! Recurrent layers: LSTM, GRU, Elman.

use std::sync::Mutex;

use once_cell::sync::OnceCell;

use trefoil::ops::gemm::Precision;
use trefoil::ops::rnn::{Recurrence, RnnCell};

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::{RnnParams, RnnState, check_lengths};
use crate::layers::attention::scores::{batched, check_width};
use crate::layers::containers::checkpointed::is_repeated;
use crate::layers::{Bidirectional, Dropout};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Parameters of one layer.
#[derive(Debug)]
struct LayerParams {
    w_ih: Param,
    w_hh: Param,
    biases: Option<[Param; 2]>,
}

/// Layers of one cell, one above the other: what all recurrent layers are made of.
#[derive(Debug)]
pub struct RecurrentStack {
    pub(crate) kind: &'static str,
    cx: InitContext,
    cell: RnnCell,
    input: Option<usize>,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    /// Width of what a layer above the first reads.
    between: usize,
    bias: bool,
    pub(crate) sequences: bool,
    stateful: bool,
    inits: Option<[Init; 2]>,
    precision: Precision,
    dropout: Option<Dropout>,
    params: OnceCell<Vec<LayerParams>>,
    carried: Mutex<Vec<RnnState>>,
}

/// A layer that [`Bidirectional`] can run in both directions.
pub trait RecurrentLayer: Layer {
    /// The stack of layers that it consists of.
    #[doc(hidden)]
    fn into_stack(self) -> RecurrentStack;
}

impl RecurrentStack {
    fn new(
        kind: &'static str,
        cx: &InitContext,
        cell: RnnCell,
        input: Option<usize>,
        hidden: usize,
    ) -> Result<Self> {
        if hidden == 0 || input == Some(0) {
            let got = format!("input {input:?}, hidden {hidden}");
            return Err(invalid(kind, "hidden_size", "sizes of at least 1", got));
        }
        RecurrentStack {
            kind,
            cx: cx.clone(),
            cell,
            input,
            hidden,
            layers: 1,
            between: hidden,
            bias: true,
            sequences: true,
            stateful: false,
            inits: None,
            precision: Precision::Ieee,
            dropout: None,
            params: OnceCell::new(),
            carried: Mutex::default(),
        }
        .rebuilt()
    }

    /// Another stack of the same description with parameters of its own.
    pub(crate) fn twin(&self) -> Result<Self> {
        let mut s = RecurrentStack::new(self.kind, &self.cx, self.cell, self.input, self.hidden)?;
        (s.layers, s.between, s.bias, s.sequences) = (self.layers, self.between, self.bias, self.sequences);
        (s.inits, s.precision) = (self.inits, self.precision);
        s.rebuilt()
    }

    /// Draws the parameters anew, if the width of the input is known.
    fn rebuilt(mut self) -> Result<Self> {
        self.params = OnceCell::new();
        if let Some(input) = self.input {
            self.params(input)?;
        }
        Ok(self)
    }

    fn num_layers(mut self, n: usize) -> Result<Self> {
        if n == 0 {
            return Err(invalid(self.kind, "num_layers", "at least 1", "0"));
        }
        self.layers = n;
        self.rebuilt()
    }

    /// Sets the width of what layers above the first read.
    pub(crate) fn between(mut self, width: usize) -> Result<Self> {
        if self.between == width {
            return Ok(self);
        }
        self.between = width;
        if self.layers == 1 { Ok(self) } else { self.rebuilt() }
    }

    fn dropout(mut self, p: f64) -> Result<Self> {
        self.dropout = if p == 0.0 { None } else { Some(Dropout::part(&self.cx, p)?) };
        Ok(self)
    }

    fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        self.inits = Some([weight, bias]);
        self.rebuilt()
    }

    fn no_bias(mut self) -> Self {
        self.bias = false;
        for p in self.params.get_mut().into_iter().flatten() {
            p.biases = None;
        }
        self
    }

    fn params(&self, input: usize) -> Result<&[LayerParams]> {
        let all = self.params.get_or_try_init(|| {
            let (h, rows) = (self.hidden, self.cell.gates() * self.hidden);
            let bound = 1.0 / (h as f64).sqrt();
            let uniform = Init::Uniform { lo: -bound, hi: bound };
            let [weight, bias] = self.inits.unwrap_or([uniform, uniform]);
            let layer = |k: usize| {
                let width = if k == 0 { input } else { self.between };
                let w_ih = weight.param(&self.cx, &[rows, width], width, h)?;
                let w_hh = weight.param(&self.cx, &[rows, h], h, h)?;
                let one = || bias.param(&self.cx, &[rows], h, h);
                let biases = if self.bias { Some([one()?, one()?]) } else { None };
                Ok(LayerParams { w_ih, w_hh, biases })
            };
            (0..self.layers).map(layer).collect::<Result<_>>()
        })?;
        Ok(all)
    }

    /// One layer over `[B, T, ..]`.
    pub(crate) fn layer(
        &self,
        k: usize,
        x: &Tensor,
        initial: Option<&RnnState>,
        lengths: Option<&Tensor>,
        reverse: bool,
    ) -> Result<(Tensor, RnnState)> {
        let width = x.shape().last().copied().unwrap_or(0);
        let params = self.params(width)?;
        let Some(p) = params.get(k) else {
            return Err(invalid(
                self.kind,
                "layer",
                format!("a layer below {}", params.len()),
                format!("{k}"),
            ));
        };
        let weights = RnnParams {
            w_ih: p.w_ih.get(),
            w_hh: p.w_hh.get(),
            b_ih: p.biases.as_ref().map(|b| b[0].get()),
            b_hh: p.biases.as_ref().map(|b| b[1].get()),
        };
        check_width(self.kind, "x", x, weights.w_ih.shape()[1])?;
        let how = Recurrence::new().batch_first(true).reverse(reverse).precision(self.precision);
        let name = || format!("l{k}{}", if reverse { "_reverse" } else { "" });
        hooks::scope(name, self.kind, x, || x.rnn(self.cell, &how, &weights, initial, lengths))
    }

    /// Dropout of what goes from one layer to the next.
    pub(crate) fn pass(&self, k: usize, y: Tensor) -> Result<Tensor> {
        match &self.dropout {
            Some(d) if k + 1 < self.layers => hooks::layer("dropout", d, &y),
            _ => Ok(y),
        }
    }

    /// The states to start from: `n` given ones, or the carried ones where they fit, or none.
    fn initial(&self, given: &[RnnState], n: usize, batch: usize) -> Result<Vec<RnnState>> {
        let fits = |s: &RnnState| {
            let shape = [batch, self.hidden];
            s.h.shape() == shape
                && s.c.is_some() == (self.cell == RnnCell::Lstm)
                && s.c.as_ref().is_none_or(|c| c.shape() == shape)
        };
        if !given.is_empty() {
            if given.len() != n || !given.iter().all(fits) {
                let cell = if self.cell == RnnCell::Lstm { " with cell states" } else { "" };
                let want = format!("{n} states [{batch}, {}]{cell}", self.hidden);
                let got: Vec<_> = given.iter().map(|s| s.h.shape().to_vec()).collect();
                return Err(invalid(self.kind, "initial", want, format!("{got:?}")));
            }
            return Ok(given.to_vec());
        }
        if self.stateful && is_repeated() {
            // The second forward would start from states that the first one has carried on.
            return Err(invalid(self.kind, "stateful", "false in a checkpointed segment", "true"));
        }
        let carried = self.carried.lock().unwrap_or_else(|p| p.into_inner());
        Ok(if self.stateful && carried.len() == n && carried.iter().all(fits) {
            carried.clone()
        } else {
            vec![]
        })
    }

    /// Runs `n` states' worth of layers by `each` over `[B, T, I]` or `[T, I]`, with what all recurrent layers do before and after.
    pub(crate) fn drive(
        &self,
        x: &Tensor,
        given: &[RnnState],
        lengths: Option<&Tensor>,
        n: usize,
        each: impl FnOnce(&Tensor, &[RnnState], Option<&Tensor>) -> Result<(Vec<Tensor>, Vec<RnnState>)>,
    ) -> Result<(Vec<Tensor>, Vec<RnnState>)> {
        let (x, single) = batched(self.kind, "x", x)?;
        let batch = x.shape()[0];
        let lengths = lengths.map(|l| check_lengths(self.kind, l, batch)).transpose()?;
        let wide = |t: &Tensor| if single && t.rank() == 1 { t.unsqueeze(0) } else { Ok(t.clone()) };
        let given = map_states(given, wide)?;
        let initial = self.initial(&given, n, batch)?;
        let (mut y, mut states) = each(&x, &initial, lengths.as_ref())?;
        if self.stateful {
            *self.carried.lock().unwrap_or_else(|p| p.into_inner()) =
                states.iter().map(RnnState::detach).collect();
        }
        if single {
            y = y.iter().map(|t| t.squeeze(0)).collect::<Result<_>>()?;
            states = map_states(&states, |t| t.squeeze(0))?;
        }
        Ok((y, states))
    }

    fn run(&self, x: &Tensor, initial: &[RnnState], lengths: Option<&Tensor>) -> Result<RecurrentOutput> {
        let (y, state) = self.drive(x, initial, lengths, self.layers, |x, initial, lengths| {
            let (mut x, mut states) = (x.clone(), vec![]);
            for k in 0..self.layers {
                let (y, state) = self.layer(k, &x, initial.get(k), lengths, false)?;
                x = self.pass(k, y)?;
                states.push(state);
            }
            let last = states.last().map(|s: &RnnState| s.h.clone());
            Ok((vec![last.filter(|_| !self.sequences).unwrap_or(x)], states))
        })?;
        let y = y.into_iter().next().ok_or_else(|| invalid(self.kind, "x", "an output", "none"))?;
        Ok(RecurrentOutput { y, state })
    }

    pub(crate) fn reset_state(&self) {
        self.carried.lock().unwrap_or_else(|p| p.into_inner()).clear();
    }

    pub(crate) fn visit(&self, v: &mut Visitor<'_>, suffix: &str) {
        for (k, p) in self.params.get().into_iter().flatten().enumerate() {
            v.param(&format!("weight_ih_l{k}{suffix}"), &p.w_ih);
            v.param(&format!("weight_hh_l{k}{suffix}"), &p.w_hh);
            if let Some([ih, hh]) = &p.biases {
                v.param(&format!("bias_ih_l{k}{suffix}"), ih);
                v.param(&format!("bias_hh_l{k}{suffix}"), hh);
            }
        }
        if let (Some(d), true) = (&self.dropout, suffix.is_empty()) {
            v.child("dropout", d);
        }
    }
}

fn map_states(states: &[RnnState], f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<RnnState>> {
    states.iter().map(|s| Ok(RnnState { h: f(&s.h)?, c: s.c.as_ref().map(&f).transpose()? })).collect()
}

/// Result of a recurrent layer.
#[derive(Debug, Clone)]
pub struct RecurrentOutput {
    /// Hidden states `[B, T, H]` of the last layer, or its final one `[B, H]`.
    pub y: Tensor,
    /// Final state of each layer.
    pub state: Vec<RnnState>,
}

/// The outputs of a layer as a list: y, then h (and c) of each state.
pub(crate) fn listed(y: Vec<Tensor>, state: Vec<RnnState>) -> Vec<Tensor> {
    y.into_iter().chain(state.into_iter().flat_map(|s| [Some(s.h), s.c].into_iter().flatten())).collect()
}

macro_rules! recurrent_layer {
    ($(#[$doc:meta])* $name:ident, $cell:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(RecurrentStack);

        impl $name {
            /// Inputs of width `input`, states of width `hidden`, with biases. Errors: a size of 0.
            pub fn new(cx: &InitContext, input: usize, hidden: usize) -> Result<Self> {
                Ok($name(RecurrentStack::new(stringify!($name), cx, $cell, Some(input), hidden)?))
            }

            /// The first forward fixes the width of the input and makes the parameters. Errors: a size of 0.
            pub fn lazy(cx: &InitContext, hidden: usize) -> Result<Self> {
                Ok($name(RecurrentStack::new(stringify!($name), cx, $cell, None, hidden)?))
            }

            /// Layers one above the other. Parameters are drawn anew. Errors: no layer.
            pub fn num_layers(self, n: usize) -> Result<Self> {
                Ok($name(self.0.num_layers(n)?))
            }

            /// Dropout of what goes from one layer to the next, in training. Errors: a probability outside of [0, 1].
            pub fn dropout(self, p: f64) -> Result<Self> {
                Ok($name(self.0.dropout(p)?))
            }

            /// Without biases.
            pub fn no_bias(self) -> Self {
                $name(self.0.no_bias())
            }

            /// Gives only the final hidden state `[B, H]` of the last layer instead of all `[B, T, H]`.
            pub fn return_last(mut self) -> Self {
                self.0.sequences = false;
                self
            }

            /// Starts where the last call ended, without gradients, as long as the batch keeps its size; until
            /// [`reset_state`](Layer::reset_state).
            pub fn stateful(mut self) -> Self {
                self.0.stateful = true;
                self
            }

            /// Sets how weights and biases are filled and fills them anew.
            pub fn init(self, weight: Init, bias: Init) -> Result<Self> {
                Ok($name(self.0.init(weight, bias)?))
            }

            /// Sets the arithmetic of the products.
            pub fn precision(mut self, precision: Precision) -> Self {
                self.0.precision = precision;
                self
            }

            /// Runs over `x` `[B, T, I]` (or `[T, I]`) from the initial states `[B, H]`, one per layer (none: zeros, or the carried ones),
            /// which get gradients. `lengths`, integers `[B]` on the device (see [`sequence_lengths`](crate::sequence_lengths)): behind a
            /// row's length the output is 0 and its state stays. Errors: `Invalid` for shapes that do not fit, and no steps.
            pub fn run(&self, x: &Tensor, initial: &[RnnState], lengths: Option<&Tensor>) -> Result<RecurrentOutput> {
                self.0.run(x, initial, lengths)
            }

            /// In both directions, with the outputs side by side.
            pub fn bidirectional(self) -> Result<Bidirectional> {
                Bidirectional::new(self)
            }
        }

        impl Layer for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                Ok(self.run(x, &[], None)?.y)
            }

            /// `[x]` or `[x, lengths]` to the output followed by h (and c) of each layer.
            fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
                let (x, lengths) = sequence_and_lengths(self.0.kind, inputs)?;
                let RecurrentOutput { y, state } = self.run(x, &[], lengths)?;
                Ok(listed(vec![y], state))
            }

            fn visit(&self, v: &mut Visitor<'_>) {
                self.0.visit(v, "");
            }

            fn reset_state(&self) {
                self.0.reset_state();
            }
        }

        impl RecurrentLayer for $name {
            fn into_stack(self) -> RecurrentStack {
                self.0
            }
        }
    };
}

/// The inputs of a recurrent layer in a graph.
pub(crate) fn sequence_and_lengths<'a>(
    op: &'static str,
    inputs: &'a [Tensor],
) -> Result<(&'a Tensor, Option<&'a Tensor>)> {
    match inputs {
        [x] => Ok((x, None)),
        [x, l] => Ok((x, Some(l))),
        _ => {
            Err(invalid(op, "inputs", "a sequence and optional lengths", format!("{} tensors", inputs.len())))
        }
    }
}

recurrent_layer! {
    /// Long short-term memory, `torch.nn.LSTM(batch_first=True)`: `[B, T, I] -> [B, T, H]`.
    ///
    /// State of layer k: `weight_ih_lk [4 H, I]`, `weight_hh_lk [4 H, H]`, `bias_ih_lk [4 H]`, `bias_hh_lk [4 H]`, rows in the order i, f,
    /// g, o, drawn from U(-1/sqrt(H), 1/sqrt(H)).
    Lstm, RnnCell::Lstm
}

recurrent_layer! {
    /// Gated recurrent unit, `torch.nn.GRU(batch_first=True)`: `[B, T, I] -> [B, T, H]`; the reset gate comes after the product.
    ///
    /// State of layer k: `weight_ih_lk [3 H, I]`, `weight_hh_lk [3 H, H]`, `bias_ih_lk [3 H]`, `bias_hh_lk [3 H]`, rows in the order r, z,
    /// n, drawn from U(-1/sqrt(H), 1/sqrt(H)).
    Gru, RnnCell::Gru
}

recurrent_layer! {
    /// Elman's network with tanh, `torch.nn.RNN(batch_first=True)`: `[B, T, I] -> [B, T, H]`.
    ///
    /// State of layer k: `weight_ih_lk [H, I]`, `weight_hh_lk [H, H]`, `bias_ih_lk [H]`, `bias_hh_lk [H]`, drawn from U(-1/sqrt(H),
    /// 1/sqrt(H)).
    Recurrent, RnnCell::Tanh
}

impl Recurrent {
    /// With relu in place of tanh.
    pub fn relu(mut self) -> Self {
        self.0.cell = RnnCell::Relu;
        self
    }
}
