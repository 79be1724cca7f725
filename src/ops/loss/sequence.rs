//! Sequence losses: operands and checks.

use crate::ops::loss::{Reduction, one_element};
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// Which sequence loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SeqLoss {
    /// Connectionist temporal classification, `F.ctc_loss`: x log-probabilities \[T, B, C\]; targets \[B, S\] or one after the other \[sum\].
    /// Mean divides each loss by max(labels, 1) first. The gradient takes the log-probabilities as independent values.
    Ctc {
        /// class of the blank
        blank: usize,
        /// an impossible alignment gives 0 instead of infinity (and a gradient of 0 instead of NaN)
        zero_infinity: bool,
        /// x is [B, T, C]
        batch_first: bool,
    },
    /// Transducer, `torchaudio.functional.rnnt_loss`: x logits [B, T, U+1, C], targets [B, U].
    Rnnt {
        /// class of the blank
        blank: usize,
    },
}

io_struct! {
    /// Operands of [`SequenceLossOps::seq_loss`](super::SequenceLossOps::seq_loss).
    #[derive(Debug)]
    pub struct SeqLossFwd<'a> {
        /// Scores, contiguous.
        pub x: View<'a>,
        /// Labels, i32 or i64.
        pub targets: View<'a>,
        /// Valid steps per sample \[B\], i32 or i64.
        pub input_lengths: View<'a>,
        /// Labels per sample \[B\], i32 or i64.
        pub target_lengths: View<'a>,
        /// One element of the accumulator's dtype, or \[B\] in x's dtype for `Reduction::None`.
        pub loss: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`SequenceLossOps::seq_loss_bwd`](super::SequenceLossOps::seq_loss_bwd).
    #[derive(Debug)]
    pub struct SeqLossBwd<'a> {
        /// Upstream gradient: one element (f32 or x's dtype), or \[B\] for `Reduction::None`.
        pub gy: View<'a>,
        /// As in the forward.
        pub x: View<'a>,
        /// As in the forward.
        pub targets: View<'a>,
        /// As in the forward.
        pub input_lengths: View<'a>,
        /// As in the forward.
        pub target_lengths: View<'a>,
        /// Gradient of the scores.
        pub dx: GradMut<'a>,
    }
}

op_family! {
    /// Losses of sequences without alignment. f32, f16, bf16 and f64 data; the lattice is f32 (f64 for f64).
    pub trait SequenceLossOps : Loss => SEQUENCE_LOSS_OPS {
        /// Forward of a sequence loss. Lengths and labels out of range are `IndexOutOfRange`; such a sample counts 0.
        fn seq_loss(&self, kind: SeqLoss, reduction: Reduction, io: SeqLossFwd<'_>) -> Result<()>;
        /// Gradients of [`SequenceLossOps::seq_loss`].
        fn seq_loss_bwd(&self, kind: SeqLoss, reduction: Reduction, io: SeqLossBwd<'_>) -> Result<()>;
    }
}

/// Sizes of a sequence loss.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeqShape {
    pub(crate) b: usize,
    pub(crate) t: usize,
    pub(crate) c: usize,
    /// Labels per sample; 0 where they stand one after the other.
    pub(crate) s: usize,
    /// Most labels of a sample.
    pub(crate) most: usize,
    pub(crate) blank: usize,
}

fn check_seq(
    op: &'static str,
    kind: SeqLoss,
    x: &View<'_>,
    targets: &View<'_>,
    lengths: [(&'static str, &View<'_>); 2],
) -> Result<SeqShape> {
    check::float(op, "x", x)?;
    check::contiguous(op, "x", x)?;
    let bad = |want: &'static str| GpuError::invalid(op, "x", want, format!("{:?}", x.shape()));
    let shape = match (kind, x.shape()) {
        (SeqLoss::Ctc { blank, batch_first, .. }, &[p, q, c]) => {
            let (t, b) = if batch_first { (q, p) } else { (p, q) };
            let padded = targets.shape().len() == 2;
            let most = if padded { targets.shape()[1] } else { targets.numel() };
            if padded {
                check::shape(op, "targets", targets, &[b, most])?;
            } else if targets.shape().len() != 1 {
                let got = format!("{:?}", targets.shape());
                return Err(GpuError::invalid(op, "targets", "shape [B, S] or [sum of the lengths]", got));
            }
            SeqShape { b, t, c, s: if padded { most } else { 0 }, most, blank }
        }
        (SeqLoss::Rnnt { blank }, &[b, t, u, c]) if u > 0 => {
            check::shape(op, "targets", targets, &[b, u - 1])?;
            SeqShape { b, t, c, s: u - 1, most: u - 1, blank }
        }
        (SeqLoss::Ctc { .. }, _) => return Err(bad("shape [T, B, C]")),
        (SeqLoss::Rnnt { .. }, _) => return Err(bad("shape [B, T, U + 1, C]")),
    };
    if shape.blank >= shape.c {
        return Err(GpuError::invalid(
            op,
            "blank",
            format!("a class below {}", shape.c),
            format!("{}", shape.blank),
        ));
    }
    for (arg, v) in [("targets", targets), lengths[0], lengths[1]] {
        check::one_of(op, arg, v, &[DType::I32, DType::I64])?;
        check::contiguous(op, arg, v)?;
    }
    for (arg, v) in lengths {
        check::shape(op, arg, v, &[shape.b])?;
    }
    Ok(shape)
}

fn check_result(
    op: &'static str,
    arg: &'static str,
    reduction: Reduction,
    v: &View<'_>,
    x: &View<'_>,
    b: usize,
    scalars: &[DType],
) -> Result<()> {
    if reduction != Reduction::None {
        return one_element(op, arg, v, scalars);
    }
    check::dtype(op, arg, v, x.dtype())?;
    check::shape(op, arg, v, &[b])?;
    check::contiguous(op, arg, v)
}

/// Checks of [`SequenceLossOps::seq_loss`](super::SequenceLossOps::seq_loss).
pub(crate) fn check_seq_loss(kind: SeqLoss, reduction: Reduction, io: &SeqLossFwd<'_>) -> Result<SeqShape> {
    const OP: &str = "seq_loss";
    let lengths = [("input_lengths", &io.input_lengths), ("target_lengths", &io.target_lengths)];
    let s = check_seq(OP, kind, &io.x, &io.targets, lengths)?;
    check_result(OP, "loss", reduction, &io.loss.as_view(), &io.x, s.b, &[io.x.dtype().accumulator()])?;
    let inputs =
        [("x", io.x), ("targets", io.targets), (lengths[0].0, *lengths[0].1), (lengths[1].0, *lengths[1].1)];
    check::separate_output(OP, "loss", &io.loss, &inputs)?;
    Ok(s)
}

/// Checks of [`SequenceLossOps::seq_loss_bwd`](super::SequenceLossOps::seq_loss_bwd).
pub(crate) fn check_seq_loss_bwd(
    kind: SeqLoss,
    reduction: Reduction,
    io: &SeqLossBwd<'_>,
) -> Result<SeqShape> {
    const OP: &str = "seq_loss_bwd";
    let lengths = [("input_lengths", &io.input_lengths), ("target_lengths", &io.target_lengths)];
    let s = check_seq(OP, kind, &io.x, &io.targets, lengths)?;
    let scalars = [io.x.dtype().accumulator(), io.x.dtype()];
    check_result(OP, "gy", reduction, &io.gy, &io.x, s.b, &scalars)?;
    let v = io.dx.out.as_view();
    check::dtype(OP, "dx", &v, io.x.dtype())?;
    check::shape(OP, "dx", &v, io.x.shape())?;
    check::contiguous(OP, "dx", &v)?;
    let inputs = [
        ("gy", io.gy),
        ("x", io.x),
        ("targets", io.targets),
        (lengths[0].0, *lengths[0].1),
        (lengths[1].0, *lengths[1].1),
    ];
    check::separate_output(OP, "dx", &io.dx.out, &inputs)?;
    Ok(s)
}
