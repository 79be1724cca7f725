//! Quantization to 8 and 4 bits, products of such operands, and of sparse ones: parameters and checks.

use crate::ops::check;
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// Weights of [`QuantizedOps::gemm_quantized`]. Scales and zero points are f16, bf16 or f32.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum QuantWeight<'a> {
    /// Signed 8-bit codes [N, K] (in a u8 buffer) and one scale per row \[N\].
    Int8 {
        /// Codes.
        q: View<'a>,
        /// \[N\]
        scale: View<'a>,
    },
    /// Unsigned 4-bit codes, two per byte [N, K/2] (even k in the low half), and a scale per group of K [N, K/group].
    Int4 {
        /// Codes.
        q: View<'a>,
        /// [N, K/group]; the group is what the sizes give, and divides K.
        scale: View<'a>,
        /// Zero points in codes, shape and dtype of `scale`; 8 without.
        zero: Option<View<'a>>,
    },
}

/// The 8-bit floating-point formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fp8 {
    /// 4 bits of exponent, 3 of mantissa; no infinities, NaN is 7f and ff.
    E4m3,
    /// 5 bits of exponent, 2 of mantissa; infinities and NaN as IEEE 754.
    E5m2,
}

impl Fp8 {
    /// The largest finite number.
    pub const fn max(self) -> f64 {
        match self {
            Fp8::E4m3 => 448.0,
            Fp8::E5m2 => 57344.0,
        }
    }
}

/// Codes of [`QuantizedOps::quantize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantFormat {
    /// Signed 8-bit integers of -127 to 127, as bytes.
    Int8,
    /// Unsigned 4-bit codes of 1 to 15, which stand for -7 to 7, two per byte (the even element in the low half).
    Int4,
    /// Bit patterns of 8-bit floating-point numbers.
    Fp8(Fp8),
}

impl QuantFormat {
    /// The largest magnitude that a code stands for: the scale is the largest magnitude of a group divided by it.
    pub const fn max(self) -> f64 {
        match self {
            QuantFormat::Int8 => 127.0,
            QuantFormat::Int4 => 7.0,
            QuantFormat::Fp8(format) => format.max(),
        }
    }

    /// Elements per byte.
    pub const fn per_byte(self) -> usize {
        if matches!(self, QuantFormat::Int4) { 2 } else { 1 }
    }
}

io_struct! {
    /// Operands of [`QuantizedOps::gemm_fp8`]. Scales are f32.
    #[derive(Debug)]
    pub struct GemmFp8<'a> {
        /// Bit patterns [M, K], u8.
        pub a: View<'a>,
        /// Bit patterns [N, K], u8.
        pub b: View<'a>,
        /// Format of `a`.
        pub fmt_a: Fp8,
        /// Format of `b`.
        pub fmt_b: Fp8,
        /// One element, `[M]`, or with `block` [M, K/block].
        pub scale_a: View<'a>,
        /// One element, `[N]`, or with `block` [N/block, K/block].
        pub scale_b: View<'a>,
        /// Products per scale, and rows of `b` per scale; divides K and N.
        pub block: Option<usize>,
        /// [M, N], f32.
        pub y: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`QuantizedOps::gemm_w8a8`].
    #[derive(Debug)]
    pub struct GemmW8A8<'a> {
        /// Signed 8-bit activations [M, K], in a u8 buffer.
        pub xq: View<'a>,
        /// Signed 8-bit weights [N, K], in a u8 buffer.
        pub wq: View<'a>,
        /// `[M]`, f32.
        pub x_scale: View<'a>,
        /// `[N]`, f32.
        pub w_scale: View<'a>,
        /// [M, N], f32.
        pub y: ViewMut<'a>,
    }
}

op_family! {
    /// Products with quantized or 2:4 sparse operands.
    pub trait QuantizedOps : Quantized => QUANTIZED_OPS {
        /// y [M, N] = x [M, K] W^T with W = scale * (q - zero) decoded on the way; x and y are f32, f16 or bf16, accumulation is f32. Contiguous.
        fn gemm_quantized(&self, x: View<'_>, w: QuantWeight<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y[m, n] = x_scale\[m\] * w_scale\[n\] * (xq wq^T)[m, n], the product of signed 8-bit integers exact in 32 bits (K below 2^17). Contiguous.
        fn gemm_w8a8(&self, io: GemmW8A8<'_>) -> Result<()>;
        /// y [M, N] = (decode(a) * scale_a) (decode(b) * scale_b)^T of 8-bit floating-point numbers, accumulated in f32. Contiguous.
        fn gemm_fp8(&self, io: GemmFp8<'_>) -> Result<()>;
        /// Symmetric quantization: `scale` = the largest magnitude of a group of x / [`QuantFormat::max`], 1 where that is 0; `q` = the code nearest
        /// to x / scale, even at ties; NaN is 0 in integers. x [..., K] is f32, f16 or bf16; `q` u8 of its shape, with two elements per byte
        /// [..., K/2]; `scale` f32: one element for all of x, [...] with one per row, or [..., G] with one per K/G elements. Contiguous. Source
        /// `torch.ao.quantization` with symmetric observers.
        fn quantize(&self, format: QuantFormat, x: View<'_>, q: ViewMut<'_>, scale: ViewMut<'_>) -> Result<()>;
        /// y = scale * q, the inverse of [`QuantizedOps::quantize`] with the same shapes; y is f32, f16 or bf16.
        fn dequantize(&self, format: QuantFormat, q: View<'_>, scale: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// 2:4 sparsity: of every four neighbours in the rows of x [M, K] the two of largest magnitude, the first of equals (NaN counts as largest), in
        /// order to `values` [M, K/2]; `index` (u8 [M, K/4]) holds the place of the first + 4 * the place of the second. K is a multiple of 4.
        fn sparse_compress(&self, x: View<'_>, values: ViewMut<'_>, index: ViewMut<'_>) -> Result<()>;
        /// The dense matrix that was compressed, 0 where nothing was kept: with [`QuantizedOps::sparse_compress`] before it, pruning.
        fn sparse_decompress(&self, values: View<'_>, index: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y [M, N] = A b, A [M, K] given by its compressed form, b [K, N]: the product of the pruned matrix.
        fn gemm_2to4(&self, values: View<'_>, index: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()>;
    }
}

/// How an operand is coded: what kernels take as its form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// 0 int8, 1 four bits, 2 e4m3, 3 e5m2, 4 not coded.
    pub(crate) code: usize,
    /// 0 for one scale for all.
    pub(crate) rows_per: usize,
    pub(crate) products_per: usize,
    /// Scales per row.
    pub(crate) stride: usize,
    /// Bytes per row, or elements where it is not coded.
    pub(crate) pitch: usize,
}

impl Form {
    pub(crate) fn plain(k: usize) -> Self {
        Form { code: 4, rows_per: 0, products_per: 1, stride: 0, pitch: k }
    }

    /// Number of the scale of an element.
    pub(crate) fn scale_of(&self, row: usize, k: usize) -> usize {
        row.checked_div(self.rows_per).map_or(0, |r| r * self.stride + k / self.products_per)
    }
}

/// Sizes of a checked product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Low {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

fn matrix(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<[usize; 2]> {
    check::contiguous(op, arg, v)?;
    match *v.shape() {
        [r, c] if r <= i32::MAX as usize && c <= i32::MAX as usize => Ok([r, c]),
        [_, _] => Err(GpuError::invalid(op, arg, "sizes below 2^31", format!("{:?}", v.shape()))),
        _ => Err(GpuError::invalid(op, arg, "two axes", format!("shape {:?}", v.shape()))),
    }
}

fn products(op: &'static str, arg: &'static str, got: usize, want: usize) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, format!("{want} products per element"), format!("{got}")))
}

fn divides(op: &'static str, what: &'static str, part: usize, whole: usize) -> Result<()> {
    if part > 0 && whole.is_multiple_of(part) {
        return Ok(());
    }
    Err(GpuError::invalid(op, what, format!("a divisor of {whole}"), format!("{part}")))
}

fn scales(
    op: &'static str,
    arg: &'static str,
    v: &View<'_>,
    shape: &[usize],
    dtypes: &[DType],
) -> Result<()> {
    check::one_of(op, arg, v, dtypes)?;
    check::shape(op, arg, v, shape)?;
    check::contiguous(op, arg, v)
}

/// Types of the scales of quantized weights.
const SCALES: &[DType] = &[DType::F32, DType::F16, DType::Bf16];
/// Types of unquantized operands.
const DATA: &[DType] = &[DType::F32, DType::F16, DType::Bf16];

/// Checks of [`QuantizedOps::gemm_quantized`].
pub(crate) fn check_gemm_quantized(
    x: &View<'_>,
    w: &QuantWeight<'_>,
    y: &ViewMut<'_>,
) -> Result<(Low, Form)> {
    const OP: &str = "gemm_quantized";
    let v = y.as_view();
    check::one_of(OP, "x", x, DATA)?;
    let [m, k] = matrix(OP, "x", x)?;
    let mut inputs = vec![("x", *x)];
    let (n, form) = match w {
        QuantWeight::Int8 { q, scale } => {
            check::dtype(OP, "q", q, DType::U8)?;
            let [n, kq] = matrix(OP, "q", q)?;
            products(OP, "q", kq, k)?;
            scales(OP, "scale", scale, &[n], SCALES)?;
            inputs.extend([("q", *q), ("scale", *scale)]);
            (n, Form { code: 0, rows_per: 1, products_per: k.max(1), stride: 1, pitch: k })
        }
        QuantWeight::Int4 { q, scale, zero } => {
            check::dtype(OP, "q", q, DType::U8)?;
            let [n, bytes] = matrix(OP, "q", q)?;
            products(OP, "q", bytes.saturating_mul(2), k)?;
            let [_, groups] = matrix(OP, "scale", scale)?;
            divides(OP, "scale", groups, k)?;
            scales(OP, "scale", scale, &[n, groups], SCALES)?;
            inputs.extend([("q", *q), ("scale", *scale)]);
            if let Some(z) = zero {
                scales(OP, "zero", z, &[n, groups], &[scale.dtype()])?;
                inputs.push(("zero", *z));
            }
            let group = (k / groups).max(1);
            (n, Form { code: 1, rows_per: 1, products_per: group, stride: groups, pitch: bytes })
        }
    };
    check::shape(OP, "y", &v, &[m, n])?;
    check::dtype(OP, "y", &v, x.dtype())?;
    check::contiguous(OP, "y", &v)?;
    check::separate_output(OP, "y", y, &inputs)?;
    Ok((Low { m, n, k }, form))
}

/// Two matrices of bytes and an f32 result.
fn check_bytes(
    op: &'static str,
    a: (&'static str, &View<'_>),
    b: (&'static str, &View<'_>),
    y: &ViewMut<'_>,
) -> Result<Low> {
    let v = y.as_view();
    check::dtype(op, a.0, a.1, DType::U8)?;
    check::dtype(op, b.0, b.1, DType::U8)?;
    let ([m, k], [n, kb]) = (matrix(op, a.0, a.1)?, matrix(op, b.0, b.1)?);
    products(op, b.0, kb, k)?;
    check::shape(op, "y", &v, &[m, n])?;
    check::dtype(op, "y", &v, DType::F32)?;
    check::contiguous(op, "y", &v)?;
    Ok(Low { m, n, k })
}

/// Checks of [`QuantizedOps::gemm_w8a8`].
pub(crate) fn check_gemm_w8a8(io: &GemmW8A8<'_>) -> Result<Low> {
    const OP: &str = "gemm_w8a8";
    let e = check_bytes(OP, ("xq", &io.xq), ("wq", &io.wq), &io.y)?;
    scales(OP, "x_scale", &io.x_scale, &[e.m], &[DType::F32])?;
    scales(OP, "w_scale", &io.w_scale, &[e.n], &[DType::F32])?;
    if e.k >= 1 << 17 {
        return Err(GpuError::invalid(
            OP,
            "xq",
            "fewer than 2^17 products, whose sum fits 32 bits",
            format!("{}", e.k),
        ));
    }
    let inputs = [("xq", io.xq), ("wq", io.wq), ("x_scale", io.x_scale), ("w_scale", io.w_scale)];
    check::separate_output(OP, "y", &io.y, &inputs)?;
    Ok(e)
}

/// Checks of [`QuantizedOps::gemm_fp8`]; the forms of both operands.
pub(crate) fn check_gemm_fp8(io: &GemmFp8<'_>) -> Result<(Low, Form, Form)> {
    const OP: &str = "gemm_fp8";
    let e = check_bytes(OP, ("a", &io.a), ("b", &io.b), &io.y)?;
    let code = |f: Fp8| match f {
        Fp8::E4m3 => 2,
        Fp8::E5m2 => 3,
    };
    let form =
        |fmt: Fp8, arg: &'static str, scale: &View<'_>, rows: usize, rows_per: usize| -> Result<Form> {
            let whole =
                Form { code: code(fmt), rows_per: 0, products_per: e.k.max(1), stride: 1, pitch: e.k };
            if let Some(block) = io.block {
                divides(OP, "block", block, e.k)?;
                divides(OP, "block", rows_per, rows)?;
                scales(OP, arg, scale, &[rows / rows_per, e.k / block], &[DType::F32])?;
                return Ok(Form { rows_per, products_per: block, stride: e.k / block, ..whole });
            }
            if scale.numel() == 1 {
                check::dtype(OP, arg, scale, DType::F32)?;
                return Ok(whole);
            }
            scales(OP, arg, scale, &[rows], &[DType::F32])?;
            Ok(Form { rows_per: 1, ..whole })
        };
    let fa = form(io.fmt_a, "scale_a", &io.scale_a, e.m, 1)?;
    let fb = form(io.fmt_b, "scale_b", &io.scale_b, e.n, io.block.unwrap_or(1))?;
    let inputs = [("a", io.a), ("b", io.b), ("scale_a", io.scale_a), ("scale_b", io.scale_b)];
    check::separate_output(OP, "y", &io.y, &inputs)?;
    Ok((e, fa, fb))
}

/// Rows of a checked quantization, their length, and elements per scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Groups {
    pub(crate) rows: usize,
    pub(crate) k: usize,
    pub(crate) size: usize,
}

/// Values [..., K], their codes, and the scales; the form of the codes.
fn check_coded(
    op: &'static str,
    format: QuantFormat,
    (arg, x): (&'static str, &View<'_>),
    q: &View<'_>,
    scale: &View<'_>,
) -> Result<(Groups, Form)> {
    check::one_of(op, arg, x, DATA)?;
    check::contiguous(op, arg, x)?;
    let Some((&k, outer)) = x.shape().split_last() else {
        return Err(GpuError::invalid(op, arg, "at least one axis", "shape []".to_string()));
    };
    let rows = outer.iter().product::<usize>();
    if rows > i32::MAX as usize || k > i32::MAX as usize {
        return Err(GpuError::invalid(op, arg, "fewer than 2^31 rows and columns", format!("{:?}", x.shape())));
    }
    let per_byte = format.per_byte();
    if !k.is_multiple_of(per_byte) {
        return Err(GpuError::invalid(op, arg, "rows of an even number of elements", format!("{k}")));
    }
    check::dtype(op, "q", q, DType::U8)?;
    check::shape(op, "q", q, &[outer, &[k / per_byte]].concat())?;
    check::contiguous(op, "q", q)?;
    check::dtype(op, "scale", scale, DType::F32)?;
    check::contiguous(op, "scale", scale)?;
    let code = match format {
        QuantFormat::Int8 => 0,
        QuantFormat::Int4 => 1,
        QuantFormat::Fp8(Fp8::E4m3) => 2,
        QuantFormat::Fp8(Fp8::E5m2) => 3,
    };
    let whole = Form { code, rows_per: 0, products_per: k.max(1), stride: 1, pitch: k / per_byte };
    let by_row = Form { rows_per: 1, ..whole };
    match scale.shape() {
        [] | [1] => Ok((Groups { rows, k, size: x.numel() }, whole)),
        s if s == outer => Ok((Groups { rows, k, size: k }, by_row)),
        [s @ .., groups] if s == outer && *groups > 0 && k.is_multiple_of(*groups) => {
            let size = k / groups;
            Ok((Groups { rows, k, size }, Form { products_per: size.max(1), stride: *groups, ..by_row }))
        }
        s => {
            let expected = format!("[1], {outer:?}, or {outer:?} with an axis more that divides {k}");
            Err(GpuError::invalid(op, "scale", expected, format!("{s:?}")))
        }
    }
}

/// Checks of [`QuantizedOps::quantize`].
pub(crate) fn check_quantize(
    format: QuantFormat,
    x: &View<'_>,
    q: &ViewMut<'_>,
    scale: &ViewMut<'_>,
) -> Result<(Groups, Form)> {
    const OP: &str = "quantize";
    let all = check_coded(OP, format, ("x", x), &q.as_view(), &scale.as_view())?;
    check::separate_output(OP, "q", q, &[("x", *x)])?;
    check::separate_output(OP, "scale", scale, &[("x", *x), ("q", q.as_view())])?;
    Ok(all)
}

/// Checks of [`QuantizedOps::dequantize`].
pub(crate) fn check_dequantize(
    format: QuantFormat,
    q: &View<'_>,
    scale: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<(Groups, Form)> {
    const OP: &str = "dequantize";
    let all = check_coded(OP, format, ("y", &y.as_view()), q, scale)?;
    check::separate_output(OP, "y", y, &[("q", *q), ("scale", *scale)])?;
    Ok(all)
}

/// A dense matrix [M, K], its values [M, K/2] and places [M, K/4]; groups of four.
fn check_sparse(
    op: &'static str,
    dense: (&'static str, &View<'_>),
    values: &View<'_>,
    index: &View<'_>,
) -> Result<usize> {
    check::float(op, dense.0, dense.1)?;
    let [m, k] = matrix(op, dense.0, dense.1)?;
    if !k.is_multiple_of(4) {
        return Err(GpuError::invalid(op, dense.0, "rows of a multiple of 4 elements", format!("{k}")));
    }
    check::shape(op, "values", values, &[m, k / 2])?;
    check::dtype(op, "values", values, dense.1.dtype())?;
    check::contiguous(op, "values", values)?;
    check::shape(op, "index", index, &[m, k / 4])?;
    check::dtype(op, "index", index, DType::U8)?;
    check::contiguous(op, "index", index)?;
    Ok(m * k / 4)
}

/// Checks of [`QuantizedOps::sparse_compress`]; groups of four.
pub(crate) fn check_sparse_compress(
    x: &View<'_>,
    values: &ViewMut<'_>,
    index: &ViewMut<'_>,
) -> Result<usize> {
    const OP: &str = "sparse_compress";
    let groups = check_sparse(OP, ("x", x), &values.as_view(), &index.as_view())?;
    check::separate_output(OP, "values", values, &[("x", *x)])?;
    check::separate_output(OP, "index", index, &[("x", *x), ("values", values.as_view())])?;
    Ok(groups)
}

/// Checks of [`QuantizedOps::sparse_decompress`]; groups of four.
pub(crate) fn check_sparse_decompress(values: &View<'_>, index: &View<'_>, y: &ViewMut<'_>) -> Result<usize> {
    const OP: &str = "sparse_decompress";
    let groups = check_sparse(OP, ("y", &y.as_view()), values, index)?;
    check::separate_output(OP, "y", y, &[("values", *values), ("index", *index)])?;
    Ok(groups)
}

/// Checks of [`QuantizedOps::gemm_2to4`]; sizes of the product.
pub(crate) fn check_gemm_2to4(
    values: &View<'_>,
    index: &View<'_>,
    b: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<Low> {
    const OP: &str = "gemm_2to4";
    check::float(OP, "b", b)?;
    let ([k, n], [m, kept]) = (matrix(OP, "b", b)?, matrix(OP, "values", values)?);
    if !k.is_multiple_of(4) {
        return Err(GpuError::invalid(OP, "b", "a multiple of 4 rows", format!("{k}")));
    }
    products(OP, "values", kept.saturating_mul(2), k)?;
    check::dtype(OP, "values", values, b.dtype())?;
    check::shape(OP, "index", index, &[m, k / 4])?;
    check::dtype(OP, "index", index, DType::U8)?;
    check::contiguous(OP, "index", index)?;
    let v = y.as_view();
    check::shape(OP, "y", &v, &[m, n])?;
    check::dtype(OP, "y", &v, b.dtype())?;
    check::contiguous(OP, "y", &v)?;
    check::separate_output(OP, "y", y, &[("values", *values), ("index", *index), ("b", *b)])?;
    Ok(Low { m, n, k })
}
