//! Search among vectors: signatures and checks.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// How near two vectors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Metric {
    /// |q - x|^2, small where near.
    #[default]
    SquaredEuclidean,
    /// q.x, large where near.
    InnerProduct,
    /// q.x / (max(|q|, 1e-8) max(|x|, 1e-8)), large where near.
    Cosine,
}

/// Most points of [`SearchOps::nearest`] for a query.
pub const NEAREST: usize = 1024;
/// Centroids of a part of a product code.
pub const PQ_CODES: usize = 256;

op_family! {
    /// Search among vectors, f32, f16, bf16 or f64, contiguous. Differences are taken directly, so near vectors keep their digits. Deterministic.
    /// Errors: `Invalid` for shapes, dtypes, overlap.
    pub trait SearchOps : Distance => SEARCH_OPS {
        /// Scores y [Q, N] of all pairs of queries [Q, D] and points [N, D]. Oracle: squares of `torch.cdist`, `torch.matmul`,
        /// `F.cosine_similarity`.
        fn distance_matrix(&self, metric: Metric, queries: View<'_>, points: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// The k nearest of the points [N, D] of each query [Q, D], the nearest first: their scores y [Q, k] and numbers `index` [Q, k], i32 or i64;
        /// the scores of all pairs are not stored. Of equal scores the lower number comes first, NaN last. k is at most N and [`NEAREST`], N
        /// below 2^31. Oracle `torch.topk` of [`SearchOps::distance_matrix`].
        fn nearest(
            &self,
            metric: Metric,
            queries: View<'_>,
            points: View<'_>,
            y: ViewMut<'_>,
            index: ViewMut<'_>,
        ) -> Result<()>;
        /// Scores y [Q, m, 256] of the m parts of queries [Q, m d] and the 256 centroids of each part [m, 256, d], of squared Euclidean distance or
        /// inner product. Source H. Jegou et al., "Product quantization for nearest neighbor search" (2011).
        fn pq_tables(&self, metric: Metric, queries: View<'_>, centroids: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Scores y [Q, N] of points coded as [N, m] u8, a centroid for each part: the sums of the entries of `tables` [Q, m, 256] that the codes
        /// name.
        fn pq_scan(&self, tables: View<'_>, codes: View<'_>, y: ViewMut<'_>) -> Result<()>;
    }
}

/// Sizes of a checked call: queries, points, elements or parts of a vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    pub(crate) count: usize,
    pub(crate) n: usize,
    pub(crate) len: usize,
}

fn check_points(op: &'static str, queries: &View<'_>, points: &View<'_>) -> Result<Search> {
    check::float(op, "queries", queries)?;
    check::dtype(op, "points", points, queries.dtype())?;
    let ([count, len], [n, other]) = (check::matrix(op, "queries", queries)?, check::matrix(op, "points", points)?);
    if len != other {
        return Err(GpuError::invalid(op, "points", format!("vectors of {len} elements"), format!("{other}")));
    }
    Ok(Search { count, n, len })
}

/// Checks of [`SearchOps::distance_matrix`].
pub(crate) fn check_distance_matrix(queries: &View<'_>, points: &View<'_>, y: &ViewMut<'_>) -> Result<Search> {
    const OP: &str = "distance_matrix";
    let e = check_points(OP, queries, points)?;
    let mut seen = vec![("queries", *queries), ("points", *points)];
    check::exact_output(OP, "y", y, &[e.count, e.n], queries.dtype(), &mut seen)?;
    Ok(e)
}

/// Checks of [`SearchOps::nearest`]; with k.
pub(crate) fn check_nearest(
    queries: &View<'_>,
    points: &View<'_>,
    y: &ViewMut<'_>,
    index: &ViewMut<'_>,
) -> Result<(Search, usize)> {
    const OP: &str = "nearest";
    let e = check_points(OP, queries, points)?;
    let k = match *y.shape() {
        [_, k] if k <= e.n.min(NEAREST) && e.n <= i32::MAX as usize => k,
        _ => {
            let expected = format!("[Q, k], k at most {} of fewer than 2^31 points", e.n.min(NEAREST));
            return Err(GpuError::invalid(OP, "y", expected, format!("{:?} for {} points", y.shape(), e.n)));
        }
    };
    let mut seen = vec![("queries", *queries), ("points", *points)];
    check::exact_output(OP, "y", y, &[e.count, k], queries.dtype(), &mut seen)?;
    check::one_of(OP, "index", &index.as_view(), &[DType::I32, DType::I64])?;
    check::exact_output(OP, "index", index, &[e.count, k], index.dtype(), &mut seen)?;
    Ok((e, k))
}

/// Checks of [`SearchOps::pq_tables`]; n is the number of parts, len the elements of one.
pub(crate) fn check_pq_tables(
    metric: Metric,
    queries: &View<'_>,
    centroids: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<Search> {
    const OP: &str = "pq_tables";
    check::float(OP, "queries", queries)?;
    if metric == Metric::Cosine {
        let expected = "a metric that is a sum over parts";
        return Err(GpuError::invalid(OP, "metric", expected, "cosine (normalize the vectors)"));
    }
    let [count, width] = check::matrix(OP, "queries", queries)?;
    let (n, len) = match *centroids.shape() {
        [m, PQ_CODES, d] if m.checked_mul(d) == Some(width) => (m, d),
        ref s => {
            let expected = format!("[m, {PQ_CODES}, d] with m d = {width}");
            return Err(GpuError::invalid(OP, "centroids", expected, format!("{s:?}")));
        }
    };
    check::exact(OP, "centroids", centroids, &[n, PQ_CODES, len], queries.dtype())?;
    let mut seen = vec![("queries", *queries), ("centroids", *centroids)];
    check::exact_output(OP, "y", y, &[count, n, PQ_CODES], queries.dtype(), &mut seen)?;
    Ok(Search { count, n, len })
}

/// Checks of [`SearchOps::pq_scan`]; len is the number of parts.
pub(crate) fn check_pq_scan(tables: &View<'_>, codes: &View<'_>, y: &ViewMut<'_>) -> Result<Search> {
    const OP: &str = "pq_scan";
    check::float(OP, "tables", tables)?;
    check::dtype(OP, "codes", codes, DType::U8)?;
    let [n, len] = check::matrix(OP, "codes", codes)?;
    let count = tables.shape().first().copied().unwrap_or(0);
    check::exact(OP, "tables", tables, &[count, len, PQ_CODES], tables.dtype())?;
    let mut seen = vec![("tables", *tables), ("codes", *codes)];
    check::exact_output(OP, "y", y, &[count, n], tables.dtype(), &mut seen)?;
    Ok(Search { count, n, len })
}
