//! Losses with one item per row.

use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, args_from, code_of_op};
use crate::engine::ops::loss::margin::margin_kernel;
use crate::engine::ops::loss::plan::{RowLossPlan, RowLossProblem};
use crate::engine::ops::loss::{Finish, flag, partial_blocks};
use crate::error::Result;
use crate::ops::loss::*;
use crate::ops::loss::{Ids, Operand, Role};
use crate::spec::kernels::loss::*;

/// Arguments of a kernel of `rows.c`: those that all of them have, from `$base`, and its own.
macro_rules! row_args {
    ($base:expr => $to:ident { $($own:tt)* }) => {{
        let base: &RowPartialArgs = &$base;
        args_from! { base => $to
            [x0 x1 x2 x3 mask ids wide err code rows len width classes ignore roles lanes p0 p1 p2 p3 flags]
            { $($own)* }
        }
    }};
}

/// Most partial sums of rows, and most blocks that sum a shared gradient.
const PARTS: usize = 4096;

/// C function of a row loss, and its numbers.
struct Function {
    name: &'static str,
    p: [f64; 4],
    flags: i32,
    ignore: i64,
    /// Whether the statistics are plain sums, so that a row can be cut.
    sums: bool,
}

fn function(kind: RowLoss, ids: bool, noise: bool) -> Function {
    let k = |name, p: [f64; 4], flags| Function { name, p, flags, ignore: i64::MIN, sums: false };
    let cut = |name, p: [f64; 4], flags| Function { name, p, flags, ignore: i64::MIN, sums: true };
    let bits = |a: bool, b: bool| flag(a) | flag(b) << 1;
    let one = |x: f64| [x, 0.0, 0.0, 0.0];
    let two = |x: f64, y: f64| [x, y, 0.0, 0.0];
    match kind {
        RowLoss::Triplet { margin, p, eps, swap, squared } => {
            let name = if p == 2.0 { "gk_row_triplet" } else { "gk_row_triplet_degree" };
            cut(name, [margin, p, eps, 0.0], bits(swap, squared))
        }
        RowLoss::Contrastive { margin, half } => {
            cut("gk_row_contrastive", two(margin, if half { 0.5 } else { 1.0 }), 0)
        }
        RowLoss::Cosine { eps, scale } => cut("gk_row_cosine", two(eps, scale), 0),
        RowLoss::CosineEmbedding { margin } => cut("gk_row_cosine_embedding", one(margin), 0),
        RowLoss::Nce => cut("gk_row_nce", one(0.0), flag(noise)),
        RowLoss::Capsule { plus, minus, lambda } => cut("gk_row_capsule", [plus, minus, lambda, 0.0], 0),
        RowLoss::CategoricalCe { label_smoothing } => {
            cut("gk_row_categorical", two(label_smoothing, 1e-7), 0)
        }
        RowLoss::Kl { log_input, log_target } => cut("gk_row_kl", one(0.0), bits(log_input, log_target)),
        RowLoss::Nll { floor, ignore_index } => {
            let mut k = k("gk_row_nll", one(floor.unwrap_or(0.0)), flag(floor.is_some()));
            k.ignore = ignore_index;
            k
        }
        RowLoss::MulticlassFocal { gamma } => k("gk_row_focal", one(gamma), 0),
        RowLoss::Ordinal => cut("gk_row_ordinal", one(0.0), 0),
        RowLoss::Distillation { temperature, alpha } => {
            k("gk_row_distillation", two(temperature, alpha), flag(ids))
        }
        RowLoss::Dino { student, teacher } => k("gk_row_dino", two(student, teacher), 0),
        RowLoss::ArcFace { scale, margin } => k("gk_row_arcface", two(scale, margin), 0),
        RowLoss::Z { coef } => k("gk_row_z", one(coef), 0),
        RowLoss::MultiMargin { squared, margin } => {
            cut("gk_row_multi_margin", one(margin), 1 + flag(squared))
        }
        RowLoss::MultilabelMargin => k("gk_row_multilabel_margin", one(0.0), 0),
        RowLoss::MultilabelSoftMargin => cut("gk_row_multilabel_soft", one(0.0), 0),
        RowLoss::Dice { smooth, squared, from_logits, .. } => {
            cut("gk_row_dice", one(smooth), bits(squared, from_logits))
        }
        RowLoss::Tversky { a, b, smooth, gamma } => cut("gk_row_tversky", [a, b, smooth, gamma], 0),
        RowLoss::Boxes { overlap, eps } => k("gk_row_box", one(eps), overlap as i32),
        RowLoss::Quantum => cut("gk_row_quantum", one(0.0), 0),
        RowLoss::Depth { lambda, root } => cut("gk_row_depth", one(lambda), flag(root)),
        RowLoss::Patches { normalize } => k("gk_row_patch", one(0.0), flag(normalize)),
        RowLoss::GaussianKl => cut("gk_row_gaussian_kl", one(0.0), 0),
        RowLoss::Rmse => cut("gk_row_rmse", one(0.0), 0),
        RowLoss::ElasticNet { alpha, r } => cut("gk_row_elastic", two(alpha, r), 0),
        RowLoss::GaussianNll { full, eps } => k("gk_row_gaussian_nll", one(eps), flag(full)),
        RowLoss::MarginRanking { margin } => k("gk_row_ranking", one(margin), 0),
        RowLoss::Dpo { beta } => k("gk_row_preference", one(beta), 0),
        RowLoss::Ipo { beta } => k("gk_row_preference", two(1.0, 0.5 / beta), 1),
        RowLoss::SimPo { beta, gamma } => k("gk_row_preference", two(beta, gamma), 0),
        RowLoss::Orpo => k("gk_row_preference", one(0.0), 2),
        // These have kernels of their own.
        RowLoss::Circle { .. } | RowLoss::Kto { .. } => k("", one(0.0), 0),
        RowLoss::BcePosWeight => k("gk_row_bce_pos", one(0.0), 0),
        RowLoss::Quantiles => k("gk_row_quantiles", one(0.0), 0),
        RowLoss::Adversarial { mode } => k("gk_row_adversarial", one(0.0), mode as i32),
    }
}

/// Whether the operands with a number per element (or per row, where rows are elements) can be read in vectors.
fn vectors(kind: RowLoss, s: &RowShape, x: &[Option<View<'_>>; 4], dx: &[Option<GradMut<'_>>; 4]) -> bool {
    let each = kind.single_elements();
    let whole = (each && s.len == 1) || s.len.is_multiple_of(16 / s.dtype.size());
    let read = |(o, v): (&Operand, &Option<View<'_>>)| {
        v.as_ref().is_none_or(|v| aligned16(v) || !(matches!(o.role, Role::Element | Role::Shared) || each))
    };
    let written = |d: &Option<GradMut<'_>>| d.as_ref().is_none_or(|d| aligned16(&d.out.as_view()));
    whole
        && !(kind.strided() && s.width > 1)
        && kind.operands().iter().zip(x).all(read)
        && dx.iter().all(written)
}

/// How a launch reads its rows.
#[derive(Clone, Copy)]
struct Reads {
    /// In vectors.
    wide: bool,
    /// Again after the statistics, as for a gradient.
    again: bool,
}

/// A row loss that is about to be launched.
struct Rows<'a> {
    name: &'static str,
    shape: RowShape,
    /// What all kernels share, and the statistics of cut rows.
    base: RowPartialArgs,
    plan: RowLossPlan,
    /// Keeps the memory of `base.partial`.
    _partial: Option<Buffer>,
    weighted: bool,
    x: [Option<View<'a>>; 4],
}

impl Engine {
    /// Arguments that the kernels share, and the sums of long rows.
    fn prepare_rows<'a>(
        &self,
        op: &'static str,
        kind: RowLoss,
        shape: RowShape,
        x: &[Option<View<'a>>; 4],
        [ids, mask]: [Option<&View<'a>>; 2],
        Reads { wide, again }: Reads,
    ) -> Result<Rows<'a>> {
        let dt = shape.dtype;
        let function = function(kind, ids.is_some(), x[2].is_some());
        let (rows, len) = (shape.rows, shape.len);
        let problem = RowLossProblem {
            rows,
            len,
            sums: function.sums,
            interleaved: kind.strided() && shape.width > 1,
            again,
        };
        let plan = self.plan(op, &problem)?;
        let mut roles = 0i64;
        for (i, o) in kind.operands().iter().enumerate() {
            roles |= (o.role as i64) << (4 * i);
        }
        if kind.weighted() {
            roles |= 1 << 16;
        }
        if wide {
            roles |= 1 << 20;
        }
        let classes = match kind.ids() {
            Ids::No => -1,
            Ids::PerRow { classes_beyond, .. } => (len + classes_beyond) as i64,
            Ids::List => 0,
        };
        let [x0, x1, x2, x3] = [0, 1, 2, 3].map(|i| self.arg_opt(x[i].as_ref()));
        let [p0, p1, p2, p3] = function.p;
        let mut base = RowPartialArgs {
            x0,
            x1,
            x2,
            x3,
            mask: self.arg_opt(mask),
            ids: self.arg_opt(ids),
            wide: flag(ids.is_some_and(|v| v.dtype() == DType::I64)),
            err: self.arg_error(),
            code: code_of_op(op),
            rows: rows as i64,
            len: len as i64,
            width: shape.width as i64,
            classes,
            ignore: function.ignore,
            roles,
            lanes: plan.lanes as i32,
            p0,
            p1,
            p2,
            p3,
            flags: function.flags,
            chunks: plan.chunks as i64,
            partial: Ptr::NULL,
        };
        let name = function.name;
        let mut partial = None;
        if plan.chunks > 1 && rows > 0 {
            let sums = self.scratch(dt.accumulator(), 4 * rows * plan.chunks)?;
            base.partial = self.arg_in(&sums.view());
            self.launch(&ROW_PARTIAL, dt, name, Grid::Blocks([rows * plan.chunks, 1, 1]), &base)?;
            partial = Some(sums);
        }
        Ok(Rows { name, shape, base, plan, _partial: partial, weighted: kind.weighted(), x: *x })
    }

    /// Items of all rows in `y`, or their partial sums and those of their weights.
    fn row_items(&self, r: &Rows<'_>, y: Option<&ViewMut<'_>>) -> Result<Option<(Buffer, usize)>> {
        let (dt, rows) = (r.shape.dtype, r.shape.rows);
        let blocks = r.plan.blocks(rows);
        let blocks = if y.is_none() { blocks.min(PARTS) } else { blocks };
        let pairs = if y.is_none() { Some(self.scratch(dt.accumulator(), 2 * blocks)?) } else { None };
        let args = row_args!(r.base => RowItemsArgs {
            chunks: r.base.chunks,
            partial: r.base.partial,
            y: self.arg_opt_out(y),
            pairs: self.arg_opt(pairs.as_ref().map(Buffer::view).as_ref()),
        });
        self.launch(&ROW_ITEMS, dt, r.name, Grid::Blocks([blocks, 1, 1]), &args)?;
        Ok(pairs.map(|p| (p, blocks)))
    }

    /// Partial sums of the weights of all rows.
    fn row_weights(&self, kind: RowLoss, r: &Rows<'_>) -> Result<Option<(Buffer, usize)>> {
        if !matches!(kind, RowLoss::Patches { .. }) {
            return self.row_items(r, None);
        }
        // The mask is the weight.
        let (dt, rows) = (r.shape.dtype, r.shape.rows);
        let blocks = partial_blocks(rows);
        let pairs = self.scratch(dt.accumulator(), 2 * blocks)?;
        let args = WeightPartialArgs {
            weight: Ptr::NULL,
            mask: r.base.mask,
            partial: self.arg_in(&pairs.view()),
            n: rows as i64,
        };
        self.launch(&WEIGHT_PARTIAL, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        Ok(Some((pairs, blocks)))
    }

    /// The gradient of the vector in place 2 that all rows share.
    fn row_shared(
        &self,
        r: &Rows<'_>,
        gy: Ptr,
        [each, gy_f32]: [i32; 2],
        factor: f64,
        d: &GradMut<'_>,
    ) -> Result<()> {
        let (dt, rows, len) = (r.shape.dtype, r.shape.rows, r.shape.len);
        let parts = rows.div_ceil(PARTS).clamp(1, PARTS.div_ceil(len.max(1)));
        let sums = self.scratch(dt.accumulator(), len * parts)?;
        let args = row_args!(r.base => RowSharedArgs {
            gy,
            each,
            gy_f32,
            factor,
            parts: parts as i64,
            sums: self.arg_in(&sums.view()),
        });
        self.launch(&ROW_SHARED, dt, r.name, Grid::Blocks([(len * parts).min(1 << 20), 1, 1]), &args)?;
        let args = RowSharedSumArgs {
            sums: self.arg_in(&sums.view()),
            len: len as i64,
            parts: parts as i64,
            d: self.arg_out(&d.out),
            accumulate: flag(d.accumulate),
        };
        self.launch(&ROW_SHARED_SUM, dt, "", Grid::Blocks([len.min(1 << 20), 1, 1]), &args)
    }
}

impl RowLossOps for Engine {
    fn row_loss(&self, kind: RowLoss, reduction: Reduction, io: RowLossFwd<'_>) -> Result<()> {
        const OP: &str = "row_loss";
        let shape = check_row_loss(kind, reduction, &io)?;
        self.check_owner_all(OP, &io.x.map(|v| ("x", v)))?;
        self.check_owner_all(OP, &[("ids", io.ids), ("mask", io.mask), ("loss", Some(io.loss.as_view()))])?;
        if let Some(m) = margin_kernel(kind) {
            return self.margin_loss(OP, &m, &shape, reduction, &io);
        }
        let (dt, rows) = (shape.dtype, shape.rows);
        let each = reduction == Reduction::None;
        let written = !each || !kind.single_elements() || aligned16(&io.loss.as_view());
        let wide = written && vectors(kind, &shape, &io.x, &[const { None }; 4]);
        let reads = Reads { wide, again: false };
        let r = self.prepare_rows(OP, kind, shape, &io.x, [io.ids.as_ref(), io.mask.as_ref()], reads)?;
        let Some((pairs, blocks)) = self.row_items(&r, if each { Some(&io.loss) } else { None })? else {
            return Ok(());
        };
        let fixed = if r.weighted { -1.0 } else { rows as f64 };
        let how = Finish::new(reduction == Reduction::Mean, fixed);
        self.finish_sums(dt, &pairs, blocks, how, Some(&io.loss), None)
    }

    fn row_loss_bwd(&self, kind: RowLoss, reduction: Reduction, io: RowLossBwd<'_>) -> Result<()> {
        const OP: &str = "row_loss_bwd";
        let shape = check_row_loss_bwd(kind, reduction, &io)?;
        self.check_owner_all(OP, &io.x.map(|v| ("x", v)))?;
        self.check_owner_all(OP, &[("ids", io.ids), ("mask", io.mask), ("gy", Some(io.gy))])?;
        for d in io.dx.iter().flatten() {
            self.check_owner(OP, "dx", &d.out.as_view())?;
        }
        if let Some(m) = margin_kernel(kind) {
            return self.margin_loss_bwd(OP, &m, &shape, reduction, &io);
        }
        let (dt, rows, len) = (shape.dtype, shape.rows, shape.len);
        let reads = Reads { wide: vectors(kind, &shape, &io.x, &io.dx), again: true };
        let r = self.prepare_rows(OP, kind, shape, &io.x, [io.ids.as_ref(), io.mask.as_ref()], reads)?;
        let mean = reduction == Reduction::Mean;
        let mut den = None;
        if mean && r.weighted {
            let mut d = self.scratch(dt.accumulator(), 1)?;
            if let Some((pairs, blocks)) = self.row_weights(kind, &r)? {
                self.finish_sums(dt, &pairs, blocks, Finish::new(true, -1.0), None, Some(&d.view_mut()))?;
            }
            den = Some(d);
        }
        let factor = if mean && !r.weighted { 1.0 / rows as f64 } else { 1.0 };
        let gy = self.arg_in(&io.gy);
        let (each, gy_f32) = (flag(reduction == Reduction::None), flag(io.gy.dtype() == DType::F32));
        let acc = io
            .dx
            .iter()
            .enumerate()
            .fold(0, |a, (i, d)| a | i32::from(d.as_ref().is_some_and(|d| d.accumulate)) << i);
        let shared = |i: usize| kind.operands().get(i).is_some_and(|o| o.role == Role::Shared);
        if io.dx.iter().enumerate().any(|(i, d)| d.is_some() && !shared(i)) {
            let out = |i: usize| self.arg_opt_out(io.dx[i].as_ref().filter(|_| !shared(i)).map(|d| &d.out));
            let args = row_args!(r.base => RowGradArgs {
                chunks: r.base.chunks,
                partial: r.base.partial,
                gy,
                each,
                gy_f32,
                den: self.arg_opt(den.as_ref().map(Buffer::view).as_ref()),
                factor,
                d0: out(0),
                d1: out(1),
                d2: out(2),
                d3: out(3),
                acc,
            });
            let blocks = if len == 0 { 0 } else { r.plan.blocks(rows * r.plan.chunks) };
            self.launch(&ROW_GRAD, dt, r.name, Grid::Blocks([blocks, 1, 1]), &args)?;
        }
        if let (Some(d), true) = (&io.dx[2], shared(2)) {
            self.row_shared(&r, gy, [each, gy_f32], factor, d)?;
        }
        // The operands stay borrowed until everything is queued.
        let _ = r.x;
        Ok(())
    }
}
