//! Sequence losses.

use crate::spec::kernels::loss::*;
use crate::buffer::{Buffer, View};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, long, real};
use crate::engine::ops::loss::{Finish, flag, lanes_for};
use crate::error::Result;
use crate::ops::loss::*;
use crate::spec::BLOCK;

/// Lattices of a sequence loss on the device.
struct Lattice {
    alpha: Buffer,
    /// Transducer: beta and the logits' ln sum e^x.
    rest: Option<(Buffer, Buffer)>,
    nll: Buffer,
}

impl Engine {
    /// An index operand with its width flag.
    fn index_args(&self, views: &[&View<'_>]) -> Vec<Arg> {
        views.iter().flat_map(|v| [self.arg_in(v), flag(v.dtype() == DType::I64)]).collect()
    }

    /// Sizes and strides of a CTC problem as its kernels take them.
    fn ctc_sizes(kind: SeqLoss, s: &SeqShape) -> [Arg; 9] {
        let first = matches!(kind, SeqLoss::Ctc { batch_first: true, .. });
        let (st, sb) = if first { (s.c, s.t * s.c) } else { (s.b * s.c, s.c) };
        [s.t, s.b, s.c, st, sb, s.s, s.most, 2 * s.most + 1, s.blank].map(long)
    }

    fn lattice(
        &self,
        op: &'static str,
        kind: SeqLoss,
        s: &SeqShape,
        x: &View<'_>,
        index: &[&View<'_>],
    ) -> Result<Lattice> {
        let (dt, acc) = (x.dtype(), x.dtype().accumulator());
        let nll = self.scratch(acc, s.b)?;
        let code = [self.arg_error(), Arg::I32(code_of_op(op))];
        let grid = Grid::Blocks([s.b.min(1 << 20), 1, 1]);
        if let SeqLoss::Ctc { .. } = kind {
            let alpha = self.scratch(acc, s.b * s.t * (2 * s.most + 1))?;
            let mut args = vec![self.arg_in(x)];
            args.extend(self.index_args(index));
            args.extend(code);
            args.extend(Self::ctc_sizes(kind, s));
            args.extend([self.arg_in(&alpha.view()), self.arg_in(&nll.view())]);
            self.launch_list(&CTC_ALPHA.spec, dt, "", grid, &args)?;
            return Ok(Lattice { alpha, rest: None, nll });
        }
        let (u, nodes) = (s.s + 1, s.b * s.t * (s.s + 1));
        let [alpha, beta, lse] =
            [self.scratch(acc, nodes)?, self.scratch(acc, nodes)?, self.scratch(acc, nodes)?];
        let lanes = lanes_for(s.c);
        let args = [self.arg_in(x), self.arg_in(&lse.view()), long(nodes), long(s.c), Arg::I32(lanes as i32)];
        let blocks = nodes.div_ceil(BLOCK as usize / lanes).min(1 << 20);
        self.launch_list(&RNNT_LSE.spec, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        let mut args = vec![self.arg_in(x), self.arg_in(&lse.view())];
        args.extend(self.index_args(index));
        args.extend(code);
        args.extend([s.b, s.t, u, s.c, s.blank].map(long));
        args.extend([&alpha, &beta, &nll].map(|b| self.arg_in(&b.view())));
        self.launch_list(&RNNT_LATTICE.spec, dt, "", grid, &args)?;
        Ok(Lattice { alpha, rest: Some((beta, lse)), nll })
    }
}

impl SequenceLossOps for Engine {
    fn seq_loss(&self, kind: SeqLoss, reduction: Reduction, io: SeqLossFwd<'_>) -> Result<()> {
        const OP: &str = "seq_loss";
        let s = check_seq_loss(kind, reduction, &io)?;
        self.own_all(
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
        let l = self.lattice(OP, kind, &s, &io.x, &[&io.targets, &io.input_lengths, &io.target_lengths])?;
        let (each, mean) = (reduction == Reduction::None, reduction == Reduction::Mean);
        let (zero, per_label) = match kind {
            SeqLoss::Ctc { zero_infinity, .. } => (zero_infinity, mean),
            SeqLoss::Rnnt { .. } => (false, false),
        };
        let items = self.scratch(dt.accumulator(), 2 * s.b)?;
        let half = |i: usize| match each {
            true => Ok(Arg::Mem(None)),
            false => items.view().range(i * s.b, s.b).map(|v| self.arg_in(&v)),
        };
        let mut args = vec![self.arg_in(&l.nll.view())];
        args.extend(self.index_args(&[&io.target_lengths]));
        args.extend([
            long(s.b),
            flag(zero),
            flag(per_label),
            if each { self.arg_out(&io.loss) } else { Arg::Mem(None) },
            half(0)?,
            half(1)?,
        ]);
        self.launch_list(&CTC_ITEMS.spec, dt, "", Grid::Stride(s.b), &args)?;
        if each {
            return Ok(());
        }
        self.finish_items(dt, &items, s.b, Finish::new(mean, s.b as f64), Some(&io.loss), None)
    }

    fn seq_loss_bwd(&self, kind: SeqLoss, reduction: Reduction, io: SeqLossBwd<'_>) -> Result<()> {
        const OP: &str = "seq_loss_bwd";
        let s = check_seq_loss_bwd(kind, reduction, &io)?;
        self.own_all(
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
        let index = [&io.targets, &io.input_lengths, &io.target_lengths];
        let l = self.lattice(OP, kind, &s, &io.x, &index)?;
        let mean = reduction == Reduction::Mean;
        let factor = real(dt, if mean { 1.0 / s.b as f64 } else { 1.0 });
        let upstream =
            [self.arg_in(&io.gy), flag(reduction == Reduction::None), flag(io.gy.dtype() == DType::F32)];
        let out = [self.arg_out(&io.dx.out), flag(io.dx.accumulate)];
        let mut args = vec![self.arg_in(&io.x)];
        match (kind, &l.rest) {
            (SeqLoss::Ctc { zero_infinity, .. }, _) => {
                let beta = self.scratch(acc, 2 * s.b * (2 * s.most + 1))?;
                args.extend(self.index_args(&index));
                args.extend(Self::ctc_sizes(kind, &s));
                args.extend([&l.alpha, &l.nll, &beta].map(|b| self.arg_in(&b.view())));
                args.extend(upstream);
                args.extend([factor, flag(mean), flag(zero_infinity)]);
                args.extend(out);
                self.launch_list(&CTC_GRAD.spec, dt, "", Grid::Blocks([s.b.min(1 << 20), 1, 1]), &args)
            }
            (SeqLoss::Rnnt { .. }, Some((beta, lse))) => {
                args.push(self.arg_in(&lse.view()));
                args.extend(self.index_args(&index));
                args.extend([s.b, s.t, s.s + 1, s.c, s.blank].map(long));
                args.extend([&l.alpha, beta, &l.nll].map(|b| self.arg_in(&b.view())));
                args.extend(upstream);
                args.push(factor);
                args.extend(out);
                self.launch_list(&RNNT_GRAD.spec, dt, "", Grid::Stride(io.x.numel()), &args)
            }
            (SeqLoss::Rnnt { .. }, None) => Ok(()),
        }
    }
}
