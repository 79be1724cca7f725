//! Matrix products with fused epilogues.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;
use crate::ops::Activation;

/// Arithmetic of the products; accumulation is always f32 (f64 for f64).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Precision {
    /// Full f32 products of f32 operands.
    #[default]
    Ieee,
    /// f32 operands may be rounded to TF32 (10-bit mantissa) where the device has it.
    Tf32,
}

/// Which axis of the result a vector belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GemmAxis {
    /// One value per column: [N].
    #[default]
    Col,
    /// One value per row: [M].
    Row,
}

/// What to compute: Y = act(scale * alpha * op(A) op(B) + beta * C + bias + residual).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Gemm {
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of C; 0 means that C is not read.
    pub beta: f64,
    /// A is stored [K, M].
    pub trans_a: bool,
    /// B is stored [N, K] (the layout of a Linear weight).
    pub trans_b: bool,
    /// Arithmetic.
    pub precision: Precision,
    /// Applied last. Identity, Relu, LeakyRelu, Gelu, GeluTanh, Sigmoid, Tanh, Swish or Hardswish; others are `Invalid`.
    pub act: Activation,
    /// Axis of `bias`.
    pub bias_axis: GemmAxis,
    /// Axis of `scale`.
    pub scale_axis: GemmAxis,
}

impl Gemm {
    /// C = A B.
    pub const fn new() -> Self {
        Gemm {
            alpha: 1.0,
            beta: 0.0,
            trans_a: false,
            trans_b: false,
            precision: Precision::Ieee,
            act: Activation::Identity,
            bias_axis: GemmAxis::Col,
            scale_axis: GemmAxis::Col,
        }
    }

    /// Sets the factors.
    pub const fn scaled(mut self, alpha: f64, beta: f64) -> Self {
        self.alpha = alpha;
        self.beta = beta;
        self
    }

    /// Sets the transposes.
    pub const fn trans(mut self, a: bool, b: bool) -> Self {
        self.trans_a = a;
        self.trans_b = b;
        self
    }

    /// Sets the activation.
    pub const fn act(mut self, act: Activation) -> Self {
        self.act = act;
        self
    }

    /// Sets the arithmetic.
    pub const fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Sets the axes of bias and scale.
    pub const fn axes(mut self, bias: GemmAxis, scale: GemmAxis) -> Self {
        self.bias_axis = bias;
        self.scale_axis = scale;
        self
    }
}

impl Default for Gemm {
    fn default() -> Self {
        Gemm::new()
    }
}

/// Operands of [`GemmOps::gemm`]. A, B, C, Y are rank 2, or rank 3 with a leading batch axis (a batch stride of 0 repeats an operand).
/// Rows may have any strides. A, B and the vectors share a dtype; Y and C share a dtype, which is that of A or f32.
#[derive(Debug)]
pub struct GemmIo<'a> {
    /// [M, K], or [K, M] with `trans_a`.
    pub a: View<'a>,
    /// [K, N], or [N, K] with `trans_b`.
    pub b: View<'a>,
    /// [M, N], read if beta is not 0. May be `y` itself.
    pub c: Option<View<'a>>,
    /// [N] or [M] by `bias_axis`.
    pub bias: Option<View<'a>>,
    /// Added before the activation, Y's shape.
    pub residual: Option<View<'a>>,
    /// [N] or [M] by `scale_axis`.
    pub scale: Option<View<'a>>,
    /// [M, N].
    pub y: ViewMut<'a>,
    /// Second output: the value before the activation, Y's shape and dtype.
    pub z: Option<ViewMut<'a>>,
    /// Column sums of Y [N] (over batches too).
    pub colsum: Option<ViewMut<'a>>,
}

impl<'a> GemmIo<'a> {
    /// Only the product.
    pub fn new(a: View<'a>, b: View<'a>, y: ViewMut<'a>) -> Self {
        GemmIo { a, b, c: None, bias: None, residual: None, scale: None, y, z: None, colsum: None }
    }
}

/// Operands of [`GemmOps::gemm_bwd`].
#[derive(Debug)]
pub struct GemmBwd<'a> {
    /// Upstream gradient [M, N].
    pub dy: View<'a>,
    /// Forward's A.
    pub a: View<'a>,
    /// Forward's B.
    pub b: View<'a>,
    /// What the activation's backward reads: Y for Relu, Sigmoid and Tanh, Z for the others; `None` for Identity.
    pub saved: Option<View<'a>>,
    /// Gradient of A, in its stored layout.
    pub da: Option<GradMut<'a>>,
    /// Gradient of B, in its stored layout (summed over a batch that B repeats).
    pub db: Option<GradMut<'a>>,
    /// Gradient of the bias, [N] or [M] by `bias_axis`.
    pub dbias: Option<GradMut<'a>>,
}

op_family! {
    /// Matrix products. Deterministic. NaN and infinities propagate. K = 0 or alpha = 0 give beta*C without reading A and B.
    /// Oracle `torch.addmm`, `torch.baddbmm`, `F.linear` followed by the activation. Errors: `Invalid` for ranks, sizes, dtypes, overlap.
    pub trait GemmOps : Gemm => GEMM_OPS {
        /// Y = act(scale * alpha * op(A) op(B) + beta * C + bias + residual).
        fn gemm(&self, p: &Gemm, io: GemmIo<'_>) -> Result<()>;
        /// With dZ = act'(saved) * dY: dA = alpha dZ op(B)^T, dB = alpha op(A)^T dZ (transposed where stored so), dbias = sums of dZ.
        /// `beta` and `scale` are not part of it.
        fn gemm_bwd(&self, p: &Gemm, io: GemmBwd<'_>) -> Result<()>;
        /// Ys[i] = alpha op(As[i]) op(Bs[i]) for a list of problems; only `alpha`, the transposes and the precision are used.
        fn gemm_grouped(&self, p: &Gemm, a: &[View<'_>], b: &[View<'_>], y: &mut [ViewMut<'_>]) -> Result<()>;
        /// One weight per group: rows offsets[g]..offsets[g+1] of A [total, K] times B [G, K, N] (or [G, N, K] with `trans_b`) into Y [total, N].
        /// `offsets` is i32 [G+1] on the device, rising; rows not covered become 0; an offset beyond `total` is `IndexOutOfRange`.
        fn gemm_ragged(&self, p: &Gemm, a: View<'_>, b: View<'_>, offsets: View<'_>, y: ViewMut<'_>) -> Result<()>;
    }
}
