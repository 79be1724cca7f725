//! Fully connected layers.

use once_cell::sync::OnceCell;

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// y = act(x W^T + b), `[.., in] -> [.., out]`; `torch.nn.Linear` followed by an activation.
pub type Dense = DenseLayer<false>;

/// [`Dense`] of vectors only, `[in] -> [out]` or `[B, in] -> [B, out]`: inputs of a higher rank are an error, as a forgotten flattening
/// would be.
pub type FullyConnected = DenseLayer<true>;

/// y = act(x W^T + b), `[.., in] -> [.., out]`; `torch.nn.Linear` followed by an activation. `VECTORS`: whether inputs have at most a batch
/// axis.
///
/// State: `weight [out, in]`, `bias [out]`. Both are drawn from U(-1/sqrt(in), 1/sqrt(in)) unless set otherwise. Product, bias and
/// activation run as one kernel where the backend fuses them.
#[derive(Debug)]
pub struct DenseLayer<const VECTORS: bool> {
    cx: InitContext,
    out: usize,
    with_bias: bool,
    act: Activation,
    precision: Precision,
    weight_init: Init,
    bias_init: Init,
    params: OnceCell<(Param, Option<Param>)>,
}

impl<const VECTORS: bool> DenseLayer<VECTORS> {
    const KIND: &'static str = if VECTORS { "FullyConnected" } else { "Dense" };

    /// `in_features -> out_features` with bias and without activation. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        Self::lazy(cx, out_features)?.inputs(in_features)
    }

    /// The first forward fixes the number of inputs and makes the parameters. Errors: no outputs.
    pub fn lazy(cx: &InitContext, out_features: usize) -> Result<Self> {
        if out_features == 0 {
            return Err(invalid(Self::KIND, "out_features", "at least 1", "0"));
        }
        Ok(DenseLayer {
            cx: cx.clone(),
            out: out_features,
            with_bias: true,
            act: Activation::Identity,
            precision: Precision::Ieee,
            weight_init: Init::Lin,
            bias_init: Init::Lin,
            params: OnceCell::new(),
        })
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.with_bias = false;
        if let Some((_, b)) = self.params.get_mut() {
            *b = None;
        }
        self
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
        /// Sets the arithmetic of the products.
        precision: Precision => precision;
    }

    /// Sets how weight and bias are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        (self.weight_init, self.bias_init) = (weight, bias);
        match self.params.take() {
            Some((w, _)) => {
                let inputs = w.get().shape()[1];
                self.inputs(inputs)
            }
            None => Ok(self),
        }
    }

    /// Makes the parameters now.
    pub(crate) fn inputs(self, inputs: usize) -> Result<Self> {
        if inputs == 0 {
            return Err(invalid(Self::KIND, "in_features", "at least 1", "0"));
        }
        self.params(inputs)?;
        Ok(self)
    }

    fn params(&self, inputs: usize) -> Result<&(Param, Option<Param>)> {
        self.params.get_or_try_init(|| {
            let w = self.weight_init.param(&self.cx, &[self.out, inputs], inputs, self.out)?;
            let b = match self.with_bias {
                true => Some(self.bias_init.param(&self.cx, &[self.out], inputs, self.out)?),
                false => None,
            };
            Ok((w, b))
        })
    }

    /// act(x W^T + bias) with another bias and activation than the layer's own.
    pub(crate) fn product(&self, x: &Tensor, bias: Option<&Tensor>, act: Activation) -> Result<Tensor> {
        let (w, _) = self.params(x.shape().last().copied().unwrap_or(0))?;
        x.linear(&w.get(), bias, act, self.precision)
    }

    /// The weight `[out, in]`, once the number of inputs is known.
    pub fn weight(&self) -> Option<&Param> {
        self.params.get().map(|(w, _)| w)
    }

    /// The bias `[out]`, if there is one and the number of inputs is known.
    pub fn bias(&self) -> Option<&Param> {
        self.params.get().and_then(|(_, b)| b.as_ref())
    }
}

impl<const VECTORS: bool> Layer for DenseLayer<VECTORS> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if VECTORS && x.rank() > 2 {
            let want = "shape [B, in] or [in]; put Flatten before it, or use Dense";
            return Err(invalid(Self::KIND, "x", want, format!("shape {:?}", x.shape())));
        }
        let Some(&inputs) = x.shape().last() else {
            return Err(invalid(Self::KIND, "x", "shape [.., in]", "a scalar"));
        };
        if inputs == 0 {
            return Err(invalid(Self::KIND, "x", "at least 1 feature", format!("shape {:?}", x.shape())));
        }
        let (w, b) = self.params(inputs)?;
        let w = w.get();
        if w.shape()[1] != inputs {
            let expected = format!("shape [.., {}]", w.shape()[1]);
            return Err(invalid(Self::KIND, "x", expected, format!("shape {:?}", x.shape())));
        }
        x.linear(&w, b.as_ref().map(Param::get).as_ref(), self.act, self.precision)
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if let Some((w, b)) = self.params.get() {
            v.param("weight", w);
            if let Some(b) = b {
                v.param("bias", b);
            }
        }
    }
}
