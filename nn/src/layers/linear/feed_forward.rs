//! Position-wise networks: two linear layers, and gated units.

use once_cell::sync::OnceCell;

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::{Dense, Dropout};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Visitor};

/// Position-wise network of the Transformer (Vaswani et al., 2017): W2 drop(act(W1 x + b1)) + b2, `[.., D] -> [.., D]`.
///
/// State: `linear1.weight [F, D]`, `linear1.bias [F]`, `linear2.weight [D, F]`, `linear2.bias [D]`.
#[derive(Debug)]
pub struct FeedForward {
    cx: InitContext,
    inner: usize,
    bias: bool,
    init: [Init; 2],
    act: Activation,
    precision: Precision,
    dropout: Option<Dropout>,
    linears: OnceCell<[Dense; 2]>,
}

impl FeedForward {
    /// Width `d_model` outside and `d_ff` inside, relu, with biases, no dropout. Errors: a size of 0.
    pub fn new(cx: &InitContext, d_model: usize, d_ff: usize) -> Result<Self> {
        let l = Self::lazy(cx, d_ff)?;
        if d_model == 0 {
            return Err(invalid("FeedForward", "d_model", "at least 1", "0"));
        }
        l.linears(d_model)?;
        Ok(l)
    }

    /// The first forward fixes `d_model` and makes the parameters. Errors: a size of 0.
    pub fn lazy(cx: &InitContext, d_ff: usize) -> Result<Self> {
        if d_ff == 0 {
            return Err(invalid("FeedForward", "d_ff", "at least 1", "0"));
        }
        Ok(FeedForward {
            cx: cx.clone(),
            inner: d_ff,
            bias: true,
            init: [Init::Lin; 2],
            act: Activation::Relu,
            precision: Precision::Ieee,
            dropout: None,
            linears: OnceCell::new(),
        })
    }

    fn linears(&self, d: usize) -> Result<&[Dense; 2]> {
        self.linears.get_or_try_init(|| {
            let dense = |inputs, outputs| {
                let [weight, bias] = self.init;
                let l = Dense::lazy(&self.cx, outputs)?.init(weight, bias)?.inputs(inputs)?;
                let l = l.precision(self.precision);
                Ok::<Dense, NnError>(if self.bias { l } else { l.no_bias() })
            };
            let pair = [dense(d, self.inner)?.activation(self.act), dense(self.inner, d)?];
            Ok(pair)
        })
    }

    fn each(mut self, f: impl Fn(usize, Dense) -> Dense) -> Self {
        if let Some([a, b]) = self.linears.take() {
            self.linears = OnceCell::from([f(0, a), f(1, b)]);
        }
        self
    }

    /// Sets the activation.
    pub fn activation(mut self, act: Activation) -> Self {
        self.act = act;
        self.each(|i, l| if i == 0 { l.activation(act) } else { l })
    }

    /// Drops elements between the linear layers in training. Errors: a probability outside of [0, 1].
    pub fn dropout(mut self, p: f64) -> Result<Self> {
        self.dropout = if p == 0.0 { None } else { Some(Dropout::part(&self.cx, p)?) };
        Ok(self)
    }

    /// Without biases.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self.each(|_, l| l.no_bias())
    }

    /// Sets how weights and biases are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        self.init = [weight, bias];
        if let Some([first, second]) = self.linears.take() {
            self.linears = OnceCell::from([first.init(weight, bias)?, second.init(weight, bias)?]);
        }
        Ok(self)
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self.each(|_, l| l.precision(precision))
    }
}

impl Layer for FeedForward {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let d = x.shape().last().copied().unwrap_or(0);
        if d == 0 {
            return Err(invalid("FeedForward", "x", "shape [.., d_model]", format!("{:?}", x.shape())));
        }
        let [first, second] = self.linears(d)?;
        let width = first.weight().map_or(d, |w| w.get().shape()[1]);
        crate::layers::attention::scores::check_width("FeedForward", "x", x, width)?;
        let h = hooks::layer("linear1", first, x)?;
        let h = match &self.dropout {
            Some(drop) => hooks::layer("dropout", drop, &h)?,
            None => h,
        };
        hooks::layer("linear2", second, &h)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if let Some([first, second]) = self.linears.get() {
            v.child("linear1", first);
            v.child("linear2", second);
        }
        if let Some(d) = &self.dropout {
            v.child("dropout", d);
        }
    }
}

/// Gated linear unit: (W x + b) times act(V x + c), `[.., in] -> [.., out]` (Dauphin et al., 2017; Shazeer, 2020). One product for both
/// factors.
///
/// State: `weight [2 out, in]` and `bias [2 out]`, rows of the value first, then those of the gate.
#[derive(Debug)]
pub struct GatedLinearUnit {
    packed: Dense,
    gate: Activation,
}

impl GatedLinearUnit {
    /// With biases and a sigmoid. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        Self::check(out_features)?;
        Ok(GatedLinearUnit {
            packed: Dense::new(cx, in_features, out_features.saturating_mul(2))?,
            gate: Activation::Sigmoid,
        })
    }

    /// The first forward fixes the number of inputs and makes the parameters. Errors: no outputs.
    pub fn lazy(cx: &InitContext, out_features: usize) -> Result<Self> {
        Self::check(out_features)?;
        Ok(GatedLinearUnit {
            packed: Dense::lazy(cx, out_features.saturating_mul(2))?,
            gate: Activation::Sigmoid,
        })
    }

    /// SwiGLU: the gate is x sigmoid(x).
    pub fn swiglu(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        Self::new(cx, in_features, out_features)?.gate(Activation::Swish { beta: 1.0 })
    }

    /// GeGLU: the gate is the exact gelu.
    pub fn geglu(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        Self::new(cx, in_features, out_features)?.gate(Activation::Gelu)
    }

    /// ReGLU: the gate is relu.
    pub fn reglu(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        Self::new(cx, in_features, out_features)?.gate(Activation::Relu)
    }

    fn check(outputs: usize) -> Result<()> {
        if outputs == 0 {
            return Err(invalid("GatedLinearUnit", "out_features", "at least 1", "0"));
        }
        Ok(())
    }

    /// Sets the gate's activation; identity makes the unit bilinear. Errors: one that the kernel of gated units does not apply, which are all
    /// but identity, relu, gelu, sigmoid, tanh, swish with beta 1 and hardswish.
    pub fn gate(mut self, gate: Activation) -> Result<Self> {
        use Activation::{Gelu, GeluTanh, Hardswish, Identity, Relu, Sigmoid, Swish, Tanh};
        if !matches!(
            gate,
            Identity | Relu | Gelu | GeluTanh | Sigmoid | Tanh | Swish { beta: 1.0 } | Hardswish
        ) {
            let expected = "identity, relu, gelu, gelu_tanh, sigmoid, tanh, swish with beta 1 or hard_swish";
            return Err(invalid("GatedLinearUnit", "gate_activation", expected, format!("{gate:?}")));
        }
        self.gate = gate;
        Ok(self)
    }

    /// Without biases.
    pub fn no_bias(mut self) -> Self {
        self.packed = self.packed.no_bias();
        self
    }

    /// Sets how weights and biases are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        self.packed = self.packed.init(weight, bias)?;
        Ok(self)
    }

    /// Sets the arithmetic of the product.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.packed = self.packed.precision(precision);
        self
    }
}

impl Layer for GatedLinearUnit {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if let Some(w) = self.packed.weight() {
            crate::layers::attention::scores::check_width("GatedLinearUnit", "x", x, w.get().shape()[1])?;
        }
        hooks::layer("", &self.packed, x)?.glu(self.gate, -1)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.packed.visit(v);
    }
}
