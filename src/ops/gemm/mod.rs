//! Matrix products with fused epilogues.

mod bilinear;

pub use self::bilinear::*;

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;
use crate::ops::activation::Activation;

/// Arithmetic of the products; accumulation is always f32 (f64 for f64).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Precision {
    /// Full f32 products of f32 operands. Convolutions and products of matrices may make them of six products in bf16, with errors as small.
    #[default]
    Ieee,
    /// f32 operands may be rounded to TF32 (10-bit mantissa) where the device has it.
    Tf32,
    /// Products of f32 operands may be made of three products in TF32, of operands that are sums of two such numbers each (Ootomo and Yokota, 2022), where a
    /// vendor's library has TF32: matrices then take 1.5 times their memory besides, infinite operands give NaN, and errors are those of f32 but for sums on
    /// matrix cores, which are rounded towards zero. Convolutions multiply as under `Ieee`.
    Tf32x3,
}

/// Which axis of the result a vector belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GemmAxis {
    /// One value per column: `[N]`.
    #[default]
    Col,
    /// One value per row: `[M]`.
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

io_struct! {
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
        /// `[N]` or `[M]` by `bias_axis`.
        pub bias: Option<View<'a>>,
        /// Added before the activation, Y's shape.
        pub residual: Option<View<'a>>,
        /// `[N]` or `[M]` by `scale_axis`.
        pub scale: Option<View<'a>>,
        /// [M, N].
        pub y: ViewMut<'a>,
        /// Second output: the value before the activation, Y's shape and dtype.
        pub z: Option<ViewMut<'a>>,
        /// Column sums of Y `[N]` (over batches too).
        pub colsum: Option<ViewMut<'a>>,
    }
}

io_struct! {
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
        /// Gradient of the bias, `[N]` or `[M]` by `bias_axis`.
        pub dbias: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`GemmOps::gemm_ragged`]: rows in groups, and a matrix per group.
    #[derive(Debug)]
    pub struct GemmRagged<'a> {
        /// The rows of all groups [total, K].
        pub a: View<'a>,
        /// [G, K, N], or [G, N, K] with `trans_b`.
        pub b: View<'a>,
        /// Where groups begin and the last one ends, i32 [G + 1], rising.
        pub offsets: View<'a>,
        /// Added to the rows of a group before the activation, [G, N].
        pub bias: Option<View<'a>>,
        /// [total, N], of A's dtype or f32.
        pub y: ViewMut<'a>,
        /// Second output: the value before the activation, Y's shape and dtype.
        pub z: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`GemmOps::gemm_ragged_bwd`].
    #[derive(Debug)]
    pub struct GemmRaggedBwd<'a> {
        /// Gradient of the products, before activation and bias, [total, N].
        pub dz: View<'a>,
        /// Forward's A.
        pub a: View<'a>,
        /// Forward's offsets.
        pub offsets: View<'a>,
        /// Gradient of B, in its stored layout.
        pub db: GradMut<'a>,
        /// Gradient of the bias, [G, N] like it, contiguous.
        pub dbias: Option<GradMut<'a>>,
    }
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
        /// `Ys[i] = alpha op(As[i]) op(Bs[i])` for a list of problems; only `alpha`, the transposes and the precision are used.
        fn gemm_grouped(&self, p: &Gemm, a: &[View<'_>], b: &[View<'_>], y: &mut [ViewMut<'_>]) -> Result<()>;
        /// A matrix per group of rows: `Y[r] = act(alpha A[r] op(B[g]) + bias[g])` for the rows `offsets[g] <= r < offsets[g + 1]` of group g. Rows
        /// of no group become 0. Of `p` only `alpha`, `trans_b`, the activation and the precision are used. An offset that is negative, beyond
        /// the rows or below its predecessor is `IndexOutOfRange`, and the rows beside it are not specified. Oracle `F.grouped_mm`, a loop of
        /// products.
        fn gemm_ragged(&self, p: &Gemm, io: GemmRagged<'_>) -> Result<()>;
        /// Gradient of B: `dB[g] = alpha A_g^T dZ_g` over the rows of group g (its transpose with `trans_b`), 0 for a group without rows. The
        /// gradient of A is `gemm_ragged` of dZ with `trans_b` turned. That of the bias is the sum of a group's rows of dZ.
        fn gemm_ragged_bwd(&self, p: &Gemm, io: GemmRaggedBwd<'_>) -> Result<()>;
    }
}

/// Batches, rows, columns and products per element of a checked product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Extents {
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// Strides of a matrix by row, column and batch; `trans` exchanges the first two. A batch of one repeats.
pub(crate) fn steps(v: &View<'_>, trans: bool) -> [usize; 3] {
    let (s, l) = (v.layout().strides(), v.shape().len());
    let (r, c) = if trans { (s[l - 1], s[l - 2]) } else { (s[l - 2], s[l - 1]) };
    [r, c, if l == 3 && v.shape()[0] > 1 { s[0] } else { 0 }]
}

/// Strides by row and column of a vector along `axis`.
pub(crate) fn vector_steps(v: &View<'_>, axis: GemmAxis) -> [usize; 2] {
    match axis {
        GemmAxis::Row => [v.layout().strides()[0], 0],
        GemmAxis::Col => [0, v.layout().strides()[0]],
    }
}

/// Number under which kernels know an activation that can be fused, and its parameter.
pub(crate) fn fused_act(op: &'static str, act: Activation) -> Result<(i32, f64)> {
    Ok(match act {
        Activation::Identity => (0, 0.0),
        Activation::Relu => (1, 0.0),
        Activation::LeakyRelu { slope } => (2, slope),
        Activation::Gelu => (3, 0.0),
        Activation::GeluTanh => (4, 0.0),
        Activation::Sigmoid => (5, 0.0),
        Activation::Tanh => (6, 0.0),
        Activation::Swish { beta } => (7, beta),
        Activation::Hardswish => (8, 0.0),
        other => {
            let expected = "identity, relu, leaky_relu, gelu, gelu_tanh, sigmoid, tanh, swish or hardswish";
            return Err(GpuError::invalid(op, "act", expected, format!("{other:?}")));
        }
    })
}

/// Rows and columns of a matrix whose batches are `batch` or a single one.
fn matrix(
    op: &'static str,
    arg: &'static str,
    v: &View<'_>,
    trans: bool,
    batch: usize,
) -> Result<(usize, usize)> {
    let s = v.shape();
    let batches = match s.len() {
        2 => 1,
        3 => s[0],
        _ => return Err(GpuError::invalid(op, arg, "rank 2 or 3", format!("shape {s:?}"))),
    };
    if batches != batch && batches != 1 {
        return Err(GpuError::invalid(op, arg, format!("{batch} batches or one"), format!("shape {s:?}")));
    }
    let (r, c) = (s[s.len() - 2], s[s.len() - 1]);
    Ok(if trans { (c, r) } else { (r, c) })
}

/// Extents of op(A) op(B) into a matrix of `out`'s shape.
fn extents(
    op: &'static str,
    p: &Gemm,
    a: &View<'_>,
    b: &View<'_>,
    arg: &'static str,
    out: &View<'_>,
) -> Result<Extents> {
    let batch = if out.shape().len() == 3 { out.shape()[0] } else { 1 };
    let (m, k) = matrix(op, "a", a, p.trans_a, batch)?;
    let (kb, n) = matrix(op, "b", b, p.trans_b, batch)?;
    if kb != k {
        let got = format!("shapes {:?} and {:?}", a.shape(), b.shape());
        return Err(GpuError::invalid(op, "b", format!("{k} products, as in `a`"), got));
    }
    if matrix(op, arg, out, false, batch)? != (m, n) {
        return Err(GpuError::invalid(
            op,
            arg,
            format!("{m} rows and {n} columns"),
            format!("{:?}", out.shape()),
        ));
    }
    check::float(op, "a", a)?;
    check::dtype(op, "b", b, a.dtype())?;
    Ok(Extents { batch, m, n, k })
}

/// A vector of the rows or columns.
fn vector(
    op: &'static str,
    arg: &'static str,
    v: &View<'_>,
    axis: GemmAxis,
    e: Extents,
    dtype: DType,
) -> Result<()> {
    check::shape(op, arg, v, &[if axis == GemmAxis::Row { e.m } else { e.n }])?;
    check::dtype(op, arg, v, dtype)
}

fn apart(
    op: &'static str,
    arg: &'static str,
    out: &ViewMut<'_>,
    name: &'static str,
    v: Option<&View<'_>>,
) -> Result<()> {
    match v {
        Some(v) if check::overlap(&out.as_view(), v) => Err(GpuError::invalid(
            op,
            arg,
            format!("memory apart from `{name}`"),
            "overlapping ranges of one buffer",
        )),
        _ => Ok(()),
    }
}

/// Arguments of [`GemmOps::gemm`].
pub(crate) fn check_gemm(p: &Gemm, io: &GemmIo<'_>) -> Result<Extents> {
    let op = "gemm";
    let y = io.y.as_view();
    let e = extents(op, p, &io.a, &io.b, "y", &y)?;
    check::one_of(op, "y", &y, &[io.a.dtype(), DType::F32])?;
    fused_act(op, p.act)?;
    match &io.c {
        Some(c) => {
            if matrix(op, "c", c, false, e.batch)? != (e.m, e.n) {
                let want = format!("{} rows and {} columns", e.m, e.n);
                return Err(GpuError::invalid(op, "c", want, format!("{:?}", c.shape())));
            }
            check::dtype(op, "c", c, y.dtype())?;
        }
        None if p.beta != 0.0 => {
            return Err(GpuError::invalid(op, "c", "a matrix, since beta is not 0", "none"));
        }
        None => {}
    }
    if let Some(v) = &io.bias {
        vector(op, "bias", v, p.bias_axis, e, io.a.dtype())?;
    }
    if let Some(v) = &io.scale {
        vector(op, "scale", v, p.scale_axis, e, io.a.dtype())?;
    }
    if let Some(v) = &io.residual {
        check::shape(op, "residual", v, y.shape())?;
        check::dtype(op, "residual", v, y.dtype())?;
    }
    let z = io.z.as_ref().map(ViewMut::as_view);
    if let Some(z) = &z {
        check::shape(op, "z", z, y.shape())?;
        check::dtype(op, "z", z, y.dtype())?;
    }
    if let Some(s) = &io.colsum {
        check::shape(op, "colsum", &s.as_view(), &[e.n])?;
        check::dtype(op, "colsum", &s.as_view(), y.dtype())?;
    }
    // Without beta, C is not read and may be anything.
    let c = io.c.filter(|_| p.beta != 0.0);
    check::elementwise_output(op, "y", &io.y, &[("c", c.unwrap_or(y))])?;
    let outs =
        [Some(("y", &io.y)), io.z.as_ref().map(|z| ("z", z)), io.colsum.as_ref().map(|s| ("colsum", s))];
    for (i, (arg, out)) in outs.iter().enumerate().filter_map(|(i, o)| o.map(|o| (i, o))) {
        let read = [
            ("a", Some(&io.a)),
            ("b", Some(&io.b)),
            ("bias", io.bias.as_ref()),
            ("scale", io.scale.as_ref()),
        ];
        for (name, v) in read {
            apart(op, arg, out, name, v)?;
        }
        apart(op, arg, out, "residual", io.residual.as_ref())?;
        if i > 0 {
            check::separate_output(op, arg, out, &[])?;
            apart(op, arg, out, "c", c.as_ref())?;
            apart(op, arg, out, "y", Some(&y))?;
        }
        if i > 1 {
            apart(op, arg, out, "z", z.as_ref())?;
        }
    }
    Ok(e)
}

/// Whether an operand repeats over the batches of a product.
pub(crate) fn repeats(v: &View<'_>, batch: usize) -> bool {
    batch != 1
        && (v.shape().len() == 2 || v.shape()[0] == 1 || (v.shape()[0] > 1 && v.layout().strides()[0] == 0))
}

/// Arguments of [`GemmOps::gemm_bwd`].
pub(crate) fn check_gemm_bwd(p: &Gemm, io: &GemmBwd<'_>) -> Result<Extents> {
    let op = "gemm_bwd";
    let e = extents(op, p, &io.a, &io.b, "dy", &io.dy)?;
    let dtype = io.a.dtype();
    check::dtype(op, "dy", &io.dy, dtype)?;
    fused_act(op, p.act)?;
    match &io.saved {
        Some(s) if p.act != Activation::Identity => {
            check::shape(op, "saved", s, io.dy.shape())?;
            check::dtype(op, "saved", s, dtype)?;
        }
        None if p.act != Activation::Identity => {
            return Err(GpuError::invalid(op, "saved", format!("what {:?} reads", p.act), "none"));
        }
        _ => {}
    }
    for (arg, of, g) in [("da", &io.a, &io.da), ("db", &io.b, &io.db)] {
        let Some(g) = g else { continue };
        let (got, s) = (g.out.shape(), of.shape());
        // The gradient of a repeated operand is that of one copy.
        let matrix = &s[s.len() - 2..];
        let fits = if s.len() == 3 && repeats(of, e.batch) && s[0] > 1 {
            got == matrix || (got.len() == 3 && got[0] == 1 && &got[1..] == matrix)
        } else {
            got == s
        };
        if !fits {
            let want =
                if repeats(of, e.batch) { format!("shape {matrix:?}") } else { format!("shape {s:?}") };
            return Err(GpuError::invalid(op, arg, want, format!("{got:?}")));
        }
    }
    if let Some(g) = &io.dbias {
        vector(op, "dbias", &g.out.as_view(), p.bias_axis, e, dtype)?;
    }
    let read = [("dy", Some(&io.dy)), ("a", Some(&io.a)), ("b", Some(&io.b)), ("saved", io.saved.as_ref())];
    let outs = [("da", &io.da), ("db", &io.db), ("dbias", &io.dbias)];
    for (i, (arg, g)) in outs.iter().enumerate() {
        let Some(g) = g else { continue };
        check::dtype(op, arg, &g.out.as_view(), dtype)?;
        check::separate_output(op, arg, &g.out, &[])?;
        for (name, v) in read {
            apart(op, arg, &g.out, name, v)?;
        }
        for (name, other) in &outs[..i] {
            apart(op, arg, &g.out, name, other.as_ref().map(|o| o.out.as_view()).as_ref())?;
        }
    }
    Ok(e)
}

/// Arguments of [`GemmOps::gemm_grouped`]; the extents of each problem.
pub(crate) fn check_gemm_grouped(
    p: &Gemm,
    a: &[View<'_>],
    b: &[View<'_>],
    y: &[ViewMut<'_>],
) -> Result<Vec<Extents>> {
    let op = "gemm_grouped";
    if a.len() != b.len() || a.len() != y.len() {
        let got = format!("{}, {} and {}", a.len(), b.len(), y.len());
        return Err(GpuError::invalid(op, "y", "as many matrices of each kind", got));
    }
    let mut all = Vec::with_capacity(a.len());
    for (i, ((a, b), out)) in a.iter().zip(b).zip(y).enumerate() {
        let v = out.as_view();
        all.push(extents(op, p, a, b, "y", &v)?);
        check::one_of(op, "y", &v, &[a.dtype(), DType::F32])?;
        check::separate_output(op, "y", out, &[])?;
        for other in &y[..i] {
            apart(op, "y", out, "y", Some(&other.as_view()))?;
        }
    }
    for (a, b) in a.iter().zip(b) {
        for out in y {
            apart(op, "y", out, "a", Some(a))?;
            apart(op, "y", out, "b", Some(b))?;
        }
    }
    Ok(all)
}

/// Arguments of [`GemmOps::gemm_ragged`]; `batch` is the number of groups.
pub(crate) fn check_gemm_ragged(p: &Gemm, io: &GemmRagged<'_>) -> Result<Extents> {
    let op = "gemm_ragged";
    let y = io.y.as_view();
    if p.trans_a {
        return Err(GpuError::invalid(op, "trans_a", "false", "true"));
    }
    fused_act(op, p.act)?;
    let (&[m, k], &[groups, r, c]) = (io.a.shape(), io.b.shape()) else {
        let got = format!("shapes {:?} and {:?}", io.a.shape(), io.b.shape());
        return Err(GpuError::invalid(op, "a", "a of rank 2 and b of rank 3", got));
    };
    let (kb, n) = if p.trans_b { (c, r) } else { (r, c) };
    if kb != k {
        let got = format!("{:?}", io.b.shape());
        return Err(GpuError::invalid(op, "b", format!("{k} products, as in `a`"), got));
    }
    check::shape(op, "y", &y, &[m, n])?;
    check::float(op, "a", &io.a)?;
    check::dtype(op, "b", &io.b, io.a.dtype())?;
    check::one_of(op, "y", &y, &[io.a.dtype(), DType::F32])?;
    check_offsets(op, &io.offsets, groups)?;
    if let Some(bias) = &io.bias {
        check::shape(op, "bias", bias, &[groups, n])?;
        check::dtype(op, "bias", bias, io.a.dtype())?;
        check::contiguous(op, "bias", bias)?;
    }
    let read = [("a", io.a), ("b", io.b), ("offsets", io.offsets), ("bias", io.bias.unwrap_or(io.a))];
    check::separate_output(op, "y", &io.y, &read)?;
    if let Some(z) = &io.z {
        check::shape(op, "z", &z.as_view(), &[m, n])?;
        check::dtype(op, "z", &z.as_view(), y.dtype())?;
        check::separate_output(op, "z", z, &read)?;
        apart(op, "z", z, "y", Some(&y))?;
    }
    Ok(Extents { batch: groups, m, n, k })
}

/// Offsets of groups of rows.
pub(crate) fn check_offsets(op: &'static str, offsets: &View<'_>, groups: usize) -> Result<()> {
    check::shape(op, "offsets", offsets, &[groups + 1])?;
    check::contiguous(op, "offsets", offsets)?;
    check::dtype(op, "offsets", offsets, DType::I32)
}

/// Arguments of [`GemmOps::gemm_ragged_bwd`]: the extents of the gradient as it is stored, `batch` groups of [M, N], and the rows of all groups.
pub(crate) fn check_gemm_ragged_bwd(p: &Gemm, io: &GemmRaggedBwd<'_>) -> Result<Extents> {
    let op = "gemm_ragged_bwd";
    let db = io.db.out.as_view();
    if p.trans_a {
        return Err(GpuError::invalid(op, "trans_a", "false", "true"));
    }
    let (&[rows, n], &[of_a, k], &[groups, ..]) = (io.dz.shape(), io.a.shape(), db.shape()) else {
        let got = format!("shapes {:?}, {:?} and {:?}", io.dz.shape(), io.a.shape(), db.shape());
        return Err(GpuError::invalid(op, "db", "dz and a of rank 2 and db of rank 3", got));
    };
    if of_a != rows {
        let got = format!("shape {:?}", io.a.shape());
        return Err(GpuError::invalid(op, "a", format!("{rows} rows, as in `dz`"), got));
    }
    let [m, n] = if p.trans_b { [n, k] } else { [k, n] };
    check::shape(op, "db", &db, &[groups, m, n])?;
    check::float(op, "a", &io.a)?;
    check::dtype(op, "dz", &io.dz, io.a.dtype())?;
    check::dtype(op, "db", &db, io.a.dtype())?;
    check_offsets(op, &io.offsets, groups)?;
    let mut others = vec![("dz", io.dz), ("a", io.a), ("offsets", io.offsets)];
    check::separate_output(op, "db", &io.db.out, &others)?;
    if let Some(g) = &io.dbias {
        let columns = io.dz.shape()[1];
        check::shape(op, "dbias", &g.out.as_view(), &[groups, columns])?;
        check::dtype(op, "dbias", &g.out.as_view(), io.a.dtype())?;
        check::contiguous(op, "dbias", &g.out.as_view())?;
        others.push(("db", db));
        check::separate_output(op, "dbias", &g.out, &others)?;
    }
    Ok(Extents { batch: groups, m, n, k: rows })
}
