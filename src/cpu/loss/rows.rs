//! Losses with one item per row: every loss as its formula over the numbers of a row; the tape differentiates it.

use std::f64::consts::PI;

use crate::buffer::View;
use crate::cpu::loss::class_ids;
use crate::cpu::scratch::*;
use crate::cpu::tape::{Tape, Var, dot, lse, sum};
use crate::cpu::{Kernels, gather, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::loss::*;
use crate::ops::loss::{Ids, Role};

/// Operands of one row; absent ones are empty.
struct Row<'t> {
    tape: &'t Tape,
    x: [Vec<Var<'t>>; 4],
    id: usize,
    labels: Vec<usize>,
    has_ids: bool,
    mask: Vec<u8>,
}

fn zip_sum<'t>(r: &Row<'t>, f: impl Fn(Var<'t>, Var<'t>) -> Var<'t>) -> Var<'t> {
    sum(r.tape, r.x[0].iter().zip(&r.x[1]).map(|(&a, &b)| f(a, b)))
}

fn norm<'t>(tape: &'t Tape, x: &[Var<'t>]) -> Var<'t> {
    dot(x, x, tape).sqrt()
}

fn softmax<'t>(tape: &'t Tape, x: &[Var<'t>]) -> Result<Vec<Var<'t>>> {
    let l = lse(tape, x);
    x.iter().map(|&x| (x - l).exp()).try_vec()
}

fn bce_logits<'t>(x: Var<'t>, t: Var<'t>) -> Var<'t> {
    x.softplus() - x * t
}

/// Loss of one row.
fn item<'t>(kind: RowLoss, r: &Row<'t>) -> Result<Var<'t>> {
    let tape = r.tape;
    let [a, b, c, d] = &r.x;
    let n = a.len().max(1) as f64;
    Ok(match kind {
        RowLoss::Triplet { margin, p, eps, swap, squared } => {
            let distance = |u: &[Var<'t>], v: &[Var<'t>]| {
                let (eps, p) = if squared { (0.0, 2.0) } else { (eps, p) };
                let s = sum(tape, u.iter().zip(v).map(|(&u, &v)| (u - v + eps).abs().powf(p)));
                if squared { s } else { s.powf(1.0 / p) }
            };
            let mut far = distance(a, c);
            if swap && !squared {
                far = far.min(distance(b, c));
            }
            (distance(a, b) - far + margin).relu()
        }
        RowLoss::Contrastive { margin, half } => {
            let s = zip_sum(r, |u, v| (u - v).sq());
            let y = c[0];
            (y * s + (1.0 - y) * (margin - s.sqrt()).relu().sq()) * if half { 0.5 } else { 1.0 }
        }
        RowLoss::Cosine { eps, scale } => {
            scale * (1.0 - dot(a, b, tape) / (norm(tape, a).at_least(eps) * norm(tape, b).at_least(eps)))
        }
        RowLoss::CosineEmbedding { margin } => {
            let square = |x: &[Var<'t>]| dot(x, x, tape) + 1e-12;
            let cos = dot(a, b, tape) / (square(a) * square(b)).sqrt();
            match c[0].v {
                1.0 => 1.0 - cos,
                -1.0 => (cos - margin).relu(),
                _ => cos * 0.0,
            }
        }
        RowLoss::Nce => {
            let ln_k = (b.len() as f64).ln();
            let (mut s0, mut sn) = (a[0], b.try_to_vec()?);
            if !c.is_empty() {
                s0 = s0 - ln_k - c[0];
                sn = sn.iter().zip(d).map(|(&s, &q)| s - ln_k - q).try_vec()?;
            }
            (-s0).softplus() + sum(tape, sn.into_iter().map(Var::softplus))
        }
        RowLoss::Capsule { plus, minus, lambda } => {
            zip_sum(r, |v, t| t * (plus - v).relu().sq() + lambda * (1.0 - t) * (v - minus).relu().sq())
        }
        RowLoss::CategoricalCe { label_smoothing: e } => {
            -zip_sum(r, |p, t| ((1.0 - e) * t + e / n) * p.at_least(1e-7).ln())
        }
        RowLoss::Kl { log_input, log_target } => zip_sum(r, |p, t| {
            let q = if log_input { p } else { p.ln() };
            match (log_target, t.v == 0.0) {
                (true, _) => t.exp() * (t - q),
                (false, true) => p.unary(0.0, 0.0),
                (false, false) => t * (t.ln() - q),
            }
        }),
        RowLoss::Nll { floor, .. } => {
            let x = a[r.id];
            let lp = floor.map_or(x, |f| x.at_least(f).ln());
            -lp * b.get(r.id).copied().unwrap_or(tape.constant(1.0))
        }
        RowLoss::MulticlassFocal { gamma } => {
            let lp = a[r.id] - lse(tape, a);
            let l = (-lp.expm1()).powf(gamma) * -lp;
            l * b.get(r.id).copied().unwrap_or(tape.constant(1.0))
        }
        RowLoss::Ordinal => {
            let f: Vec<_> =
                if a.is_empty() { c.iter().map(|&t| b[0] - t).try_vec()? } else { a.try_to_vec()? };
            let terms = f.iter().enumerate();
            sum(tape, terms.map(|(j, &f)| if r.id > j { (-f).softplus() } else { f.softplus() }))
        }
        RowLoss::Distillation { temperature: t, alpha } => {
            let (z, y): (Vec<_>, Vec<_>) =
                (a.iter().map(|&z| z / t).try_vec()?, b.iter().map(|&y| y / t).try_vec()?);
            let (lz, ly) = (lse(tape, &z), lse(tape, &y));
            let kl =
                sum(tape, z.iter().zip(&y).map(|(&z, &y)| (y - ly).exp() * ((y - ly) - (z - lz)))) * (t * t);
            match r.has_ids {
                true => alpha * (lse(tape, a) - a[r.id]) + (1.0 - alpha) * kl,
                false => kl,
            }
        }
        RowLoss::Dino { student, teacher } => {
            let z: Vec<_> = a.iter().map(|&z| z / student).try_vec()?;
            let y: Vec<_> = b.iter().zip(c).map(|(&y, &c)| (y - c) / teacher).try_vec()?;
            let l = lse(tape, &z);
            -sum(tape, softmax(tape, &y)?.into_iter().zip(&z).map(|(q, &z)| q * (z - l)))
        }
        RowLoss::ArcFace { scale, margin } => {
            let mut x: Vec<_> = a.iter().map(|&x| x * scale).try_vec()?;
            if a[r.id].v > 0.0 {
                x[r.id] = scale * (a[r.id].acos() + margin).cos();
            }
            lse(tape, &x) - x[r.id]
        }
        RowLoss::Z { coef } => coef * lse(tape, a).sq(),
        RowLoss::MultiMargin { squared, margin } => {
            let gaps = a.iter().enumerate().filter(|(k, _)| *k != r.id);
            let s = sum(
                tape,
                gaps.map(|(_, &x)| {
                    let z = (margin - a[r.id] + x).relu();
                    if squared { z.sq() } else { z }
                }),
            );
            s / n * b.get(r.id).copied().unwrap_or(tape.constant(1.0))
        }
        RowLoss::MultilabelMargin => {
            let others = (0..a.len()).filter(|k| !r.labels.contains(k));
            let terms = others.flat_map(|k| r.labels.iter().map(move |&j| (1.0 - a[j] + a[k]).relu()));
            sum(tape, terms) / n
        }
        RowLoss::MultilabelSoftMargin => {
            let w = |k: usize| c.get(k).copied().unwrap_or(tape.constant(1.0));
            sum(tape, (0..a.len()).map(|k| w(k) * bce_logits(a[k], b[k]))) / n
        }
        RowLoss::Dice { smooth, squared, from_logits, .. } => {
            let p: Vec<_> = a.iter().map(|&p| if from_logits { p.sigmoid() } else { p }).try_vec()?;
            let power = |x: Var<'t>| if squared { x.sq() } else { x };
            let s = sum(tape, p.iter().chain(b).map(|&x| power(x))) + smooth;
            if s.v == 0.0 { s } else { 1.0 - (2.0 * dot(&p, b, tape) + smooth) / s }
        }
        RowLoss::Tversky { a: alpha, b: beta, smooth, gamma } => {
            let tp = dot(a, b, tape);
            let fp = zip_sum(r, |p, t| p * (1.0 - t));
            let miss = zip_sum(r, |p, t| (1.0 - p) * t);
            let den = tp + alpha * fp + beta * miss + smooth;
            if den.v == 0.0 { den } else { (1.0 - (tp + smooth) / den).powf(gamma) }
        }
        RowLoss::Boxes { overlap, eps } => boxes(overlap, eps, a, b),
        RowLoss::Quantum => {
            let pairs = || a.chunks(2).zip(b.chunks(2));
            let re = sum(tape, pairs().map(|(p, q)| p[0] * q[0] + p[1] * q[1]));
            let im = sum(tape, pairs().map(|(p, q)| p[1] * q[0] - p[0] * q[1]));
            let norm = dot(a, a, tape);
            match norm.v == 0.0 {
                true => tape.constant(1.0),
                false => 1.0 - (re.sq() + im.sq()) / (norm * dot(b, b, tape)),
            }
        }
        RowLoss::Depth { lambda, root } => {
            let valid = |k: &usize| b[*k].v > 0.0 && r.mask.get(*k).is_none_or(|&m| m != 0);
            let d: Vec<_> = (0..a.len()).filter(valid).map(|k| a[k].ln() - b[k].ln()).try_vec()?;
            let m = d.len() as f64;
            let l = dot(&d, &d, tape) / m - lambda * (sum(tape, d.iter().copied()) / m).sq();
            if root { 10.0 * l.sqrt() } else { l }
        }
        RowLoss::Patches { normalize } => {
            if r.mask[0] == 0 {
                return Ok(tape.constant(0.0));
            }
            let mean = b.iter().map(|t| t.v).sum::<f64>() / n;
            let var = b.iter().map(|t| (t.v - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let target = |t: Var<'t>| if normalize { (t - mean) / (var + 1e-6).sqrt() } else { t };
            zip_sum(r, |p, t| (p - target(t)).sq()) / n
        }
        RowLoss::GaussianKl => zip_sum(r, |mu, lv| -0.5 * (1.0 + lv - mu.sq() - lv.exp())),
        RowLoss::Rmse => (zip_sum(r, |p, t| (p - t).sq()) / a.len() as f64).sqrt(),
        RowLoss::ElasticNet { alpha, r: share } => {
            let l1 = sum(tape, a.iter().map(|p| p.abs()));
            zip_sum(r, |p, t| (p - t).sq()) / a.len() as f64
                + alpha * share * l1
                + alpha * (1.0 - share) / 2.0 * dot(a, a, tape)
        }
        RowLoss::GaussianNll { full, eps } => {
            // The clamp passes the gradient through.
            let v = c[0].unary(if c[0].v < eps { eps } else { c[0].v }, 1.0);
            let l = 0.5 * (v.ln() + (a[0] - b[0]).sq() / v);
            if full { l + 0.5 * (2.0 * PI).ln() } else { l }
        }
        RowLoss::MarginRanking { margin } => (margin - c[0] * (a[0] - b[0])).relu(),
        RowLoss::Dpo { beta } => (-(beta * ((a[0] - c[0]) - (b[0] - d[0])))).softplus(),
        RowLoss::Circle { scale, margin, detach } => {
            let (mut near, mut far) = (Vec::new(), Vec::new());
            let weight = |v: Var<'t>| if detach { v.relu().detach() } else { v.relu() };
            for (j, &s) in a.iter().enumerate() {
                let side = if r.has_ids { f64::from(u8::from(j == r.id)) } else { b[j].v };
                if side == 1.0 {
                    near.try_push(-(scale * weight(1.0 + margin - s)) * (s - (1.0 - margin)))?;
                } else if side == 0.0 {
                    far.try_push(scale * weight(s + margin) * (s - margin))?;
                }
            }
            match near.is_empty() || far.is_empty() {
                true => tape.constant(0.0),
                false => (lse(tape, &near) + lse(tape, &far)).softplus(),
            }
        }
        RowLoss::Kto { beta, desirable, undesirable } => {
            let z = d.first().map_or(0.0, |k| if k.v < 0.0 { 0.0 } else { k.v });
            let u = beta * (a[0] - b[0] - z);
            // sigmoid(-u) = exp(-softplus(u))
            let (u, weight) = if c[0].v == 1.0 { (u, desirable) } else { (-u, undesirable) };
            (-u.softplus()).exp() * weight
        }
        RowLoss::Ipo { beta } => ((a[0] - c[0]) - (b[0] - d[0]) - 0.5 / beta).sq(),
        RowLoss::SimPo { beta, gamma } => (-(beta * (a[0] - b[0]) - gamma)).softplus(),
        RowLoss::Orpo => {
            let odds = |v: Var<'t>| v - (-v.expm1()).ln();
            (-(odds(a[0]) - odds(b[0]))).softplus()
        }
        RowLoss::BcePosWeight => {
            let (x, t, q) = (a[0], b[0], d[0]);
            let l = (1.0 - t) * x + (1.0 + (q - 1.0) * t) * (-x).softplus();
            c.first().map_or(l, |&w| w * l)
        }
        RowLoss::Quantiles => {
            let (e, q) = (b[0] - a[0], c[0].v);
            if e.v == 0.0 { e * 0.0 } else { (q * e).max((q - 1.0) * e) }
        }
        RowLoss::Adversarial { mode } => {
            let real = |x: Var<'t>| match mode {
                Adversary::Vanilla => (-x).softplus(),
                Adversary::Hinge => (1.0 - x).relu(),
                Adversary::LeastSquares => (x - 1.0).sq(),
            };
            let fake = |x: Var<'t>| if mode == Adversary::LeastSquares { x.sq() } else { real(-x) };
            match (b.first(), mode) {
                (Some(&d), _) => real(d) + fake(a[0]),
                (None, Adversary::Hinge) => -a[0],
                (None, _) => real(a[0]),
            }
        }
    })
}

fn boxes<'t>(overlap: BoxOverlap, eps: f64, p: &[Var<'t>], t: &[Var<'t>]) -> Var<'t> {
    let side = |b: &[Var<'t>], k: usize| (b[k + 2] - b[k]).relu();
    let inner = |k: usize| (p[k + 2].min(t[k + 2]) - p[k].max(t[k])).relu();
    let outer = |k: usize| p[k + 2].max(t[k + 2]) - p[k].min(t[k]);
    let inter = inner(0) * inner(1);
    let union = side(p, 0) * side(p, 1) + side(t, 0) * side(t, 1) - inter;
    let iou = inter / (union + eps);
    if overlap == BoxOverlap::Iou {
        return 1.0 - iou;
    }
    if overlap == BoxOverlap::Giou {
        let hull = outer(0) * outer(1);
        return 1.0 - iou + (hull - union) / (hull + eps);
    }
    let shift = |k: usize| (p[k] + p[k + 2] - t[k] - t[k + 2]) / 2.0;
    let distance = (shift(0).sq() + shift(1).sq()) / (outer(0).sq() + outer(1).sq() + eps);
    let l = 1.0 - iou + distance;
    if overlap == BoxOverlap::Diou {
        return l;
    }
    let aspect = |b: &[Var<'t>]| (side(b, 0) / side(b, 1)).atan();
    let v = (aspect(t) - aspect(p)).sq() * (4.0 / (PI * PI));
    l + (v / (1.0 - iou + v + eps)).detach() * v
}

/// All rows of a problem.
struct Rows {
    shape: RowShape,
    x: [Option<Vec<f64>>; 4],
    ids: Option<Vec<i64>>,
    mask: Option<Vec<u8>>,
}

impl Rows {
    /// Places of the numbers of row `row` in operand `i`.
    fn places(&self, kind: RowLoss, i: usize, row: usize) -> impl Iterator<Item = usize> + use<> {
        let (len, width) = (self.shape.len, self.shape.width);
        let (first, count, step) = match kind.operands()[i].role {
            Role::Element if kind.strided() => (row / width * len * width + row % width, len, width),
            Role::Element => (row * len, len, 1),
            Role::Row => (row, 1, 1),
            Role::Shared => (0, len, 1),
            Role::Last => (row % width, 1, 1),
            Role::Lead => (row / width, 1, 1),
        };
        (0..count).map(move |e| first + e * step)
    }
}

impl Kernels {
    fn load_rows(
        &self,
        op: &'static str,
        shape: RowShape,
        x: &[Option<View<'_>>; 4],
        ids: Option<View<'_>>,
        mask: Option<View<'_>>,
    ) -> Result<Rows> {
        let mut values = [None, None, None, None];
        for (v, x) in values.iter_mut().zip(x) {
            *v = x.map(|x| gather_f64(op, x)).transpose()?;
        }
        let ids = ids.map_or(Ok(None), |v| class_ids(op, v))?;
        Ok(Rows { shape, x: values, ids, mask: mask.map(|m| gather(op, m)).transpose()? })
    }

    /// Row `row` on the tape; `None` if it does not count.
    fn row<'t>(
        &self,
        op: &'static str,
        kind: RowLoss,
        all: &Rows,
        row: usize,
        tape: &'t Tape,
    ) -> Result<Option<Row<'t>>> {
        let len = all.shape.len;
        let mut r = Row {
            tape,
            x: [Vec::new(), Vec::new(), Vec::new(), Vec::new()],
            id: 0,
            labels: Vec::new(),
            has_ids: all.ids.is_some(),
            mask: Vec::new(),
        };
        match (kind.ids(), &all.ids) {
            (Ids::PerRow { classes_beyond, .. }, Some(ids)) => {
                if matches!(kind, RowLoss::Nll { ignore_index, .. } if ignore_index == ids[row]) {
                    return Ok(None);
                }
                let id = usize::try_from(ids[row]).ok().filter(|&id| id < len + classes_beyond);
                if id.is_none() {
                    self.flag_index_error(op);
                }
                let Some(id) = id else { return Ok(None) };
                r.id = id;
            }
            (Ids::List, Some(ids)) => {
                let list = &ids[row * len..(row + 1) * len];
                if list.iter().any(|&id| id >= len as i64) {
                    self.flag_index_error(op);
                }
                let end = list.iter().position(|&id| id < 0 || id >= len as i64).unwrap_or(len);
                r.labels = list[..end].iter().map(|&id| id as usize).try_vec()?;
            }
            _ => {}
        }
        for (i, v) in all.x.iter().enumerate() {
            if let Some(v) = v {
                let numbers = all.places(kind, i, row).map(|p| v[p]).try_vec()?;
                r.x[i] = tape.inputs(&numbers)?;
            }
        }
        if let Some(m) = &all.mask {
            r.mask = if kind.weighted() { &m[row..row + 1] } else { &m[row * len..(row + 1) * len] }
                .try_to_vec()?;
        }
        Ok(Some(r))
    }

    /// Weight of a row in the denominator of a mean.
    fn row_weight(kind: RowLoss, r: &Row<'_>) -> f64 {
        match kind {
            RowLoss::Nll { .. } => r.x[1].get(r.id).map_or(1.0, |w| w.v),
            RowLoss::Patches { .. } => f64::from(r.mask[0] != 0),
            _ => 1.0,
        }
    }
}

impl RowLossOps for Kernels {
    fn row_loss(&self, kind: RowLoss, reduction: Reduction, io: RowLossFwd<'_>) -> Result<()> {
        const OP: &str = "row_loss";
        let shape = check_row_loss(kind, reduction, &io)?;
        let _timed = self.count("row_loss");
        let all = self.load_rows(OP, shape, &io.x, io.ids, io.mask)?;
        let (mut items, mut den) = (Vec::new(), 0.0);
        let mut tape = Tape::default();
        for row in 0..all.shape.rows {
            tape.clear();
            match self.row(OP, kind, &all, row, &tape)? {
                Some(r) => {
                    items.try_push(item(kind, &r)?.v)?;
                    den += Self::row_weight(kind, &r);
                }
                None => items.try_push(0.0)?,
            }
        }
        if !kind.weighted() {
            den = items.len() as f64;
        }
        let total: f64 = items.iter().sum();
        match reduction {
            Reduction::None => store_f64(OP, &io.loss, &items),
            Reduction::Sum => store_f64(OP, &io.loss, &[total]),
            Reduction::Mean => store_f64(OP, &io.loss, &[total / den]),
        }
    }

    fn row_loss_bwd(&self, kind: RowLoss, reduction: Reduction, io: RowLossBwd<'_>) -> Result<()> {
        const OP: &str = "row_loss_bwd";
        let shape = check_row_loss_bwd(kind, reduction, &io)?;
        let _timed = self.count("row_loss_bwd");
        let all = self.load_rows(OP, shape, &io.x, io.ids, io.mask)?;
        let gy = gather_f64(OP, io.gy)?;
        let mut tape = Tape::default();
        let mut den = 1.0;
        if reduction == Reduction::Mean {
            den = 0.0;
            for row in 0..all.shape.rows {
                tape.clear();
                let r = self.row(OP, kind, &all, row, &tape)?;
                den += r.map_or(if kind.weighted() { 0.0 } else { 1.0 }, |r| Self::row_weight(kind, &r));
            }
        }
        let mut dx = [const { Vec::new() }; 4];
        for (d, x) in dx.iter_mut().zip(&all.x) {
            *d = filled(x.as_ref().map_or(0, Vec::len), 0.0)?;
        }
        for row in 0..all.shape.rows {
            tape.clear();
            let Some(r) = self.row(OP, kind, &all, row, &tape)? else { continue };
            let d = tape.gradient(item(kind, &r)?)?;
            let g = if reduction == Reduction::None { gy[row] } else { gy[0] } / den;
            for (i, x) in r.x.iter().enumerate().filter(|(_, x)| !x.is_empty()) {
                for (p, &x) in all.places(kind, i, row).zip(x) {
                    dx[i][p] += g * d.of(x);
                }
            }
        }
        for (out, d) in io.dx.iter().zip(&dx) {
            if let Some(out) = out {
                store_grad(OP, out, d)?;
            }
        }
        Ok(())
    }
}
