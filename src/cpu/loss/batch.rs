//! Losses of a whole batch: formulas on the tape.

use crate::buffer::View;
use crate::cpu::loss::class_ids;
use crate::cpu::scratch::*;
use crate::cpu::tape::{Tape, Var, dot, lse, sum};
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::loss::*;

/// The operands on the tape and the ids.
struct Batch<'t> {
    tape: &'t Tape,
    x: Vec<Vec<Var<'t>>>,
    ids: Vec<i64>,
    rows: usize,
    width: usize,
}

impl<'t> Batch<'t> {
    fn normalized(&self, i: usize) -> Result<Vec<Vec<Var<'t>>>> {
        let rows = self.x[i].chunks(self.width);
        rows.map(|r| {
            let n = dot(r, r, self.tape).sqrt().at_least(1e-12);
            r.iter().map(|&x| x / n).try_vec()
        })
        .try_vec_ok()
    }

    fn plain(&self, i: usize) -> Result<Vec<Vec<Var<'t>>>> {
        let all = self.x.get(i).map_or(&[][..], |x| x);
        all.chunks(self.width.max(1)).map(TryToVec::try_to_vec).try_vec_ok()
    }

    fn mean(&self, items: &[Var<'t>]) -> Var<'t> {
        sum(self.tape, items.iter().copied()) / items.len() as f64
    }

    /// Columns with mean 0 and (biased) variance 1.
    fn standardized(&self, i: usize) -> Result<Vec<Vec<Var<'t>>>> {
        (0..self.width)
            .map(|e| {
                let col: Vec<_> = self.x[i].iter().skip(e).step_by(self.width).copied().try_vec()?;
                let mean = self.mean(&col);
                let centred: Vec<_> = col.iter().map(|&x| x - mean).try_vec()?;
                let deviation = self.mean(&centred.iter().map(|x| x.sq()).try_vec()?).sqrt();
                centred.into_iter().map(|x| x / deviation).try_vec()
            })
            .try_vec_ok()
    }

    fn loss(&self, kind: BatchLoss) -> Result<Var<'t>> {
        let (tape, n) = (self.tape, self.rows);
        Ok(match kind {
            BatchLoss::NtXent { tau } => {
                let mut z = self.normalized(0)?;
                z.try_extend(self.normalized(1)?)?;
                let items = (0..2 * n).map(|i| {
                    let s = |j: usize| dot(&z[i], &z[j], tape) / tau;
                    let others: Vec<_> = (0..2 * n).filter(|&j| j != i).map(s).try_vec()?;
                    Ok(lse(tape, &others) - s((i + n) % (2 * n)))
                });
                self.mean(&items.try_vec_ok()?)
            }
            BatchLoss::InfoNce { tau } => {
                let (q, k, extra) = (self.plain(0)?, self.plain(1)?, self.plain(2)?);
                let items = (0..n).map(|i| {
                    let own = dot(&q[i], &k[i], tape) / tau;
                    let mut all: Vec<_> = if self.x.len() > 2 {
                        extra.iter().map(|e| dot(&q[i], e, tape) / tau).try_vec()?
                    } else {
                        (0..n).filter(|&j| j != i).map(|j| dot(&q[i], &k[j], tape) / tau).try_vec()?
                    };
                    all.try_push(own)?;
                    Ok(lse(tape, &all) - own)
                });
                self.mean(&items.try_vec_ok()?)
            }
            BatchLoss::SupCon { tau } => {
                let z = self.normalized(0)?;
                let mut items = Vec::new();
                for i in 0..n {
                    let s: Vec<_> = (0..n).map(|j| dot(&z[i], &z[j], tape) / tau).try_vec()?;
                    let others: Vec<_> = (0..n).filter(|&j| j != i).map(|j| s[j]).try_vec()?;
                    let same = (0..n).filter(|&j| j != i && self.ids[j] == self.ids[i]);
                    let same: Vec<_> = same.map(|j| s[j]).try_vec()?;
                    if !same.is_empty() {
                        items.try_push(lse(tape, &others) - self.mean(&same))?;
                    }
                }
                self.mean(&items)
            }
            BatchLoss::Barlow { lambda } => {
                let (a, b) = (self.standardized(0)?, self.standardized(1)?);
                let pairs = (0..self.width).flat_map(|i| (0..self.width).map(move |j| (i, j)));
                sum(
                    tape,
                    pairs.map(|(i, j)| {
                        let c = dot(&a[i], &b[j], tape) / n as f64;
                        if i == j { (1.0 - c).sq() } else { lambda * c.sq() }
                    }),
                )
            }
            BatchLoss::PairwiseRanking => {
                let (s, rel) = (&self.x[0], &self.x[1]);
                let pairs = (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
                let items: Vec<_> = pairs
                    .filter(|&(i, j)| rel[i].v > rel[j].v)
                    .map(|(i, j)| (s[j] - s[i]).softplus())
                    .try_vec()?;
                let count = items.len().max(1) as f64;
                sum(tape, items) / count
            }
            BatchLoss::MoeBalance => {
                let experts = (0..self.width).map(|e| {
                    let hits = self.ids.iter().filter(|&&id| id == e as i64).count() as f64;
                    let column = self.x[0].iter().skip(e).step_by(self.width).copied().try_vec()?;
                    Ok(self.mean(&column) * (hits / self.ids.len() as f64 * self.width as f64))
                });
                sum(tape, experts.try_vec_ok()?)
            }
            BatchLoss::Lovasz => {
                let classes = (0..self.width).filter(|&c| self.ids.contains(&(c as i64)));
                self.mean(&classes.map(|c| self.lovasz_class(c)).try_vec_ok()?)
            }
        })
    }

    /// Sorted errors times the steps of the Jaccard loss.
    fn lovasz_class(&self, c: usize) -> Result<Var<'t>> {
        let member = |i: usize| self.ids[i] == c as i64;
        let mut errors: Vec<(usize, Var<'t>)> = (0..self.rows)
            .map(|i| (i, (self.x[0][i * self.width + c] - f64::from(member(i))).abs()))
            .try_vec()?;
        errors.sort_unstable_by(|a, b| b.1.v.total_cmp(&a.1.v).then(a.0.cmp(&b.0)));
        let members = (0..self.rows).filter(|&i| member(i)).count() as f64;
        let (mut found, mut strangers, mut last) = (0.0, 0.0, 0.0);
        let mut total = self.tape.constant(0.0);
        for (i, e) in errors {
            if member(i) {
                found += 1.0
            } else {
                strangers += 1.0
            }
            let jaccard = 1.0 - (members - found) / (members + strangers);
            total = total + e * (jaccard - last);
            last = jaccard;
        }
        Ok(total)
    }
}

impl Kernels {
    fn load_batch<'t>(
        &self,
        op: &'static str,
        kind: BatchLoss,
        s: &BatchShape<'_>,
        ids: Option<View<'_>>,
        tape: &'t Tape,
    ) -> Result<Batch<'t>> {
        let mut x = Vec::new();
        for v in &s.x {
            x.try_push(tape.inputs(&gather_f64(op, *v)?)?)?;
        }
        let ids = ids.map_or(Ok(None), |v| class_ids(op, v))?.unwrap_or_default();
        let classes = matches!(kind, BatchLoss::MoeBalance | BatchLoss::Lovasz);
        if classes && ids.iter().any(|id| !(0..s.width as i64).contains(id)) {
            self.flag_index_error(op);
        }
        Ok(Batch { tape, x, ids, rows: s.rows, width: s.width })
    }
}

impl BatchLossOps for Kernels {
    fn batch_loss(&self, kind: BatchLoss, io: BatchLossFwd<'_>) -> Result<()> {
        const OP: &str = "batch_loss";
        let s = check_batch_loss(kind, &io)?;
        let _timed = self.count("batch_loss");
        let tape = Tape::default();
        let l = self.load_batch(OP, kind, &s, io.ids, &tape)?.loss(kind)?;
        store_f64(OP, &io.loss, &[l.v])
    }

    fn batch_loss_bwd(&self, kind: BatchLoss, io: BatchLossBwd<'_>) -> Result<()> {
        const OP: &str = "batch_loss_bwd";
        let s = check_batch_loss_bwd(kind, &io)?;
        let _timed = self.count("batch_loss_bwd");
        let g = gather_f64(OP, io.gy)?[0];
        let tape = Tape::default();
        let batch = self.load_batch(OP, kind, &s, io.ids, &tape)?;
        let d = tape.gradient(batch.loss(kind)?)?;
        for (out, x) in io.dx.iter().zip(&batch.x) {
            if let Some(out) = out {
                store_grad(OP, out, &x.iter().map(|&x| g * d.of(x)).try_vec()?)?;
            }
        }
        Ok(())
    }
}
