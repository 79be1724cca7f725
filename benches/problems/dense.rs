//! Reductions, softmax, matrix products.

use trefoil::ops::*;
use trefoil::{BackendExt, DType};

use super::{F32, F32_BF16, Row, bytes, flops, row};

/// y = act(x w^T + bias), the shape of a Linear layer.
const LINEAR: Gemm = Gemm::new().trans(false, true);

/// The most elements of a softmax.
const LONG: usize = 1 << 27;

/// Softmax of rows of `C` columns: how long they are decides on the kernel.
const fn softmax_row<const C: usize>(case: &'static str) -> Row {
    row("softmax", case, F32, |b, dt| {
        let shape = [b.rows()[0].min(LONG / C), C];
        let n = shape[0] * C;
        let (x, mut y) = (b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(2 * n * dt.size(), move |g| {
            g.softmax(Softmax::Softmax, 1, x.shaped(&shape)?, y.shaped_mut(&shape)?)
        })
    })
}

/// The gradient of [`softmax_row`].
const fn softmax_bwd_row<const C: usize>(case: &'static str) -> Row {
    row("softmax_bwd", case, F32, |b, dt| {
        let shape = [b.rows()[0].min(LONG / C), C];
        let n = shape[0] * C;
        let (dy, y, mut dx) = (b.normal(dt, n)?, b.positive(dt, n)?, b.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| {
            let (dy, y, dx) = (dy.shaped(&shape)?, y.shaped(&shape)?, dx.shaped_mut(&shape)?.into());
            g.softmax_bwd(Softmax::Softmax, 1, dy, y, dx)
        })
    })
}

pub(super) const ROWS: &[Row] = &[
    row("reduce", "sum_rows", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r)?);
        bytes(r * c * dt.size(), move |g| g.reduce(Reduce::Sum, &[1], x.shaped(&[r, c])?, y.view_mut()))
    }),
    row("reduce", "sum_columns", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, c)?);
        bytes(r * c * dt.size(), move |g| g.reduce(Reduce::Sum, &[0], x.shaped(&[r, c])?, y.view_mut()))
    }),
    row("reduce", "mean_all", F32, |b, dt| {
        let (x, mut y, n) = (b.normal(dt, b.n())?, b.empty(dt, 1)?, b.n());
        bytes(n * dt.size(), move |g| g.reduce(Reduce::Mean, &[0], x.view(), y.view_mut()))
    }),
    row("reduce", "var_rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r)?);
        bytes(r * c * dt.size(), move |g| {
            g.reduce(Reduce::Var { correction: 1.0 }, &[1], x.shaped(&[r, c])?, y.view_mut())
        })
    }),
    row("reduce", "max_columns", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, c)?);
        bytes(r * c * dt.size(), move |g| g.reduce(Reduce::Max, &[0], x.shaped(&[r, c])?, y.view_mut()))
    }),
    row("reduce", "logsumexp_rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r)?);
        bytes(r * c * dt.size(), move |g| g.reduce(Reduce::LogSumExp, &[1], x.shaped(&[r, c])?, y.view_mut()))
    }),
    row("reduce_bwd", "sum_rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, mut dx) = (b.normal(dt, r)?, b.empty(dt, r * c)?);
        bytes(r * c * dt.size(), move |g| {
            g.reduce_bwd(Reduce::Sum, &[1], dy.view(), None, None, dx.shaped_mut(&[r, c])?.into())
        })
    }),
    row("reduce_bwd", "max_rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, x, mut y, mut dx) =
            (b.normal(dt, r)?, b.normal(dt, r * c)?, b.empty(dt, r)?, b.empty(dt, r * c)?);
        b.gpu.reduce(Reduce::Max, &[1], x.shaped(&[r, c])?, y.view_mut())?;
        bytes(2 * r * c * dt.size(), move |g| {
            let x = x.shaped(&[r, c])?;
            g.reduce_bwd(
                Reduce::Max,
                &[1],
                dy.view(),
                Some(x),
                Some(y.view()),
                dx.shaped_mut(&[r, c])?.into(),
            )
        })
    }),
    row("arg_reduce", "max_rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut i, mut v) = (b.normal(dt, r * c)?, b.empty(DType::I64, r)?, b.empty(dt, r)?);
        bytes(r * c * dt.size(), move |g| {
            g.arg_reduce(ArgReduce::Max, 1, x.shaped(&[r, c])?, i.view_mut(), Some(v.view_mut()))
        })
    }),
    row("arg_reduce_bwd", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, i, mut dx) = (b.normal(dt, r)?, b.ids(r, c)?, b.empty(dt, r * c)?);
        bytes(r * c * dt.size(), move |g| {
            g.arg_reduce_bwd(1, dy.view(), i.view(), dx.shaped_mut(&[r, c])?.into())
        })
    }),
    row("mean_var", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut m, mut v) = (b.normal(dt, r * c)?, b.empty(dt, r)?, b.empty(dt, r)?);
        bytes(r * c * dt.size(), move |g| {
            g.mean_var(&[1], 0.0, x.shaped(&[r, c])?, m.view_mut(), v.view_mut())
        })
    }),
    row("min_max", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut lo, mut hi) = (b.normal(dt, r * c)?, b.empty(dt, r)?, b.empty(dt, r)?);
        bytes(r * c * dt.size(), move |g| g.min_max(&[1], x.shaped(&[r, c])?, lo.view_mut(), hi.view_mut()))
    }),
    row("dot", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, w, mut y) = (b.normal(dt, r * c)?, b.normal(dt, r * c)?, b.empty(dt, r)?);
        bytes(2 * r * c * dt.size(), move |g| g.dot(x.shaped(&[r, c])?, w.shaped(&[r, c])?, y.view_mut()))
    }),
    row("dot_bwd", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, x, w) = (b.normal(dt, r)?, b.normal(dt, r * c)?, b.normal(dt, r * c)?);
        let (mut da, mut db) = (b.empty(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(4 * r * c * dt.size(), move |g| {
            let (da, db) = (Some(da.shaped_mut(&[r, c])?.into()), Some(db.shaped_mut(&[r, c])?.into()));
            g.dot_bwd(dy.view(), x.shaped(&[r, c])?, w.shaped(&[r, c])?, da, db)
        })
    }),
    row("sum_to_shape", "bias", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, c)?);
        bytes(r * c * dt.size(), move |g| g.sum_to_shape(x.shaped(&[r, c])?, y.view_mut().into()))
    }),
    row("softmax", "rows", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.softmax(Softmax::Softmax, 1, x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    row("softmax", "columns", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.softmax(Softmax::LogSoftmax, 0, x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    row("softmax", "vocabulary", F32, |b, dt| {
        // An odd number of columns: most rows begin off a multiple of 16 bytes.
        let [r, c] = [b.classes()[0], b.classes()[1] - 47];
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.softmax(Softmax::LogSoftmax, 1, x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    row("softmax", "one_row", F32, |b, dt| {
        let (x, mut y, n) = (b.normal(dt, b.n())?, b.empty(dt, b.n())?, b.n());
        bytes(2 * n * dt.size(), move |g| g.softmax(Softmax::Softmax, 0, x.view(), y.view_mut()))
    }),
    softmax_row::<32>("32_columns"),
    softmax_row::<64>("64_columns"),
    softmax_row::<8192>("8k_columns"),
    softmax_row::<8200>("beyond_registers"),
    softmax_row::<40_000>("long_rows"),
    softmax_bwd_row::<32>("32_columns"),
    softmax_bwd_row::<64>("64_columns"),
    softmax_bwd_row::<8200>("beyond_registers"),
    softmax_bwd_row::<40_000>("long_rows"),
    row("softmax_bwd", "vocabulary", F32, |b, dt| {
        let [r, c] = [b.classes()[0], b.classes()[1] - 47];
        let (dy, y, mut dx) = (b.normal(dt, r * c)?, b.positive(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            let (dy, y, dx) = (dy.shaped(&[r, c])?, y.shaped(&[r, c])?, dx.shaped_mut(&[r, c])?.into());
            g.softmax_bwd(Softmax::LogSoftmax, 1, dy, y, dx)
        })
    }),
    row("softmax_bwd", "one_row", F32, |b, dt| {
        let n = b.n();
        let (dy, y, mut dx) = (b.normal(dt, n)?, b.positive(dt, n)?, b.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| {
            g.softmax_bwd(Softmax::Softmax, 0, dy.view(), y.view(), dx.view_mut().into())
        })
    }),
    row("softmax_bwd", "rows", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (dy, y, mut dx) = (b.normal(dt, r * c)?, b.positive(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.softmax_bwd(
                Softmax::Softmax,
                1,
                dy.shaped(&[r, c])?,
                y.shaped(&[r, c])?,
                dx.shaped_mut(&[r, c])?.into(),
            )
        })
    }),
    row("softmax_bwd", "columns", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, y, mut dx) = (b.normal(dt, r * c)?, b.positive(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.softmax_bwd(
                Softmax::Softmax,
                0,
                dy.shaped(&[r, c])?,
                y.shaped(&[r, c])?,
                dx.shaped_mut(&[r, c])?.into(),
            )
        })
    }),
    row("gemm", "square", F32_BF16, |b, dt| {
        let s = b.side();
        let (x, w, mut y) = (b.normal(dt, s * s)?, b.normal(dt, s * s)?, b.empty(dt, s * s)?);
        flops(2 * s * s * s, move |g| {
            g.gemm(&Gemm::new(), GemmIo::new(x.shaped(&[s, s])?, w.shaped(&[s, s])?, y.shaped_mut(&[s, s])?))
        })
    }),
    row("gemm", "linear_bias_gelu", F32_BF16, |b, dt| {
        let s = b.side();
        let (x, w, bias, mut y) =
            (b.normal(dt, s * s)?, b.normal(dt, s * s)?, b.normal(dt, s)?, b.empty(dt, s * s)?);
        flops(2 * s * s * s, move |g| {
            let mut io = GemmIo::new(x.shaped(&[s, s])?, w.shaped(&[s, s])?, y.shaped_mut(&[s, s])?);
            io.bias = Some(bias.view());
            g.gemm(&LINEAR.act(Activation::Gelu), io)
        })
    }),
    row("gemm", "batched_64", F32_BF16, |b, dt| {
        // The products of attention: many small ones.
        let n = (b.side() / 16).max(1);
        let (x, w, mut y) = (b.normal(dt, n * 4096)?, b.normal(dt, n * 4096)?, b.empty(dt, n * 4096)?);
        flops(2 * n * 64 * 64 * 64, move |g| {
            let s = [n, 64, 64];
            g.gemm(&LINEAR, GemmIo::new(x.shaped(&s)?, w.shaped(&s)?, y.shaped_mut(&s)?))
        })
    }),
    row("gemm", "vector", F32_BF16, |b, dt| {
        let s = b.side();
        let (x, w, mut y) = (b.normal(dt, s)?, b.normal(dt, s * s)?, b.empty(dt, s)?);
        bytes(s * s * dt.size(), move |g| {
            g.gemm(&LINEAR, GemmIo::new(x.shaped(&[1, s])?, w.shaped(&[s, s])?, y.shaped_mut(&[1, s])?))
        })
    }),
    row("gemm_bwd", "linear_bias", F32_BF16, |b, dt| {
        let s = b.side();
        let (dy, x, w) = (b.normal(dt, s * s)?, b.normal(dt, s * s)?, b.normal(dt, s * s)?);
        let (mut da, mut db, mut dbias) = (b.empty(dt, s * s)?, b.empty(dt, s * s)?, b.empty(dt, s)?);
        flops(4 * s * s * s, move |g| {
            let io = GemmBwd {
                dy: dy.shaped(&[s, s])?,
                a: x.shaped(&[s, s])?,
                b: w.shaped(&[s, s])?,
                saved: None,
                da: Some(da.shaped_mut(&[s, s])?.into()),
                db: Some(db.shaped_mut(&[s, s])?.into()),
                dbias: Some(dbias.view_mut().into()),
            };
            g.gemm_bwd(&LINEAR, io)
        })
    }),
    row("gemm_bwd", "linear_relu", F32, |b, dt| {
        let s = b.side();
        let (dy, x, w, y) =
            (b.normal(dt, s * s)?, b.normal(dt, s * s)?, b.normal(dt, s * s)?, b.normal(dt, s * s)?);
        let (mut da, mut db, mut dbias) = (b.empty(dt, s * s)?, b.empty(dt, s * s)?, b.empty(dt, s)?);
        flops(4 * s * s * s, move |g| {
            let io = GemmBwd {
                dy: dy.shaped(&[s, s])?,
                a: x.shaped(&[s, s])?,
                b: w.shaped(&[s, s])?,
                saved: Some(y.shaped(&[s, s])?),
                da: Some(da.shaped_mut(&[s, s])?.into()),
                db: Some(db.shaped_mut(&[s, s])?.into()),
                dbias: Some(dbias.view_mut().into()),
            };
            g.gemm_bwd(&LINEAR.act(Activation::Relu), io)
        })
    }),
    row("gemm_grouped", "four", F32, |b, dt| {
        let s = b.side() / 2;
        let make =
            || -> trefoil::Result<Vec<trefoil::Buffer>> { (0..4).map(|_| b.normal(dt, s * s)).collect() };
        let (x, w, mut y) = (make()?, make()?, make()?);
        flops(4 * 2 * s * s * s, move |g| {
            let mut out = y.iter_mut().map(|b| b.shaped_mut(&[s, s])).collect::<trefoil::Result<Vec<_>>>()?;
            let (x, w): (Vec<_>, Vec<_>) = (
                x.iter().map(|b| b.shaped(&[s, s])).collect::<trefoil::Result<_>>()?,
                w.iter().map(|b| b.shaped(&[s, s])).collect::<trefoil::Result<_>>()?,
            );
            g.gemm_grouped(&Gemm::new(), &x, &w, &mut out)
        })
    }),
    row("gemm_ragged", "eight_groups", F32, |b, dt| {
        let (s, groups) = (b.side(), 8);
        let k = s / 4;
        let offsets: Vec<i32> = (0..=groups).map(|g| (g * s / groups) as i32).collect();
        let (x, w, mut y) = (b.normal(dt, s * k)?, b.normal(dt, groups * k * k)?, b.empty(dt, s * k)?);
        let offsets = b.gpu.upload(&offsets)?;
        flops(2 * s * k * k, move |g| {
            let w = w.shaped(&[groups, k, k])?;
            g.gemm_ragged(&Gemm::new(), x.shaped(&[s, k])?, w, offsets.view(), y.shaped_mut(&[s, k])?)
        })
    }),
];
