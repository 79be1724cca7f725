//! Linear layer over octonions.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_handle};
use crate::layers::spatial::positive;
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Row r and column c of the real matrix of w (x) x hold component |n| of w with the sign of n; component 0 is never negated. This is the
/// Cayley-Dickson product over quaternions, (p, q)(r, s) = (p r - s* q, s p + q r*).
const PRODUCT: [[i32; 8]; 8] = [
    [0, -1, -2, -3, -4, -5, -6, -7],
    [1, 0, -3, 2, -5, 4, 7, -6],
    [2, 3, 0, -1, -6, -7, 4, 5],
    [3, -2, 1, 0, -7, 6, -5, 4],
    [4, 5, 6, 7, 0, -1, -2, -3],
    [5, -4, 7, -6, 1, 0, 3, -2],
    [6, -7, -4, 5, 2, -3, 0, 1],
    [7, 6, -5, -4, 3, 2, -1, 0],
];

/// Linear layer of octonions (Deep Octonion Networks; Wu et al., 2020): y_o = b_o + sum over i of w_oi (x) x_i, with the weight as the left
/// factor (the product does not commute), followed by an activation of each component. `[.., 8 I] -> [.., 8 O]`; octonion n is numbers 8n
/// to 8n + 7, its real part first.
///
/// State: `weight [O, I, 8]` from U(-a, a) with a = sqrt(6 / (8 I + 8 O)), `bias [O, 8]` = 0. The weight is spread to a real matrix
/// `[8 O, 8 I]`, so that the product is one of matrices.
///
/// Errors of `forward`: a last axis other than 8 I.
#[derive(Debug)]
pub struct OctonionLinear {
    cx: InitContext,
    sizes: [usize; 2],
    weight: Param,
    bias: Option<Param>,
    /// `[8, 64]`: a weight's components times this are its matrix. A constant, no state.
    spread: Param,
    act: Activation,
    precision: Precision,
}

const OP: &str = "OctonionLinear";

fn spread(device: &Device, dtype: DType) -> Result<Tensor> {
    let mut table = vec![0f32; 8 * 64];
    for (r, row) in PRODUCT.iter().enumerate() {
        for (c, &n) in row.iter().enumerate() {
            table[n.unsigned_abs() as usize * 64 + r * 8 + c] = if n < 0 { -1.0 } else { 1.0 };
        }
    }
    Tensor::from_slice(device, &table, &[8, 64])?.to_dtype(dtype)
}

impl OctonionLinear {
    /// `in_features -> out_features` octonions with bias, without activation. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        positive(OP, "in_features", &[in_features])?;
        positive(OP, "out_features", &[out_features])?;
        let [weight, bias] = Self::draw(cx, [in_features, out_features], Init::Glorot, Init::Zeros)?;
        Ok(OctonionLinear {
            cx: cx.clone(),
            sizes: [in_features, out_features],
            weight,
            bias: Some(bias),
            spread: Param::buffer(spread(cx.device(), cx.param_dtype())?),
            act: Activation::Identity,
            precision: Precision::Ieee,
        })
    }

    fn draw(cx: &InitContext, [i, o]: [usize; 2], weight: Init, bias: Init) -> Result<[Param; 2]> {
        let (fan_in, fan_out) = (i.saturating_mul(8), o.saturating_mul(8));
        Ok([weight.param(cx, &[o, i, 8], fan_in, fan_out)?, bias.param(cx, &[o, 8], fan_in, fan_out)?])
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
        /// Sets the arithmetic of the product.
        precision: Precision => precision;
    }

    /// Sets how weight and bias are filled and fills them anew; the fans are 8 I and 8 O.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        let [w, b] = Self::draw(&self.cx, self.sizes, weight, bias)?;
        self.weight = w;
        self.bias = self.bias.is_some().then_some(b);
        Ok(self)
    }

    /// The weight `[O, I, 8]`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The bias `[O, 8]`, if there is one.
    pub fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }
}

impl Layer for OctonionLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [i, o] = self.sizes;
        if x.shape().last() != Some(&(8 * i)) {
            let want = format!("shape [.., {}], 8 numbers for each of {i} octonions", 8 * i);
            return Err(invalid(OP, "x", want, format!("shape {:?}", x.shape())));
        }
        let w = self.weight.get();
        if !same_handle(self.spread.get().device(), w.device()) {
            // The layer was moved.
            self.spread.set(spread(w.device(), w.dtype())?);
        }
        let blocks = w.reshape(&[o * i, 8])?.matmul(&self.spread.get())?;
        let real = blocks.reshape(&[o, i, 8, 8])?.permute(&[0, 2, 1, 3])?.reshape(&[8 * o, 8 * i])?;
        let bias = self.bias.as_ref().map(|b| b.get().reshape(&[8 * o])).transpose()?;
        x.linear(&real, bias.as_ref(), self.act, self.precision)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}
