//! Sequence losses: the recursion of the forward probabilities; the tape differentiates it.

use crate::buffer::View;
use crate::cpu::loss::class_ids;
use crate::cpu::scratch::*;
use crate::cpu::tape::{Tape, Var, lse};
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::loss::*;

/// A problem on the host.
struct Problem {
    kind: SeqLoss,
    shape: SeqShape,
    x: Vec<f64>,
    targets: Vec<i64>,
    times: Vec<i64>,
    labels: Vec<i64>,
}

impl Problem {
    /// Steps and labels of a sample, or `None` where a length or a label is out of range.
    fn sample(&self, b: usize) -> Option<(usize, &[i64])> {
        let s = &self.shape;
        let least = usize::from(matches!(self.kind, SeqLoss::Rnnt { .. }));
        let time = usize::try_from(self.times[b]).ok().filter(|t| (least..=s.t).contains(t))?;
        let n = usize::try_from(self.labels[b]).ok().filter(|&n| n <= s.most)?;
        let before = || self.labels[..b].iter().try_fold(0i64, |a, &n| a.checked_add(n).filter(|_| n >= 0));
        let start = if s.s > 0 { b * s.s } else { usize::try_from(before()?).ok()? };
        let list = self.targets.get(start..start.checked_add(n)?)?;
        list.iter().all(|&c| usize::try_from(c).is_ok_and(|c| c < s.c)).then_some((time, list))
    }

    /// Numbers of a sample: its first, and the distances of time steps.
    fn place(&self, b: usize) -> (usize, usize) {
        let s = &self.shape;
        match self.kind {
            SeqLoss::Ctc { batch_first: false, .. } => (b * s.c, s.b * s.c),
            SeqLoss::Ctc { .. } => (b * s.t * s.c, s.c),
            SeqLoss::Rnnt { .. } => (b * s.t * (s.s + 1) * s.c, (s.s + 1) * s.c),
        }
    }

    /// -ln p of a sample and its inputs by position in x.
    fn loss<'t>(
        &self,
        b: usize,
        time: usize,
        list: &[i64],
        tape: &'t Tape,
    ) -> Result<(Var<'t>, Vec<(usize, Var<'t>)>)> {
        let (first, step) = self.place(b);
        let width = if let SeqLoss::Rnnt { .. } = self.kind { step } else { self.shape.c };
        let mut used = Vec::new();
        let x: Vec<Vec<Var<'t>>> = (0..time)
            .map(|t| {
                (0..width)
                    .map(|c| {
                        let at = first + t * step + c;
                        let v = tape.input(self.x[at]);
                        used.try_push((at, v))?;
                        Ok(v)
                    })
                    .try_vec_ok()
            })
            .try_vec_ok()?;
        let list = list.iter().map(|&c| c as usize).try_vec()?;
        let l = match self.kind {
            SeqLoss::Ctc { blank, .. } => ctc(tape, &x, &list, blank)?,
            SeqLoss::Rnnt { blank } => rnnt(tape, &x, &list, blank, self.shape.c)?,
        };
        Ok((l, used))
    }
}

/// x [time][class]
fn ctc<'t>(tape: &'t Tape, x: &[Vec<Var<'t>>], list: &[usize], blank: usize) -> Result<Var<'t>> {
    let extended = std::iter::once(blank).chain(list.iter().flat_map(|&c| [c, blank])).try_vec()?;
    let n = extended.len();
    let never = tape.constant(f64::NEG_INFINITY);
    let Some(start) = x.first() else {
        return Ok(tape.constant(if n == 1 { 0.0 } else { f64::INFINITY }));
    };
    let mut alpha: Vec<_> = (0..n).map(|s| if s < 2 { start[extended[s]] } else { never }).try_vec()?;
    for row in &x[1..] {
        alpha = (0..n)
            .map(|s| {
                // Up to three states lead here, the last ones first.
                let over = s > 1 && s % 2 == 1 && extended[s] != extended[s - 2];
                let first = if over { s - 2 } else { s.saturating_sub(1) };
                let from = [s, s.saturating_sub(1), s.saturating_sub(2)].map(|s| alpha[s]);
                lse(tape, &from[..s - first + 1]) + row[extended[s]]
            })
            .try_vec()?;
    }
    Ok(-lse(tape, &alpha[n.saturating_sub(2)..]))
}

/// x [time][u, class] of logits
fn rnnt<'t>(
    tape: &'t Tape,
    x: &[Vec<Var<'t>>],
    list: &[usize],
    blank: usize,
    classes: usize,
) -> Result<Var<'t>> {
    let n = list.len();
    let logp: Vec<Vec<Vec<Var<'t>>>> = x
        .iter()
        .map(|row| {
            let nodes = row.chunks(classes).take(n + 1);
            nodes
                .map(|z| {
                    let l = lse(tape, z);
                    z.iter().map(|&z| z - l).try_vec()
                })
                .try_vec_ok()
        })
        .try_vec_ok()?;
    let mut alpha: Vec<Var<'t>> = Vec::new();
    for t in 0..x.len() {
        let mut row: Vec<Var<'t>> = Vec::new();
        for u in 0..=n {
            let silent = (t > 0).then(|| alpha[u] + logp[t - 1][u][blank]);
            let label = (u > 0).then(|| row[u - 1] + logp[t][u - 1][list[u - 1]]);
            row.try_push(match (silent, label) {
                (Some(a), Some(b)) => lse(tape, &[a, b]),
                (Some(a), None) | (None, Some(a)) => lse(tape, &[a]),
                (None, None) => tape.constant(0.0),
            })?;
        }
        alpha = row;
    }
    Ok(-(alpha[n] + logp[x.len() - 1][n][blank]))
}

impl Kernels {
    fn load_seq(
        &self,
        op: &'static str,
        kind: SeqLoss,
        shape: SeqShape,
        x: View<'_>,
        index: [View<'_>; 3],
    ) -> Result<Problem> {
        let [targets, times, labels] = index.map(|v| class_ids(op, v));
        let ids = |v: Result<Option<Vec<i64>>>| v.map(Option::unwrap_or_default);
        Ok(Problem {
            kind,
            shape,
            x: gather_f64(op, x)?,
            targets: ids(targets)?,
            times: ids(times)?,
            labels: ids(labels)?,
        })
    }
}

impl SequenceLossOps for Kernels {
    fn seq_loss(&self, kind: SeqLoss, reduction: Reduction, io: SeqLossFwd<'_>) -> Result<()> {
        const OP: &str = "seq_loss";
        let shape = check_seq_loss(kind, reduction, &io)?;
        let _timed = self.count("seq_loss");
        let p = self.load_seq(OP, kind, shape, io.x, [io.targets, io.input_lengths, io.target_lengths])?;
        let mut tape = Tape::default();
        let mut items = filled(shape.b, 0.0)?;
        for (b, out) in items.iter_mut().enumerate() {
            tape.clear();
            match p.sample(b) {
                Some((time, list)) => {
                    let mut l = p.loss(b, time, list, &tape)?.0.v;
                    if let SeqLoss::Ctc { zero_infinity, .. } = kind {
                        l = if zero_infinity && l == f64::INFINITY { 0.0 } else { l };
                        l /= if reduction == Reduction::Mean { list.len().max(1) as f64 } else { 1.0 };
                    }
                    *out = l;
                }
                None => self.flag_index_error(OP),
            }
        }
        let total: f64 = items.iter().sum();
        match reduction {
            Reduction::None => store_f64(OP, &io.loss, &items),
            Reduction::Sum => store_f64(OP, &io.loss, &[total]),
            Reduction::Mean => store_f64(OP, &io.loss, &[total / shape.b as f64]),
        }
    }

    fn seq_loss_bwd(&self, kind: SeqLoss, reduction: Reduction, io: SeqLossBwd<'_>) -> Result<()> {
        const OP: &str = "seq_loss_bwd";
        let shape = check_seq_loss_bwd(kind, reduction, &io)?;
        let _timed = self.count("seq_loss_bwd");
        let p = self.load_seq(OP, kind, shape, io.x, [io.targets, io.input_lengths, io.target_lengths])?;
        let gy = gather_f64(OP, io.gy)?;
        let mut dx = filled(p.x.len(), 0.0)?;
        let mut tape = Tape::default();
        for b in 0..shape.b {
            tape.clear();
            let Some((time, list)) = p.sample(b) else {
                self.flag_index_error(OP);
                continue;
            };
            let mut g = if reduction == Reduction::None { gy[b] } else { gy[0] };
            if reduction == Reduction::Mean {
                g /= shape.b as f64;
                if let SeqLoss::Ctc { .. } = kind {
                    g /= list.len().max(1) as f64;
                }
            }
            let (l, used) = p.loss(b, time, list, &tape)?;
            if l.v == f64::INFINITY {
                let zero = matches!(kind, SeqLoss::Ctc { zero_infinity: true, .. });
                used.iter().for_each(|&(at, _)| dx[at] = if zero { 0.0 } else { f64::NAN });
                continue;
            }
            let d = tape.gradient(l)?;
            used.iter().for_each(|&(at, v)| dx[at] = g * d.of(v));
        }
        store_grad(OP, &io.dx, &dx)
    }
}
