//! Gated position-wise networks.

use std::fmt;
use std::marker::PhantomData;

use once_cell::sync::OnceCell;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Dense;
use crate::layers::spatial::positive;
use crate::module::{Init, InitContext, Layer, Visitor, hooks};

/// [`GatedFeedForward`] with the gate x sigmoid(x), the MLP of Llama.
pub type SwiGlu = GatedFeedForward<Silu>;
/// [`GatedFeedForward`] with the exact gelu as gate.
pub type GeGlu = GatedFeedForward<Gelu>;
/// [`GatedFeedForward`] with relu as gate.
pub type ReGlu = GatedFeedForward<Relu>;
/// [`GatedFeedForward`] whose gate has no activation.
pub type BilinearGlu = GatedFeedForward<Linear>;

/// What tells the types of [`GatedFeedForward`] apart.
pub trait Gate: fmt::Debug + Send + Sync + 'static {
    /// Name of the layer's type.
    const KIND: &'static str;
    /// Activation of the gate.
    const ACTIVATION: Activation;
}

macro_rules! gates {
    ($($name:ident: $kind:literal, $act:expr;)*) => {$(
        #[doc = concat!("The gate of `", $kind, "`.")]
        #[derive(Debug)]
        pub struct $name;

        impl Gate for $name {
            const KIND: &'static str = $kind;
            const ACTIVATION: Activation = $act;
        }
    )*};
}

gates! {
    Silu: "SwiGlu", Activation::Swish { beta: 1.0 };
    Gelu: "GeGlu", Activation::Gelu;
    Relu: "ReGlu", Activation::Relu;
    Linear: "BilinearGlu", Activation::Identity;
}

const NAMES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Position-wise network with a gate (Shazeer, 2020): W_down (act(W_gate x) * W_up x), `[.., D] -> [.., D]`. The product may lead to
/// [another width](GatedFeedForward::out_features), or be [left out](GatedFeedForward::no_down_proj), which makes the result `[.., F]`.
///
/// State: `gate_proj.weight [F, D]`, `up_proj.weight [F, D]`, `down_proj.weight [D, F]`, and with
/// [`with_bias`](GatedFeedForward::with_bias) their biases; values as in [`Dense`].
///
/// Errors of `forward`: a last axis other than D.
#[derive(Debug)]
pub struct GatedFeedForward<G> {
    cx: InitContext,
    inner: usize,
    outer: Outer,
    bias: bool,
    init: [Init; 2],
    precision: Precision,
    /// Gate, up and, if there is one, down.
    layers: OnceCell<Vec<Dense>>,
    gate: PhantomData<G>,
}

/// Where the last product leads.
#[derive(Debug, Clone, Copy)]
enum Outer {
    Inputs,
    Features(usize),
    None,
}

impl<G: Gate> GatedFeedForward<G> {
    /// Width `d_model` outside and `d_ff` inside, without biases. Errors: a size of 0.
    pub fn new(cx: &InitContext, d_model: usize, d_ff: usize) -> Result<Self> {
        positive(G::KIND, "d_model", &[d_model])?;
        let l = Self::lazy(cx, d_ff)?;
        l.layers(d_model)?;
        Ok(l)
    }

    /// The first forward fixes `d_model` and makes the parameters. Errors: a size of 0.
    pub fn lazy(cx: &InitContext, d_ff: usize) -> Result<Self> {
        positive(G::KIND, "d_ff", &[d_ff])?;
        Ok(GatedFeedForward {
            cx: cx.clone(),
            inner: d_ff,
            outer: Outer::Inputs,
            bias: false,
            init: [Init::Lin; 2],
            precision: Precision::default(),
            layers: OnceCell::new(),
            gate: PhantomData,
        })
    }

    fn layers(&self, d_model: usize) -> Result<&[Dense]> {
        let dense = |from: usize, to: usize| {
            let [weight, bias] = self.init;
            let l = Dense::lazy(&self.cx, to)?.init(weight, bias)?.precision(self.precision);
            if self.bias { l } else { l.no_bias() }.inputs(from)
        };
        let all = self.layers.get_or_try_init(|| {
            let mut all = vec![dense(d_model, self.inner)?, dense(d_model, self.inner)?];
            match self.outer {
                Outer::Inputs => all.push(dense(self.inner, d_model)?),
                Outer::Features(n) => all.push(dense(self.inner, n)?),
                Outer::None => {}
            }
            Ok::<_, NnError>(all)
        })?;
        Ok(all)
    }

    /// Drops the parameters and, if they were made, makes them anew with the present settings.
    fn remake(mut self) -> Result<Self> {
        let made = self.layers.take();
        if let Some(weight) = made.as_ref().and_then(|l| l.first()?.weight()) {
            self.layers(weight.get().shape()[1])?;
        }
        Ok(self)
    }

    /// Sets the width of the result, `d_model` unless set; makes the parameters anew. Errors: 0.
    pub fn out_features(mut self, n: usize) -> Result<Self> {
        positive(G::KIND, "out_features", &[n])?;
        self.outer = Outer::Features(n);
        self.remake()
    }

    /// Without the last product; makes the parameters anew.
    pub fn no_down_proj(mut self) -> Result<Self> {
        self.outer = Outer::None;
        self.remake()
    }

    /// With biases; makes the parameters anew.
    pub fn with_bias(mut self) -> Result<Self> {
        self.bias = true;
        self.remake()
    }

    /// Sets how weights and biases are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        self.init = [weight, bias];
        self.remake()
    }

    /// Sets the arithmetic of the products and makes the parameters anew.
    pub fn precision(mut self, precision: Precision) -> Result<Self> {
        self.precision = precision;
        self.remake()
    }
}

impl<G: Gate> Layer for GatedFeedForward<G> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some(&width) = x.shape().last() else {
            return Err(invalid(G::KIND, "x", "[.., D]", "a scalar"));
        };
        let layers = self.layers(width)?;
        let run = |i: usize, x: &Tensor| hooks::layer(NAMES[i], &layers[i], x);
        let (gate, up) = (run(0, x)?, run(1, x)?);
        let y = up.gated_by(&gate, G::ACTIVATION)?;
        if layers.len() > 2 { run(2, &y) } else { Ok(y) }
    }

    fn kind(&self) -> &'static str {
        G::KIND
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (name, layer) in NAMES.iter().zip(self.layers.get().into_iter().flatten()) {
            v.child(name, layer);
        }
    }
}
