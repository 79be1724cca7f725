//! Elementwise functions of one, two and three operands.

use trefoil::ops::elementwise::{Binary, BinaryBwd, Ternary, TernaryBwd, Unary};
use trefoil::ops::random::{Distribution, Rng};
use trefoil::{DType, Result};

use crate::case::{Operation, both};
use crate::shape::layout;
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// A function of a matrix and of a row that is broadcast over it.
fn broadcast(cx: &Context<'_>, dt: DType, op: Binary, [r, c]: [usize; 2]) -> Result<Prepared> {
    let matrix = r * c * dt.size();
    let k = cx.sets(2 * matrix);
    let (x, w, mut y) = (cx.normal_sets(dt, r * c, k)?, cx.normal_sets(dt, c, k)?, cx.empty(dt, r * c)?);
    prepared(2 * matrix, 0, move |g, i| {
        g.binary(op, x.at(i).shaped(&[r, c])?, w.at(i).view(), y.shaped_mut(&[r, c])?)
    })
}

/// The gradients of [`broadcast`].
fn broadcast_bwd(cx: &Context<'_>, dt: DType, op: Binary, [r, c]: [usize; 2]) -> Result<Prepared> {
    let matrix = r * c * dt.size();
    let k = cx.sets(2 * matrix);
    let (x, w) = (cx.normal_sets(dt, r * c, k)?, cx.normal_sets(dt, c, k)?);
    let (dy, mut da, mut db) = (cx.normal_sets(dt, r * c, k)?, cx.empty(dt, r * c)?, cx.empty(dt, c)?);
    prepared(3 * matrix, 0, move |g, i| {
        let (da, db) = (Some(da.shaped_mut(&[r, c])?.into()), Some(db.view_mut().into()));
        let (dy, a, b) = (dy.at(i).shaped(&[r, c])?, x.at(i).shaped(&[r, c])?, w.at(i).view());
        g.binary_bwd(op, BinaryBwd::new(dy, a, b).da(da).db(db))
    })
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("unary", "launch_latency", F32, |cx, dt| {
        let (x, mut y) = (cx.normal(dt, 1)?, cx.empty(dt, 1)?);
        bytes(2 * dt.size(), move |g| g.unary(Unary::Neg, x.view(), y.view_mut()))
    }),
    problem("unary", "exp", F32_BF16, |cx, dt| {
        let (x, mut y, n) = (cx.normal(dt, cx.n())?, cx.empty(dt, cx.n())?, cx.n());
        bytes(2 * n * dt.size(), move |g| g.unary(Unary::Exp, x.view(), y.view_mut()))
    }),
    problem("unary", "neg_transposed", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        let l = layout(&[c, r], &[1, c])?;
        bytes(2 * r * c * dt.size(), move |g| {
            g.unary(Unary::Neg, x.view().with_layout(l)?, y.shaped_mut(&[c, r])?)
        })
    }),
    problem("unary", "isnan", F32, |cx, dt| {
        let (x, mut y, n) = (cx.normal(dt, cx.n())?, cx.empty(DType::U8, cx.n())?, cx.n());
        bytes(n * (dt.size() + 1), move |g| g.unary(Unary::IsNan, x.view(), y.view_mut()))
    }),
    problem("unary_bwd", "exp", F32_BF16, |cx, dt| {
        let (dy, x, mut dx, n) =
            (cx.normal(dt, cx.n())?, cx.normal(dt, cx.n())?, cx.empty(dt, cx.n())?, cx.n());
        bytes(3 * n * dt.size(), move |g| g.unary_bwd(Unary::Exp, dy.view(), x.view(), dx.view_mut().into()))
    }),
    problem("binary", "add_transposed", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (a, b, mut y) = (cx.normal(dt, r * c)?, cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        let l = layout(&[c, r], &[1, c])?;
        bytes(3 * r * c * dt.size(), move |g| {
            let b = b.view().with_layout(l)?;
            g.binary(Binary::Add { alpha: 1.0 }, a.shaped(&[c, r])?, b, y.shaped_mut(&[c, r])?)
        })
    }),
    problem("unary_bwd", "square_strided", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, x, mut dx) = (cx.normal(dt, r * c)?, cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        let l = layout(&[c, r], &[1, c])?;
        bytes(3 * r * c * dt.size(), move |g| {
            let x = x.view().with_layout(l)?;
            g.unary_bwd(Unary::Square, dy.shaped(&[c, r])?, x, dx.shaped_mut(&[c, r])?.into())
        })
    }),
    problem("unary", "bessel_j0", F32, |cx, dt| {
        let (x, mut y, n) = (cx.normal(dt, cx.n())?, cx.empty(dt, cx.n())?, cx.n());
        bytes(2 * n * dt.size(), move |g| g.unary(Unary::BesselJ0, x.view(), y.view_mut()))
    }),
    problem("unary", "erfcx_transposed", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        let l = layout(&[c, r], &[1, c])?;
        bytes(2 * r * c * dt.size(), move |g| {
            g.unary(Unary::Erfcx, x.view().with_layout(l)?, y.shaped_mut(&[c, r])?)
        })
    }),
    problem("unary", "airy_ai", F32, |cx, dt| {
        let (x, mut y, n) = (cx.normal(dt, cx.n())?, cx.empty(dt, cx.n())?, cx.n());
        bytes(2 * n * dt.size(), move |g| g.unary(Unary::AiryAi, x.view(), y.view_mut()))
    }),
    problem("unary", "airy_ai_transposed", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        let l = layout(&[c, r], &[1, c])?;
        bytes(2 * r * c * dt.size(), move |g| {
            g.unary(Unary::AiryAi, x.view().with_layout(l)?, y.shaped_mut(&[c, r])?)
        })
    }),
    problem("unary_bwd", "bessel_j0", F32, |cx, dt| {
        let (dy, x, mut dx, n) =
            (cx.normal(dt, cx.n())?, cx.normal(dt, cx.n())?, cx.empty(dt, cx.n())?, cx.n());
        bytes(3 * n * dt.size(), move |g| {
            g.unary_bwd(Unary::BesselJ0, dy.view(), x.view(), dx.view_mut().into())
        })
    }),
    problem("unary_bwd", "erfcx_transposed", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, x, mut dx) = (cx.normal(dt, r * c)?, cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        let l = layout(&[c, r], &[1, c])?;
        bytes(3 * r * c * dt.size(), move |g| {
            let x = x.view().with_layout(l)?;
            g.unary_bwd(Unary::Erfcx, dy.shaped(&[c, r])?, x, dx.shaped_mut(&[c, r])?.into())
        })
    }),
    problem("binary", "add_bias_row", F32_BF16, |cx, dt| {
        broadcast(cx, dt, Binary::Add { alpha: 1.0 }, cx.rows())
    }),
    problem("binary", "igamma", F32, |cx, dt| {
        let (a, b, n) = (cx.positive(dt, cx.n())?, cx.positive(dt, cx.n())?, cx.n());
        let mut y = cx.empty(dt, n)?;
        bytes(3 * n * dt.size(), move |g| g.binary(Binary::Igamma, a.view(), b.view(), y.view_mut()))
    }),
    problem("binary", "igammac_row", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (a, b, mut y) = (cx.positive(dt, c)?, cx.positive(dt, r * c)?, cx.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.binary(Binary::Igammac, a.view(), b.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    problem("binary_bwd", "igamma", F32, |cx, dt| {
        let (a, b, n) = (cx.positive(dt, cx.n())?, cx.positive(dt, cx.n())?, cx.n());
        let (dy, mut db) = (cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(4 * n * dt.size(), move |g| {
            let io = BinaryBwd::new(dy.view(), a.view(), b.view());
            g.binary_bwd(Binary::Igamma, io.db(Some(db.view_mut().into())))
        })
    }),
    problem("binary", "mul", F32_BF16, |cx, dt| {
        let n = cx.n();
        let (x, w, mut y) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| g.binary(Binary::Mul, x.view(), w.view(), y.view_mut()))
    }),
    problem("binary", "lt", F32, |cx, dt| {
        let n = cx.n();
        let (x, w, mut y) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(DType::U8, n)?);
        bytes(n * (2 * dt.size() + 1), move |g| g.binary(Binary::Lt, x.view(), w.view(), y.view_mut()))
    }),
    problem("binary", "div_floor", &[DType::I64], |cx, dt| {
        let n = cx.n();
        let (x, mut w, mut y) = (cx.ids(n, 1000)?, cx.empty(dt, n)?, cx.empty(dt, n)?);
        cx.gpu.random(Distribution::Int { lo: 1, hi: 10 }, Rng::new(1), w.view_mut())?;
        bytes(3 * n * dt.size(), move |g| g.binary(Binary::DivFloor, x.view(), w.view(), y.view_mut()))
    }),
    problem("binary", "ldexp", F32, |cx, dt| {
        let n = cx.n();
        let (x, mut e, mut y) = (cx.normal(dt, n)?, cx.empty(DType::I32, n)?, cx.empty(dt, n)?);
        cx.gpu.random(Distribution::Int { lo: -4, hi: 5 }, Rng::new(1), e.view_mut())?;
        bytes(n * (2 * dt.size() + 4), move |g| g.binary(Binary::Ldexp, x.view(), e.view(), y.view_mut()))
    }),
    problem("binary_bwd", "mul_bias_row", F32, |cx, dt| broadcast_bwd(cx, dt, Binary::Mul, cx.rows())),
    problem("binary_bwd", "mul", F32_BF16, |cx, dt| {
        let n = cx.n();
        let (dy, x, w) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.normal(dt, n)?);
        let (mut da, mut db) = (cx.empty(dt, n)?, cx.empty(dt, n)?);
        bytes(5 * n * dt.size(), move |g| {
            let (da, db) = (Some(da.view_mut().into()), Some(db.view_mut().into()));
            g.binary_bwd(Binary::Mul, BinaryBwd::new(dy.view(), x.view(), w.view()).da(da).db(db))
        })
    }),
    problem("ternary", "fma", F32_BF16, |cx, dt| {
        let n = cx.n();
        let (x, w, v, mut y) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(4 * n * dt.size(), move |g| g.ternary(Ternary::Fma, x.view(), w.view(), v.view(), y.view_mut()))
    }),
    problem("ternary", "where", F32, |cx, dt| {
        let n = cx.n();
        let (m, w, v, mut y) = (cx.mask(n)?, cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(n * (3 * dt.size() + 1), move |g| {
            g.ternary(Ternary::Where, m.view(), w.view(), v.view(), y.view_mut())
        })
    }),
    problem("ternary_bwd", "fma", F32, |cx, dt| {
        let n = cx.n();
        let (dy, x, w, v) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.normal(dt, n)?, cx.normal(dt, n)?);
        let (mut da, mut db, mut dc) = (cx.empty(dt, n)?, cx.empty(dt, n)?, cx.empty(dt, n)?);
        bytes(6 * n * dt.size(), move |g| {
            let [da, db, dc] = [&mut da, &mut db, &mut dc].map(|d| Some(d.view_mut().into()));
            let io = TernaryBwd::new(dy.view(), x.view(), w.view(), v.view()).da(da).db(db).dc(dc);
            g.ternary_bwd(Ternary::Fma, io)
        })
    }),
    problem("ternary_bwd", "where", F32, |cx, dt| {
        let n = cx.n();
        let (dy, m, w, v) = (cx.normal(dt, n)?, cx.mask(n)?, cx.normal(dt, n)?, cx.normal(dt, n)?);
        let (mut db, mut dc) = (cx.empty(dt, n)?, cx.empty(dt, n)?);
        bytes(n * (3 * dt.size() + 1), move |g| {
            let (db, dc) = (Some(db.view_mut().into()), Some(dc.view_mut().into()));
            let io = TernaryBwd::new(dy.view(), m.view(), w.view(), v.view()).db(db).dc(dc);
            g.ternary_bwd(Ternary::Where, io)
        })
    }),
    problem("cast", "to_bf16", F32, |cx, dt| {
        let (x, mut y, n) = (cx.normal(dt, cx.n())?, cx.empty(DType::Bf16, cx.n())?, cx.n());
        bytes(n * (dt.size() + 2), move |g| g.cast(x.view(), y.view_mut()))
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[both(
    "binary_broadcast",
    |cx, c| Ok(broadcast(cx, c.dtype()?, Binary::Mul, c.sizes(["rows", "cols"])?)?),
    |cx, c| Ok(broadcast_bwd(cx, c.dtype()?, Binary::Mul, c.sizes(["rows", "cols"])?)?),
)];
