//! Losses of a whole batch.

use crate::spec::kernels::loss::*;
use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, long, real};
use crate::engine::ops::loss::{Finish, flag};
use crate::error::Result;
use crate::ops::loss::*;

fn blocks(n: usize) -> Grid {
    Grid::Blocks([n.min(1 << 20), 1, 1])
}

/// What a forward leaves for its gradient.
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
    /// mode, N, M, B, E, 1/tau as the kernels take them
    sizes: [Arg; 6],
    n: usize,
    m: usize,
    normalize: bool,
}

impl Engine {
    fn pack(&self, z: &View<'_>, at: usize, normalize: bool, packed: &Buffer, norm: &Buffer) -> Result<()> {
        let (rows, e) = (z.shape()[0], z.shape()[1]);
        let args = [
            self.arg_in(z),
            long(rows),
            long(e),
            long(at),
            flag(normalize),
            self.arg_in(&packed.view()),
            self.arg_in(&norm.view()),
        ];
        self.launch_list(&BATCH_PACK.spec, z.dtype(), "", blocks(rows), &args)
    }

    fn ids_args(&self, ids: Option<&View<'_>>) -> [Arg; 2] {
        [self.arg_opt(ids), flag(ids.is_some_and(|v| v.dtype() == DType::I64))]
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
        let sizes = [long(n), long(m), long(b), long(e), Arg::I32(mode), real(dt, 1.0 / tau)];
        let keys = k.as_ref().unwrap_or(&q);
        let mut args = vec![self.arg_in(&q.view()), self.arg_in(&keys.view())];
        args.extend(self.ids_args(ids));
        args.extend(sizes);
        args.extend([self.arg_in(&lse.view()), self.arg_in(&positives.view())]);
        args.extend([self.arg_in(&items.view().range(0, n)?), self.arg_in(&items.view().range(n, n)?)]);
        self.launch_list(&CONTRAST_ROWS.spec, dt, "", blocks(n), &args)?;
        let contrast = Contrast { q, k, norm, key_norm, lse, positives, sizes, n, m, normalize };
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
        let halves =
            [self.arg_in(&items.view().range(0, count)?), self.arg_in(&items.view().range(count, count)?)];
        let first = self.arg_in(&s.x[0]);
        let mut how = Finish::new(true, -1.0);
        let state = match kind {
            BatchLoss::NtXent { .. } | BatchLoss::InfoNce { .. } | BatchLoss::SupCon { .. } => {
                return self.contrast(kind, s, ids);
            }
            BatchLoss::Barlow { lambda } => {
                let stats = [0; 4].map(|_| self.scratch(acc, e));
                let [a, b, c, d] = stats;
                let stats = [a?, b?, c?, d?];
                for (i, z) in s.x.iter().enumerate() {
                    let out = [&stats[2 * i], &stats[2 * i + 1]].map(|b| self.arg_in(&b.view()));
                    let args = [self.arg_in(z), long(n), long(e), out[0], out[1]];
                    self.launch_list(&BARLOW_STATS.spec, dt, "", blocks(e), &args)?;
                }
                let slope = self.scratch(acc, e * e)?;
                let mut args = vec![first, self.arg_in(&s.x[1])];
                args.extend(stats.iter().map(|b| self.arg_in(&b.view())));
                args.extend([long(n), long(e), real(dt, lambda), self.arg_in(&slope.view())]);
                args.extend(halves);
                self.launch_list(&BARLOW_MATRIX.spec, dt, "", Grid::Stride(e * e), &args)?;
                how = Finish::new(false, -1.0);
                State::Barlow { stats, slope }
            }
            BatchLoss::PairwiseRanking => {
                let args = [first, self.arg_in(&s.x[1]), long(n), halves[0], halves[1]];
                self.launch_list(&RANK_ITEMS.spec, dt, "", blocks(n), &args)?;
                how.least = 1.0;
                State::Ranking
            }
            BatchLoss::MoeBalance => {
                let share = self.scratch(acc, e)?;
                let mut args = vec![first];
                args.extend(self.ids_args(ids));
                args.extend([self.arg_error(), Arg::I32(code_of_op(op)), long(n), long(e)]);
                args.extend([long(ids.map_or(0, View::numel)), self.arg_in(&share.view())]);
                args.extend(halves);
                self.launch_list(&BALANCE_ITEMS.spec, dt, "", blocks(e), &args)?;
                how = Finish::new(false, -1.0);
                State::Balance(share)
            }
            BatchLoss::Lovasz => {
                let slope = self.scratch(acc, n * e)?;
                let mut args = vec![first];
                args.extend(self.ids_args(ids));
                args.extend([self.arg_error(), Arg::I32(code_of_op(op)), long(n), long(e)]);
                args.push(self.arg_in(&slope.view()));
                self.launch_list(&LOVASZ_SLOPE.spec, dt, "", Grid::Stride(n * e), &args)?;
                let mut args = vec![first];
                args.extend(self.ids_args(ids));
                args.extend([long(n), long(e), self.arg_in(&slope.view())]);
                args.extend(halves);
                self.launch_list(&LOVASZ_ITEMS.spec, dt, "", blocks(e), &args)?;
                State::Lovasz(slope)
            }
        };
        Ok(Prepared { items, n: count, how, state })
    }

    fn own_batch(&self, op: &'static str, x: &[View<'_>], ids: Option<View<'_>>) -> Result<()> {
        x.iter().chain(&ids).try_for_each(|v| self.own(op, "x", v))
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
        let run = |side: i32, add: bool, rows: usize, out: &Buffer| {
            let mut args = vec![self.arg_in(&c.q.view()), self.arg_in(&keys.view())];
            args.extend(self.ids_args(io.ids.as_ref()));
            args.extend(c.sizes);
            args.extend([&c.lse, &c.positives].map(|b| self.arg_in(&b.view())));
            args.extend([self.arg_in(&io.gy), flag(io.gy.dtype() == DType::F32), self.arg_in(&den.view())]);
            args.extend([Arg::I32(side), flag(add), self.arg_in(&out.view())]);
            self.launch_list(&CONTRAST_GRAD.spec, dt, "", blocks(rows), &args)
        };
        let unpack = |grad: &Buffer, packed: &Buffer, norm: &Buffer, at: usize, d: &GradMut<'_>| {
            let rows = d.out.shape()[0];
            let mut args: Vec<_> = [grad, packed, norm].map(|b| self.arg_in(&b.view())).to_vec();
            args.extend([long(rows), long(e), long(at), flag(c.normalize)]);
            args.extend([self.arg_out(&d.out), flag(d.accumulate)]);
            self.launch_list(&BATCH_UNPACK.spec, dt, "", blocks(rows), &args)
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
}

impl BatchLossOps for Engine {
    fn batch_loss(&self, kind: BatchLoss, io: BatchLossFwd<'_>) -> Result<()> {
        const OP: &str = "batch_loss";
        let s = check_batch_loss(kind, &io)?;
        self.own_batch(OP, &s.x, io.ids)?;
        self.own(OP, "loss", &io.loss.as_view())?;
        let p = self.prepare_batch(OP, kind, &s, io.ids.as_ref())?;
        self.finish_items(s.x[0].dtype(), &p.items, p.n, p.how, Some(&io.loss), None)
    }

    fn batch_loss_bwd(&self, kind: BatchLoss, io: BatchLossBwd<'_>) -> Result<()> {
        const OP: &str = "batch_loss_bwd";
        let s = check_batch_loss_bwd(kind, &io)?;
        self.own_batch(OP, &s.x, io.ids)?;
        self.own(OP, "gy", &io.gy)?;
        for d in io.dx.iter().flatten() {
            self.own(OP, "dx", &d.out.as_view())?;
        }
        let (dt, n, e) = (s.x[0].dtype(), s.rows, s.width);
        let p = self.prepare_batch(OP, kind, &s, io.ids.as_ref())?;
        let mut den = self.scratch(dt.accumulator(), 1)?;
        self.finish_items(dt, &p.items, p.n, p.how, None, Some(&den.view_mut()))?;
        let gy = [self.arg_in(&io.gy), flag(io.gy.dtype() == DType::F32)];
        let out = |d: &GradMut<'_>| [self.arg_out(&d.out), flag(d.accumulate)];
        match &p.state {
            State::Contrast(c) => self.contrast_grad(&s, c, &io, &den),
            State::Barlow { stats, slope } => {
                let grad = self.scratch(dt.accumulator(), n * e)?;
                let stat = |i: usize| self.arg_in(&stats[i].view());
                for (i, d) in io.dx.iter().take(2).enumerate() {
                    let Some(d) = d else { continue };
                    let o = 1 - i;
                    let mut args = vec![self.arg_in(&slope.view()), self.arg_in(&s.x[o])];
                    args.extend([stat(2 * o), stat(2 * o + 1), long(n), long(e), Arg::I32(i as i32)]);
                    args.push(self.arg_in(&grad.view()));
                    self.launch_list(&BARLOW_ROWS.spec, dt, "", Grid::Stride(n * e), &args)?;
                    let mut args = vec![self.arg_in(&s.x[i]), stat(2 * i), stat(2 * i + 1)];
                    args.extend([self.arg_in(&grad.view()), long(n), long(e)]);
                    args.extend(gy);
                    args.extend(out(d));
                    self.launch_list(&BARLOW_COLUMNS.spec, dt, "", blocks(e), &args)?;
                }
                Ok(())
            }
            State::Ranking => {
                let Some(d) = &io.dx[0] else { return Ok(()) };
                let mut args = vec![self.arg_in(&s.x[0]), self.arg_in(&s.x[1]), long(n)];
                args.extend(gy);
                args.push(self.arg_in(&den.view()));
                args.extend(out(d));
                self.launch_list(&RANK_GRAD.spec, dt, "", blocks(n), &args)
            }
            State::Balance(share) => {
                let Some(d) = &io.dx[0] else { return Ok(()) };
                let mut args = vec![self.arg_in(&share.view()), long(n), long(e)];
                args.extend(gy);
                args.extend(out(d));
                self.launch_list(&BALANCE_GRAD.spec, dt, "", Grid::Stride(n * e), &args)
            }
            State::Lovasz(slope) => {
                let Some(d) = &io.dx[0] else { return Ok(()) };
                let mut args = vec![self.arg_in(&s.x[0])];
                args.extend(self.ids_args(io.ids.as_ref()));
                args.extend([long(n), long(e), self.arg_in(&slope.view())]);
                args.extend(gy);
                args.push(self.arg_in(&den.view()));
                args.extend(out(d));
                self.launch_list(&LOVASZ_GRAD.spec, dt, "", Grid::Stride(n * e), &args)
            }
        }
    }
}
