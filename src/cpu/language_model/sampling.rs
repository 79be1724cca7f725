//! Choosing tokens on the CPU, in f64, by sorting.

use crate::buffer::{View, ViewMut};
use crate::cpu::random::Words;
use crate::cpu::scratch::*;
use crate::cpu::values::sort_positions;
use crate::cpu::{Kernels, gather, gather_f64, store, store_f64};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::language_model::*;
use crate::ops::random::Rng;

/// Logits of one row after the penalty; NaN is -inf.
fn penalised(p: &LogitProcessors, l: &[f64], prev: &[i32]) -> Result<Vec<f64>> {
    let mut y: Vec<f64> = l.iter().map(|&x| if x.is_nan() { f64::NEG_INFINITY } else { x }).try_vec()?;
    for &id in prev {
        let Some(i) = usize::try_from(id).ok().filter(|&i| i < l.len()) else { continue };
        let x = if l[i].is_nan() { f64::NEG_INFINITY } else { l[i] };
        y[i] = if x > 0.0 { x / p.repetition_penalty } else { x * p.repetition_penalty };
    }
    Ok(y)
}

/// Which logits of a row stay, and the powers exp((l - max) / T) of all.
fn kept(p: &LogitProcessors, l: &[f64]) -> Result<(Vec<bool>, Vec<f64>)> {
    let top = l.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let power = |&x: &f64| if x == top { 1.0 } else { ((x - top) / p.temperature).exp() };
    let powers: Vec<f64> = l.iter().map(power).try_vec()?;
    let mut order: Vec<usize> = (0..l.len()).try_vec()?;
    sort_positions(&mut order, &|a, b| l[b].total_cmp(&l[a]).then(a.cmp(&b)));
    let mut stay = filled(l.len(), 0u8)?;
    let k = if p.top_k == 0 { l.len() } else { p.top_k.min(l.len()) };
    let all: f64 = order[..k].iter().map(|&i| powers[i]).sum();
    let mut sum = 0.0;
    for &i in &order[..k] {
        stay[i] = 1;
        sum += powers[i];
        if p.top_p < 1.0 && sum >= p.top_p * all {
            break;
        }
    }
    let stay = stay.iter().zip(&powers).map(|(&s, &w)| s == 1 && w >= p.min_p).try_vec()?;
    Ok((stay, powers))
}

/// The ids that rows have seen, where they matter; reports those out of range.
fn seen(
    cpu: &Kernels,
    op: &'static str,
    p: &LogitProcessors,
    prev: Option<View<'_>>,
    v: usize,
) -> Result<Vec<i32>> {
    let Some(prev) = prev.filter(|_| p.penalises()) else { return Ok(Vec::new()) };
    let ids: Vec<i32> = gather(op, prev)?;
    if ids.iter().any(|&i| i < -1 || i64::from(i) >= v as i64) {
        cpu.flag_index_error(op);
    }
    Ok(ids)
}

impl SamplingOps for Kernels {
    fn logit_processors(
        &self,
        p: &LogitProcessors,
        logits: View<'_>,
        prev: Option<View<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "logit_processors";
        let [rows, v] = check_logit_processors(p, &logits, prev.as_ref(), &y)?;
        let _timed = self.count("logit_processors");
        let (l, ids) = (gather_f64(OP, logits)?, seen(self, OP, p, prev, v)?);
        let each = ids.len() / rows.max(1);
        let mut out = with_capacity(l.len())?;
        for r in 0..rows {
            let l = penalised(p, &l[r * v..(r + 1) * v], &ids[r * each..(r + 1) * each])?;
            let (stay, _) = kept(p, &l)?;
            out.try_extend(
                l.iter().zip(stay).map(|(x, s)| if s { x / p.temperature } else { f64::NEG_INFINITY }),
            )?;
        }
        store_f64(OP, &y, &out)
    }

    fn sample_tokens(
        &self,
        p: &LogitProcessors,
        rng: Rng<'_>,
        logits: View<'_>,
        prev: Option<View<'_>>,
        ids: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "sample_tokens";
        let [rows, v] = check_sample_tokens(p, &rng, &logits, prev.as_ref(), &ids)?;
        let _timed = self.count("sample_tokens");
        let (l, old) = (gather_f64(OP, logits)?, seen(self, OP, p, prev, v)?);
        let (each, mut words) = (old.len() / rows.max(1), Words::new(OP, &rng)?);
        let mut picks: Vec<i64> = with_capacity(rows)?;
        for r in 0..rows {
            let l = penalised(p, &l[r * v..(r + 1) * v], &old[r * each..(r + 1) * each])?;
            if p.temperature == 0.0 {
                let best = l.iter().enumerate().fold(0, |best, (i, x)| if *x > l[best] { i } else { best });
                picks.try_push(best as i64)?;
                continue;
            }
            let (stay, powers) = kept(p, &l)?;
            let weights: Vec<f64> =
                stay.iter().zip(powers).map(|(&s, w)| if s { w } else { 0.0 }).try_vec()?;
            let target = words.unit(DType::F32, r) * weights.iter().sum::<f64>();
            let (mut sum, mut pick) = (0.0, 0);
            for (i, w) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
                pick = i;
                sum += w;
                if sum > target {
                    break;
                }
            }
            picks.try_push(pick as i64)?;
        }
        store(OP, &ids, &picks)
    }
}
