//! Search among vectors: the nearest of many points, clusters, product codes.

use trefoil::DType;
use trefoil::ops::distance::{Metric, PQ_CODES};

use crate::core::autograd::{BackwardCtx, Saved};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// Smallest norm that a cosine divides by.
const LEAST_NORM: f64 = 1e-8;

/// Scores along the last axis of vectors in pairs, by operations with gradients.
fn scores(q: &Tensor, x: &Tensor, metric: Metric) -> Result<Tensor> {
    match metric {
        Metric::InnerProduct => q.mul(x)?.sum_axes(&[-1], false),
        Metric::Cosine => {
            q.l2_normalize(-1, LEAST_NORM)?.mul(&x.l2_normalize(-1, LEAST_NORM)?)?.sum_axes(&[-1], false)
        }
        _ => q.sub(x)?.square()?.sum_axes(&[-1], false),
    }
}

/// Whole gradient of the rows of `a`: dy b, and for squared distances 2 (a sum dy - dy b).
fn side(dy: &Tensor, a: &Tensor, b: &Tensor, metric: Metric) -> Result<Tensor> {
    let product = dy.matmul(b)?;
    match metric {
        Metric::SquaredEuclidean => a.mul(&dy.sum_axes(&[-1], true)?)?.sub(&product)?.mul_scalar(2.0),
        _ => Ok(product),
    }
}

impl Tensor {
    /// Scores `[Q, N]` of all pairs of these queries `[Q, D]` and points `[N, D]`, floats: squared Euclidean distances, inner products or cosines.
    /// Errors: `Invalid` for other ranks, vectors of two lengths, dtypes that differ.
    pub fn distance_matrix(&self, points: &Tensor, metric: Metric) -> Result<Tensor> {
        const OP: &str = "distance_matrix";
        same_device(OP, self, points)?;
        if metric == Metric::Cosine && (self.requires_grad() || points.requires_grad()) {
            let (q, x) = (self.l2_normalize(-1, LEAST_NORM)?, points.l2_normalize(-1, LEAST_NORM)?);
            return q.distance_matrix(&x, Metric::InnerProduct);
        }
        let (q, x) = (self.contiguous()?, points.contiguous()?);
        let y = q.like(&[&q.shape()[..q.rank().min(1)], &x.shape()[..x.rank().min(1)]].concat())?;
        let (qo, xo, yo) = (q.operand(), x.operand(), y.operand());
        q.device().distance_matrix(metric, qo.view()?, xo.view()?, yo.view_mut()?)?;
        Ok(y.record(OP, &[&q, &x], || {
            let [q, x] = [&q, &x].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (dy, q, x) = (cx.dy()?, q.input(cx, 0)?, x.input(cx, 1)?);
                if cx.needs(0) {
                    cx.give(0, side(&dy, &q, &x, metric)?)?;
                }
                if cx.needs(1) {
                    cx.give(1, side(&dy.t()?, &x, &q, metric)?)?;
                }
                Ok(())
            }
        }))
    }

    /// The `k` nearest of the points `[N, D]` of each of these queries `[Q, D]`, floats, the nearest first: their scores and numbers (i64), both
    /// `[Q, k]`. Of equal scores the lower number comes first, NaN last. The scores of all pairs are not stored; those that are returned have
    /// gradients. Errors: `Invalid` for k above N or 1024, other ranks, vectors of two lengths, dtypes that differ.
    pub fn nearest(&self, points: &Tensor, k: usize, metric: Metric) -> Result<(Tensor, Tensor)> {
        same_device("nearest", self, points)?;
        let (q, x) = (self.contiguous()?, points.contiguous()?);
        let shape = [q.shape().first().copied().unwrap_or(0), k];
        let (y, index) = (q.like(&shape)?, Tensor::empty(q.device(), DType::I64, &shape)?);
        let (qo, xo, yo, io) = (q.operand(), x.operand(), y.operand(), index.operand());
        q.device().nearest(metric, qo.view()?, xo.view()?, yo.view_mut()?, io.view_mut()?)?;
        if !q.requires_grad() && !x.requires_grad() {
            return Ok((y, index));
        }
        let near = x.index_select(0, &index.flatten(0, 1)?)?.reshape(&[shape[0], k, x.shape()[1]])?;
        Ok((scores(&q.unsqueeze(1)?, &near, metric)?, index))
    }

    /// One step of Lloyd's k-means for these points `[N, D]`: the nearest of the centroids `[K, D]` of each point (i64 `[N]`), the means `[K, D]` of
    /// the points of each centroid, which stays where it has none, and their numbers `[K]`. Stays on the device; no gradient. Source S. Lloyd,
    /// "Least squares quantization in PCM" (1982). Errors: those of [`nearest`](Tensor::nearest), no centroids.
    pub fn kmeans_step(&self, centroids: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let (x, c) = (self.detach(), centroids.detach());
        let nearest = x.nearest(&c, 1, Metric::SquaredEuclidean)?.1.squeeze(1)?;
        let count = Tensor::zeros(c.device(), c.dtype(), &c.shape()[..1])?;
        let count = count.index_add(0, &nearest, &Tensor::ones(x.device(), x.dtype(), &x.shape()[..1])?)?;
        let sums = c.zeros_like()?.index_add(0, &nearest, &x)?;
        let each = count.unsqueeze(1)?;
        let means = sums.div(&each.clamp(Some(1.0), None)?)?.where_(&each.gt_scalar(0.0)?, &c)?;
        Ok((nearest, means, count))
    }
}

/// Vectors as one byte for each of their parts: the number of the nearest of 256 centroids (H. Jegou et al., "Product quantization for nearest
/// neighbor search", 2011).
#[derive(Debug, Clone)]
pub struct ProductQuantizer {
    /// `[m, 256, d]`.
    centroids: Tensor,
}

impl ProductQuantizer {
    /// Centroids `[m, 256, d]` of the m parts of vectors of m d elements. Errors: `Invalid` for another shape.
    pub fn new(centroids: &Tensor) -> Result<Self> {
        match *centroids.shape() {
            [_, PQ_CODES, _] => Ok(ProductQuantizer { centroids: centroids.detach().contiguous()? }),
            ref s => Err(invalid("product_quantizer", "centroids", "shape [m, 256, d]", format!("{s:?}"))),
        }
    }

    /// Centroids after `steps` of [`kmeans_step`](Tensor::kmeans_step) for each part of the points `[N, m d]`, from the first 256 points on. Errors:
    /// `Invalid` for parts that do not divide the vectors, fewer than 256 points.
    pub fn train(points: &Tensor, parts: usize, steps: usize) -> Result<Self> {
        let cut = split("product_quantizer", &points.detach(), parts)?;
        if points.shape()[0] < PQ_CODES {
            let got = format!("shape {:?}", points.shape());
            return Err(invalid("product_quantizer", "points", "at least 256 points", got));
        }
        let one = |x: &Tensor| {
            let mut c = x.narrow(0, 0, PQ_CODES)?.copy()?;
            for _ in 0..steps {
                c = x.kmeans_step(&c)?.1;
            }
            Ok(c)
        };
        let all = cut.iter().map(one).collect::<Result<Vec<_>>>()?;
        ProductQuantizer::new(&Tensor::stack(0, &all.iter().collect::<Vec<_>>())?)
    }

    /// The centroids `[m, 256, d]`.
    pub fn centroids(&self) -> &Tensor {
        &self.centroids
    }

    /// Codes u8 `[N, m]` of vectors `[N, m d]`. Errors: `Invalid` for another length.
    pub fn encode(&self, x: &Tensor) -> Result<Tensor> {
        let parts = self.centroids.shape()[0];
        let cut = split("product_quantizer", &x.detach(), parts)?;
        let code = |(j, x): (usize, &Tensor)| {
            x.nearest(&self.centroids.select(0, j)?, 1, Metric::SquaredEuclidean)?.1.to_dtype(DType::U8)
        };
        let all = cut.iter().enumerate().map(code).collect::<Result<Vec<_>>>()?;
        Tensor::concat(1, &all.iter().collect::<Vec<_>>())
    }

    /// The centroids `[N, m d]` that codes `[N, m]` name. Errors: `Invalid` for another number of parts.
    pub fn decode(&self, codes: &Tensor) -> Result<Tensor> {
        let (m, d) = (self.centroids.shape()[0], self.centroids.shape()[2]);
        let n = match *codes.shape() {
            [n, parts] if parts == m => n,
            ref s => {
                return Err(invalid(
                    "product_quantizer",
                    "codes",
                    format!("shape [N, {m}]"),
                    format!("{s:?}"),
                ));
            }
        };
        let first = Tensor::arange(codes.device(), DType::I64, 0.0, PQ_CODES as f64, m)?;
        let rows = codes.to_dtype(DType::I64)?.add(&first)?.flatten(0, 1)?;
        self.centroids.flatten(0, 1)?.index_select(0, &rows)?.reshape(&[n, m * d])
    }

    /// Scores `[Q, m, 256]` of the parts of queries `[Q, m d]` and all centroids: squared distances or inner products. Errors: `Invalid` for another
    /// length, cosines.
    pub fn tables(&self, queries: &Tensor, metric: Metric) -> Result<Tensor> {
        same_device("pq_tables", queries, &self.centroids)?;
        let q = queries.detach().contiguous()?;
        let y = q.like(&[q.shape().first().copied().unwrap_or(0), self.centroids.shape()[0], PQ_CODES])?;
        let (qo, co, yo) = (q.operand(), self.centroids.operand(), y.operand());
        q.device().pq_tables(metric, qo.view()?, co.view()?, yo.view_mut()?)?;
        Ok(y)
    }

    /// The `k` nearest of the points with these codes `[N, m]` for each query `[Q, m d]`: scores of the points as the codes have them, and numbers
    /// (i64), both `[Q, k]`. Errors: those of [`tables`](ProductQuantizer::tables); k above N.
    pub fn search(
        &self,
        queries: &Tensor,
        codes: &Tensor,
        k: usize,
        metric: Metric,
    ) -> Result<(Tensor, Tensor)> {
        let tables = self.tables(queries, metric)?;
        same_device("pq_scan", &tables, codes)?;
        let codes = codes.contiguous()?;
        let y = tables.like(&[tables.shape()[0], codes.shape().first().copied().unwrap_or(0)])?;
        let (to, co, yo) = (tables.operand(), codes.operand(), y.operand());
        y.device().pq_scan(to.view()?, co.view()?, yo.view_mut()?)?;
        y.topk(k, 1, metric != Metric::SquaredEuclidean)
    }
}

/// The parts of vectors [N, parts d].
fn split(op: &'static str, x: &Tensor, parts: usize) -> Result<Vec<Tensor>> {
    match *x.shape() {
        [_, width] if parts > 0 && width % parts == 0 => {
            let d = width / parts;
            (0..parts).map(|j| x.narrow(1, j * d, d)).collect()
        }
        ref s => {
            Err(invalid(op, "x", format!("[N, D] with D a multiple of {parts} parts"), format!("{s:?}")))
        }
    }
}
