//! Losses.

pub(super) mod batch;
pub(super) mod margin;
mod plan;
pub(super) mod rows;
pub(super) mod sequence;
pub(super) mod stft;

use self::plan::{CrossEntropyPlan, CrossEntropyProblem, RowLossProblem};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, args_from, code_of_op};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::loss::*;
use crate::ops::shape::ShapeOps;
use crate::spec::BLOCK;
use crate::spec::kernels::loss::*;

/// C name, numbers and flags of an elementwise loss.
fn loss_kernel(kind: Loss) -> (&'static str, [f64; 2], i32) {
    let plain = |name| (name, [0.0, 0.0], 0);
    let bits = |a: bool, b: bool| i32::from(a) | i32::from(b) << 1;
    match kind {
        Loss::Mse => plain("gk_loss_mse"),
        Loss::Square => plain("gk_loss_square"),
        Loss::Mae => plain("gk_loss_mae"),
        Loss::SmoothL1 { beta } => ("gk_loss_smooth_l1", [beta, 0.0], 0),
        Loss::Huber { delta } => ("gk_loss_huber", [delta, 0.0], 0),
        Loss::LogCosh => plain("gk_loss_log_cosh"),
        Loss::Quantile { q } => ("gk_loss_quantile", [q, 0.0], 0),
        Loss::Charbonnier { eps } => ("gk_loss_charbonnier", [eps, 0.0], 0),
        Loss::MeanBias => plain("gk_loss_bias"),
        Loss::Hinge => plain("gk_loss_hinge"),
        Loss::SquaredHinge => plain("gk_loss_squared_hinge"),
        Loss::ModifiedHuber => plain("gk_loss_modified_huber"),
        Loss::Exponential => plain("gk_loss_exponential"),
        Loss::SoftMargin => plain("gk_loss_soft_margin"),
        Loss::HingeEmbedding { margin } => ("gk_loss_hinge_embedding", [margin, 0.0], 0),
        Loss::Wasserstein => plain("gk_loss_wasserstein"),
        Loss::Poisson { eps, log_input, full } => ("gk_loss_poisson", [eps, 0.0], bits(log_input, full)),
        Loss::Kl { log_input, log_target } => ("gk_loss_kl", [0.0, 0.0], bits(log_input, log_target)),
        Loss::BornMse => plain("gk_loss_born"),
        Loss::Bce => plain("gk_loss_bce"),
        Loss::BceLogits => plain("gk_loss_bce_logits"),
        Loss::FocalLogits { alpha, gamma } => ("gk_loss_focal_logits", [alpha, gamma], 0),
        Loss::Focal { alpha, gamma } => ("gk_loss_focal", [alpha, gamma], 0),
    }
}

/// What [`Engine::finish_sums`] makes of partial pairs.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine::ops) struct Finish {
    /// Divide by the denominator.
    pub(in crate::engine::ops) mean: bool,
    /// The denominator where it is known; negative: the sum of the second numbers.
    pub(in crate::engine::ops) fixed: f64,
    /// Smallest denominator.
    pub(in crate::engine::ops) least: f64,
    /// Factor of the result.
    pub(in crate::engine::ops) scale: f64,
    /// Add to the result of an earlier call.
    pub(in crate::engine::ops) accumulate: bool,
}

impl Finish {
    pub(in crate::engine::ops) fn new(mean: bool, fixed: f64) -> Self {
        Finish { mean, fixed, least: f64::NEG_INFINITY, scale: 1.0, accumulate: false }
    }
}

/// Blocks of a partial sum over `n` items: by size alone, so that the tree is the same on every run.
pub(in crate::engine::ops) fn partial_blocks(n: usize) -> usize {
    n.div_ceil(BLOCK as usize * 16).clamp(1, 2048)
}

/// Threads per row of `len` elements: a power of two that leaves each a few vectors.
pub(in crate::engine::ops) fn lanes_for(len: usize) -> usize {
    (len / 8).next_power_of_two().clamp(1, BLOCK as usize)
}

/// An `int` argument that is 0 or 1.
pub(in crate::engine::ops) fn flag(b: bool) -> i32 {
    i32::from(b)
}

impl Engine {
    /// What serves 4096 rows of 1024 classes or elements.
    pub(crate) fn explain_loss(&self, op: &'static str) -> Result<Choice> {
        if op.starts_with("cross_entropy") {
            return self.explain_problem(
                op,
                &CrossEntropyProblem { n: 4096, c: 1024, s: 1, aligned: true, vector: 4 },
            );
        }
        let p = RowLossProblem { rows: 4096, len: 1024, sums: true, interleaved: false, again: false };
        self.explain_problem(op, &p)
    }

    /// Adds `blocks` partial pairs up to the loss (divided by the denominator for a mean) and the denominator.
    pub(in crate::engine::ops) fn finish_sums(
        &self,
        dt: DType,
        partial: &Buffer,
        blocks: usize,
        how: Finish,
        loss: Option<&ViewMut<'_>>,
        den: Option<&ViewMut<'_>>,
    ) -> Result<()> {
        let args = PairFinishArgs {
            partial: self.arg_in(&partial.view()),
            n: blocks as i64,
            mean: flag(how.mean),
            fixed: how.fixed,
            least: how.least,
            scale: how.scale,
            accumulate: flag(how.accumulate),
            loss: self.arg_opt_out(loss),
            den: self.arg_opt_out(den),
        };
        self.launch(&PAIR_FINISH, dt, "", Grid::Blocks([1, 1, 1]), &args)
    }

    /// Sums of `n` values and of their weights (halves of one scratch buffer): loss and denominator.
    pub(in crate::engine::ops) fn finish_items(
        &self,
        dt: DType,
        items: &Buffer,
        n: usize,
        how: Finish,
        loss: Option<&ViewMut<'_>>,
        den: Option<&ViewMut<'_>>,
    ) -> Result<()> {
        let blocks = partial_blocks(n);
        let partial = self.scratch(dt.accumulator(), 2 * blocks)?;
        let args = PairPartialArgs {
            value: self.arg_in(&items.view().range(0, n)?),
            weight: self.arg_in(&items.view().range(n, n)?),
            partial: self.arg_in(&partial.view()),
            n: n as i64,
        };
        self.launch(&PAIR_PARTIAL, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        self.finish_sums(dt, &partial, blocks, how, loss, den)
    }

    /// Sum or mean of an elementwise loss.
    fn loss_sum(&self, kind: Loss, how: Finish, io: &LossFwd<'_>) -> Result<()> {
        let (p, t, weight, mask) = (&io.p, &io.t, io.weight.as_ref(), io.mask.as_ref());
        let (n, dt) = (p.numel(), p.dtype());
        let (name, [a, b], flags) = loss_kernel(kind);
        let weighted = weight.is_some() || mask.is_some();
        let blocks = partial_blocks(n);
        let partial = self.scratch(dt.accumulator(), 2 * blocks)?;
        let wide = !weighted && aligned16(p) && aligned16(t);
        let args = LossPartialArgs {
            p: self.arg_in(p),
            t: self.arg_in(t),
            weight: self.arg_opt(weight),
            mask: self.arg_opt(mask),
            partial: self.arg_in(&partial.view()),
            n: n as i64,
            wide: flag(wide),
            counted: flag(kind.counts_items()),
            pa: a,
            pb: b,
            flags,
        };
        self.launch(&LOSS_PARTIAL, dt, name, Grid::Blocks([blocks, 1, 1]), &args)?;
        self.finish_sums(dt, &partial, blocks, how, Some(&io.loss), None)
    }

    /// Gradient of an elementwise loss; `factor` multiplies it, `den` (one number on the device) divides it.
    fn loss_grad(
        &self,
        kind: Loss,
        each: bool,
        factor: f64,
        den: Option<&Buffer>,
        io: &LossBwd<'_>,
    ) -> Result<()> {
        let (n, dt) = (io.p.numel(), io.p.dtype());
        let written = io.dp.iter().chain(&io.dt).all(|g| aligned16(&g.out.as_view()));
        let wide =
            written && [Some(&io.p), Some(&io.t), io.weight.as_ref()].into_iter().flatten().all(aligned16);
        let (name, [a, b], flags) = loss_kernel(kind);
        let out = |g: &Option<GradMut<'_>>| self.arg_opt_out(g.as_ref().map(|g| &g.out));
        let adds = |g: &Option<GradMut<'_>>| flag(g.as_ref().is_some_and(|g| g.accumulate));
        let args = LossBwdArgs {
            p: self.arg_in(&io.p),
            t: self.arg_in(&io.t),
            weight: self.arg_opt(io.weight.as_ref()),
            mask: self.arg_opt(io.mask.as_ref()),
            gy: self.arg_in(&io.gy),
            each: flag(each),
            gy_f32: flag(io.gy.dtype() == DType::F32),
            den: self.arg_opt(den.map(Buffer::view).as_ref()),
            dp: out(&io.dp),
            dt: out(&io.dt),
            n: n as i64,
            wide: flag(wide),
            acc_p: adds(&io.dp),
            acc_t: adds(&io.dt),
            factor,
            pa: a,
            pb: b,
            flags,
        };
        let grid = Grid::Stride(if wide { n.div_ceil(16 / dt.size()) } else { n });
        self.launch(&LOSS_BWD, dt, name, grid, &args)
    }

    /// Sum of the class weights where label smoothing needs it: the factor of the softmax there is C without weights.
    fn weight_sum(
        &self,
        c: usize,
        smooth: f64,
        weight: Option<&View<'_>>,
        dt: DType,
    ) -> Result<Option<Buffer>> {
        let Some(w) = weight.filter(|_| smooth != 0.0) else { return Ok(None) };
        let sum = self.scratch(dt.accumulator(), 1)?;
        let args =
            CrossEntropyWeightSumArgs { w: self.arg_in(w), sum: self.arg_in(&sum.view()), C: c as i64 };
        self.launch(&CROSS_ENTROPY_WEIGHT_SUM, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
        Ok(Some(sum))
    }
}

/// How rows of `c` classes are read: 0 by elements, 1 in vectors, 3 with vectors of the class weights, which lie at the same places of vectors.
fn row_vectors(wide: bool, c: usize, weight: Option<&View<'_>>, vector: usize) -> i32 {
    let whole = c.is_multiple_of(vector) && weight.is_none_or(aligned16);
    flag(wide) | flag(wide && whole) << 1
}

impl LossOps for Engine {
    fn loss(&self, kind: Loss, reduction: Reduction, io: LossFwd<'_>) -> Result<()> {
        const OP: &str = "loss";
        check_loss(kind, reduction, &io)?;
        self.check_owner_all(
            OP,
            &[
                ("p", Some(io.p)),
                ("t", Some(io.t)),
                ("weight", io.weight),
                ("mask", io.mask),
                ("loss", Some(io.loss.as_view())),
            ],
        )?;
        let (n, dt) = (io.p.numel(), io.p.dtype());
        if reduction == Reduction::None {
            let (name, [a, b], flags) = loss_kernel(kind);
            let plain = io.weight.is_none() && io.mask.is_none();
            let wide = plain && [&io.p, &io.t, &io.loss.as_view()].into_iter().all(aligned16);
            let args = LossItemsArgs {
                p: self.arg_in(&io.p),
                t: self.arg_in(&io.t),
                weight: self.arg_opt(io.weight.as_ref()),
                mask: self.arg_opt(io.mask.as_ref()),
                y: self.arg_out(&io.loss),
                n: n as i64,
                wide: i32::from(wide),
                a,
                b,
                flags,
            };
            let grid = Grid::Stride(if wide { n.div_ceil(16 / dt.size()) } else { n });
            return self.launch(&LOSS_ITEMS, dt, name, grid, &args);
        }
        let weighted = io.mask.is_some() || (io.weight.is_some() && !kind.counts_items());
        let how = Finish::new(reduction == Reduction::Mean, if weighted { -1.0 } else { n as f64 });
        self.loss_sum(kind, how, &io)
    }

    fn loss_bwd(&self, kind: Loss, reduction: Reduction, io: LossBwd<'_>) -> Result<()> {
        const OP: &str = "loss_bwd";
        check_loss_bwd(kind, reduction, &io)?;
        self.check_owner_all(
            OP,
            &[
                ("gy", Some(io.gy)),
                ("p", Some(io.p)),
                ("t", Some(io.t)),
                ("weight", io.weight),
                ("mask", io.mask),
            ],
        )?;
        for (arg, g) in [("dp", &io.dp), ("dt", &io.dt)] {
            if let Some(g) = g {
                self.check_owner(OP, arg, &g.out.as_view())?;
            }
        }
        let (n, dt) = (io.p.numel(), io.p.dtype());
        if n == 0 || (io.dp.is_none() && io.dt.is_none()) {
            return Ok(());
        }
        // Where the denominator is the count of items, only a mask changes it.
        let weight = io.weight.filter(|_| !kind.counts_items());
        let weighted = weight.is_some() || io.mask.is_some();
        let mean = reduction == Reduction::Mean;
        let den = if mean && weighted {
            let blocks = partial_blocks(n);
            let partial = self.scratch(dt.accumulator(), 2 * blocks)?;
            let mut den = self.scratch(dt.accumulator(), 1)?;
            let args = WeightPartialArgs {
                weight: self.arg_opt(weight.as_ref()),
                mask: self.arg_opt(io.mask.as_ref()),
                partial: self.arg_in(&partial.view()),
                n: n as i64,
            };
            self.launch(&WEIGHT_PARTIAL, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
            self.finish_sums(dt, &partial, blocks, Finish::new(false, -1.0), None, Some(&den.view_mut()))?;
            Some(den)
        } else {
            None
        };
        let factor = if mean && !weighted { 1.0 / n as f64 } else { 1.0 };
        self.loss_grad(kind, reduction == Reduction::None, factor, den.as_ref(), &io)
    }

    fn loss_list(&self, kind: Loss, terms: &[LossTerm<'_>], mut loss: ViewMut<'_>) -> Result<()> {
        const OP: &str = "loss_list";
        check_loss_list(kind, terms, &loss)?;
        self.check_owner(OP, "loss", &loss.as_view())?;
        for x in terms {
            self.check_owner_all(OP, &[("p", Some(x.p)), ("t", x.t)])?;
        }
        if terms.is_empty() {
            return ShapeOps::fill(self, 0.0, loss);
        }
        for (i, x) in terms.iter().enumerate() {
            let mut how = Finish::new(true, x.p.numel() as f64);
            how.scale = x.weight;
            how.accumulate = i > 0;
            let io =
                LossFwd { p: x.p, t: x.t.unwrap_or(x.p), weight: None, mask: None, loss: loss.reborrow() };
            self.loss_sum(kind, how, &io)?;
        }
        Ok(())
    }

    fn loss_list_bwd(
        &self,
        kind: Loss,
        gy: View<'_>,
        terms: &[LossTerm<'_>],
        dp: &mut [GradMut<'_>],
    ) -> Result<()> {
        const OP: &str = "loss_list_bwd";
        check_loss_list_bwd(kind, &gy, terms, dp)?;
        self.check_owner(OP, "gy", &gy)?;
        for (x, d) in terms.iter().zip(dp.iter()) {
            self.check_owner_all(OP, &[("p", Some(x.p)), ("t", x.t), ("dp", Some(d.out.as_view()))])?;
        }
        for (x, d) in terms.iter().zip(dp).filter(|(x, _)| x.p.numel() > 0) {
            let io = LossBwd {
                gy,
                p: x.p,
                t: x.t.unwrap_or(x.p),
                weight: None,
                mask: None,
                dp: Some(d.reborrow()),
                dt: None,
            };
            self.loss_grad(kind, false, x.weight / x.p.numel() as f64, None, &io)?;
        }
        Ok(())
    }

    fn cross_entropy(&self, p: &CrossEntropy, io: CrossEntropyFwd<'_>) -> Result<()> {
        const OP: &str = "cross_entropy";
        let x = check_cross_entropy(p, &io)?;
        self.check_owner_all(
            OP,
            &[
                ("x", Some(io.x)),
                ("target", Some(io.target)),
                ("weight", io.weight),
                ("loss", Some(io.loss.as_view())),
                ("lse", io.lse.as_ref().map(ViewMut::as_view)),
                ("den", io.den.as_ref().map(ViewMut::as_view)),
            ],
        )?;
        let dt = io.x.dtype();
        let positions = x.n * x.s;
        let aligned = aligned16(&io.x) && (!x.probs || aligned16(&io.target));
        let vector = 16 / dt.size();
        let problem = CrossEntropyProblem { n: x.n, c: x.c, s: x.s, aligned, vector };
        let plan = if positions > 0 { Some(self.plan_with(OP, &problem, dt)?) } else { None };
        let each = p.reduction == Reduction::None;
        let items = if each { None } else { Some(self.scratch(dt.accumulator(), 2 * positions)?) };
        let halves = match &items {
            Some(b) => Some((b.view().range(0, positions)?, b.view().range(positions, positions)?)),
            None => None,
        };
        let (ids, probs) = if x.probs { (None, Some(io.target)) } else { (Some(io.target), None) };
        let args = CrossEntropyInnerArgs {
            x: self.arg_in(&io.x),
            ids: self.arg_opt(ids.as_ref()),
            wide_ids: flag(io.target.dtype() == DType::I64),
            prob: self.arg_opt(probs.as_ref()),
            w: self.arg_opt(io.weight.as_ref()),
            lse: self.arg_opt_out(io.lse.as_ref()),
            y: if each { self.arg_out(&io.loss) } else { Ptr::NULL },
            item: self.arg_opt(halves.as_ref().map(|h| &h.0)),
            weight: self.arg_opt(halves.as_ref().map(|h| &h.1)),
            err: self.arg_error(),
            code: code_of_op(OP),
            N: x.n as i64,
            C: x.c as i64,
            S: x.s as i64,
            tx: 0,
            wide: 0,
            ignore: p.ignore_index,
            smooth: p.label_smoothing,
        };
        match plan {
            Some(CrossEntropyPlan::Rows { lanes, blocks, wide }) => {
                let args = args_from! { args => CrossEntropyRowsArgs
                    [x ids wide_ids prob w lse y item weight err code N C ignore smooth]
                    { lanes: lanes as i32, wide: row_vectors(wide, x.c, io.weight.as_ref(), vector) }
                };
                self.launch(&CROSS_ENTROPY_ROWS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
            }
            Some(CrossEntropyPlan::Positions { tx, wide, blocks }) => {
                let args = CrossEntropyInnerArgs { tx: tx as i32, wide: flag(wide), ..args };
                self.launch(&CROSS_ENTROPY_INNER, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
            }
            None => {}
        }
        let Some(items) = items else { return Ok(()) };
        let how = Finish::new(p.reduction == Reduction::Mean, if x.probs { positions as f64 } else { -1.0 });
        self.finish_items(dt, &items, positions, how, Some(&io.loss), io.den.as_ref())
    }

    fn cross_entropy_bwd(&self, p: &CrossEntropy, io: CrossEntropyBwd<'_>) -> Result<()> {
        const OP: &str = "cross_entropy_bwd";
        let x = check_cross_entropy_bwd(p, &io)?;
        let den = io.den.filter(|_| p.reduction == Reduction::Mean);
        self.check_owner_all(
            OP,
            &[
                ("gy", Some(io.gy)),
                ("x", Some(io.x)),
                ("target", Some(io.target)),
                ("weight", io.weight),
                ("lse", Some(io.lse)),
                ("den", den),
                ("dx", Some(io.dx.out.as_view())),
            ],
        )?;
        let dt = io.x.dtype();
        let positions = x.n * x.s;
        if positions == 0 {
            return Ok(());
        }
        let dx = &io.dx.out;
        let aligned = aligned16(&io.x) && aligned16(&dx.as_view()) && (!x.probs || aligned16(&io.target));
        let vector = 16 / dt.size();
        let problem = CrossEntropyProblem { n: x.n, c: x.c, s: x.s, aligned, vector };
        let plan = self.plan_with(OP, &problem, dt)?;
        let (ids, probs) = if x.probs { (None, Some(io.target)) } else { (Some(io.target), None) };
        let weight = io.weight.as_ref();
        let sum = self.weight_sum(x.c, p.label_smoothing, weight.filter(|_| !x.probs), dt)?;
        let args = CrossEntropyBwdInnerArgs {
            x: self.arg_in(&io.x),
            ids: self.arg_opt(ids.as_ref()),
            wide_ids: flag(io.target.dtype() == DType::I64),
            prob: self.arg_opt(probs.as_ref()),
            w: self.arg_opt(io.weight.as_ref()),
            wsum: self.arg_opt(sum.as_ref().map(Buffer::view).as_ref()),
            lse: self.arg_in(&io.lse),
            gy: self.arg_in(&io.gy),
            each: flag(p.reduction == Reduction::None),
            gy_f32: flag(io.gy.dtype() == DType::F32),
            den: self.arg_opt(den.as_ref()),
            dx: self.arg_out(dx),
            err: self.arg_error(),
            code: code_of_op(OP),
            N: x.n as i64,
            C: x.c as i64,
            S: x.s as i64,
            tx: 0,
            wide: 0,
            ignore: p.ignore_index,
            smooth: p.label_smoothing,
            accumulate: flag(io.dx.accumulate),
        };
        match plan {
            CrossEntropyPlan::Rows { lanes, blocks, wide } => {
                let args = args_from! { args => CrossEntropyBwdRowsArgs
                    [x ids wide_ids prob w wsum lse gy each gy_f32 den dx err code N C ignore smooth accumulate]
                    { lanes: lanes as i32, wide: row_vectors(wide, x.c, weight, vector) }
                };
                self.launch(&CROSS_ENTROPY_BWD_ROWS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
            }
            CrossEntropyPlan::Positions { tx, wide, blocks } => {
                let args = CrossEntropyBwdInnerArgs { tx: tx as i32, wide: flag(wide), ..args };
                self.launch(&CROSS_ENTROPY_BWD_INNER, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
            }
        }
    }
}
