//! Losses.

use crate::buffer::{Buffer, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, code_of_op, real};
use crate::error::Result;
use crate::ops::*;
use crate::spec::BLOCK;
use crate::spec::loss::*;

/// C name of an elementwise loss.
fn loss_kernel(kind: Loss) -> &'static str {
    match kind {
        Loss::Mse => "gk_loss_mse",
    }
}

/// Blocks of a partial sum over `n` items: by size alone, so that the tree is the same on every run.
fn partial_blocks(n: usize) -> usize {
    n.div_ceil(BLOCK as usize * 16).clamp(1, 2048)
}

/// Work-items per row of `len` elements: a power of two that leaves each a few vectors.
fn lanes_for(len: usize) -> usize {
    (len / 8).next_power_of_two().clamp(1, BLOCK as usize)
}

fn flag(b: bool) -> Arg {
    Arg::I32(b as i32)
}

impl Engine {
    /// Adds `blocks` partial pairs into loss (divided by the denominator for a mean) and denominator.
    #[allow(clippy::too_many_arguments)]
    fn finish_sums(
        &self,
        dt: DType,
        partial: &Buffer,
        blocks: usize,
        mean: bool,
        fixed: f64,
        loss: Option<&ViewMut<'_>>,
        den: Option<&ViewMut<'_>>,
    ) -> Result<()> {
        let args = [
            self.arg_in(&partial.view()),
            Arg::I64(blocks as i64),
            flag(mean),
            real(dt, fixed),
            self.arg_opt_out(loss),
            self.arg_opt_out(den),
        ];
        self.launch(&PAIR_FINISH, dt, "", Grid::Blocks([1, 1, 1]), &args)
    }
}

impl LossOps for Engine {
    fn loss(&self, kind: Loss, reduction: Reduction, io: LossFwd<'_>) -> Result<()> {
        const OP: &str = "loss";
        check_loss(reduction, &io)?;
        self.own_all(
            OP,
            &[
                ("p", Some(io.p)),
                ("t", Some(io.t)),
                ("weight", io.weight),
                ("mask", io.mask),
                ("loss", Some(io.loss.as_view())),
            ],
        )?;
        let (n, dt, name) = (io.p.numel(), io.p.dtype(), loss_kernel(kind));
        let items = [
            self.arg_in(&io.p),
            self.arg_in(&io.t),
            self.arg_opt(io.weight.as_ref()),
            self.arg_opt(io.mask.as_ref()),
        ];
        if reduction == Reduction::None {
            let mut args = items.to_vec();
            args.extend([self.arg_out(&io.loss), Arg::I64(n as i64)]);
            return self.launch(&LOSS_ITEMS, dt, name, Grid::Stride(n), &args);
        }
        let weighted = io.weight.is_some() || io.mask.is_some();
        let blocks = partial_blocks(n);
        let partial = self.scratch(dt.accumulator(), 2 * blocks)?;
        let wide = !weighted && aligned16(&io.p) && aligned16(&io.t);
        let mut args = items.to_vec();
        args.extend([self.arg_in(&partial.view()), Arg::I64(n as i64), flag(wide)]);
        self.launch(&LOSS_PARTIAL, dt, name, Grid::Blocks([blocks, 1, 1]), &args)?;
        let fixed = if weighted { -1.0 } else { n as f64 };
        self.finish_sums(dt, &partial, blocks, reduction == Reduction::Mean, fixed, Some(&io.loss), None)
    }

    fn loss_bwd(&self, kind: Loss, reduction: Reduction, io: LossBwd<'_>) -> Result<()> {
        const OP: &str = "loss_bwd";
        check_loss_bwd(reduction, &io)?;
        let out = |g: &Option<crate::GradMut<'_>>| g.as_ref().map(|g| (g.accumulate, self.arg_out(&g.out)));
        self.own_all(
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
                self.own(OP, arg, &g.out.as_view())?;
            }
        }
        let (n, dt) = (io.p.numel(), io.p.dtype());
        if n == 0 || (io.dp.is_none() && io.dt.is_none()) {
            return Ok(());
        }
        let weighted = io.weight.is_some() || io.mask.is_some();
        let mean = reduction == Reduction::Mean;
        let den = if mean && weighted {
            let blocks = partial_blocks(n);
            let partial = self.scratch(dt.accumulator(), 2 * blocks)?;
            let mut den = self.scratch(dt.accumulator(), 1)?;
            let args = [
                self.arg_opt(io.weight.as_ref()),
                self.arg_opt(io.mask.as_ref()),
                self.arg_in(&partial.view()),
                Arg::I64(n as i64),
            ];
            self.launch(&WEIGHT_PARTIAL, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
            self.finish_sums(dt, &partial, blocks, false, -1.0, None, Some(&den.view_mut()))?;
            Some(den)
        } else {
            None
        };
        let each = reduction == Reduction::None;
        let outputs = [out(&io.dp), out(&io.dt)];
        let written = io.dp.iter().chain(&io.dt).all(|g| aligned16(&g.out.as_view()) && !g.accumulate);
        let wide = !weighted && !each && written && aligned16(&io.p) && aligned16(&io.t);
        let factor = if mean && !weighted { 1.0 / n as f64 } else { 1.0 };
        let (dp, dt_out) = (outputs[0], outputs[1]);
        let args = [
            self.arg_in(&io.p),
            self.arg_in(&io.t),
            self.arg_opt(io.weight.as_ref()),
            self.arg_opt(io.mask.as_ref()),
            self.arg_in(&io.gy),
            flag(each),
            flag(io.gy.dtype() == DType::F32),
            self.arg_opt(den.as_ref().map(Buffer::view).as_ref()),
            dp.map_or(Arg::Mem(None), |o| o.1),
            dt_out.map_or(Arg::Mem(None), |o| o.1),
            Arg::I64(n as i64),
            flag(wide),
            flag(dp.is_some_and(|o| o.0)),
            flag(dt_out.is_some_and(|o| o.0)),
            real(dt, factor),
        ];
        let grid = Grid::Stride(if wide { n.div_ceil(16 / dt.size()) } else { n });
        self.launch(&LOSS_BWD, dt, loss_kernel(kind), grid, &args)
    }

    fn cross_entropy(&self, p: &CrossEntropy, io: CrossEntropyFwd<'_>) -> Result<()> {
        const OP: &str = "cross_entropy";
        let x = check_cross_entropy(p, &io)?;
        self.own_all(
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
        let each = p.reduction == Reduction::None;
        let items = if each { None } else { Some(self.scratch(dt.accumulator(), 2 * positions)?) };
        let halves = match &items {
            Some(b) => Some((b.view().range(0, positions)?, b.view().range(positions, positions)?)),
            None => None,
        };
        let (ids, probs) = if x.probs { (None, Some(io.target)) } else { (Some(io.target), None) };
        let mut args = vec![
            self.arg_in(&io.x),
            self.arg_opt(ids.as_ref()),
            flag(io.target.dtype() == DType::I64),
            self.arg_opt(probs.as_ref()),
            flag(x.probs),
            self.arg_opt(io.weight.as_ref()),
            self.arg_opt_out(io.lse.as_ref()),
            if each { self.arg_out(&io.loss) } else { Arg::Mem(None) },
            self.arg_opt(halves.as_ref().map(|h| &h.0)),
            self.arg_opt(halves.as_ref().map(|h| &h.1)),
            self.arg_error(),
            Arg::I32(code_of_op(OP)),
            Arg::I64(x.n as i64),
            Arg::I64(x.c as i64),
        ];
        let tail = [Arg::I64(p.ignore_index), real(dt, p.label_smoothing)];
        if positions > 0 && x.s == 1 {
            let lanes = lanes_for(x.c);
            args.extend([Arg::I32(lanes as i32), flag(aligned16(&io.x))]);
            args.extend(tail);
            let blocks = x.n.div_ceil(BLOCK as usize / lanes).min(1 << 20);
            self.launch(&XENT_ROWS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        } else if positions > 0 {
            args.push(Arg::I64(x.s as i64));
            args.extend(tail);
            self.launch(&XENT_INNER, dt, "", Grid::Stride(positions), &args)?;
        }
        let Some((value, weight)) = halves else { return Ok(()) };
        let blocks = partial_blocks(positions);
        let partial = self.scratch(dt.accumulator(), 2 * blocks)?;
        let args = [
            self.arg_in(&value),
            self.arg_in(&weight),
            self.arg_in(&partial.view()),
            Arg::I64(positions as i64),
        ];
        self.launch(&PAIR_PARTIAL, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        let fixed = if x.probs { positions as f64 } else { -1.0 };
        self.finish_sums(
            dt,
            &partial,
            blocks,
            p.reduction == Reduction::Mean,
            fixed,
            Some(&io.loss),
            io.den.as_ref(),
        )
    }

    fn cross_entropy_bwd(&self, p: &CrossEntropy, io: CrossEntropyBwd<'_>) -> Result<()> {
        const OP: &str = "cross_entropy_bwd";
        let x = check_cross_entropy_bwd(p, &io)?;
        let den = io.den.filter(|_| p.reduction == Reduction::Mean);
        self.own_all(
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
        let (ids, probs) = if x.probs { (None, Some(io.target)) } else { (Some(io.target), None) };
        let (n, c, s) = (Arg::I64(x.n as i64), Arg::I64(x.c as i64), Arg::I64(x.s as i64));
        let smooth = real(dt, p.label_smoothing);
        // What multiplies the softmax where it is not simply C: per position for probabilities, one number for weighted smoothing.
        let sums = if let Some(probs) = &probs {
            let sums = self.scratch(dt.accumulator(), positions)?;
            let args = [
                self.arg_in(probs),
                self.arg_opt(io.weight.as_ref()),
                self.arg_in(&sums.view()),
                n,
                c,
                s,
                smooth,
            ];
            self.launch(&XENT_PROB_SUM, dt, "", Grid::Blocks([positions.min(1 << 20), 1, 1]), &args)?;
            Some(sums)
        } else if let (Some(w), true) = (&io.weight, p.label_smoothing != 0.0) {
            let sum = self.scratch(dt.accumulator(), 1)?;
            let args = [self.arg_in(w), self.arg_in(&sum.view()), c];
            self.launch(&XENT_WEIGHT_SUM, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
            Some(sum)
        } else {
            None
        };
        let dx = &io.dx.out;
        let mut args = vec![
            self.arg_in(&io.x),
            self.arg_opt(ids.as_ref()),
            flag(io.target.dtype() == DType::I64),
            self.arg_opt(probs.as_ref()),
            flag(x.probs),
            self.arg_opt(io.weight.as_ref()),
            self.arg_opt(sums.as_ref().map(Buffer::view).as_ref()),
            self.arg_in(&io.lse),
            self.arg_in(&io.gy),
            flag(p.reduction == Reduction::None),
            flag(io.gy.dtype() == DType::F32),
            self.arg_opt(den.as_ref()),
            self.arg_out(dx),
            self.arg_error(),
            Arg::I32(code_of_op(OP)),
            n,
            c,
        ];
        let tail = [Arg::I64(p.ignore_index), smooth, flag(io.dx.accumulate)];
        if x.s == 1 {
            let lanes = lanes_for(x.c);
            args.extend([Arg::I32(lanes as i32), flag(aligned16(&io.x) && aligned16(&dx.as_view()))]);
            args.extend(tail);
            let blocks = x.n.div_ceil(BLOCK as usize / lanes).min(1 << 20);
            return self.launch(&XENT_BWD_ROWS, dt, "", Grid::Blocks([blocks, 1, 1]), &args);
        }
        args.push(s);
        args.extend(tail);
        self.launch(&XENT_BWD_INNER, dt, "", Grid::Stride(positions), &args)
    }
}
