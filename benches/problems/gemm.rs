//! Matrix products and linear layers.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::{
    BilinearRagged, BilinearRaggedBwd, Gemm, GemmBwd, GemmIo, GemmRagged, GemmRaggedBwd, Precision,
};
use trefoil::{BackendExt, Buffer, DType, Result};

use crate::activation::ACTIVATIONS;
use crate::case::{Case, CaseError, Operation, both, forward};
use crate::{BF16, Context, F32, F32_BF16, Prepared, Problem, flops, prepared, problem};

/// `batch` products of m x k and k x n; operands are stored as k x m and n x k if `p` says so.
fn product(cx: &Context<'_>, dt: DType, p: Gemm, [batch, m, n, k]: [usize; 4]) -> Result<Prepared> {
    let matrix = |r: usize, c: usize| if batch > 1 { vec![batch, r, c] } else { vec![r, c] };
    let a = if p.trans_a { matrix(k, m) } else { matrix(m, k) };
    let (b, c) = (if p.trans_b { matrix(n, k) } else { matrix(k, n) }, matrix(m, n));
    let moved = batch * (m * k + k * n + m * n) * dt.size();
    let sets = cx.sets(moved);
    let (x, w) = (cx.normal_sets(dt, batch * m * k, sets)?, cx.normal_sets(dt, batch * k * n, sets)?);
    let mut y = cx.empty(dt, batch * m * n)?;
    prepared(moved, 2 * batch * m * n * k, move |g, i| {
        g.gemm(&p, GemmIo::new(x.at(i).shaped(&a)?, w.at(i).shaped(&b)?, y.shaped_mut(&c)?))
    })
}

/// A layer of fewer outputs than inputs: sums of several hundred terms, and few tiles of results.
fn narrow(cx: &Context<'_>) -> [usize; 4] {
    [1, cx.pick(64, 512, 2_048), 128, cx.pick(256, 512, 512)]
}

/// Sums of few terms, as in the layers of a small transformer.
fn short(cx: &Context<'_>) -> [usize; 4] {
    [1, cx.pick(128, 512, 2_048), cx.pick(128, 256, 512), 128]
}

/// y = act(x w^T + bias), the shape of a Linear layer.
const LINEAR: Gemm = Gemm::new().trans(false, true);

/// A linear layer: m rows of k inputs, n outputs.
struct Linear {
    size: [usize; 3],
    act: Activation,
    precision: Precision,
    /// Keep what the gradient of the activation reads.
    save: bool,
}

impl Linear {
    /// All matrices square, nothing saved.
    fn square(cx: &Context<'_>, act: Activation) -> Self {
        Linear { size: [cx.side(); 3], act, precision: Precision::Ieee, save: false }
    }

    /// The first layer of a feed-forward block, without its activation.
    fn feed_forward(cx: &Context<'_>) -> Self {
        let size = [cx.pick(256, 512, 8_192), cx.pick(512, 1_024, 4_096), cx.pick(512, 512, 1_024)];
        Linear { size, ..Linear::square(cx, Activation::Identity) }
    }

    fn of_case(c: &Case) -> Result<Self, CaseError> {
        let (size, act) = (c.sizes(["m", "n", "k"])?, c.named("act", ACTIVATIONS)?);
        Ok(Linear { size, act, precision: c.precision(), save: true })
    }

    fn plan(&self) -> Gemm {
        LINEAR.act(self.act).precision(self.precision)
    }

    /// Whether the gradient reads the values before the activation.
    fn reads_input(&self) -> bool {
        !self.act.reads_output() && self.act != Activation::Identity
    }

    fn sets(&self, cx: &Context<'_>, dt: DType) -> usize {
        let [m, n, k] = self.size;
        cx.sets((m * k + n * k + m * n) * dt.size())
    }

    fn forward(self, cx: &Context<'_>, dt: DType) -> Result<Prepared> {
        let ([m, n, k], p, sets) = (self.size, self.plan(), self.sets(cx, dt));
        let std = (k as f64).powf(-0.5);
        let x = cx.normal_sets(dt, m * k, sets)?;
        let w = cx.sets_of(sets, |cx| cx.normal_std(dt, n * k, std))?;
        let (bias, mut y) = (cx.normal(dt, n)?, cx.empty(dt, m * n)?);
        let mut z = if self.save && self.reads_input() { Some(cx.empty(dt, m * n)?) } else { None };
        let outputs = if z.is_some() { 2 } else { 1 };
        let moved = (m * k + n * k + n + outputs * m * n) * dt.size();
        prepared(moved, 2 * m * n * k, move |g, i| {
            let y = y.shaped_mut(&[m, n])?;
            let mut io = GemmIo::new(x.at(i).shaped(&[m, k])?, w.at(i).shaped(&[n, k])?, y);
            io.bias = Some(bias.view());
            io.z = z.as_mut().map(|z| z.shaped_mut(&[m, n])).transpose()?;
            g.gemm(&p, io)
        })
    }

    fn backward(self, cx: &Context<'_>, dt: DType) -> Result<Prepared> {
        let ([m, n, k], p, sets) = (self.size, self.plan(), self.sets(cx, dt));
        let std = (k as f64).powf(-0.5);
        let x = cx.normal_sets(dt, m * k, sets)?;
        let w = cx.sets_of(sets, |cx| cx.normal_std(dt, n * k, std))?;
        let dy = cx.normal_sets(dt, m * n, sets)?;
        // The output, or what came before the activation.
        let saved = if self.act == Activation::Identity { None } else { Some(cx.normal(dt, m * n)?) };
        let (mut dx, mut dw, mut db) = (cx.empty(dt, m * k)?, cx.empty(dt, n * k)?, cx.empty(dt, n)?);
        let moved = (2 * (m * k + n * k) + n + 2 * m * n) * dt.size();
        prepared(moved, 4 * m * n * k, move |g, i| {
            let io =
                GemmBwd::new(dy.at(i).shaped(&[m, n])?, x.at(i).shaped(&[m, k])?, w.at(i).shaped(&[n, k])?)
                    .saved(saved.as_ref().map(|s| s.shaped(&[m, n])).transpose()?)
                    .da(dx.shaped_mut(&[m, k])?)
                    .db(dw.shaped_mut(&[n, k])?)
                    .dbias(db.view_mut());
            g.gemm_bwd(&p, io)
        })
    }
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("gemm", "square", F32_BF16, |cx, dt| {
        let s = cx.side();
        product(cx, dt, Gemm::new(), [1, s, s, s])
    }),
    problem("gemm", "tf32x3", F32, |cx, dt| {
        let s = cx.side();
        product(cx, dt, Gemm::new().precision(Precision::Tf32x3), [1, s, s, s])
    }),
    problem("gemm", "linear_bias_gelu", F32_BF16, |cx, dt| {
        Linear::square(cx, Activation::Gelu).forward(cx, dt)
    }),
    problem("gemm", "feed_forward", BF16, |cx, dt| Linear::feed_forward(cx).forward(cx, dt)),
    problem("gemm", "weight_gradient", BF16, |cx, dt| {
        let [m, n, k] = Linear::feed_forward(cx).size;
        product(cx, dt, Gemm::new().trans(true, false), [1, k, n, m])
    }),
    problem("gemm", "narrow_layer", F32, |cx, dt| product(cx, dt, LINEAR, narrow(cx))),
    problem("gemm", "narrow_layer_gradient", F32, |cx, dt| product(cx, dt, Gemm::new(), narrow(cx))),
    problem("gemm", "few_terms", F32, |cx, dt| product(cx, dt, LINEAR, short(cx))),
    problem("gemm", "few_terms_by_columns", F32, |cx, dt| {
        product(cx, dt, Gemm::new().trans(true, false), short(cx))
    }),
    problem("gemm", "few_results", F32, |cx, dt| {
        let [m, n] = [cx.pick(64, 128, 384), cx.pick(64, 64, 128)];
        product(cx, dt, LINEAR, [1, m, n, cx.pick(1_024, 1_024, 2_048)])
    }),
    problem("gemm", "batched_64", F32_BF16, |cx, dt| {
        // The products of attention: many small ones.
        product(cx, dt, LINEAR, [(cx.side() / 16).max(1), 64, 64, 64])
    }),
    problem("gemm", "vector", F32_BF16, |cx, dt| {
        let s = cx.side();
        product(cx, dt, LINEAR, [1, 1, s, s]).map(Prepared::by_bytes)
    }),
    problem("gemm_bwd", "linear_bias", F32_BF16, |cx, dt| {
        Linear::square(cx, Activation::Identity).backward(cx, dt)
    }),
    problem("gemm_bwd", "feed_forward", BF16, |cx, dt| Linear::feed_forward(cx).backward(cx, dt)),
    problem("gemm_bwd", "linear_relu", F32, |cx, dt| Linear::square(cx, Activation::Relu).backward(cx, dt)),
    problem("gemm_bwd", "few_inputs", F32, |cx, dt| {
        let size = [cx.pick(8_192, 16_384, 204_800), 64, 8];
        Linear { size, ..Linear::square(cx, Activation::Relu) }.backward(cx, dt)
    }),
    problem("gemm_grouped", "four", F32, |cx, dt| {
        let s = cx.side() / 2;
        let make = || -> Result<Vec<Buffer>> { (0..4).map(|_| cx.normal(dt, s * s)).collect() };
        let (x, w, mut y) = (make()?, make()?, make()?);
        flops(4 * 2 * s * s * s, move |g| {
            let mut out = y.iter_mut().map(|b| b.shaped_mut(&[s, s])).collect::<Result<Vec<_>>>()?;
            let (x, w): (Vec<_>, Vec<_>) = (
                x.iter().map(|b| b.shaped(&[s, s])).collect::<Result<_>>()?,
                w.iter().map(|b| b.shaped(&[s, s])).collect::<Result<_>>()?,
            );
            g.gemm_grouped(&Gemm::new(), &x, &w, &mut out)
        })
    }),
    problem("gemm_ragged", "eight_groups", F32_BF16, |cx, dt| eight_groups(cx, dt, false)),
    problem("gemm_ragged", "eight_groups_transposed", F32_BF16, |cx, dt| eight_groups(cx, dt, true)),
    problem("gemm_ragged", "groups_of_ten", F32, |cx, dt| {
        let rows = cx.pick(640, 6_400, 204_800);
        let (groups, k, n) = (rows / 10, 16, 64);
        let (x, w, mut y) =
            (cx.normal(dt, rows * k)?, cx.normal(dt, groups * k * n)?, cx.empty(dt, rows * n)?);
        let offsets = even(cx, groups, rows)?;
        flops(2 * rows * k * n, move |g| {
            let w = w.shaped(&[groups, k, n])?;
            let io = GemmRagged::new(x.shaped(&[rows, k])?, w, offsets.view(), y.shaped_mut(&[rows, n])?);
            g.gemm_ragged(&Gemm::new(), io)
        })
    }),
    problem("gemm_ragged_bwd", "eight_groups", F32_BF16, |cx, dt| eight_gradients(cx, dt, false)),
    problem("gemm_ragged_bwd", "eight_groups_bias", F32_BF16, |cx, dt| eight_gradients(cx, dt, true)),
    problem("gemm_ragged_bwd", "long_group_bias", BF16, |cx, dt| {
        group_gradients(cx, dt, true, 1, [cx.pick(4_096, 8_192, 262_144), 64, 64])
    }),
    problem("gemm_ragged_bwd", "experts", BF16, |cx, dt| {
        let (rows, columns) = (cx.pick(256, 512, 8_192), cx.pick(512, 512, 4_096));
        group_gradients(cx, dt, false, 8, [rows, cx.pick(256, 256, 1_024), columns])
    }),
    problem("gemm_ragged_bwd", "groups_of_ten", F32, |cx, dt| {
        let rows = cx.pick(640, 6_400, 204_800);
        let (groups, k, n) = (rows / 10, 64, 16);
        let (x, dz, mut dw) =
            (cx.normal(dt, rows * k)?, cx.normal(dt, rows * n)?, cx.empty(dt, groups * k * n)?);
        let offsets = even(cx, groups, rows)?;
        flops(2 * rows * k * n, move |g| {
            let dw = dw.shaped_mut(&[groups, k, n])?.grad(false);
            let io = GemmRaggedBwd::new(dz.shaped(&[rows, n])?, x.shaped(&[rows, k])?, offsets.view(), dw);
            g.gemm_ragged_bwd(&Gemm::new(), io)
        })
    }),
    problem("bilinear_ragged", "groups_of_ten", F32_BF16, |cx, dt| {
        let rows = cx.pick(640, 6_400, 204_800);
        let (groups, m, n, outputs) = (rows / 10, 64, 16, 16);
        let (a, b) = (cx.normal(dt, rows * m)?, cx.normal(dt, rows * n)?);
        let w = cx.normal(dt, outputs * m * n)?;
        let (mut sums, mut y) = (cx.empty(dt, groups * m * n)?, cx.empty(dt, groups * outputs)?);
        let offsets = even(cx, groups, rows)?;
        flops((2 * groups * outputs + 2 * rows) * m * n, move |g| {
            let (a, b, w) = (a.shaped(&[rows, m])?, b.shaped(&[rows, n])?, w.shaped(&[outputs, m, n])?);
            let sums = sums.shaped_mut(&[groups, m, n])?;
            let y = y.shaped_mut(&[groups, outputs])?;
            g.bilinear_ragged(BilinearRagged::new(a, b, offsets.view(), w, sums, y))
        })
    }),
    problem("bilinear_ragged_bwd", "groups_of_ten", F32_BF16, |cx, dt| {
        let rows = cx.pick(640, 6_400, 204_800);
        let (groups, m, n, outputs) = (rows / 10, 64, 16, 16);
        let normal = |len: usize| cx.normal(dt, len);
        let (a, b, w) = (normal(rows * m)?, normal(rows * n)?, normal(outputs * m * n)?);
        let (dy, sums) = (normal(groups * outputs)?, normal(groups * m * n)?);
        let (mut da, mut db) = (cx.empty(dt, rows * m)?, cx.empty(dt, rows * n)?);
        let offsets = even(cx, groups, rows)?;
        flops((2 * groups * outputs + 4 * rows) * m * n, move |g| {
            let (a, b, w) = (a.shaped(&[rows, m])?, b.shaped(&[rows, n])?, w.shaped(&[outputs, m, n])?);
            let (dy, sums) = (dy.shaped(&[groups, outputs])?, sums.shaped(&[groups, m, n])?);
            let io = BilinearRaggedBwd::new(dy, a, b, offsets.view(), w, sums)
                .da(da.shaped_mut(&[rows, m])?.grad(false))
                .db(db.shaped_mut(&[rows, n])?.grad(false));
            g.bilinear_ragged_bwd(io)
        })
    }),
];

/// As many rows as a side for eight groups, with square matrices that are stored as they are or transposed.
fn eight_groups(cx: &Context<'_>, dt: DType, trans_b: bool) -> Result<Prepared> {
    let (s, groups) = (cx.side(), 8);
    let k = s / 4;
    let (x, w, mut y) = (cx.normal(dt, s * k)?, cx.normal(dt, groups * k * k)?, cx.empty(dt, s * k)?);
    let offsets = even(cx, groups, s)?;
    flops(2 * s * k * k, move |g| {
        let w = w.shaped(&[groups, k, k])?;
        let io = GemmRagged::new(x.shaped(&[s, k])?, w, offsets.view(), y.shaped_mut(&[s, k])?);
        g.gemm_ragged(&Gemm::new().trans(false, trans_b), io)
    })
}

/// The gradients of the matrices of `eight_groups`, and of as many biases.
fn eight_gradients(cx: &Context<'_>, dt: DType, bias: bool) -> Result<Prepared> {
    group_gradients(cx, dt, bias, 8, [cx.side(), cx.side() / 4, cx.side() / 4])
}

/// The gradient of the matrices [k, n] of equal groups of rows.
fn group_gradients(
    cx: &Context<'_>,
    dt: DType,
    bias: bool,
    groups: usize,
    [rows, k, n]: [usize; 3],
) -> Result<Prepared> {
    let (x, dz) = (cx.normal(dt, rows * k)?, cx.normal(dt, rows * n)?);
    let (mut dw, mut db) = (cx.empty(dt, groups * k * n)?, cx.empty(dt, groups * n)?);
    let offsets = even(cx, groups, rows)?;
    flops(2 * rows * k * n, move |g| {
        let dw = dw.shaped_mut(&[groups, k, n])?.grad(false);
        let mut io = GemmRaggedBwd::new(dz.shaped(&[rows, n])?, x.shaped(&[rows, k])?, offsets.view(), dw);
        if bias {
            io = io.dbias(db.shaped_mut(&[groups, n])?);
        }
        g.gemm_ragged_bwd(&Gemm::new(), io)
    })
}

/// Offsets of equal groups of rows.
fn even(cx: &Context<'_>, groups: usize, rows: usize) -> Result<Buffer> {
    let offsets: Vec<i32> = (0..=groups).map(|g| (g * rows / groups) as i32).collect();
    cx.gpu.upload(&offsets)
}

pub(super) const OPERATIONS: &[Operation] = &[
    forward("gemm", |cx, c| {
        let ([m, n, k], p) = (c.sizes(["m", "n", "k"])?, Gemm::new().precision(c.precision()));
        Ok(product(cx, c.dtype()?, p, [c.size_or("batch", 1)?, m, n, k])?)
    }),
    both(
        "linear_act",
        |cx, c| Ok(Linear::of_case(c)?.forward(cx, c.dtype()?)?),
        |cx, c| Ok(Linear::of_case(c)?.backward(cx, c.dtype()?)?),
    ),
];
