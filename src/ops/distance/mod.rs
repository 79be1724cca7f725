//! Distances: signatures and checks.

mod search;

pub use self::search::*;
use crate::ops::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};

/// What [`DistanceOps::similarity`] makes of two vectors.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Similarity {
    /// The p-norm of a - b + eps.
    Distance {
        /// At least 0; 0 counts what differs, infinity takes the largest.
        p: f64,
        /// Added to each difference.
        eps: f64,
    },
    /// a.b / (max(|a|, eps) max(|b|, eps)), Euclidean norms.
    Cosine {
        /// Smallest norm that is divided by, above 0.
        eps: f64,
    },
}

impl Similarity {
    fn check(self, op: &'static str) -> Result<()> {
        match self {
            Similarity::Distance { p, eps } => {
                check_p(op, p)?;
                if eps.is_finite() {
                    return Ok(());
                }
                Err(GpuError::invalid(op, "eps", "a finite number", format!("{eps}")))
            }
            Similarity::Cosine { eps } if eps >= 0.0 && eps.is_finite() => Ok(()),
            Similarity::Cosine { eps } => {
                Err(GpuError::invalid(op, "eps", "a finite number of at least 0", format!("{eps}")))
            }
        }
    }
}

io_struct! {
    /// Operands of [`DistanceOps::cdist_bwd`].
    #[derive(Debug)]
    pub struct CdistBwd<'a> {
        /// Upstream gradient [.., P, R].
        pub dy: View<'a>,
        /// Forward's first vectors [.., P, M].
        pub a: View<'a>,
        /// Forward's second vectors [.., R, M].
        pub b: View<'a>,
        /// Forward's result.
        pub y: View<'a>,
        /// Gradient of the first vectors.
        pub da: Option<GradMut<'a>>,
        /// Gradient of the second vectors.
        pub db: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`DistanceOps::similarity_bwd`].
    #[derive(Debug)]
    pub struct SimilarityBwd<'a> {
        /// Upstream gradient, shape of the forward's result.
        pub dy: View<'a>,
        /// Forward's first vectors.
        pub a: View<'a>,
        /// Forward's second vectors.
        pub b: View<'a>,
        /// Gradient of the first vectors.
        pub da: Option<GradMut<'a>>,
        /// Gradient of the second vectors.
        pub db: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Distances and similarities of vectors: f32, f16, bf16, f64, contiguous. Deterministic. p is at least 0, infinity included; 0 counts what differs.
    /// Differences are taken directly, so near vectors keep their digits. Errors: `Invalid` for p, shapes, dtypes, overlap.
    pub trait DistanceOps : Distance => DISTANCE_OPS {
        /// y[.., i, j] = p-norm of a[.., i, :] - b[.., j, :] for a [.., P, M], b [.., R, M], y [.., P, R].
        /// Oracle `torch.cdist(compute_mode="donot_use_mm_for_euclid_dist")`.
        fn cdist(&self, p: f64, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`DistanceOps::cdist`], saved is y: dy sign(d) |d|^(p-1) / y^(p-1), 0 where y is 0; for p = 1 dy sign(d); for p = infinity
        /// dy sign(d) wherever |d| is y.
        fn cdist_bwd(&self, p: f64, io: CdistBwd<'_>) -> Result<()>;
        /// The distances of the pairs i < j of rows of x [n, M], row by row: y [n (n - 1) / 2]. Oracle `F.pdist`.
        fn pdist(&self, p: f64, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradient of [`DistanceOps::pdist`], as of [`DistanceOps::cdist`]; saved is y.
        fn pdist_bwd(&self, p: f64, dy: View<'_>, x: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Distance or cosine of the vectors of a and b (one shape) along `axis`; y has that shape without the axis, or with 1 for it.
        /// Oracle `F.pairwise_distance`, `F.cosine_similarity`.
        fn similarity(&self, op: Similarity, axis: usize, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`DistanceOps::similarity`]; nothing but a and b is saved. Distances as [`DistanceOps::cdist_bwd`], but for p = infinity equal
        /// differences share. Cosine: da = dy (b / (|a| |b|) - y a / |a|²), without the second term where |a| is not above eps; db likewise.
        fn similarity_bwd(&self, op: Similarity, axis: usize, io: SimilarityBwd<'_>) -> Result<()>;
    }
}

fn check_p(op: &'static str, p: f64) -> Result<()> {
    if p >= 0.0 {
        return Ok(());
    }
    Err(GpuError::invalid(op, "p", "a number of at least 0, or infinity", format!("{p}")))
}

/// Sizes of a checked call on pairs: batches, first and second vectors, their length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pairs {
    pub(crate) batch: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) len: usize,
}

fn check_operand(op: &'static str, arg: &'static str, v: &View<'_>, like: &View<'_>) -> Result<()> {
    check::float(op, arg, v)?;
    check::dtype(op, arg, v, like.dtype())?;
    check::contiguous(op, arg, v)
}

/// a [.., P, M], b [.., R, M] and a matrix [.., P, R].
fn check_pairs(
    op: &'static str,
    p: f64,
    a: &View<'_>,
    b: &View<'_>,
    y: (&'static str, &View<'_>),
) -> Result<Pairs> {
    check_p(op, p)?;
    let (sa, sb) = (a.shape(), b.shape());
    let rank = sa.len();
    if rank < 2 {
        return Err(GpuError::invalid(op, "a", "at least two axes", format!("shape {sa:?}")));
    }
    if sb.len() != rank || sb[..rank - 2] != sa[..rank - 2] || sb[rank - 1] != sa[rank - 1] {
        let want = format!("shape {sa:?} except for the number of vectors");
        return Err(GpuError::invalid(op, "b", want, format!("{sb:?}")));
    }
    let (rows, cols, len) = (sa[rank - 2], sb[rank - 2], sa[rank - 1]);
    let mut want = sa.to_vec();
    want[rank - 1] = cols;
    check::shape(op, y.0, y.1, &want)?;
    for (arg, v) in [("a", a), ("b", b), y] {
        check_operand(op, arg, v, a)?;
    }
    Ok(Pairs { batch: sa[..rank - 2].iter().product(), rows, cols, len })
}

/// Gradients of two operands: shapes, dtypes, memory of their own.
fn check_grads(
    op: &'static str,
    grads: [(&'static str, Option<&GradMut<'_>>, &View<'_>); 2],
    inputs: &[(&'static str, View<'_>)],
) -> Result<()> {
    let mut others = inputs.to_vec();
    for (arg, g, of) in grads {
        let Some(g) = g else { continue };
        let v = g.out.as_view();
        check::shape(op, arg, &v, of.shape())?;
        check_operand(op, arg, &v, of)?;
        check::separate_output(op, arg, &g.out, &others)?;
        others.push((arg, v));
    }
    Ok(())
}

/// Checks of [`DistanceOps::cdist`].
pub(crate) fn check_cdist(p: f64, a: &View<'_>, b: &View<'_>, y: &ViewMut<'_>) -> Result<Pairs> {
    const OP: &str = "cdist";
    let e = check_pairs(OP, p, a, b, ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("a", *a), ("b", *b)])?;
    Ok(e)
}

/// Checks of [`DistanceOps::cdist_bwd`].
pub(crate) fn check_cdist_bwd(p: f64, io: &CdistBwd<'_>) -> Result<Pairs> {
    const OP: &str = "cdist_bwd";
    let e = check_pairs(OP, p, &io.a, &io.b, ("dy", &io.dy))?;
    check::shape(OP, "y", &io.y, io.dy.shape())?;
    check_operand(OP, "y", &io.y, &io.a)?;
    let inputs = [("dy", io.dy), ("a", io.a), ("b", io.b), ("y", io.y)];
    check_grads(OP, [("da", io.da.as_ref(), &io.a), ("db", io.db.as_ref(), &io.b)], &inputs)?;
    Ok(e)
}

/// x [n, M] and one number per pair of rows.
fn check_triangle(op: &'static str, p: f64, x: &View<'_>, y: (&'static str, &View<'_>)) -> Result<Pairs> {
    check_p(op, p)?;
    let &[n, len] = x.shape() else {
        return Err(GpuError::invalid(op, "x", "two axes", format!("shape {:?}", x.shape())));
    };
    check::shape(op, y.0, y.1, &[n.saturating_mul(n.saturating_sub(1)) / 2])?;
    check_operand(op, "x", x, x)?;
    check_operand(op, y.0, y.1, x)?;
    Ok(Pairs { batch: 1, rows: n, cols: n, len })
}

/// Checks of [`DistanceOps::pdist`].
pub(crate) fn check_pdist(p: f64, x: &View<'_>, y: &ViewMut<'_>) -> Result<Pairs> {
    const OP: &str = "pdist";
    let e = check_triangle(OP, p, x, ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("x", *x)])?;
    Ok(e)
}

/// Checks of [`DistanceOps::pdist_bwd`].
pub(crate) fn check_pdist_bwd(
    p: f64,
    dy: &View<'_>,
    x: &View<'_>,
    y: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<Pairs> {
    const OP: &str = "pdist_bwd";
    let e = check_triangle(OP, p, x, ("dy", dy))?;
    check_triangle(OP, p, x, ("y", y))?;
    check_grads(OP, [("dx", Some(dx), x), ("dx", None, x)], &[("dy", *dy), ("x", *x), ("y", *y)])?;
    Ok(e)
}

/// Two tensors of one shape and one number per vector along `axis`; [outer, length, inner].
fn check_vectors(
    op: &'static str,
    what: Similarity,
    axis: usize,
    a: &View<'_>,
    b: &View<'_>,
    y: (&'static str, &View<'_>),
) -> Result<[usize; 3]> {
    what.check(op)?;
    check::axis(op, a, axis)?;
    check::shape(op, "b", b, a.shape())?;
    let s = a.shape();
    let mut removed = s.to_vec();
    removed.remove(axis);
    let mut kept = s.to_vec();
    kept[axis] = 1;
    if y.1.shape() != removed && y.1.shape() != kept {
        return Err(GpuError::invalid(
            op,
            y.0,
            format!("shape {removed:?} or {kept:?}"),
            format!("{:?}", y.1.shape()),
        ));
    }
    for (arg, v) in [("a", a), ("b", b), y] {
        check_operand(op, arg, v, a)?;
    }
    Ok([s[..axis].iter().product(), s[axis], s[axis + 1..].iter().product()])
}

/// Checks of [`DistanceOps::similarity`]; [outer, length, inner].
pub(crate) fn check_similarity(
    what: Similarity,
    axis: usize,
    a: &View<'_>,
    b: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "similarity";
    let e = check_vectors(OP, what, axis, a, b, ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("a", *a), ("b", *b)])?;
    Ok(e)
}

/// Checks of [`DistanceOps::similarity_bwd`]; [outer, length, inner].
pub(crate) fn check_similarity_bwd(
    what: Similarity,
    axis: usize,
    io: &SimilarityBwd<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "similarity_bwd";
    let e = check_vectors(OP, what, axis, &io.a, &io.b, ("dy", &io.dy))?;
    let inputs = [("dy", io.dy), ("a", io.a), ("b", io.b)];
    check_grads(OP, [("da", io.da.as_ref(), &io.a), ("db", io.db.as_ref(), &io.b)], &inputs)?;
    Ok(e)
}
