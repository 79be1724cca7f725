//! Sums and maxima over all paths through the tags of a sequence.

use trefoil::DType;

use crate::core::autograd::{BackwardCtx, CustomOp, apply};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::steps_to_run;

const OP: &str = "crf_log_partition";

/// Scores `[B, K, K]` of paths that go from one tag (axis 1) to another (axis 2), without what the second one emits.
fn pairs(alpha: &Tensor, transitions: &Tensor) -> Result<Tensor> {
    alpha.unsqueeze(2)?.add(transitions)
}

/// The logarithm of the sum of e^score over all paths, `[B]`, for emissions `[B, T, K]`, scores of starts and ends `[K]` and transitions
/// `[K, K]`, of one dtype, and the steps that count, u8 `[B, T]`.
pub(super) fn log_partition(
    emissions: &Tensor,
    [start, end, transitions]: [Tensor; 3],
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let mut inputs = vec![emissions.clone(), start, end, transitions];
    inputs.extend(mask.cloned());
    apply(LogPartition, &inputs)?.pop().ok_or_else(|| invalid(OP, "outputs", "one", "none"))
}

/// The forward algorithm. Its gradient is the probability of each tag and of each transition, which come from the same sums backwards: the
/// last step of a path that ends in tag j came from tag i with the probability softmax_i(alpha_i + transitions_ij).
struct LogPartition;

impl CustomOp for LogPartition {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        let [emissions, start, end, transitions, mask @ ..] = inputs else {
            return Err(invalid(OP, "inputs", "at least 4", format!("{}", inputs.len())));
        };
        let mut all = vec![emissions.select(1, 0)?.add(start)?];
        for t in 1..steps_to_run(OP, emissions, emissions.shape()[1])? {
            let alpha = &all[t - 1];
            let next = pairs(alpha, transitions)?.logsumexp(&[1], false)?.add(&emissions.select(1, t)?)?;
            all.push(match mask.first() {
                Some(mask) => next.where_(&mask.narrow(1, t, 1)?, alpha)?,
                None => next,
            });
        }
        let last = all[all.len() - 1].add(end)?;
        save.extend([end.clone(), transitions.clone(), Tensor::stack(1, &all.iter().collect::<Vec<_>>())?]);
        save.extend(mask.first().map(|m| m.to_dtype(emissions.dtype())).transpose()?);
        Ok(vec![last.logsumexp(&[1], false)?])
    }

    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()> {
        let [end, transitions, alpha, mask @ ..] = saved else {
            return Err(invalid(OP, "saved", "at least 3", format!("{}", saved.len())));
        };
        let steps = alpha.shape()[1];
        // The gradient of alpha, from the last step to the first.
        let last = alpha.select(1, steps - 1)?.add(end)?.softmax(-1)?;
        let mut g = last.mul(&cx.dy()?.unsqueeze(1)?)?;
        cx.give(2, g.sum_axes(&[0], false)?)?;
        let mut transitions_grad = transitions.zeros_like()?;
        let mut emissions_grad = vec![];
        for t in (1..steps).rev() {
            let here = match mask.first() {
                Some(mask) => g.mul(&mask.narrow(1, t, 1)?)?,
                None => g.clone(),
            };
            let from = pairs(&alpha.select(1, t - 1)?, transitions)?.softmax(1)?;
            let both = from.mul(&here.unsqueeze(1)?)?;
            transitions_grad = transitions_grad.add(&both.sum_axes(&[0], false)?)?;
            let before = both.sum_axes(&[2], false)?;
            g = if mask.is_empty() { before } else { g.sub(&here)?.add(&before)? };
            emissions_grad.push(here);
        }
        cx.give(1, g.sum_axes(&[0], false)?)?;
        cx.give(3, transitions_grad)?;
        emissions_grad.push(g);
        cx.give(0, Tensor::stack(1, &emissions_grad.iter().rev().collect::<Vec<_>>())?)
    }
}

/// The score of one path of each sequence, `[B]`: tags i64 `[B, T]`, the number of each one's last step `last` i64 `[B]`.
pub(super) fn path_score(
    emissions: &Tensor,
    [start, end, transitions]: [Tensor; 3],
    tags: &Tensor,
    mask: Option<&Tensor>,
    last: &Tensor,
) -> Result<Tensor> {
    let (steps, k) = (emissions.shape()[1], emissions.shape()[2]);
    let counted = |scores: Tensor, from: usize| {
        let scores = match mask {
            Some(mask) => scores.mul(&mask.narrow(1, from, steps - from)?.to_dtype(scores.dtype())?)?,
            None => scores,
        };
        scores.sum_axes(&[1], false)
    };
    let emitted = counted(emissions.gather(2, &tags.unsqueeze(2)?)?.squeeze(2)?, 0)?;
    let (from, to) = (tags.narrow(1, 0, steps - 1)?, tags.narrow(1, 1, steps - 1)?);
    let pair = from.mul(&Tensor::full(tags.device(), DType::I64, &[], k as f64)?)?.add(&to)?;
    let moved = transitions.reshape(&[k * k])?.index_select(0, &pair.reshape(&[pair.numel()])?)?;
    let moved = counted(moved.reshape(pair.shape())?, 1)?;
    let ended = end.index_select(0, &tags.gather(1, &last.unsqueeze(1)?)?.squeeze(1)?)?;
    start.index_select(0, &tags.select(1, 0)?)?.add(&emitted)?.add(&moved)?.add(&ended)
}

/// The best path of each sequence, i64 `[B, T]`; steps that do not count have the tag -1. Of equal scores the lower tag wins.
pub(super) fn viterbi(
    emissions: &Tensor,
    [start, end, transitions]: [Tensor; 3],
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let mut best = emissions.select(1, 0)?.add(&start)?;
    let same = Tensor::arange(emissions.device(), DType::I64, 0.0, 1.0, emissions.shape()[2])?;
    let (steps, mut back) = (emissions.shape()[1], vec![]);
    let run = steps_to_run("viterbi", emissions, steps)?;
    for t in 1..run {
        let (score, mut from) = pairs(&best, &transitions)?.max_with_index(1)?;
        let mut next = score.add(&emissions.select(1, t)?)?;
        if let Some(mask) = mask {
            let on = mask.narrow(1, t, 1)?;
            (next, from) = (next.where_(&on, &best)?, from.where_(&on, &same)?);
        }
        best = next;
        back.push(from);
    }
    let mut path = vec![best.add(&end)?.argmax(-1)?.unsqueeze(1)?];
    for from in back.iter().rev() {
        path.push(from.gather(1, &path[path.len() - 1])?);
    }
    let path = match run == steps {
        true => Tensor::concat(1, &path.iter().rev().collect::<Vec<_>>())?,
        false => Tensor::empty(best.device(), DType::I64, &emissions.shape()[..2])?,
    };
    match mask {
        Some(mask) => path.masked_fill(&mask.logical_not()?, -1.0),
        None => Ok(path),
    }
}
