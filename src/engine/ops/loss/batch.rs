//! Losses of a whole batch.

use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, long};
use crate::engine::ops::loss::{Finish, flag};
use crate::error::Result;
use crate::ops::loss::*;
use crate::spec::kernels::loss::*;

fn blocks(n: usize) -> Grid {
    Grid::Blocks([n.min(1 << 20), 1, 1])
}

/// What a forward pass leaves for the backward pass.
struct Prepared {
    /// Items and their weights, halves of one buffer.
    items: Buffer,
    n: usize,
    how: Finish,
    state: State,
}

enum State {
    Contrast(Box<Contrast>),
    /// Mean and inverse deviation of both views, slopes of the matrix.
    Barlow {
        stats: [Buffer; 4],
        slope: Buffer,
    },
    Ranking,
    /// Share of every expert.
    Balance(Buffer),
    /// Slope of every error.
    Lovasz(Buffer),
}

/// Packed rows of queries and keys. Without keys of their own the queries are the keys.
struct Contrast {
    q: Buffer,
    k: Option<Buffer>,
    norm: Buffer,
    key_norm: Option<Buffer>,
    lse: Buffer,
    positives: Buffer,
    /// Number of the loss in the kernels, and 1/tau.
    mode: i32,
    scale: f64,
    n: usize,
    m: usize,
    normalize: bool,
}

impl Engine {
    fn pack(&self, z: &View<'_>, at: usize, normalize: bool, packed: &Buffer, norm: &Buffer) -> Result<()> {
        let (rows, e) = (z.shape()[0], z.shape()[1]);
        let args = BatchPackArgs {
            z: self.arg_in(z),
            rows: long(rows),
            E: long(e),
            at: long(at),
            normalize: flag(normalize),
            packed: self.arg_in(&packed.view()),
            norm: self.arg_in(&norm.view()),
        };
        self.launch(&BATCH_PACK, z.dtype(), "", blocks(rows), &args)
    }

    /// Labels or experts with the flag of 64-bit ones.
    fn batch_ids(&self, ids: Option<&View<'_>>) -> (Ptr, i32) {
        (self.arg_opt(ids), flag(ids.is_some_and(|v| v.dtype() == DType::I64)))
    }

    fn contrast(&self, kind: BatchLoss, s: &BatchShape<'_>, ids: Option<&View<'_>>) -> Result<Prepared> {
        let (dt, b, e) = (s.x[0].dtype(), s.rows, s.width);
        let acc = dt.accumulator();
        let (mode, n, m, tau) = match kind {
            BatchLoss::NtXent { tau } => (0, 2 * b, 2 * b, tau),
            BatchLoss::SupCon { tau } => (3, b, b, tau),
            BatchLoss::InfoNce { tau } => match s.x.get(2) {
                Some(v) => (2, b, b + v.shape()[0], tau),
                None => (1, b, b, tau),
            },
            _ => (0, 0, 0, 1.0),
        };
        let normalize = mode == 0 || mode == 3;
        let (q, norm) = (self.scratch(acc, n * e)?, self.scratch(acc, n)?);
        self.pack(&s.x[0], 0, normalize, &q, &norm)?;
        let (mut k, mut key_norm) = (None, None);
        if mode == 0 {
            self.pack(&s.x[1], b, normalize, &q, &norm)?;
        } else if mode != 3 {
            let (keys, norms) = (self.scratch(acc, m * e)?, self.scratch(acc, m)?);
            self.pack(&s.x[1], 0, false, &keys, &norms)?;
            if let Some(v) = s.x.get(2) {
                self.pack(v, b, false, &keys, &norms)?;
            }
            (k, key_norm) = (Some(keys), Some(norms));
        }
        let (lse, positives) = (self.scratch(acc, n)?, self.scratch(acc, n)?);
        let items = self.scratch(acc, 2 * n)?;
        let scale = 1.0 / tau;
        let (ids, wide) = self.batch_ids(ids);
        let args = ContrastRowsArgs {
            q: self.arg_in(&q.view()),
            k: self.arg_in(&k.as_ref().unwrap_or(&q).view()),
            ids,
            wide,
            N: long(n),
            M: long(m),
            B: long(b),
            E: long(e),
            mode,
            scale,
            lse: self.arg_in(&lse.view()),
            positives: self.arg_in(&positives.view()),
            item: self.arg_in(&items.view().range(0, n)?),
            weight: self.arg_in(&items.view().range(n, n)?),
        };
        self.launch(&CONTRAST_ROWS, dt, "", blocks(n), &args)?;
        let contrast = Contrast { q, k, norm, key_norm, lse, positives, mode, scale, n, m, normalize };
        let state = State::Contrast(Box::new(contrast));
        Ok(Prepared { items, n, how: Finish::new(true, -1.0), state })
    }

    fn prepare_batch(
        &self,
        op: &'static str,
        kind: BatchLoss,
        s: &BatchShape<'_>,
        ids: Option<&View<'_>>,
    ) -> Result<Prepared> {
        let (dt, acc) = (s.x[0].dtype(), s.x[0].dtype().accumulator());
        let (n, e) = (s.rows, s.width);
        let count = match kind {
            BatchLoss::Barlow { .. } => e * e,
            BatchLoss::PairwiseRanking => n,
            _ => e,
        };
        let items = self.scratch(acc, 2 * count)?;
        let item = self.arg_in(&items.view().range(0, count)?);
        let weight = self.arg_in(&items.view().range(count, count)?);
        let first = self.arg_in(&s.x[0]);
        let (labels, wide) = self.batch_ids(ids);
        let mut how = Finish::new(true, -1.0);
        let state = match kind {
            BatchLoss::NtXent { .. } | BatchLoss::InfoNce { .. } | BatchLoss::SupCon { .. } => {
                return self.contrast(kind, s, ids);
            }
            BatchLoss::Barlow { lambda } => {
                how = Finish::new(false, -1.0);
                self.barlow(s, lambda, [item, weight])?
            }
            BatchLoss::PairwiseRanking => {
                let args = RankItemsArgs { s: first, rel: self.arg_in(&s.x[1]), n: long(n), item, weight };
                self.launch(&RANK_ITEMS, dt, "", blocks(n), &args)?;
                how.least = 1.0;
                State::Ranking
            }
            BatchLoss::MoeBalance => {
                let share = self.scratch(acc, e)?;
                let args = BalanceItemsArgs {
                    probs: first,
                    ids: labels,
                    wide,
                    err: self.arg_error(),
                    code: code_of_op(op),
                    N: long(n),
                    E: long(e),
                    count: long(ids.map_or(0, View::numel)),
                    share: self.arg_in(&share.view()),
                    item,
                    weight,
                };
                self.launch(&BALANCE_ITEMS, dt, "", blocks(e), &args)?;
                how = Finish::new(false, -1.0);
                State::Balance(share)
            }
            BatchLoss::Lovasz => {
                let buffer = self.scratch(acc, n * e)?;
                let slope = self.arg_in(&buffer.view());
                let args = LovaszSlopeArgs {
                    p: first,
                    ids: labels,
                    wide,
                    err: self.arg_error(),
                    code: code_of_op(op),
                    N: long(n),
                    C: long(e),
                    slope,
                };
                self.launch(&LOVASZ_SLOPE, dt, "", Grid::Stride(n * e), &args)?;
                let args = LovaszItemsArgs {
                    p: first,
                    ids: labels,
                    wide,
                    N: long(n),
                    C: long(e),
                    slope,
                    item,
                    weight,
                };
                self.launch(&LOVASZ_ITEMS, dt, "", blocks(e), &args)?;
                State::Lovasz(buffer)
            }
        };
        Ok(Prepared { items, n: count, how, state })
    }

    /// Statistics, correlation matrix and items of a Barlow loss.
    fn barlow(&self, s: &BatchShape<'_>, lambda: f64, [item, weight]: [Ptr; 2]) -> Result<State> {
        let (dt, n, e) = (s.x[0].dtype(), s.rows, s.width);
        let acc = dt.accumulator();
        let stats =
            [self.scratch(acc, e)?, self.scratch(acc, e)?, self.scratch(acc, e)?, self.scratch(acc, e)?];
        let [mean1, rstd1, mean2, rstd2] = [0, 1, 2, 3].map(|i| self.arg_in(&stats[i].view()));
        for (z, mean, rstd) in [(&s.x[0], mean1, rstd1), (&s.x[1], mean2, rstd2)] {
            let args = BarlowStatsArgs { z: self.arg_in(z), B: long(n), E: long(e), mean, rstd };
            self.launch(&BARLOW_STATS, dt, "", blocks(e), &args)?;
        }
        let slope = self.scratch(acc, e * e)?;
        let args = BarlowMatrixArgs {
            z1: self.arg_in(&s.x[0]),
            z2: self.arg_in(&s.x[1]),
            mean1,
            rstd1,
            mean2,
            rstd2,
            B: long(n),
            E: long(e),
            lambda,
            slope: self.arg_in(&slope.view()),
            item,
            weight,
        };
        self.launch(&BARLOW_MATRIX, dt, "", Grid::Stride(e * e), &args)?;
        Ok(State::Barlow { stats, slope })
    }

    fn own_batch(&self, op: &'static str, x: &[View<'_>], ids: Option<View<'_>>) -> Result<()> {
        x.iter().chain(&ids).try_for_each(|v| self.check_owner(op, "x", v))
    }

    fn contrast_grad(
        &self,
        s: &BatchShape<'_>,
        c: &Contrast,
        io: &BatchLossBwd<'_>,
        den: &Buffer,
    ) -> Result<()> {
        let (dt, e) = (s.x[0].dtype(), s.width);
        let acc = dt.accumulator();
        let keys = c.k.as_ref().unwrap_or(&c.q);
        let (ids, wide) = self.batch_ids(io.ids.as_ref());
        let run = |side: i32, add: bool, rows: usize, out: &Buffer| {
            let args = ContrastGradArgs {
                q: self.arg_in(&c.q.view()),
                k: self.arg_in(&keys.view()),
                ids,
                wide,
                N: long(c.n),
                M: long(c.m),
                B: long(s.rows),
                E: long(e),
                mode: c.mode,
                scale: c.scale,
                lse: self.arg_in(&c.lse.view()),
                positives: self.arg_in(&c.positives.view()),
                gy: self.arg_in(&io.gy),
                gy_f32: flag(io.gy.dtype() == DType::F32),
                den: self.arg_in(&den.view()),
                keys: side,
                accumulate: flag(add),
                out: self.arg_in(&out.view()),
            };
            self.launch(&CONTRAST_GRAD, dt, "", blocks(rows), &args)
        };
        let unpack = |grad: &Buffer, packed: &Buffer, norm: &Buffer, at: usize, d: &GradMut<'_>| {
            let rows = d.out.shape()[0];
            let args = BatchUnpackArgs {
                grad: self.arg_in(&grad.view()),
                packed: self.arg_in(&packed.view()),
                norm: self.arg_in(&norm.view()),
                rows: long(rows),
                E: long(e),
                at: long(at),
                normalize: flag(c.normalize),
                dz: self.arg_out(&d.out),
                accumulate: flag(d.accumulate),
            };
            self.launch(&BATCH_UNPACK, dt, "", blocks(rows), &args)
        };
        let grad = self.scratch(acc, c.n * e)?;
        run(0, false, c.n, &grad)?;
        let Some((keys, key_norm)) = c.k.as_ref().zip(c.key_norm.as_ref()) else {
            // Queries are their own keys: both gradients meet in the same rows.
            run(1, true, c.m, &grad)?;
            for (i, d) in io.dx.iter().enumerate() {
                if let Some(d) = d {
                    unpack(&grad, &c.q, &c.norm, i * s.rows, d)?;
                }
            }
            return Ok(());
        };
        if let Some(d) = &io.dx[0] {
            unpack(&grad, &c.q, &c.norm, 0, d)?;
        }
        if io.dx[1..].iter().any(Option::is_some) {
            let grad = self.scratch(acc, c.m * e)?;
            run(1, false, c.m, &grad)?;
            for (i, d) in io.dx[1..].iter().enumerate() {
                if let Some(d) = d {
                    unpack(&grad, keys, key_norm, i * s.rows, d)?;
                }
            }
        }
        Ok(())
    }

    fn barlow_grad(
        &self,
        s: &BatchShape<'_>,
        stats: &[Buffer; 4],
        slope: &Buffer,
        io: &BatchLossBwd<'_>,
    ) -> Result<()> {
        let (dt, n, e) = (s.x[0].dtype(), s.rows, s.width);
        let buffer = self.scratch(dt.accumulator(), n * e)?;
        let grad = self.arg_in(&buffer.view());
        let mean = |i: usize| self.arg_in(&stats[2 * i].view());
        let rstd = |i: usize| self.arg_in(&stats[2 * i + 1].view());
        for (i, d) in io.dx.iter().take(2).enumerate() {
            let Some(d) = d else { continue };
            let other = 1 - i;
            let args = BarlowRowsArgs {
                slope: self.arg_in(&slope.view()),
                other: self.arg_in(&s.x[other]),
                mean: mean(other),
                rstd: rstd(other),
                B: long(n),
                E: long(e),
                second: i as i32,
                grad,
            };
            self.launch(&BARLOW_ROWS, dt, "", Grid::Stride(n * e), &args)?;
            let args = BarlowColumnsArgs {
                z: self.arg_in(&s.x[i]),
                mean: mean(i),
                rstd: rstd(i),
                grad,
                B: long(n),
                E: long(e),
                gy: self.arg_in(&io.gy),
                gy_f32: flag(io.gy.dtype() == DType::F32),
                dz: self.arg_out(&d.out),
                accumulate: flag(d.accumulate),
            };
            self.launch(&BARLOW_COLUMNS, dt, "", blocks(e), &args)?;
        }
        Ok(())
    }
}

impl BatchLossOps for Engine {
    fn batch_loss(&self, kind: BatchLoss, io: BatchLossFwd<'_>) -> Result<()> {
        const OP: &str = "batch_loss";
        let s = check_batch_loss(kind, &io)?;
        self.own_batch(OP, &s.x, io.ids)?;
        self.check_owner(OP, "loss", &io.loss.as_view())?;
        let p = self.prepare_batch(OP, kind, &s, io.ids.as_ref())?;
        self.finish_items(s.x[0].dtype(), &p.items, p.n, p.how, Some(&io.loss), None)
    }

    fn batch_loss_bwd(&self, kind: BatchLoss, io: BatchLossBwd<'_>) -> Result<()> {
        const OP: &str = "batch_loss_bwd";
        let s = check_batch_loss_bwd(kind, &io)?;
        self.own_batch(OP, &s.x, io.ids)?;
        self.check_owner(OP, "gy", &io.gy)?;
        for d in io.dx.iter().flatten() {
            self.check_owner(OP, "dx", &d.out.as_view())?;
        }
        let (dt, n, e) = (s.x[0].dtype(), s.rows, s.width);
        let p = self.prepare_batch(OP, kind, &s, io.ids.as_ref())?;
        let mut den = self.scratch(dt.accumulator(), 1)?;
        self.finish_items(dt, &p.items, p.n, p.how, None, Some(&den.view_mut()))?;
        let (gy, gy_f32) = (self.arg_in(&io.gy), flag(io.gy.dtype() == DType::F32));
        match (&p.state, &io.dx[0]) {
            (State::Contrast(c), _) => self.contrast_grad(&s, c, &io, &den),
            (State::Barlow { stats, slope }, _) => self.barlow_grad(&s, stats, slope, &io),
            (_, None) => Ok(()),
            (State::Ranking, Some(d)) => {
                let args = RankGradArgs {
                    s: self.arg_in(&s.x[0]),
                    rel: self.arg_in(&s.x[1]),
                    n: long(n),
                    gy,
                    gy_f32,
                    den: self.arg_in(&den.view()),
                    ds: self.arg_out(&d.out),
                    accumulate: flag(d.accumulate),
                };
                self.launch(&RANK_GRAD, dt, "", blocks(n), &args)
            }
            (State::Balance(share), Some(d)) => {
                let args = BalanceGradArgs {
                    share: self.arg_in(&share.view()),
                    N: long(n),
                    E: long(e),
                    gy,
                    gy_f32,
                    dp: self.arg_out(&d.out),
                    accumulate: flag(d.accumulate),
                };
                self.launch(&BALANCE_GRAD, dt, "", Grid::Stride(n * e), &args)
            }
            (State::Lovasz(slope), Some(d)) => {
                let (ids, wide) = self.batch_ids(io.ids.as_ref());
                let args = LovaszGradArgs {
                    p: self.arg_in(&s.x[0]),
                    ids,
                    wide,
                    N: long(n),
                    C: long(e),
                    slope: self.arg_in(&slope.view()),
                    gy,
                    gy_f32,
                    den: self.arg_in(&den.view()),
                    dp: self.arg_out(&d.out),
                    accumulate: flag(d.accumulate),
                };
                self.launch(&LOVASZ_GRAD, dt, "", Grid::Stride(n * e), &args)
            }
        }
    }
}
