//! Linear layer in hyperbolic space.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil::ops::reduce::Reduce;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Radial;
use crate::layers::spatial::positive;
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Linear map of the Poincare ball of curvature -c (Ganea et al., 2018; Mobius matrix-vector product and bias), `[.., in] -> [.., out]`.
///
/// With exp0 and log0 between the ball and its tangent space at 0: h = exp0(W log0(x)), then the Mobius sum of h and exp0(b), then
/// exp0(f(log0 h)) for a nonlinearity f. Inputs and results are kept inside of the ball: a norm above R = (1 - d) / sqrt(c) becomes R, with
/// d = 4e-3 (1e-5 for f64). All arithmetic beside the product is f32 (f64 for f64).
///
/// State: `weight [out, in]`, Glorot-uniform, and `bias [out]` = 0, a tangent vector at 0. Both are Euclidean, so that any optimizer serves.
///
/// Errors of `forward`: a last axis other than `in`.
#[derive(Debug)]
pub struct HyperbolicLinear {
    cx: InitContext,
    weight: Param,
    bias: Option<Param>,
    c: f64,
    ball_input: bool,
    nonlinearity: Option<Activation>,
    tangent_output: bool,
    precision: Precision,
}

const OP: &str = "HyperbolicLinear";

/// Squared norms of rows, `[.., 1]`.
fn squared(x: &Tensor) -> Result<Tensor> {
    x.reduce(Reduce::SumSq, &[-1], true)
}

impl HyperbolicLinear {
    /// `in_features -> out_features` with bias on the ball of c = 1, from points of the ball to points of the ball, without nonlinearity.
    /// Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        positive(OP, "in_features", &[in_features])?;
        positive(OP, "out_features", &[out_features])?;
        Ok(HyperbolicLinear {
            cx: cx.clone(),
            weight: Init::Glorot.param(cx, &[out_features, in_features], in_features, out_features)?,
            bias: Some(Init::Zeros.param(cx, &[out_features], in_features, out_features)?),
            c: 1.0,
            ball_input: true,
            nonlinearity: None,
            tangent_output: false,
            precision: Precision::Ieee,
        })
    }

    /// Sets c; the curvature is -c. Errors: not a finite number above 0.
    pub fn c(mut self, c: f64) -> Result<Self> {
        if !(c > 0.0 && c.is_finite()) {
            return Err(invalid(OP, "c", "a finite number above 0", format!("{c}")));
        }
        self.c = c;
        Ok(self)
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// Takes tangent vectors at 0, which exp0 maps to the ball, instead of points.
    pub fn tangent_input(mut self) -> Self {
        self.ball_input = false;
        self
    }

    /// Gives tangent vectors at 0, log0 of the result, instead of points.
    pub fn tangent_output(mut self) -> Self {
        self.tangent_output = true;
        self
    }

    /// Sets the nonlinearity, which acts in the tangent space at 0.
    pub fn nonlinearity(mut self, act: Activation) -> Self {
        self.nonlinearity = Some(act);
        self
    }

    setters! {
        /// Sets the arithmetic of the product.
        precision: Precision => precision;
    }

    /// Sets how weight and bias are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        let &[o, i] = self.weight.get().shape() else { return Ok(self) };
        self.weight = weight.param(&self.cx, &[o, i], i, o)?;
        if self.bias.is_some() {
            self.bias = Some(bias.param(&self.cx, &[o], i, o)?);
        }
        Ok(self)
    }

    /// The weight `[out, in]`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The bias `[out]`, if there is one.
    pub fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }

    /// A tangent vector at 0 as a point of the ball.
    fn exp0(&self, v: &Tensor) -> Result<Tensor> {
        v.mul(&squared(v)?.mul_scalar(self.c)?.radial(Radial::Tanh)?)
    }

    /// A point of the ball as a tangent vector at 0.
    fn log0(&self, y: &Tensor) -> Result<Tensor> {
        y.mul(&squared(y)?.mul_scalar(self.c)?.radial(Radial::Atanh)?)
    }

    /// Points beyond the largest norm moved back to it.
    fn project(&self, y: &Tensor) -> Result<Tensor> {
        let margin = if y.dtype() == DType::F64 { 1e-5 } else { 4e-3 };
        let radius = (1.0 - margin) / self.c.sqrt();
        // (|y| / R)^2 limited to 1 from below gives a factor of exactly 1 inside.
        y.mul(&squared(y)?.mul_scalar(radius.powi(-2))?.clamp(Some(1.0), None)?.rsqrt()?)
    }

    /// The Mobius sum of points; they broadcast.
    fn add(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let c = self.c;
        let (xx, yy) = (squared(x)?, squared(y)?);
        let one = x.mul(y)?.sum_axes(&[-1], true)?.mul_scalar(2.0 * c)?.add_scalar(1.0)?;
        let a = one.add(&yy.mul_scalar(c)?)?;
        let b = xx.mul_scalar(-c)?.add_scalar(1.0)?;
        let d = one.add(&xx.mul(&yy)?.mul_scalar(c * c)?)?.clamp(Some(1e-15), None)?;
        a.mul(x)?.add(&b.mul(y)?)?.div(&d)
    }
}

impl Layer for HyperbolicLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let w = self.weight.get();
        let inputs = w.shape()[1];
        if x.shape().last() != Some(&inputs) {
            let want = format!("shape [.., {inputs}]");
            return Err(invalid(OP, "x", want, format!("shape {:?}", x.shape())));
        }
        let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
        let (x, w) = (x.to_dtype(wide)?, w.to_dtype(wide)?);
        let x = self.project(&if self.ball_input { x } else { self.exp0(&x)? })?;

        let m = x.linear(&w, None, Activation::Identity, self.precision)?;
        let log = squared(&x)?.mul_scalar(self.c)?.radial(Radial::Atanh)?;
        let norm = squared(&m)?.mul_scalar(self.c)?.mul(&log.square()?)?;
        let mut h = self.project(&norm.radial(Radial::Tanh)?.mul(&log)?.mul(&m)?)?;
        if let Some(b) = &self.bias {
            let b = self.project(&self.exp0(&b.get().to_dtype(wide)?)?)?;
            h = self.project(&self.add(&h, &b)?)?;
        }
        let y = match (self.nonlinearity, self.tangent_output) {
            (None, false) => h,
            (None, true) => self.log0(&h)?,
            (Some(f), false) => self.exp0(&self.log0(&h)?.activation(f)?)?,
            (Some(f), true) => self.log0(&h)?.activation(f)?,
        };
        y.to_dtype(dtype)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}
