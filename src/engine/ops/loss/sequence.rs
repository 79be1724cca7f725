//! Sequence losses.

use crate::buffer::{Buffer, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, args_from, code_of_op, int, long, pow2};
use crate::engine::ops::index::scatter::wide_index;
use crate::engine::ops::loss::{Finish, flag};
use crate::error::Result;
use crate::ops::loss::*;
use crate::spec::BLOCK;
use crate::spec::kernels::loss::*;

/// Lattices of a sequence loss on the device.
struct Lattice {
    nll: Buffer,
    args: LatticeArgs,
    /// Memory that the arguments point to.
    _memory: Vec<Buffer>,
}

/// Arguments of the kernels that computed the lattices, for the gradient that takes them over.
enum LatticeArgs {
    Ctc(CtcLatticeArgs),
    Rnnt(RnntNodesArgs, RnntLatticeArgs),
}

/// Operands of a sequence loss.
struct Operands<'a, 'v> {
    op: &'static str,
    s: SeqShape,
    x: &'a View<'v>,
    targets: &'a View<'v>,
    input_lengths: &'a View<'v>,
    target_lengths: &'a View<'v>,
    /// Alpha and beta of all steps, for a gradient; otherwise alpha alone, of two steps.
    both: bool,
}

/// Lanes of a row of `items` accesses: each has a few, for what a row takes besides.
fn lanes_of(items: usize) -> usize {
    pow2(items / 8, 32)
}

/// Whether rows of `c` elements are made of items of 16 bytes, and their accesses.
fn items_of(dt: DType, c: usize, aligned: bool) -> (bool, usize) {
    let w = 16 / dt.size();
    let wide = aligned && c.is_multiple_of(w);
    (wide, if wide { c / w } else { c })
}

impl Engine {
    /// A block per sample, and for a gradient one more.
    fn lattice_grid(o: &Operands<'_, '_>) -> Grid {
        Grid::Blocks([(if o.both { 2 * o.s.b } else { o.s.b }).min(1 << 20), 1, 1])
    }

    fn ctc_lattice(&self, o: &Operands<'_, '_>, batch_first: bool) -> Result<Lattice> {
        let (s, dt, acc) = (&o.s, o.x.dtype(), o.x.dtype().accumulator());
        let nll = self.scratch(acc, s.b)?;
        let labels = o.targets.numel();
        let side = (if o.both { s.t } else { 2 }) * (2 * labels + s.b);
        let alpha = self.scratch(acc, if o.both { 2 * side } else { side })?;
        let kept = |dtype, len| if o.both { self.scratch(dtype, len).map(Some) } else { Ok(None) };
        let (chain, samples) = (kept(DType::I32, labels)?, kept(DType::I64, 3 * s.b)?);
        let arg = |b: &Option<Buffer>| self.arg_opt(b.as_ref().map(Buffer::view).as_ref());
        let (st, sb) = if batch_first { (s.c, s.t * s.c) } else { (s.b * s.c, s.c) };
        let args = CtcLatticeArgs {
            x: self.arg_in(o.x),
            targets: self.arg_in(o.targets),
            wide_t: wide_index(o.targets),
            il: self.arg_in(o.input_lengths),
            wide_il: wide_index(o.input_lengths),
            tl: self.arg_in(o.target_lengths),
            wide_tl: wide_index(o.target_lengths),
            err: self.arg_error(),
            code: code_of_op(o.op),
            T: long(s.t),
            B: long(s.b),
            C: long(s.c),
            st: long(st),
            sb: long(sb),
            S: long(s.s),
            most: long(s.most),
            blank: long(s.blank),
            both: flag(o.both),
            side: long(side),
            alpha: self.arg_in(&alpha.view()),
            nll: self.arg_in(&nll.view()),
            chain: arg(&chain),
            samples: arg(&samples),
        };
        self.launch(&CTC_LATTICE, dt, "", Self::lattice_grid(o), &args)?;
        let memory = [Some(alpha), chain, samples].into_iter().flatten().collect();
        Ok(Lattice { nll, args: LatticeArgs::Ctc(args), _memory: memory })
    }

    fn rnnt_lattice(&self, o: &Operands<'_, '_>) -> Result<Lattice> {
        let (s, dt, acc) = (&o.s, o.x.dtype(), o.x.dtype().accumulator());
        let (nodes, u) = (s.b * s.t * (s.s + 1), s.s + 1);
        let places = s.b * (s.t + s.s) * u;
        let [nll, lse, blanks, emits] = [s.b, places, places, places].map(|n| self.scratch(acc, n));
        let (nll, lse, blanks, emits) = (nll?, lse?, blanks?, emits?);
        let alpha = self.scratch(acc, 2 * if o.both { places } else { s.b * u })?;
        let (wide, items) = items_of(dt, s.c, aligned16(o.x));
        let lanes = lanes_of(items);
        let node = RnntNodesArgs {
            x: self.arg_in(o.x),
            targets: self.arg_in(o.targets),
            wide_t: wide_index(o.targets),
            il: self.arg_in(o.input_lengths),
            wide_il: wide_index(o.input_lengths),
            tl: self.arg_in(o.target_lengths),
            wide_tl: wide_index(o.target_lengths),
            nodes: long(nodes),
            T: long(s.t),
            U: long(u),
            C: long(s.c),
            blank: long(s.blank),
            lanes: int(lanes),
            wide: flag(wide),
            lse: self.arg_in(&lse.view()),
            blanks: self.arg_in(&blanks.view()),
            emits: self.arg_in(&emits.view()),
        };
        self.launch(&RNNT_NODES, dt, "", Grid::Blocks([row_blocks(nodes, lanes), 1, 1]), &node)?;
        let args = args_from! { node => RnntLatticeArgs
            [blanks emits targets wide_t il wide_il tl wide_tl T U C]
            {
                err: self.arg_error(),
                code: code_of_op(o.op),
                B: long(s.b),
                side: long(places),
                both: flag(o.both),
                alpha: self.arg_in(&alpha.view()),
                nll: self.arg_in(&nll.view()),
            }
        };
        self.launch(&RNNT_LATTICE, dt, "", Self::lattice_grid(o), &args)?;
        Ok(Lattice { nll, args: LatticeArgs::Rnnt(node, args), _memory: vec![alpha, lse, blanks, emits] })
    }

    fn lattice(&self, kind: SeqLoss, o: &Operands<'_, '_>) -> Result<Lattice> {
        match kind {
            SeqLoss::Ctc { batch_first, .. } => self.ctc_lattice(o, batch_first),
            SeqLoss::Rnnt { .. } => self.rnnt_lattice(o),
        }
    }
}

/// Blocks for `rows` rows of `lanes` threads.
fn row_blocks(rows: usize, lanes: usize) -> usize {
    rows.div_ceil(BLOCK as usize / lanes).min(1 << 20)
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
        let l = self.lattice(
            kind,
            &Operands {
                op: OP,
                s,
                x: &io.x,
                targets: &io.targets,
                input_lengths: &io.input_lengths,
                target_lengths: &io.target_lengths,
                both: false,
            },
        )?;
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
        let dt = io.x.dtype();
        if io.x.numel() == 0 {
            return Ok(());
        }
        let l = self.lattice(
            kind,
            &Operands {
                op: OP,
                s,
                x: &io.x,
                targets: &io.targets,
                input_lengths: &io.input_lengths,
                target_lengths: &io.target_lengths,
                both: true,
            },
        )?;
        let mean = reduction == Reduction::Mean;
        let factor = if mean { 1.0 / s.b as f64 } else { 1.0 };
        let gy = self.arg_in(&io.gy);
        let (each, gy_f32) = (flag(reduction == Reduction::None), flag(io.gy.dtype() == DType::F32));
        let (dx, accumulate) = (self.arg_out(&io.dx.out), flag(io.dx.accumulate));
        let dx_aligned = aligned16(&io.dx.out.as_view());
        match &l.args {
            LatticeArgs::Ctc(lattice) => {
                let zero_infinity = matches!(kind, SeqLoss::Ctc { zero_infinity: true, .. });
                let (wide, items) = items_of(dt, s.c, dx_aligned);
                // The threads of a row also have the positions of its step, and wait for each.
                let lanes = lanes_of(2 * items.max(2 * s.most + 1));
                let args = args_from! { lattice => CtcGradArgs
                    [targets wide_t alpha nll chain samples T B C st sb blank side]
                    {
                        lanes: int(lanes),
                        wide: flag(wide),
                        accumulate,
                        gy,
                        dx,
                        factor,
                        each,
                        gy_f32,
                        per_label: flag(mean),
                        zero_infinity: flag(zero_infinity),
                    }
                };
                self.launch(&CTC_GRAD, dt, "", Grid::Blocks([row_blocks(s.b * s.t, lanes), 1, 1]), &args)
            }
            LatticeArgs::Rnnt(node, lattice) => {
                let (wide, items) = items_of(dt, s.c, dx_aligned && aligned16(&io.x));
                let lanes = lanes_of(items);
                let args = args_from! { node => RnntGradArgs
                    [x lse blanks emits targets wide_t il wide_il tl wide_tl nodes T U C blank]
                    {
                        lanes: int(lanes),
                        wide: flag(wide),
                        accumulate,
                        alpha: lattice.alpha,
                        nll: lattice.nll,
                        gy,
                        dx,
                        side: lattice.side,
                        factor,
                        each,
                        gy_f32,
                    }
                };
                let blocks = row_blocks(s.b * s.t * (s.s + 1), lanes);
                self.launch(&RNNT_GRAD, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
            }
        }
    }
}
