//! Factorisations of batches of matrices (64 of side 256 at full size) and the systems that are solved with them.

use trefoil::ops::linalg::{Eigh, LdlFactor, LuDet, LuFactor, Qr, Svd, Triangular, TriangularSolveBwd};
use trefoil::{Buffer, DType, Result};

use crate::{Context, F32, Problem, flops, problem};

/// Number and side of the matrices.
fn sizes(cx: &Context<'_>) -> [usize; 2] {
    [cx.pick(2, 4, 64), cx.pick(6, 96, 256)]
}

/// Matrices with 2^-|i - j| at row i and column j, which are symmetric and positive definite.
fn matrices(cx: &Context<'_>, [batch, n]: [usize; 2]) -> Result<Buffer> {
    let mut buffer = cx.empty(DType::F32, batch * n * n)?;
    let one: Vec<u8> =
        (0..n * n).flat_map(|e| 0.5f32.powi((e / n).abs_diff(e % n) as i32).to_le_bytes()).collect();
    cx.gpu.write_bytes(buffer.view_mut(), &one.repeat(batch))?;
    Ok(buffer)
}

/// Exchanges of rows that exchange none.
fn pivots(cx: &Context<'_>, [batch, n]: [usize; 2]) -> Result<Buffer> {
    let mut buffer = cx.empty(DType::I32, batch * n)?;
    let one: Vec<u8> = (1..=n as i32).flat_map(i32::to_le_bytes).collect();
    cx.gpu.write_bytes(buffer.view_mut(), &one.repeat(batch))?;
    Ok(buffer)
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("cholesky", "lower", F32, |cx, dt| {
        let [b, n] = sizes(cx);
        let (a, mut l) = (matrices(cx, [b, n])?, cx.empty(dt, b * n * n)?);
        let mut info = cx.empty(DType::I32, b)?;
        flops(b * n * n * n / 3, move |g| {
            g.cholesky(false, a.shaped(&[b, n, n])?, l.shaped_mut(&[b, n, n])?, info.view_mut())
        })
    }),
    problem("cholesky_bwd", "lower", F32, |cx, dt| {
        let [b, n] = sizes(cx);
        let (l, dl, mut da) = (matrices(cx, [b, n])?, cx.normal(dt, b * n * n)?, cx.empty(dt, b * n * n)?);
        flops(4 * b * n * n * n, move |g| {
            let s = [b, n, n];
            g.cholesky_bwd(false, dl.shaped(&s)?, l.shaped(&s)?, da.shaped_mut(&s)?.into())
        })
    }),
    problem("triangular_solve", "lower", F32, |cx, dt| {
        let [m, n] = sizes(cx);
        let (a, b, mut x) = (matrices(cx, [m, n])?, cx.normal(dt, m * n * n)?, cx.empty(dt, m * n * n)?);
        flops(m * n * n * n, move |g| {
            let s = [m, n, n];
            g.triangular_solve(Triangular::lower(), a.shaped(&s)?, b.shaped(&s)?, x.shaped_mut(&s)?)
        })
    }),
    problem("triangular_solve_bwd", "lower", F32, |cx, dt| {
        let [m, n] = sizes(cx);
        let (a, x, dx) = (matrices(cx, [m, n])?, cx.normal(dt, m * n * n)?, cx.normal(dt, m * n * n)?);
        let (mut da, mut db) = (cx.empty(dt, m * n * n)?, cx.empty(dt, m * n * n)?);
        flops(3 * m * n * n * n, move |g| {
            let s = [m, n, n];
            let io = TriangularSolveBwd::new(dx.shaped(&s)?, a.shaped(&s)?, x.shaped(&s)?)
                .da(da.shaped_mut(&s)?)
                .db(db.shaped_mut(&s)?);
            g.triangular_solve_bwd(Triangular::lower(), io)
        })
    }),
    problem("lu_factor", "square", F32, |cx, dt| {
        let [b, n] = sizes(cx);
        let (a, mut lu) = (matrices(cx, [b, n])?, cx.empty(dt, b * n * n)?);
        let (mut pivots, mut info) = (cx.empty(DType::I32, b * n)?, cx.empty(DType::I32, b)?);
        flops(2 * b * n * n * n / 3, move |g| {
            let (a, lu) = (a.shaped(&[b, n, n])?, lu.shaped_mut(&[b, n, n])?);
            g.lu_factor(LuFactor::new(a, lu, pivots.shaped_mut(&[b, n])?, info.view_mut()))
        })
    }),
    problem("lu_solve", "square", F32, |cx, dt| {
        let [m, n] = sizes(cx);
        let (lu, pivots) = (matrices(cx, [m, n])?, pivots(cx, [m, n])?);
        let (b, mut x) = (cx.normal(dt, m * n * n)?, cx.empty(dt, m * n * n)?);
        flops(2 * m * n * n * n, move |g| {
            let s = [m, n, n];
            g.lu_solve(false, lu.shaped(&s)?, pivots.shaped(&[m, n])?, b.shaped(&s)?, x.shaped_mut(&s)?)
        })
    }),
    problem("lu_det", "slogdet", F32, |cx, dt| {
        let [b, n] = sizes(cx);
        let (lu, pivots) = (matrices(cx, [b, n])?, pivots(cx, [b, n])?);
        let (mut sign, mut log) = (cx.empty(dt, b)?, cx.empty(dt, b)?);
        flops(2 * b * n, move |g| {
            let io = LuDet::new(lu.shaped(&[b, n, n])?, pivots.shaped(&[b, n])?);
            g.lu_det(io.sign(sign.view_mut()).logabsdet(log.view_mut()))
        })
    }),
    problem("ldl_factor", "symmetric", F32, |cx, dt| {
        let [b, n] = sizes(cx);
        let (a, mut ld) = (matrices(cx, [b, n])?, cx.empty(dt, b * n * n)?);
        let (mut pivots, mut info) = (cx.empty(DType::I32, b * n)?, cx.empty(DType::I32, b)?);
        flops(b * n * n * n / 3, move |g| {
            let (a, ld) = (a.shaped(&[b, n, n])?, ld.shaped_mut(&[b, n, n])?);
            g.ldl_factor(LdlFactor::new(a, ld, pivots.shaped_mut(&[b, n])?, info.view_mut()))
        })
    }),
    problem("ldl_solve", "symmetric", F32, |cx, dt| {
        let [m, n] = sizes(cx);
        let (ld, pivots) = (matrices(cx, [m, n])?, pivots(cx, [m, n])?);
        let (b, mut x) = (cx.normal(dt, m * n * n)?, cx.empty(dt, m * n * n)?);
        flops(2 * m * n * n * n, move |g| {
            let s = [m, n, n];
            g.ldl_solve(ld.shaped(&s)?, pivots.shaped(&[m, n])?, b.shaped(&s)?, x.shaped_mut(&s)?)
        })
    }),
    problem("qr", "square", F32, |cx, dt| {
        let [b, n] = sizes(cx);
        let a = matrices(cx, [b, n])?;
        let (mut q, mut r) = (cx.empty(dt, b * n * n)?, cx.empty(dt, b * n * n)?);
        flops(8 * b * n * n * n / 3, move |g| {
            let s = [b, n, n];
            g.qr(Qr::new(a.shaped(&s)?, r.shaped_mut(&s)?).q(q.shaped_mut(&s)?))
        })
    }),
    problem("eigh", "vectors", F32, |cx, dt| {
        let [b, n] = sizes(cx);
        let (a, mut w, mut v) = (matrices(cx, [b, n])?, cx.empty(dt, b * n)?, cx.empty(dt, b * n * n)?);
        let mut info = cx.empty(DType::I32, b)?;
        flops(9 * b * n * n * n, move |g| {
            let io = Eigh::new(a.shaped(&[b, n, n])?, w.shaped_mut(&[b, n])?, info.view_mut());
            g.eigh(false, io.v(v.shaped_mut(&[b, n, n])?))
        })
    }),
    problem("svd", "vectors", F32, |cx, dt| {
        let [b, n] = sizes(cx);
        let (a, mut s, mut u) = (matrices(cx, [b, n])?, cx.empty(dt, b * n)?, cx.empty(dt, b * n * n)?);
        let (mut vh, mut info) = (cx.empty(dt, b * n * n)?, cx.empty(DType::I32, b)?);
        flops(21 * b * n * n * n, move |g| {
            let io = Svd::new(a.shaped(&[b, n, n])?, s.shaped_mut(&[b, n])?, info.view_mut());
            g.svd(io.u(u.shaped_mut(&[b, n, n])?).vh(vh.shaped_mut(&[b, n, n])?))
        })
    }),
    problem("newton_schulz", "weights", F32, |cx, dt| {
        let [m, n] = [cx.pick(6, 96, 1024), cx.pick(8, 192, 4096)];
        let (x, mut y) = (cx.normal(dt, m * n)?, cx.empty(dt, m * n)?);
        flops(5 * 2 * (2 * m * m * n + m * m * m), move |g| {
            g.newton_schulz(5, x.shaped(&[m, n])?, y.shaped_mut(&[m, n])?)
        })
    }),
];
