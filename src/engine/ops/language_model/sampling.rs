//! Choosing tokens: validation and launch.

use super::plan::{SECTIONS, SampleProblem};
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Ptr;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, long};
use crate::engine::ops::random::RngArgs;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::language_model::*;
use crate::ops::random::Rng;
use crate::spec::kernels::language_model::*;

/// Blocks for rows of logits, which loop where there are more.
fn rows_grid(rows: usize) -> Grid {
    Grid::Blocks([rows.min(1 << 20), 1, 1])
}

impl Engine {
    /// What serves 256 rows of 131,072 logits.
    pub(crate) fn explain_sampling(&self, op: &'static str) -> Result<Choice> {
        self.explain_problem(op, &SampleProblem { rows: 256, vocab: 131_072 })
    }

    /// Largest logits and sums of powers of the sections of each row; `None` where rows are not cut.
    fn sections(&self, op: &'static str, logits: &View<'_>, wide: Ptr, scale: f64) -> Result<Option<Buffer>> {
        let ([rows, vocab], dt) = ([logits.shape()[0], logits.shape()[1]], logits.dtype());
        let Some(blocks) = self.plan_with(op, &SampleProblem { rows, vocab }, dt)? else { return Ok(None) };
        let part = self.scratch(dt.accumulator(), rows * SECTIONS * 2)?;
        let args = LogitsSectionsArgs {
            logits: self.arg_in(logits),
            wide,
            part: self.arg_in(&part.view()),
            vocab: long(vocab),
            scale,
        };
        self.launch(&LOGITS_SECTIONS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        Ok(Some(part))
    }

    /// The logits after the penalty, in the arithmetic type; `None` where nothing is penalised.
    fn penalised(
        &self,
        op: &'static str,
        p: &LogitProcessors,
        logits: &View<'_>,
        prev: Option<&View<'_>>,
    ) -> Result<Option<Buffer>> {
        let Some(prev) = prev.filter(|v| p.penalises() && v.numel() > 0) else { return Ok(None) };
        let (dt, n) = (logits.dtype(), logits.numel());
        let wide = self.scratch(dt.accumulator(), n)?;
        let args =
            LogitsWidenArgs { logits: self.arg_in(logits), wide: self.arg_in(&wide.view()), n: long(n) };
        self.launch(&LOGITS_WIDEN, dt, "", Grid::Stride(n), &args)?;
        let args = LogitsPenalizeArgs {
            logits: self.arg_in(logits),
            prev: self.arg_in(prev),
            wide: self.arg_in(&wide.view()),
            err: self.arg_error(),
            n: long(prev.numel()),
            each: long(prev.shape()[1]),
            vocab: long(logits.shape()[1]),
            penalty: p.repetition_penalty,
            code: code_of_op(op),
        };
        self.launch(&LOGITS_PENALIZE, dt, "", Grid::Stride(prev.numel()), &args)?;
        Ok(Some(wide))
    }
}

impl SamplingOps for Engine {
    fn logit_processors(
        &self,
        p: &LogitProcessors,
        logits: View<'_>,
        prev: Option<View<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "logit_processors";
        let [rows, vocab] = check_logit_processors(p, &logits, prev.as_ref(), &y)?;
        self.check_owner_all(OP, &[("logits", Some(logits)), ("prev", prev), ("y", Some(y.as_view()))])?;
        let wide = self.penalised(OP, p, &logits, prev.as_ref())?;
        let args = LogitsProcessArgs {
            logits: self.arg_in(&logits),
            wide: self.arg_opt(wide.as_ref().map(Buffer::view).as_ref()),
            y: self.arg_out(&y),
            rows: long(rows),
            vocab: long(vocab),
            top_k: long(p.top_k.min(vocab)),
            scale: 1.0 / p.temperature,
            top_p: p.top_p,
            min_p: p.min_p,
        };
        self.launch(&LOGITS_PROCESS, logits.dtype(), "", rows_grid(rows), &args)
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
        let [rows, vocab] = check_sample_tokens(p, &rng, &logits, prev.as_ref(), &ids)?;
        self.check_owner_all(OP, &[("logits", Some(logits)), ("prev", prev), ("ids", Some(ids.as_view()))])?;
        let RngArgs { seed, stream, offset, more } = self.rng_args(OP, &rng)?;
        let penalised = self.penalised(OP, p, &logits, prev.as_ref())?;
        let wide = self.arg_opt(penalised.as_ref().map(Buffer::view).as_ref());
        let scale = if p.temperature == 0.0 { 0.0 } else { 1.0 / p.temperature };
        let part = self.sections(OP, &logits, wide, scale)?;
        let part = self.arg_opt(part.as_ref().map(Buffer::view).as_ref());
        let (dt, grid) = (logits.dtype(), rows_grid(rows));
        let (logits, ids, rows, vocab) = (self.arg_in(&logits), self.arg_out(&ids), long(rows), long(vocab));
        if p.temperature == 0.0 {
            let args = LogitsGreedyArgs { logits, wide, part, ids, rows, vocab };
            return self.launch(&LOGITS_GREEDY, dt, "", grid, &args);
        }
        if (p.top_k == 0 || p.top_k as i64 >= vocab) && p.top_p >= 1.0 && p.min_p <= 0.0 {
            let args =
                LogitsDrawArgs { logits, wide, part, more, ids, rows, vocab, seed, stream, offset, scale };
            return self.launch(&LOGITS_DRAW, dt, "", grid, &args);
        }
        let kept = self.scratch(dt.accumulator(), rows as usize * 3)?;
        let kept = self.arg_in(&kept.view());
        let (top_k, top_p, min_p) = ((p.top_k as i64).min(vocab), p.top_p, p.min_p);
        let args = LogitsKeepArgs { logits, wide, part, kept, rows, vocab, top_k, scale, top_p };
        self.launch(&LOGITS_KEEP, dt, "", grid, &args)?;
        let args = LogitsDrawKeptArgs {
            logits,
            wide,
            kept,
            more,
            ids,
            rows,
            vocab,
            seed,
            stream,
            offset,
            scale,
            min_p,
        };
        self.launch(&LOGITS_DRAW_KEPT, dt, "", grid, &args)
    }
}
