//! Bilinear forms of rows, summed by groups: signatures and checks.

use super::check_offsets;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;

io_struct! {
    /// Operands of [`BilinearOps::bilinear_ragged`]; all but the offsets have one dtype.
    #[derive(Debug)]
    pub struct BilinearRagged<'a> {
        /// The left rows of all groups [total, M].
        pub a: View<'a>,
        /// The right rows of all groups [total, N].
        pub b: View<'a>,
        /// Where groups begin and the last one ends, i32 [G + 1], rising.
        pub offsets: View<'a>,
        /// A matrix per output [O, M, N], contiguous.
        pub w: View<'a>,
        /// Sums of the outer products of a group's rows [G, M, N], contiguous: what backward needs for `dw`.
        pub sums: ViewMut<'a>,
        /// [G, O], contiguous.
        pub y: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`BilinearOps::bilinear_ragged_bwd`].
    #[derive(Debug)]
    pub struct BilinearRaggedBwd<'a> {
        /// Upstream gradient [G, O], contiguous.
        pub dy: View<'a>,
        /// Forward's.
        pub a: View<'a>,
        /// Forward's.
        pub b: View<'a>,
        /// Forward's.
        pub offsets: View<'a>,
        /// Forward's.
        pub w: View<'a>,
        /// Forward's result.
        pub sums: View<'a>,
        /// Gradient of the left rows.
        pub da: Option<GradMut<'a>>,
        /// Gradient of the right rows.
        pub db: Option<GradMut<'a>>,
        /// Gradient of the matrices, contiguous.
        pub dw: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Bilinear forms of rows, summed by groups. Deterministic. An offset that is negative, beyond the rows or below its predecessor is
    /// `IndexOutOfRange`, and the rows beside it are not specified. Errors: `Invalid` for ranks, sizes, dtypes, overlap.
    pub trait BilinearOps : Gemm => BILINEAR_OPS {
        /// `y[g, o]` = the sum over the rows `offsets[g] <= r < offsets[g + 1]` of group g of `a[r]^T w[o] b[r]`, 0 for a group without rows.
        /// Oracle `F.bilinear` and `torch.segment_reduce`; per edge of a graph the messages of edge-conditioned convolution (Simonovsky and
        /// Komodakis, 2017).
        fn bilinear_ragged(&self, io: BilinearRagged<'_>) -> Result<()>;
        /// Gradients of [`BilinearOps::bilinear_ragged`]: with `D[g] = sum over o of dy[g, o] w[o]`, `da[r] = D[g] b[r]` and
        /// `db[r] = D[g]^T a[r]`, 0 for rows of no group; `dw[o] = sum over g of dy[g, o] sums[g]`.
        fn bilinear_ragged_bwd(&self, io: BilinearRaggedBwd<'_>) -> Result<()>;
    }
}

/// Sizes of a checked call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BilinearSizes {
    pub(crate) rows: usize,
    /// Columns of the left and of the right rows.
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) outputs: usize,
    pub(crate) groups: usize,
}

fn sizes(
    op: &'static str,
    [a, b, w]: [&View<'_>; 3],
    offsets: &View<'_>,
    sums: &View<'_>,
) -> Result<BilinearSizes> {
    let (&[rows, m], &[others, n], &[ends]) = (a.shape(), b.shape(), offsets.shape()) else {
        let got = format!("shapes {:?}, {:?} and {:?}", a.shape(), b.shape(), offsets.shape());
        return Err(GpuError::invalid(op, "a", "a and b of rank 2 and offsets of rank 1", got));
    };
    if others != rows {
        let got = format!("shape {:?}", b.shape());
        return Err(GpuError::invalid(op, "b", format!("{rows} rows, as in `a`"), got));
    }
    let Some(groups) = ends.checked_sub(1) else {
        return Err(GpuError::invalid(op, "offsets", "at least one", "none"));
    };
    let &[outputs, _, _] = w.shape() else {
        let got = format!("shape {:?}", w.shape());
        return Err(GpuError::invalid(op, "w", format!("shape [O, {m}, {n}]"), got));
    };
    check::shape(op, "w", w, &[outputs, m, n])?;
    check::contiguous(op, "w", w)?;
    check::shape(op, "sums", sums, &[groups, m, n])?;
    check::contiguous(op, "sums", sums)?;
    check_offsets(op, offsets, groups)?;
    check::float(op, "a", a)?;
    for (name, v) in [("b", b), ("w", w), ("sums", sums)] {
        check::dtype(op, name, v, a.dtype())?;
    }
    Ok(BilinearSizes { rows, m, n, outputs, groups })
}

/// Checks of [`BilinearOps::bilinear_ragged`].
pub(crate) fn check_bilinear_ragged(io: &BilinearRagged<'_>) -> Result<BilinearSizes> {
    let op = "bilinear_ragged";
    let (sums, y) = (io.sums.as_view(), io.y.as_view());
    let s = sizes(op, [&io.a, &io.b, &io.w], &io.offsets, &sums)?;
    check::shape(op, "y", &y, &[s.groups, s.outputs])?;
    check::contiguous(op, "y", &y)?;
    check::dtype(op, "y", &y, io.a.dtype())?;
    let read = [("a", io.a), ("b", io.b), ("offsets", io.offsets), ("w", io.w)];
    check::separate_output(op, "sums", &io.sums, &read)?;
    check::separate_output(op, "y", &io.y, &[&read[..], &[("sums", sums)]].concat())?;
    Ok(s)
}

/// Checks of [`BilinearOps::bilinear_ragged_bwd`].
pub(crate) fn check_bilinear_ragged_bwd(io: &BilinearRaggedBwd<'_>) -> Result<BilinearSizes> {
    let op = "bilinear_ragged_bwd";
    let s = sizes(op, [&io.a, &io.b, &io.w], &io.offsets, &io.sums)?;
    check::shape(op, "dy", &io.dy, &[s.groups, s.outputs])?;
    check::contiguous(op, "dy", &io.dy)?;
    check::dtype(op, "dy", &io.dy, io.a.dtype())?;
    let mut others =
        vec![("dy", io.dy), ("a", io.a), ("b", io.b), ("offsets", io.offsets), ("w", io.w), ("sums", io.sums)];
    let gradients = [
        ("da", &io.da, &[s.rows, s.m][..]),
        ("db", &io.db, &[s.rows, s.n][..]),
        ("dw", &io.dw, &[s.outputs, s.m, s.n][..]),
    ];
    for (name, g, shape) in gradients {
        let Some(g) = g else { continue };
        let out = g.out.as_view();
        check::shape(op, name, &out, shape)?;
        check::dtype(op, name, &out, io.a.dtype())?;
        if name == "dw" {
            check::contiguous(op, name, &out)?;
        }
        check::separate_output(op, name, &g.out, &others)?;
        others.push((name, out));
    }
    Ok(s)
}
