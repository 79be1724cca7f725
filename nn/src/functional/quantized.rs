//! Quantization, products with quantized and with 2:4 sparse operands. They have no gradient: their results are cut from the graph.

use trefoil::DType;
use trefoil::ops::quantized::{Fp8, GemmFp8, GemmW8A8, QuantFormat, QuantWeight};

use crate::core::autograd::BackwardCtx;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};
use crate::functional::operand::{operand, view};

/// A linear layer's weight `[N, K]` in 8 or 4 bits. Codes are u8 tensors; scales and zero points f16, bf16 or f32.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum QuantizedWeight {
    /// Signed 8-bit codes (as bytes) with a scale per row.
    Int8 {
        /// Codes `[N, K]`.
        q: Tensor,
        /// `[N]`.
        scale: Tensor,
    },
    /// Unsigned 4-bit codes, two per byte, the one of the even column in the low half, with a scale per group of columns.
    Int4 {
        /// Codes `[N, K / 2]`.
        q: Tensor,
        /// `[N, K / group]`; the group is what the sizes give.
        scale: Tensor,
        /// Zero points in codes, shape and dtype of `scale`; 8 where they are absent.
        zero: Option<Tensor>,
    },
}

/// Elements that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantGranularity {
    /// All of them.
    Tensor,
    /// Those along the last axis.
    Row,
    /// So many neighbours along the last axis, whose size is a multiple of it.
    Group(usize),
}

/// Size of the first axis, or 0 for a scalar, which the backend refuses.
fn rows(t: &Tensor) -> usize {
    t.shape().first().copied().unwrap_or(0)
}

/// A matrix by the two of every four neighbours in its rows that are largest in magnitude: what `Tensor::sparse_compress` makes.
#[derive(Debug, Clone)]
pub struct SemiSparse {
    values: Tensor,
    index: Tensor,
}

impl Tensor {
    /// Symmetric quantization of floats (f32, f16, bf16) `[..., K]`: codes, u8 of the same shape (with 4 bits `[..., K / 2]`), and f32 scales
    /// `[1]`, `[...]` or `[..., K / group]`. A scale is the largest magnitude divided by the format's largest number, a code the one nearest to
    /// x / scale, even at ties. No gradient; [`Tensor::fake_quantize`] has one. Errors: `Invalid` for other dtypes, a group that does not divide K,
    /// an odd K with 4 bits.
    pub fn quantize(&self, format: QuantFormat, per: QuantGranularity) -> Result<(Tensor, Tensor)> {
        const OP: &str = "quantize";
        let Some((&k, outer)) = self.shape().split_last() else {
            return Err(invalid(OP, "x", "at least one axis", "shape []"));
        };
        let scales = match per {
            QuantGranularity::Tensor => vec![1],
            QuantGranularity::Row => outer.to_vec(),
            QuantGranularity::Group(g) if g > 0 && k.is_multiple_of(g) => [outer, &[k / g]].concat(),
            QuantGranularity::Group(g) => {
                return Err(invalid(OP, "group", format!("a divisor of {k}, the last axis"), format!("{g}")));
            }
        };
        let x = self.detach().contiguous()?;
        let q = Tensor::empty(x.device(), DType::U8, &[outer, &[k / format.per_byte()]].concat())?;
        let scale = Tensor::empty(x.device(), DType::F32, &scales)?;
        let [xo, qo, so] = [&x, &q, &scale].map(Tensor::operand);
        x.device().quantize(format, xo.view()?, qo.view_mut()?, so.view_mut()?)?;
        Ok((q, scale))
    }

    /// Values of `dtype` (f32, f16, bf16) for codes, which are this tensor, and `scale`, both as [`Tensor::quantize`] gives them: code times scale.
    /// No gradient. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn dequantize(&self, format: QuantFormat, scale: &Tensor, dtype: DType) -> Result<Tensor> {
        const OP: &str = "dequantize";
        same_device(OP, self, scale)?;
        let Some((&bytes, outer)) = self.shape().split_last() else {
            return Err(invalid(OP, "q", "at least one axis", "shape []"));
        };
        let (q, scale) = (self.detach().contiguous()?, scale.detach().contiguous()?);
        let y = Tensor::empty(q.device(), dtype, &[outer, &[bytes * format.per_byte()]].concat())?;
        let [qo, so, yo] = [&q, &scale, &y].map(Tensor::operand);
        q.device().dequantize(format, qo.view()?, so.view()?, yo.view_mut()?)?;
        Ok(y)
    }

    /// x quantized and decoded again, for training that takes quantization into account: the gradient passes unchanged (straight-through
    /// estimator, Bengio et al. 2013). Shape and dtype of x. Errors: as [`Tensor::quantize`].
    pub fn fake_quantize(&self, format: QuantFormat, per: QuantGranularity) -> Result<Tensor> {
        let (q, scale) = self.quantize(format, per)?;
        let y = q.dequantize(format, &scale, self.dtype())?;
        Ok(y.record("fake_quantize", &[self], || {
            |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                cx.give(0, dy)
            }
        }))
    }

    /// x W^T for x `[M, K]` (f32, f16, bf16) and a quantized weight, decoded on the way and accumulated in f32: `[M, N]` in x's dtype. No
    /// gradient. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn linear_quantized(&self, weight: &QuantizedWeight) -> Result<Tensor> {
        const OP: &str = "gemm_quantized";
        let (q, scale, zero) = match weight {
            QuantizedWeight::Int8 { q, scale } => (q, scale, None),
            QuantizedWeight::Int4 { q, scale, zero } => (q, scale, zero.as_ref()),
        };
        for t in [Some(q), Some(scale), zero].into_iter().flatten() {
            same_device(OP, self, t)?;
        }
        let whole = |t: &Tensor| t.detach().contiguous();
        let (x, q, scale, zero) = (whole(self)?, whole(q)?, whole(scale)?, zero.map(whole).transpose()?);
        let y = x.like(&[rows(&x), rows(&q)])?;
        let (xo, qo, so, zo, yo) =
            (x.operand(), q.operand(), scale.operand(), operand(zero.as_ref()), y.operand());
        let w = match weight {
            QuantizedWeight::Int8 { .. } => QuantWeight::Int8 { q: qo.view()?, scale: so.view()? },
            QuantizedWeight::Int4 { .. } => {
                QuantWeight::Int4 { q: qo.view()?, scale: so.view()?, zero: view(&zo)? }
            }
        };
        y.device().gemm_quantized(xo.view()?, w, yo.view_mut()?)?;
        Ok(y)
    }

    /// x_scale * (x W^T) * w_scale for signed 8-bit integers (as bytes) x, which is this tensor, u8 `[M, K]`, and `weight` u8 `[N, K]`, with
    /// f32 scales `[M]` and `[N]`: f32 `[M, N]`. Sums are exact in 32 bits. No gradient. Errors: `Invalid` for shapes and dtypes that do
    /// not fit, K of 2^17 and more.
    pub fn linear_w8a8(&self, x_scale: &Tensor, weight: &Tensor, w_scale: &Tensor) -> Result<Tensor> {
        for t in [x_scale, weight, w_scale] {
            same_device("gemm_w8a8", self, t)?;
        }
        let [x, xs, w, ws] = [self, x_scale, weight, w_scale].map(|t| t.detach().contiguous());
        let (x, xs, w, ws) = (x?, xs?, w?, ws?);
        let y = Tensor::empty(self.device(), DType::F32, &[rows(&x), rows(&w)])?;
        let [xo, so, wo, to, yo] = [&x, &xs, &w, &ws, &y].map(Tensor::operand);
        let io = GemmW8A8::new(xo.view()?, wo.view()?, so.view()?, to.view()?, yo.view_mut()?);
        y.device().gemm_w8a8(io)?;
        Ok(y)
    }

    /// (decode(a) * scale_a) (decode(b) * scale_b)^T for the bit patterns of 8-bit floats a, which is this tensor, u8 `[M, K]`, and `b` u8
    /// `[N, K]`, each with its format: f32 `[M, N]`. Scales (f32) are one number or one per row (`[M]`, `[N]`); with `block`, one per as
    /// many products, and of b per as many rows (`[M, K / block]`, `[N / block, K / block]`). No gradient. Source `F.scaled_mm`. Errors:
    /// `Invalid` for shapes and dtypes that do not fit.
    pub fn scaled_mm_fp8(
        &self,
        scale_a: &Tensor,
        b: &Tensor,
        scale_b: &Tensor,
        formats: (Fp8, Fp8),
        block: Option<usize>,
    ) -> Result<Tensor> {
        for t in [scale_a, b, scale_b] {
            same_device("gemm_fp8", self, t)?;
        }
        let [a, sa, b, sb] = [self, scale_a, b, scale_b].map(|t| t.detach().contiguous());
        let (a, sa, b, sb) = (a?, sa?, b?, sb?);
        let y = Tensor::empty(self.device(), DType::F32, &[rows(&a), rows(&b)])?;
        let [ao, so, bo, to, yo] = [&a, &sa, &b, &sb, &y].map(Tensor::operand);
        let io = GemmFp8::new(
            ao.view()?,
            bo.view()?,
            formats.0,
            formats.1,
            so.view()?,
            to.view()?,
            yo.view_mut()?,
        )
        .block(block);
        y.device().gemm_fp8(io)?;
        Ok(y)
    }

    /// The matrix `[M, K]`, floats, with two of every four neighbours in a row kept: those of largest magnitude, the first of equals (NaN
    /// counts as largest). No gradient. Source `torch.sparse.to_sparse_semi_structured`. Errors: `Invalid` for another rank, K not a
    /// multiple of 4.
    pub fn sparse_compress(&self) -> Result<SemiSparse> {
        let &[m, k] = self.shape() else {
            return Err(invalid("sparse_compress", "x", "shape [M, K]", format!("{:?}", self.shape())));
        };
        let x = self.detach().contiguous()?;
        let (values, index) = (x.like(&[m, k / 2])?, Tensor::empty(x.device(), DType::U8, &[m, k / 4])?);
        let [xo, vo, io] = [&x, &values, &index].map(Tensor::operand);
        x.device().sparse_compress(xo.view()?, vo.view_mut()?, io.view_mut()?)?;
        Ok(SemiSparse { values, index })
    }
}

impl SemiSparse {
    /// The elements that were kept, `[M, K / 2]`.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Their places, u8 `[M, K / 4]`: of every four that of the first plus 4 times that of the second.
    pub fn index(&self) -> &Tensor {
        &self.index
    }

    /// The pruned matrix `[M, K]`, 0 where nothing was kept.
    pub fn to_dense(&self) -> Result<Tensor> {
        let (m, kept) = (self.values.shape()[0], self.values.shape()[1]);
        let y = self.values.like(&[m, 2 * kept])?;
        let [vo, io, yo] = [&self.values, &self.index, &y].map(Tensor::operand);
        y.device().sparse_decompress(vo.view()?, io.view()?, yo.view_mut()?)?;
        Ok(y)
    }

    /// The product of the pruned matrix with `b` `[K, N]` of its dtype: `[M, N]`. No gradient. Source `torch.mm` of a semi-structured
    /// sparse tensor. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn matmul(&self, b: &Tensor) -> Result<Tensor> {
        same_device("gemm_2to4", &self.values, b)?;
        let &[_, n] = b.shape() else {
            return Err(invalid("gemm_2to4", "b", "shape [K, N]", format!("{:?}", b.shape())));
        };
        let b = b.detach().contiguous()?;
        let y = b.like(&[self.values.shape()[0], n])?;
        let [vo, io, bo, yo] = [&self.values, &self.index, &b, &y].map(Tensor::operand);
        y.device().gemm_2to4(vo.view()?, io.view()?, bo.view()?, yo.view_mut()?)?;
        Ok(y)
    }
}
