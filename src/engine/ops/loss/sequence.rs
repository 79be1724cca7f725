//! Sequence losses.

use crate::buffer::{Buffer, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, long};
use crate::engine::ops::index::scatter::wide_index;
use crate::engine::ops::loss::{Finish, flag, lanes_for};
use crate::error::Result;
use crate::ops::loss::*;
use crate::spec::BLOCK;
use crate::spec::kernels::loss::*;

/// Lattices of a sequence loss on the device.
struct Lattice {
    nll: Buffer,
    args: LatticeArgs,
    /// Memory that the arguments point to: alpha, for transducers also beta and the logits' ln sum e^x.
    _memory: Vec<Buffer>,
}

/// Arguments of the kernel that computed the lattices.
enum LatticeArgs {
    Ctc(CtcAlphaArgs),
    Rnnt(RnntLatticeArgs),
}

impl Engine {
    fn lattice(
        &self,
        op: &'static str,
        kind: SeqLoss,
        s: &SeqShape,
        x: &View<'_>,
        [targets, input_lengths, target_lengths]: [&View<'_>; 3],
    ) -> Result<Lattice> {
        let (dt, acc) = (x.dtype(), x.dtype().accumulator());
        let nll = self.scratch(acc, s.b)?;
        let grid = Grid::Blocks([s.b.min(1 << 20), 1, 1]);
        if let SeqLoss::Ctc { batch_first, .. } = kind {
            let states = 2 * s.most + 1;
            let alpha = self.scratch(acc, s.b * s.t * states)?;
            let (st, sb) = if batch_first { (s.c, s.t * s.c) } else { (s.b * s.c, s.c) };
            let args = CtcAlphaArgs {
                x: self.arg_in(x),
                targets: self.arg_in(targets),
                wide_t: wide_index(targets),
                il: self.arg_in(input_lengths),
                wide_il: wide_index(input_lengths),
                tl: self.arg_in(target_lengths),
                wide_tl: wide_index(target_lengths),
                err: self.arg_error(),
                code: code_of_op(op),
                T: long(s.t),
                B: long(s.b),
                C: long(s.c),
                st: long(st),
                sb: long(sb),
                S: long(s.s),
                most: long(s.most),
                L: long(states),
                blank: long(s.blank),
                alpha: self.arg_in(&alpha.view()),
                nll: self.arg_in(&nll.view()),
            };
            self.launch(&CTC_ALPHA, dt, "", grid, &args)?;
            return Ok(Lattice { nll, args: LatticeArgs::Ctc(args), _memory: vec![alpha] });
        }
        let nodes = s.b * s.t * (s.s + 1);
        let [alpha, beta, lse] =
            [self.scratch(acc, nodes)?, self.scratch(acc, nodes)?, self.scratch(acc, nodes)?];
        let lanes = lanes_for(s.c);
        let args = RnntLseArgs {
            x: self.arg_in(x),
            lse: self.arg_in(&lse.view()),
            rows: long(nodes),
            C: long(s.c),
            lanes: lanes as i32,
        };
        let blocks = nodes.div_ceil(BLOCK as usize / lanes).min(1 << 20);
        self.launch(&RNNT_LSE, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        let args = RnntLatticeArgs {
            x: self.arg_in(x),
            lse: self.arg_in(&lse.view()),
            targets: self.arg_in(targets),
            wide_t: wide_index(targets),
            il: self.arg_in(input_lengths),
            wide_il: wide_index(input_lengths),
            tl: self.arg_in(target_lengths),
            wide_tl: wide_index(target_lengths),
            err: self.arg_error(),
            code: code_of_op(op),
            B: long(s.b),
            T: long(s.t),
            U: long(s.s + 1),
            C: long(s.c),
            blank: long(s.blank),
            alpha: self.arg_in(&alpha.view()),
            beta: self.arg_in(&beta.view()),
            nll: self.arg_in(&nll.view()),
        };
        self.launch(&RNNT_LATTICE, dt, "", grid, &args)?;
        Ok(Lattice { nll, args: LatticeArgs::Rnnt(args), _memory: vec![alpha, beta, lse] })
    }
}

impl SequenceLossOps for Engine {
    fn seq_loss(&self, kind: SeqLoss, reduction: Reduction, io: SeqLossFwd<'_>) -> Result<()> {
        const OP: &str = "seq_loss";
        let s = check_seq_loss(kind, reduction, &io)?;
        self.check_owner_all(
            OP,
            &[
                ("x", Some(io.x)),
                ("targets", Some(io.targets)),
                ("input_lengths", Some(io.input_lengths)),
                ("target_lengths", Some(io.target_lengths)),
                ("loss", Some(io.loss.as_view())),
            ],
        )?;
        let dt = io.x.dtype();
        let l = self.lattice(OP, kind, &s, &io.x, [&io.targets, &io.input_lengths, &io.target_lengths])?;
        let (each, mean) = (reduction == Reduction::None, reduction == Reduction::Mean);
        let (zero, per_label) = match kind {
            SeqLoss::Ctc { zero_infinity, .. } => (zero_infinity, mean),
            SeqLoss::Rnnt { .. } => (false, false),
        };
        let items = self.scratch(dt.accumulator(), 2 * s.b)?;
        let half = |i: usize| match each {
            true => Ok(Ptr::NULL),
            false => items.view().range(i * s.b, s.b).map(|v| self.arg_in(&v)),
        };
        let args = CtcItemsArgs {
            nll: self.arg_in(&l.nll.view()),
            tl: self.arg_in(&io.target_lengths),
            wide_tl: wide_index(&io.target_lengths),
            B: long(s.b),
            zero_infinity: flag(zero),
            per_label: flag(per_label),
            y: if each { self.arg_out(&io.loss) } else { Ptr::NULL },
            item: half(0)?,
            weight: half(1)?,
        };
        self.launch(&CTC_ITEMS, dt, "", Grid::Stride(s.b), &args)?;
        if each {
            return Ok(());
        }
        self.finish_items(dt, &items, s.b, Finish::new(mean, s.b as f64), Some(&io.loss), None)
    }

    fn seq_loss_bwd(&self, kind: SeqLoss, reduction: Reduction, io: SeqLossBwd<'_>) -> Result<()> {
        const OP: &str = "seq_loss_bwd";
        let s = check_seq_loss_bwd(kind, reduction, &io)?;
        self.check_owner_all(
            OP,
            &[
                ("gy", Some(io.gy)),
                ("x", Some(io.x)),
                ("targets", Some(io.targets)),
                ("input_lengths", Some(io.input_lengths)),
                ("target_lengths", Some(io.target_lengths)),
                ("dx", Some(io.dx.out.as_view())),
            ],
        )?;
        let (dt, acc) = (io.x.dtype(), io.x.dtype().accumulator());
        if io.x.numel() == 0 {
            return Ok(());
        }
        let l = self.lattice(OP, kind, &s, &io.x, [&io.targets, &io.input_lengths, &io.target_lengths])?;
        let mean = reduction == Reduction::Mean;
        let factor = if mean { 1.0 / s.b as f64 } else { 1.0 };
        let gy = self.arg_in(&io.gy);
        let (each, gy_f32) = (flag(reduction == Reduction::None), flag(io.gy.dtype() == DType::F32));
        let (dx, accumulate) = (self.arg_out(&io.dx.out), flag(io.dx.accumulate));
        match &l.args {
            LatticeArgs::Ctc(alpha) => {
                let beta = self.scratch(acc, 2 * s.b * (2 * s.most + 1))?;
                let zero_infinity = matches!(kind, SeqLoss::Ctc { zero_infinity: true, .. });
                let args = args_from! { alpha => CtcGradArgs
                    [x targets wide_t il wide_il tl wide_tl T B C st sb S most L blank alpha nll]
                    {
                        beta: self.arg_in(&beta.view()),
                        gy,
                        each,
                        gy_f32,
                        factor,
                        per_label: flag(mean),
                        zero_infinity: flag(zero_infinity),
                        dx,
                        accumulate,
                    }
                };
                self.launch(&CTC_GRAD, dt, "", Grid::Blocks([s.b.min(1 << 20), 1, 1]), &args)
            }
            LatticeArgs::Rnnt(lattice) => {
                let args = args_from! { lattice => RnntGradArgs
                    [x lse targets wide_t il wide_il tl wide_tl B T U C blank alpha beta nll]
                    { gy, each, gy_f32, factor, dx, accumulate }
                };
                self.launch(&RNNT_GRAD, dt, "", Grid::Stride(io.x.numel()), &args)
            }
        }
    }
}
