//! Memory, elementwise functions, activations, movement, random numbers.

use trefoil::ops::*;
use trefoil::{BackendExt, DType, Layout};

use super::{F32, F32_BF16, Row, bytes, row};

/// A vector as rows of `cols`, with another layout.
fn layout(shape: &[usize], strides: &[usize]) -> trefoil::Result<Layout> {
    Layout::strided(shape, strides, 0).map_err(|e| trefoil::GpuError::Config(e.to_string().into()))
}

pub(super) const ROWS: &[Row] = &[
    row("copy", "flat", F32, |b, dt| {
        let (x, mut y, n) = (b.normal(dt, b.n())?, b.empty(dt, b.n())?, b.n());
        bytes(2 * n * dt.size(), move |g| g.copy(x.view(), y.view_mut()))
    }),
    row("write_bytes", "16MiB", F32, |b, dt| {
        let n = b.n().min(1 << 22);
        let (data, mut y) = (vec![1u8; n * dt.size()], b.empty(dt, n)?);
        bytes(n * dt.size(), move |g| g.write_bytes(y.view_mut(), &data))
    }),
    row("read_bytes", "16MiB", F32, |b, dt| {
        let n = b.n().min(1 << 22);
        let (mut data, x) = (vec![0u8; n * dt.size()], b.normal(dt, n)?);
        bytes(n * dt.size(), move |g| g.read_bytes(x.view(), &mut data))
    }),
    row("alloc", "pooled", F32, |b, dt| {
        let n = b.n();
        bytes(n * dt.size(), move |g| g.alloc(dt, n).map(drop))
    }),
    row("unary", "launch_latency", F32, |b, dt| {
        let (x, mut y) = (b.normal(dt, 1)?, b.empty(dt, 1)?);
        bytes(2 * dt.size(), move |g| g.unary(Unary::Neg, x.view(), y.view_mut()))
    }),
    row("unary", "exp", F32_BF16, |b, dt| {
        let (x, mut y, n) = (b.normal(dt, b.n())?, b.empty(dt, b.n())?, b.n());
        bytes(2 * n * dt.size(), move |g| g.unary(Unary::Exp, x.view(), y.view_mut()))
    }),
    row("unary", "neg_transposed", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        let l = layout(&[c, r], &[1, c])?;
        bytes(2 * r * c * dt.size(), move |g| {
            g.unary(Unary::Neg, x.view().with_layout(l)?, y.shaped_mut(&[c, r])?)
        })
    }),
    row("unary", "isnan", F32, |b, dt| {
        let (x, mut y, n) = (b.normal(dt, b.n())?, b.empty(DType::U8, b.n())?, b.n());
        bytes(n * (dt.size() + 1), move |g| g.unary(Unary::IsNan, x.view(), y.view_mut()))
    }),
    row("unary_bwd", "exp", F32_BF16, |b, dt| {
        let (dy, x, mut dx, n) = (b.normal(dt, b.n())?, b.normal(dt, b.n())?, b.empty(dt, b.n())?, b.n());
        bytes(3 * n * dt.size(), move |g| g.unary_bwd(Unary::Exp, dy.view(), x.view(), dx.view_mut().into()))
    }),
    row("unary_bwd", "square_strided", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, x, mut dx) = (b.normal(dt, r * c)?, b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        let l = layout(&[c, r], &[1, c])?;
        bytes(3 * r * c * dt.size(), move |g| {
            let x = x.view().with_layout(l)?;
            g.unary_bwd(Unary::Square, dy.shaped(&[c, r])?, x, dx.shaped_mut(&[c, r])?.into())
        })
    }),
    row("binary", "mul", F32_BF16, |b, dt| {
        let n = b.n();
        let (x, w, mut y) = (b.normal(dt, n)?, b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| g.binary(Binary::Mul, x.view(), w.view(), y.view_mut()))
    }),
    row("binary", "add_bias_row", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, w, mut y) = (b.normal(dt, r * c)?, b.normal(dt, c)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.binary(Binary::Add { alpha: 1.0 }, x.shaped(&[r, c])?, w.view(), y.shaped_mut(&[r, c])?)
        })
    }),
    row("binary", "lt", F32, |b, dt| {
        let n = b.n();
        let (x, w, mut y) = (b.normal(dt, n)?, b.normal(dt, n)?, b.empty(DType::U8, n)?);
        bytes(n * (2 * dt.size() + 1), move |g| g.binary(Binary::Lt, x.view(), w.view(), y.view_mut()))
    }),
    row("binary", "div_floor", &[DType::I64], |b, dt| {
        let n = b.n();
        let (x, mut w, mut y) = (b.ids(n, 1000)?, b.empty(dt, n)?, b.empty(dt, n)?);
        b.gpu.random(Distribution::Int { lo: 1, hi: 10 }, Rng::new(1), w.view_mut())?;
        bytes(3 * n * dt.size(), move |g| g.binary(Binary::DivFloor, x.view(), w.view(), y.view_mut()))
    }),
    row("binary", "ldexp", F32, |b, dt| {
        let n = b.n();
        let (x, mut e, mut y) = (b.normal(dt, n)?, b.empty(DType::I32, n)?, b.empty(dt, n)?);
        b.gpu.random(Distribution::Int { lo: -4, hi: 5 }, Rng::new(1), e.view_mut())?;
        bytes(n * (2 * dt.size() + 4), move |g| g.binary(Binary::Ldexp, x.view(), e.view(), y.view_mut()))
    }),
    row("binary_bwd", "mul", F32_BF16, |b, dt| {
        let n = b.n();
        let (dy, x, w) = (b.normal(dt, n)?, b.normal(dt, n)?, b.normal(dt, n)?);
        let (mut da, mut db) = (b.empty(dt, n)?, b.empty(dt, n)?);
        bytes(5 * n * dt.size(), move |g| {
            let (da, db) = (Some(da.view_mut().into()), Some(db.view_mut().into()));
            g.binary_bwd(Binary::Mul, BinaryBwd { dy: dy.view(), a: x.view(), b: w.view(), da, db })
        })
    }),
    row("binary_bwd", "mul_bias_row", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, x, w) = (b.normal(dt, r * c)?, b.normal(dt, r * c)?, b.normal(dt, c)?);
        let (mut da, mut db) = (b.empty(dt, r * c)?, b.empty(dt, c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            let (da, db) = (Some(da.shaped_mut(&[r, c])?.into()), Some(db.view_mut().into()));
            g.binary_bwd(
                Binary::Mul,
                BinaryBwd { dy: dy.shaped(&[r, c])?, a: x.shaped(&[r, c])?, b: w.view(), da, db },
            )
        })
    }),
    row("ternary", "fma", F32_BF16, |b, dt| {
        let n = b.n();
        let (x, w, v, mut y) = (b.normal(dt, n)?, b.normal(dt, n)?, b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(4 * n * dt.size(), move |g| g.ternary(Ternary::Fma, x.view(), w.view(), v.view(), y.view_mut()))
    }),
    row("ternary", "where", F32, |b, dt| {
        let n = b.n();
        let (m, w, v, mut y) = (b.mask(n)?, b.normal(dt, n)?, b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(n * (3 * dt.size() + 1), move |g| {
            g.ternary(Ternary::Where, m.view(), w.view(), v.view(), y.view_mut())
        })
    }),
    row("ternary_bwd", "fma", F32, |b, dt| {
        let n = b.n();
        let (dy, x, w, v) = (b.normal(dt, n)?, b.normal(dt, n)?, b.normal(dt, n)?, b.normal(dt, n)?);
        let (mut da, mut db, mut dc) = (b.empty(dt, n)?, b.empty(dt, n)?, b.empty(dt, n)?);
        bytes(6 * n * dt.size(), move |g| {
            let [da, db, dc] = [&mut da, &mut db, &mut dc].map(|d| Some(d.view_mut().into()));
            let io = TernaryBwd { dy: dy.view(), a: x.view(), b: w.view(), c: v.view(), da, db, dc };
            g.ternary_bwd(Ternary::Fma, io)
        })
    }),
    row("ternary_bwd", "where", F32, |b, dt| {
        let n = b.n();
        let (dy, m, w, v) = (b.normal(dt, n)?, b.mask(n)?, b.normal(dt, n)?, b.normal(dt, n)?);
        let (mut db, mut dc) = (b.empty(dt, n)?, b.empty(dt, n)?);
        bytes(n * (3 * dt.size() + 1), move |g| {
            let (db, dc) = (Some(db.view_mut().into()), Some(dc.view_mut().into()));
            let io = TernaryBwd { dy: dy.view(), a: m.view(), b: w.view(), c: v.view(), da: None, db, dc };
            g.ternary_bwd(Ternary::Where, io)
        })
    }),
    row("cast", "to_bf16", F32, |b, dt| {
        let (x, mut y, n) = (b.normal(dt, b.n())?, b.empty(DType::Bf16, b.n())?, b.n());
        bytes(n * (dt.size() + 2), move |g| g.cast(x.view(), y.view_mut()))
    }),
    row("activation", "gelu", F32_BF16, |b, dt| {
        let (x, mut y, n) = (b.normal(dt, b.n())?, b.empty(dt, b.n())?, b.n());
        bytes(2 * n * dt.size(), move |g| g.activation(Activation::Gelu, x.view(), y.view_mut()))
    }),
    row("activation_bwd", "gelu", F32_BF16, |b, dt| {
        let (dy, x, mut dx, n) = (b.normal(dt, b.n())?, b.normal(dt, b.n())?, b.empty(dt, b.n())?, b.n());
        bytes(3 * n * dt.size(), move |g| {
            g.activation_bwd(Activation::Gelu, dy.view(), Saved::Input(x.view()), dx.view_mut().into())
        })
    }),
    row("strided_copy", "transpose", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        let l = layout(&[c, r], &[1, c])?;
        bytes(2 * r * c * dt.size(), move |g| {
            g.strided_copy(x.view().with_layout(l)?, y.shaped_mut(&[c, r])?.into())
        })
    }),
    row("strided_copy", "heads", F32_BF16, |b, dt| {
        // [tokens, heads, 64] to [heads, tokens, 64], as attention wants it.
        let [r, c] = b.rows();
        let h = c / 64;
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        let l = layout(&[h, r, 64], &[64, c, 1])?;
        bytes(2 * r * c * dt.size(), move |g| {
            g.strided_copy(x.view().with_layout(l)?, y.shaped_mut(&[h, r, 64])?.into())
        })
    }),
    row("strided_copy", "accumulate", F32, |b, dt| {
        let (x, mut y, n) = (b.normal(dt, b.n())?, b.normal(dt, b.n())?, b.n());
        bytes(3 * n * dt.size(), move |g| g.strided_copy(x.view(), y.view_mut().accumulate()))
    }),
    row("concat", "two_halves", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, w, mut y) = (b.normal(dt, r * c)?, b.normal(dt, r * c)?, b.empty(dt, 2 * r * c)?);
        bytes(4 * r * c * dt.size(), move |g| {
            g.concat(1, &[x.shaped(&[r, c])?, w.shaped(&[r, c])?], y.shaped_mut(&[r, 2 * c])?)
        })
    }),
    row("fill", "flat", F32, |b, dt| {
        let (mut y, n) = (b.empty(dt, b.n())?, b.n());
        bytes(n * dt.size(), move |g| g.fill(1.5, y.view_mut()))
    }),
    row("fill", "columns", F32, |b, dt| {
        let [r, c] = b.rows();
        let (mut y, l) = (b.empty(dt, r * c)?, layout(&[r, c / 2], &[c, 2])?);
        bytes(r * c / 2 * dt.size(), move |g| g.fill(1.5, y.view_mut().with_layout(l)?))
    }),
    row("fill_bytes", "flat", F32, |b, dt| {
        let (mut y, n) = (b.empty(dt, b.n())?, b.n());
        bytes(n * dt.size(), move |g| g.fill_bytes(&[1, 2, 3, 4], y.view_mut()))
    }),
    row("arange", "flat", F32, |b, dt| {
        let (mut y, n) = (b.empty(dt, b.n())?, b.n());
        bytes(n * dt.size(), move |g| g.arange(0.0, 0.5, y.view_mut()))
    }),
    row("linspace", "flat", F32, |b, dt| {
        let (mut y, n) = (b.empty(dt, b.n())?, b.n());
        bytes(n * dt.size(), move |g| g.linspace(-1.0, 1.0, y.view_mut()))
    }),
    row("pad", "constant", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, (r + 2) * (c + 2))?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.pad(
                PadMode::Constant(0.0),
                &[(1, 1), (1, 1)],
                x.shaped(&[r, c])?,
                y.shaped_mut(&[r + 2, c + 2])?,
            )
        })
    }),
    row("pad_bwd", "reflect", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, mut dx) = (b.normal(dt, (r + 2) * (c + 2))?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.pad_bwd(
                PadMode::Reflect,
                &[(1, 1), (1, 1)],
                dy.shaped(&[r + 2, c + 2])?,
                dx.shaped_mut(&[r, c])?.into(),
            )
        })
    }),
    row("flip", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| g.flip(&[1], x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into()))
    }),
    row("roll", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.roll(&[3], &[1], x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into())
        })
    }),
    row("triangle", "lower", F32, |b, dt| {
        let s = b.side();
        let (x, mut y) = (b.normal(dt, s * s)?, b.empty(dt, s * s)?);
        bytes(2 * s * s * dt.size(), move |g| {
            g.triangle(Triangle::Lower, 0, x.shaped(&[s, s])?, y.shaped_mut(&[s, s])?.into())
        })
    }),
    row("repeat_interleave", "twice", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, 2 * r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.repeat_interleave(0, 2, None, x.shaped(&[r, c])?, y.shaped_mut(&[2 * r, c])?)
        })
    }),
    row("repeat_interleave", "counts", F32, |b, dt| {
        let [r, c] = b.rows();
        let counts: Vec<i32> = (0..r as i32).map(|i| 2 * (i % 2)).collect();
        let out: usize = counts.iter().map(|&k| k as usize).sum();
        let (counts, x, mut y) = (b.gpu.upload(&counts)?, b.normal(dt, r * c)?, b.empty(dt, out * c)?);
        bytes((r + out) * c * dt.size(), move |g| {
            g.repeat_interleave(0, 1, Some(counts.view()), x.shaped(&[r, c])?, y.shaped_mut(&[out, c])?)
        })
    }),
    row("repeat_interleave", "counts_of_a_vector", F32, |b, dt| {
        let n = b.n() / 4;
        let counts = b.gpu.upload(&vec![2i32; n])?;
        let (x, mut y) = (b.normal(dt, n)?, b.empty(dt, 2 * n)?);
        bytes(n * (3 * dt.size() + 4), move |g| {
            g.repeat_interleave(0, 1, Some(counts.view()), x.view(), y.view_mut())
        })
    }),
    row("repeat_interleave_bwd", "twice", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, mut dx) = (b.normal(dt, 2 * r * c)?, b.empty(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.repeat_interleave_bwd(0, 2, None, dy.shaped(&[2 * r, c])?, dx.shaped_mut(&[r, c])?.into())
        })
    }),
    row("unfold_bwd", "windows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (size, step) = (4, 2);
        let w = (c - size) / step + 1;
        let (dy, mut dx) = (b.normal(dt, r * w * size)?, b.empty(dt, r * c)?);
        bytes((r * w * size + r * c) * dt.size(), move |g| {
            g.unfold_bwd(1, size, step, dy.shaped(&[r, w, size])?, dx.shaped_mut(&[r, c])?.into())
        })
    }),
    row("random", "normal", F32_BF16, |b, dt| {
        let (mut y, n) = (b.empty(dt, b.n())?, b.n());
        bytes(n * dt.size(), move |g| {
            g.random(Distribution::Normal { mean: 0.0, std: 1.0 }, Rng::new(1), y.view_mut())
        })
    }),
    row("random", "int", &[DType::I64], |b, dt| {
        let (mut y, n) = (b.empty(dt, b.n())?, b.n());
        bytes(n * dt.size(), move |g| {
            g.random(Distribution::Int { lo: 0, hi: 1000 }, Rng::new(1), y.view_mut())
        })
    }),
    row("bernoulli", "tensor", F32, |b, dt| {
        let n = b.n();
        let (p, mut y) = (b.positive(dt, n)?, b.empty(DType::U8, n)?);
        bytes(n * (dt.size() + 1), move |g| g.bernoulli(p.view(), Rng::new(1), y.view_mut()))
    }),
    row("permutation", "flat", &[DType::I64], |b, dt| {
        let n = (b.n() >> 4).max(256);
        let mut y = b.empty(dt, n)?;
        bytes(n * dt.size(), move |g| g.permutation(Rng::new(1), y.view_mut()))
    }),
    row("categorical", "probs", F32, |b, dt| {
        let [r, c] = b.classes();
        let (p, mut y) = (b.positive(dt, r * c)?, b.empty(DType::I64, r)?);
        bytes(r * c * dt.size(), move |g| {
            g.categorical(Weights::Probs(p.shaped(&[r, c])?), Rng::new(1), y.view_mut())
        })
    }),
    row("categorical", "logits", F32, |b, dt| {
        let [r, c] = b.classes();
        let (p, mut y) = (b.normal(dt, r * c)?, b.empty(DType::I64, r)?);
        bytes(r * c * dt.size(), move |g| {
            g.categorical(Weights::Logits(p.shaped(&[r, c])?), Rng::new(1), y.view_mut())
        })
    }),
    row("dropout", "no_mask", F32_BF16, |b, dt| {
        let (x, mut y, n) = (b.normal(dt, b.n())?, b.empty(dt, b.n())?, b.n());
        bytes(2 * n * dt.size(), move |g| g.dropout(0.1, Rng::new(1), x.view(), y.view_mut(), None))
    }),
    row("dropout_bwd", "saved_mask", F32, |b, dt| {
        let (dy, m, mut dx, n) = (b.normal(dt, b.n())?, b.mask(b.n())?, b.empty(dt, b.n())?, b.n());
        bytes(n * (2 * dt.size() + 1), move |g| {
            g.dropout_bwd(0.1, DropoutMask::Saved(m.view()), dy.view(), dx.view_mut().into())
        })
    }),
    row("dropout_bwd", "regenerated", F32, |b, dt| {
        let (dy, mut dx, n) = (b.normal(dt, b.n())?, b.empty(dt, b.n())?, b.n());
        bytes(2 * n * dt.size(), move |g| {
            g.dropout_bwd(0.1, DropoutMask::Regenerate(Rng::new(1)), dy.view(), dx.view_mut().into())
        })
    }),
];
