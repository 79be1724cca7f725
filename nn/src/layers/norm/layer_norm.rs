//! Normalization of trailing axes: layer norm and RMS norm.

use trefoil::DType;
use trefoil::ops::norm::RowNorm;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Normalized axes that are not empty.
fn check_shape(op: &'static str, shape: &[usize]) -> Result<()> {
    if shape.is_empty() || shape.contains(&0) {
        return Err(invalid(op, "normalized_shape", "sizes of at least 1", format!("{shape:?}")));
    }
    Ok(())
}

fn check_eps(op: &'static str, eps: f64) -> Result<()> {
    if eps > 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(invalid(op, "eps", "a finite number above 0", format!("{eps}")))
}

fn check_input(op: &'static str, x: &Tensor, shape: &[usize]) -> Result<()> {
    if x.shape().ends_with(shape) {
        return Ok(());
    }
    Err(invalid(op, "x", format!("trailing axes {shape:?}"), format!("shape {:?}", x.shape())))
}

/// (x - mean) / sqrt(var + eps) * weight + bias over the trailing axes, `torch.nn.LayerNorm` (Ba et al., 2016).
///
/// State: `weight` = 1 and `bias` = 0 of the normalized shape.
#[derive(Debug)]
pub struct LayerNormalization {
    shape: Vec<usize>,
    eps: f64,
    weight: Option<Param>,
    bias: Option<Param>,
}

impl LayerNormalization {
    /// Over trailing axes of this shape, eps 1e-5. Errors: no axes, a size of 0.
    pub fn new(cx: &InitContext, normalized_shape: &[usize]) -> Result<Self> {
        check_shape("LayerNormalization", normalized_shape)?;
        Ok(LayerNormalization {
            shape: normalized_shape.to_vec(),
            eps: 1e-5,
            weight: Some(Init::Constant(1.0).param(cx, normalized_shape, 1, 1)?),
            bias: Some(Init::Zeros.param(cx, normalized_shape, 1, 1)?),
        })
    }

    /// Sets eps. Errors: not a finite number above 0.
    pub fn eps(mut self, eps: f64) -> Result<Self> {
        check_eps("LayerNormalization", eps)?;
        self.eps = eps;
        Ok(self)
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// Without weight and bias.
    pub fn no_affine(mut self) -> Self {
        (self.weight, self.bias) = (None, None);
        self
    }

    fn params(&self) -> (RowNorm, Option<Tensor>, Option<Tensor>) {
        let p = RowNorm::layer().axes(self.shape.len()).eps(self.eps);
        (p, self.weight.as_ref().map(Param::get), self.bias.as_ref().map(Param::get))
    }

    /// Normalizes x + residual in one pass; gives the result and the sum. Errors: shapes that differ.
    pub fn add_forward(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        check_input("LayerNormalization", x, &self.shape)?;
        if residual.shape() != x.shape() {
            let (want, got) = (format!("shape {:?}", x.shape()), format!("{:?}", residual.shape()));
            return Err(invalid("LayerNormalization", "residual", want, got));
        }
        let (p, w, b) = self.params();
        x.add_row_norm(residual, &p, w.as_ref(), b.as_ref())
    }
}

impl Layer for LayerNormalization {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_input("LayerNormalization", x, &self.shape)?;
        let (p, w, b) = self.params();
        x.row_norm(&p, w.as_ref(), b.as_ref())
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if let Some(w) = &self.weight {
            v.param("weight", w);
        }
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}

/// x / sqrt(mean(x^2) + eps) * weight over the trailing axes, `torch.nn.RMSNorm` (Zhang and Sennrich, 2019).
///
/// State: `weight` = 1 of the normalized shape.
#[derive(Debug)]
pub struct RmsNorm {
    shape: Vec<usize>,
    eps: Option<f64>,
    weight: Option<Param>,
}

impl RmsNorm {
    /// Over trailing axes of this shape, eps 1e-6. Errors: no axes, a size of 0.
    pub fn new(cx: &InitContext, normalized_shape: &[usize]) -> Result<Self> {
        check_shape("RmsNorm", normalized_shape)?;
        Ok(RmsNorm {
            shape: normalized_shape.to_vec(),
            eps: Some(1e-6),
            weight: Some(Init::Constant(1.0).param(cx, normalized_shape, 1, 1)?),
        })
    }

    /// Sets eps. Errors: not a finite number above 0.
    pub fn eps(mut self, eps: f64) -> Result<Self> {
        check_eps("RmsNorm", eps)?;
        self.eps = Some(eps);
        Ok(self)
    }

    /// Takes the machine epsilon of the arithmetic as eps, PyTorch's default.
    pub fn machine_eps(mut self) -> Self {
        self.eps = None;
        self
    }

    /// Without weight.
    pub fn no_affine(mut self) -> Self {
        self.weight = None;
        self
    }
}

impl Layer for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_input("RmsNorm", x, &self.shape)?;
        let eps = self.eps.unwrap_or(match x.dtype() {
            DType::F64 => f64::EPSILON,
            _ => f64::from(f32::EPSILON),
        });
        let p = RowNorm::rms().axes(self.shape.len()).eps(eps);
        x.row_norm(&p, self.weight.as_ref().map(Param::get).as_ref(), None)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if let Some(w) = &self.weight {
            v.param("weight", w);
        }
    }
}
