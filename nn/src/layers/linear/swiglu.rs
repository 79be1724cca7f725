//! The gated position-wise network of recent language models.

use once_cell::sync::OnceCell;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Dense;
use crate::module::{Init, InitContext, Layer, Visitor, hooks};

const NAMES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Position-wise network with a SwiGLU gate (Shazeer, 2020), the MLP of Llama: W_down (silu(W_gate x) * W_up x), `[.., D] -> [.., D]`.
///
/// State: `gate_proj.weight [F, D]`, `up_proj.weight [F, D]`, `down_proj.weight [D, F]`, and with [`with_bias`](SwiGlu::with_bias) their biases.
///
/// Errors of `forward`: a last axis other than D.
#[derive(Debug)]
pub struct SwiGlu {
    cx: InitContext,
    inner: usize,
    bias: bool,
    init: Option<[Init; 2]>,
    precision: Precision,
    layers: OnceCell<[Dense; 3]>,
}

impl SwiGlu {
    /// Width `d_model` outside and `d_ff` inside, without biases. Errors: a size of 0.
    pub fn new(cx: &InitContext, d_model: usize, d_ff: usize) -> Result<Self> {
        if d_model == 0 {
            return Err(invalid("SwiGlu", "d_model", "at least 1", "0"));
        }
        let l = SwiGlu::lazy(cx, d_ff)?;
        l.layers(d_model)?;
        Ok(l)
    }

    /// The first forward fixes `d_model` and makes the parameters. Errors: a size of 0.
    pub fn lazy(cx: &InitContext, d_ff: usize) -> Result<Self> {
        if d_ff == 0 {
            return Err(invalid("SwiGlu", "d_ff", "at least 1", "0"));
        }
        let precision = Precision::default();
        Ok(SwiGlu {
            cx: cx.clone(),
            inner: d_ff,
            bias: false,
            init: None,
            precision,
            layers: OnceCell::new(),
        })
    }

    fn layers(&self, d_model: usize) -> Result<&[Dense; 3]> {
        self.layers.get_or_try_init(|| {
            let dense = |from: usize, to: usize| {
                let l = Dense::new(&self.cx, from, to)?.precision(self.precision);
                let l = if self.bias { l } else { l.no_bias() };
                match self.init {
                    Some([weight, bias]) => l.init(weight, bias),
                    None => Ok(l),
                }
            };
            Ok([dense(d_model, self.inner)?, dense(d_model, self.inner)?, dense(self.inner, d_model)?])
        })
    }

    /// Drops the parameters and, if they were made, makes them anew with the present settings.
    fn remake(mut self) -> Result<Self> {
        if let Some([gate, ..]) = self.layers.take() {
            let d_model = gate.weight().map_or(0, |w| w.get().shape()[1]);
            self.layers(d_model)?;
        }
        Ok(self)
    }

    /// With biases; makes the parameters anew.
    pub fn with_bias(mut self) -> Result<Self> {
        self.bias = true;
        self.remake()
    }

    /// Sets how weights and biases are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        self.init = Some([weight, bias]);
        self.remake()
    }

    /// Sets the arithmetic of the products and makes the parameters anew.
    pub fn precision(mut self, precision: Precision) -> Result<Self> {
        self.precision = precision;
        self.remake()
    }
}

impl Layer for SwiGlu {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some(&width) = x.shape().last() else {
            return Err(invalid("SwiGlu", "x", "[.., D]", "a scalar"));
        };
        let layers = self.layers(width)?;
        let run = |i: usize, x: &Tensor| hooks::layer(NAMES[i], &layers[i], x);
        let (gate, up) = (run(0, x)?, run(1, x)?);
        run(2, &up.gated_by(&gate, Activation::Swish { beta: 1.0 })?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (name, layer) in NAMES.iter().zip(self.layers.get().into_iter().flatten()) {
            v.child(name, layer);
        }
    }
}
