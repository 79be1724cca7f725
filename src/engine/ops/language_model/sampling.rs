//! Choosing tokens: validation and launch.

use super::plan::{SECTIONS, SamplePlan, SampleProblem};
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::geometry::Alignment;
use crate::engine::launch::{Grid, aligned16, code_of_op, long};
use crate::engine::ops::random::RngArgs;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::elementwise::ElementwiseOps;
use crate::ops::language_model::*;
use crate::ops::random::Rng;
use crate::spec::kernels::language_model::*;

/// Blocks for rows of logits, which loop where there are more.
fn rows_grid(rows: usize) -> Grid {
    Grid::Blocks([rows.min(1 << 20), 1, 1])
}

impl Engine {
    /// What serves 256 rows of 131,072 logits in f32, of which top-k or top-p leave some out.
    pub(crate) fn explain_sampling(&self, op: &'static str) -> Result<Choice> {
        let problem = SampleProblem { rows: 256, vocab: 131_072, dtype: DType::F32, filtered: true };
        self.explain_problem(op, &problem)
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
        self.cast(logits.reshape(&[n])?, wide.alias_mut())?;
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

/// Numbers that are noted of a row (`GK_ROW_NUMBERS`).
const ROW_NUMBERS: usize = 8;
/// Bins of a part, twice: counts and powers (`GK_BINS`).
const BINS: usize = 2 * 1024;
/// Numbers of a row for `logits_held_finish` (`GK_HELD_NUMBERS`, for clusters of eight blocks).
const HELD_NUMBERS: usize = 16 + 2 * 8 * 64;
/// Logits that a block writes of a row.
const PROCESSED: usize = 4096;
/// Candidates of a part (`GK_LIST`).
const LIST: usize = 1024;

/// Rows of logits, after the penalty, and what is done to them.
#[derive(Clone, Copy)]
struct Logits<'a> {
    engine: &'a Engine,
    p: &'a LogitProcessors,
    dtype: DType,
    logits: Ptr,
    wide: Ptr,
    rows: i64,
    vocab: i64,
    /// 1 / T, or 0 for T = 0.
    scale: f64,
    /// Whether the kernels read the logits as they are, from a multiple of 16 bytes on.
    aligned: bool,
    /// Whether rows are whole items of 16 bytes, too.
    whole: bool,
}

/// What is kept of rows, `state` [rows, [`ROW_NUMBERS`]], and the sums of its powers by sections, [rows, [`SECTIONS`]].
struct Kept {
    state: Buffer,
    sums: Option<Buffer>,
}

impl<'a> Logits<'a> {
    fn new(e: &'a Engine, p: &'a LogitProcessors, logits: &View<'_>, penalised: Option<&Buffer>) -> Self {
        let aligned = penalised.is_none() && aligned16(logits);
        Self {
            engine: e,
            p,
            dtype: logits.dtype(),
            logits: e.arg_in(logits),
            wide: e.arg_opt(penalised.map(Buffer::view).as_ref()),
            rows: long(logits.shape()[0]),
            vocab: long(logits.shape()[1]),
            scale: if p.temperature == 0.0 { 0.0 } else { 1.0 / p.temperature },
            aligned,
            whole: aligned && logits.shape()[1].is_multiple_of(16 / logits.dtype().size()),
        }
    }

    /// Whether top-k leaves anything out.
    fn some_of_k(&self) -> bool {
        self.p.top_k > 0 && (self.p.top_k as i64) < self.vocab
    }

    /// Whether top-k or top-p do.
    fn filtered(&self) -> bool {
        self.some_of_k() || self.p.top_p < 1.0
    }

    fn plan(&self, op: &'static str) -> Result<SamplePlan> {
        let filtered = self.filtered() && self.p.temperature > 0.0;
        let [rows, vocab] = [self.rows, self.vocab].map(|n| n as usize);
        self.engine.plan_with(op, &SampleProblem { rows, vocab, dtype: self.dtype, filtered }, ())
    }

    /// Memory for `each` numbers of each row.
    fn each_row(&self, each: usize) -> Result<Buffer> {
        self.engine.scratch(self.dtype.accumulator(), self.rows as usize * each)
    }

    /// Largest logits and sums of powers of the sections of each row.
    fn sections(&self) -> Result<Buffer> {
        let part = self.each_row(SECTIONS * 2)?;
        let args = LogitsSectionsArgs {
            logits: self.logits,
            wide: self.wide,
            part: self.engine.arg_in(&part.view()),
            vocab: self.vocab,
            scale: self.scale,
            aligned: i32::from(self.aligned),
        };
        let grid = Grid::Blocks([self.rows as usize * SECTIONS, 1, 1]);
        self.engine.launch(&LOGITS_SECTIONS, self.dtype, "", grid, &args)?;
        Ok(part)
    }

    /// What top-k and top-p keep.
    fn kept(&self, op: &'static str) -> Result<Kept> {
        let plan = self.plan(op)?;
        match plan {
            SamplePlan::Cluster { blocks, local } => {
                let state = self.clusters(Grid::BlocksWithLocal([blocks, 1, 1], local), None)?;
                self.keep(&state, Ptr::NULL, true)?;
                return Ok(Kept { state, sums: None });
            }
            SamplePlan::Histogram { parts } => return self.kept_by_histogram(parts),
            SamplePlan::Sections | SamplePlan::Rows => {}
        }
        let part = if plan == SamplePlan::Sections { Some(self.sections()?) } else { None };
        let state = self.each_row(ROW_NUMBERS)?;
        self.keep(&state, self.engine.arg_opt(part.as_ref().map(Buffer::view).as_ref()), false)?;
        Ok(Kept { state, sums: None })
    }

    /// Finds what is kept of all rows, or of those that are left open; `part` is from [`Logits::sections`], or null.
    fn keep(&self, state: &Buffer, part: Ptr, open: bool) -> Result<()> {
        let args = LogitsKeepArgs {
            logits: self.logits,
            wide: self.wide,
            part,
            state: self.engine.arg_in(&state.view()),
            rows: self.rows,
            vocab: self.vocab,
            top_k: (self.p.top_k as i64).min(self.vocab),
            scale: self.scale,
            top_p: self.p.top_p,
            open: i32::from(open),
        };
        self.engine.launch(&LOGITS_KEEP, self.dtype, "", rows_grid(self.rows as usize), &args)
    }

    /// What is kept, by histograms of `parts` of each row: top-k, then top-p, then the rows that bins cannot serve.
    fn kept_by_histogram(&self, parts: usize) -> Result<Kept> {
        let counts = self.some_of_k();
        let h = self.histogram(parts, counts)?;
        if counts {
            h.cut(ByWeight::Count, self.p.top_k as f64, false)?;
        }
        if self.p.top_p < 1.0 {
            h.cut(ByWeight::Power, self.p.top_p, counts)?;
        }
        self.keep(&h.state, Ptr::NULL, true)?;
        Ok(Kept { state: h.state, sums: Some(h.sums) })
    }

    /// What is kept, by clusters of blocks that hold a row: top-k, then top-p; with a draw the ids, else some rows may stay open.
    fn clusters(&self, grid: Grid, draw: Option<(&RngArgs, Ptr)>) -> Result<Buffer> {
        let e = self.engine;
        let (state, numbers) = (self.each_row(ROW_NUMBERS)?, self.each_row(HELD_NUMBERS)?);
        let Logits { p, dtype, logits, wide, vocab, scale, .. } = *self;
        let [state_arg, numbers_arg] = [&state, &numbers].map(|b| e.arg_in(&b.view()));
        let (whole, counts, powers) = (i32::from(self.whole), self.some_of_k(), p.top_p < 1.0);
        if counts {
            let args = LogitsHeldCountArgs {
                logits,
                wide,
                state: state_arg,
                numbers: numbers_arg,
                vocab,
                scale,
                target: p.top_k as f64,
                whole,
            };
            e.launch(&LOGITS_HELD_COUNT, dtype, "", grid, &args)?;
            let draw = draw.filter(|_| !powers);
            self.finish(state_arg, numbers_arg, ByWeight::Count, draw)?;
        }
        if powers {
            let args = LogitsHeldPowerArgs {
                logits,
                wide,
                state: state_arg,
                numbers: numbers_arg,
                vocab,
                scale,
                target: p.top_p,
                whole,
                after: i32::from(counts),
            };
            e.launch(&LOGITS_HELD_POWER, dtype, "", grid, &args)?;
            self.finish(state_arg, numbers_arg, ByWeight::Power, draw)?;
        }
        Ok(state)
    }

    /// What is kept among the elements that clusters have found, and a draw.
    fn finish(&self, state: Ptr, numbers: Ptr, by: ByWeight, draw: Option<(&RngArgs, Ptr)>) -> Result<()> {
        let Logits { p, logits, wide, vocab, scale, .. } = *self;
        let args = LogitsHeldFinishArgs {
            logits,
            wide,
            numbers,
            more: draw.map_or(Ptr::NULL, |(rng, _)| rng.more),
            state,
            ids: draw.map_or(Ptr::NULL, |(_, ids)| ids),
            vocab,
            top_k: (p.top_k as i64).min(vocab),
            seed: draw.map_or(0, |(rng, _)| rng.seed),
            stream: draw.map_or(0, |(rng, _)| rng.stream),
            offset: draw.map_or(0, |(rng, _)| rng.offset),
            scale,
            top_p: p.top_p,
            by: by as i32,
            whole: i32::from(self.whole),
        };
        let grid = Grid::Blocks([self.rows as usize, 1, 1]);
        self.engine.launch(&LOGITS_HELD_FINISH, self.dtype, "", grid, &args)
    }

    /// Draws from what top-k, top-p and min-p keep, with the random words of `rng`.
    fn draw(&self, op: &'static str, rng: &RngArgs, ids: Ptr) -> Result<()> {
        let Logits { engine: e, p, dtype, logits, wide, rows, vocab, scale, .. } = *self;
        // Sums do not know of min-p.
        let summed = p.min_p <= 0.0;
        if let (true, SamplePlan::Cluster { blocks, local }) = (summed, self.plan(op)?) {
            return self.clusters(Grid::BlocksWithLocal([blocks, 1, 1], local), Some((rng, ids))).map(drop);
        }
        let kept = self.kept(op)?;
        let args = LogitsDrawKeptArgs {
            logits,
            wide,
            state: e.arg_in(&kept.state.view()),
            known: e.arg_opt(kept.sums.as_ref().filter(|_| summed).map(Buffer::view).as_ref()),
            more: rng.more,
            ids,
            rows,
            vocab,
            seed: rng.seed,
            stream: rng.stream,
            offset: rng.offset,
            scale,
            min_p: p.min_p,
        };
        e.launch(&LOGITS_DRAW_KEPT, dtype, "", rows_grid(rows as usize), &args)
    }

    fn histogram(&self, parts: usize, counts: bool) -> Result<Histogram<'_>> {
        let e = self.engine;
        let (tops, bins) = (self.each_row(parts)?, self.each_row(parts * BINS)?);
        let args = LogitsHistogramArgs {
            logits: self.logits,
            wide: self.wide,
            tops: e.arg_in(&tops.view()),
            bins: e.arg_in(&bins.view()),
            vocab: self.vocab,
            parts: long(parts),
            scale: self.scale,
            counted: i32::from(counts),
        };
        let grid = Grid::Blocks([self.rows as usize * parts, 1, 1]);
        e.launch(&LOGITS_HISTOGRAM, self.dtype, "", grid, &args)?;
        let lists = self.rows as usize * parts;
        Ok(Histogram {
            of: self,
            parts,
            tops,
            bins,
            list: self.each_row(parts * LIST)?,
            ids: e.scratch(DType::I32, lists * LIST)?,
            found: e.scratch(DType::I32, lists)?,
            above: self.each_row(SECTIONS)?,
            state: self.each_row(ROW_NUMBERS)?,
            sums: self.each_row(SECTIONS)?,
        })
    }
}

/// Bins of the parts of rows, memory for the candidates of a threshold, and what is found: see [`Kept`].
struct Histogram<'a> {
    of: &'a Logits<'a>,
    parts: usize,
    tops: Buffer,
    bins: Buffer,
    list: Buffer,
    ids: Buffer,
    found: Buffer,
    above: Buffer,
    state: Buffer,
    sums: Buffer,
}

/// What a threshold sums (`GK_BY_COUNT`, `GK_BY_POWER`).
#[derive(Clone, Copy)]
enum ByWeight {
    Count = 0,
    Power = 1,
}

impl Histogram<'_> {
    /// Finds the smallest logits that are kept: so that as many as `target` are, or this share of all powers. `more`: of those already kept.
    fn cut(&self, by: ByWeight, target: f64, more: bool) -> Result<()> {
        let Logits { engine: e, dtype, logits, wide, rows, vocab, scale, .. } = *self.of;
        let (parts, by) = (long(self.parts), by as i32);
        let [tops, bins, list, ids, found] =
            [&self.tops, &self.bins, &self.list, &self.ids, &self.found].map(|b| e.arg_in(&b.view()));
        let [above, state, sums] = [&self.above, &self.state, &self.sums].map(|b| e.arg_in(&b.view()));
        let each_row = Grid::Blocks([rows as usize, 1, 1]);
        let each_part = Grid::Blocks([rows as usize * self.parts, 1, 1]);
        let args = LogitsThresholdArgs {
            tops,
            bins,
            state,
            above,
            vocab,
            parts,
            scale,
            target,
            by,
            more: i32::from(more),
        };
        e.launch(&LOGITS_THRESHOLD, dtype, "", each_row, &args)?;
        let args = LogitsCandidatesArgs { logits, wide, state, list, ids, found, vocab, parts, scale };
        e.launch(&LOGITS_CANDIDATES, dtype, "", each_part, &args)?;
        let args = LogitsCutArgs { list, ids, found, above, state, sums, vocab, parts, scale, by };
        e.launch(&LOGITS_CUT, dtype, "", each_row, &args)
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
        let penalised = self.penalised(OP, p, &logits, prev.as_ref())?;
        let l = Logits::new(self, p, &logits, penalised.as_ref());
        let kept = if l.filtered() || p.min_p > 0.0 { Some(l.kept(OP)?) } else { None };
        let parts = vocab.div_ceil(PROCESSED).max(1);
        let whole = Alignment::of(l.dtype, [&logits, &y.as_view()]).whole(vocab);
        let args = LogitsProcessArgs {
            logits: l.logits,
            wide: l.wide,
            state: self.arg_opt(kept.as_ref().map(|k| k.state.view()).as_ref()),
            y: self.arg_out(&y),
            vocab: l.vocab,
            parts: long(parts),
            scale: l.scale,
            min_p: p.min_p,
            items: i32::from(whole),
        };
        self.launch(&LOGITS_PROCESS, l.dtype, "", Grid::Blocks([rows * parts, 1, 1]), &args)
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
        let [rows, _] = check_sample_tokens(p, &rng, &logits, prev.as_ref(), &ids)?;
        self.check_owner_all(OP, &[("logits", Some(logits)), ("prev", prev), ("ids", Some(ids.as_view()))])?;
        let rng = self.rng_args(OP, &rng)?;
        let penalised = self.penalised(OP, p, &logits, prev.as_ref())?;
        let l = Logits::new(self, p, &logits, penalised.as_ref());
        let (grid, ids) = (rows_grid(rows), self.arg_out(&ids));
        let Logits { dtype, logits, wide, rows, vocab, scale, .. } = l;
        if p.temperature > 0.0 && (l.filtered() || p.min_p > 0.0) {
            return l.draw(OP, &rng, ids);
        }
        let RngArgs { seed, stream, offset, more } = rng;
        let part = if l.plan(OP)? == SamplePlan::Sections { Some(l.sections()?) } else { None };
        let part = self.arg_opt(part.as_ref().map(Buffer::view).as_ref());
        if p.temperature == 0.0 {
            let args = LogitsGreedyArgs { logits, wide, part, ids, rows, vocab };
            return self.launch(&LOGITS_GREEDY, dtype, "", grid, &args);
        }
        let args = LogitsDrawArgs { logits, wide, part, more, ids, rows, vocab, seed, stream, offset, scale };
        self.launch(&LOGITS_DRAW, dtype, "", grid, &args)
    }
}
