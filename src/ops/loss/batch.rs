//! Losses of a whole batch: operands and checks. Their result is one scalar, a mean as the variant says.

use crate::ops::loss::one_element;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// Which batch loss. Operands of [`BatchLossFwd::x`] in order; `*` marks those with a gradient, `?` those that may be absent.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum BatchLoss {
    /// `z1*, z2*` [B, E]: cross entropy of every row (normalised) against its partner among the 2B - 1 others; mean over 2B
    NtXent {
        /// temperature
        tau: f64,
    },
    /// `q*, k*` [B, E], `negatives*?` [K, E]: cross entropy of q.k/tau with the own key as target; without negatives among the batch's keys
    InfoNce {
        /// temperature
        tau: f64,
    },
    /// `z*` \[B, E\], ids \[B\]: per row (normalised) the mean of -log p over the rows of the same label; mean over rows that have such
    SupCon {
        /// temperature
        tau: f64,
    },
    /// `z1*, z2*` [B, E]: sum (1 - C_ii)^2 + lambda*sum C_ij^2 of the cross-correlation of the standardised columns
    Barlow {
        /// weight of the off-diagonal elements
        lambda: f64,
    },
    /// `s*, rel` \[n\]: mean of softplus(s_j - s_i) over pairs with rel_i > rel_j; 0 without pairs
    PairwiseRanking,
    /// `probs*` [N, E], ids [N, k]: E * sum of share of assignments times mean probability
    MoeBalance,
    /// `p*` \[N, C\], ids \[N\]: Lovasz extension of the Jaccard loss, mean over the classes that occur. O(N^2 C) without extra memory.
    Lovasz,
}

impl BatchLoss {
    pub(crate) const fn names(&self) -> &'static [&'static str] {
        match self {
            BatchLoss::NtXent { .. } | BatchLoss::Barlow { .. } => &["z1", "z2"],
            BatchLoss::InfoNce { .. } => &["q", "k", "negatives"],
            BatchLoss::SupCon { .. } => &["z"],
            BatchLoss::PairwiseRanking => &["s", "rel"],
            BatchLoss::MoeBalance => &["probs"],
            BatchLoss::Lovasz => &["p"],
        }
    }
}

io_struct! {
    /// Operands of [`BatchLossOps::batch_loss`](super::BatchLossOps::batch_loss); contiguous, floating ones of one dtype.
    #[derive(Debug)]
    pub struct BatchLossFwd<'a> {
        /// Operands in the order of the variant.
        pub x: [Option<View<'a>>; 3],
        /// Labels or class ids, i32 or i64.
        pub ids: Option<View<'a>>,
        /// One element of the accumulator's dtype.
        pub loss: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`BatchLossOps::batch_loss_bwd`](super::BatchLossOps::batch_loss_bwd).
    #[derive(Debug)]
    pub struct BatchLossBwd<'a> {
        /// Upstream gradient, one element (f32 or the operands' dtype).
        pub gy: View<'a>,
        /// As in the forward.
        pub x: [Option<View<'a>>; 3],
        /// As in the forward.
        pub ids: Option<View<'a>>,
        /// Gradients of the operands, in their places.
        pub dx: [Option<GradMut<'a>>; 3] = [const { None }; 3],
    }
}

op_family! {
    /// Losses of a whole batch, each one scalar. f32, f16, bf16 and f64 data; sums in f32 (f64 for f64) by a fixed tree.
    pub trait BatchLossOps : Loss => BATCH_LOSS_OPS {
        /// Forward of a batch loss. Class ids out of range are `IndexOutOfRange`.
        fn batch_loss(&self, kind: BatchLoss, io: BatchLossFwd<'_>) -> Result<()>;
        /// Gradients of [`BatchLossOps::batch_loss`], from its operands alone.
        fn batch_loss_bwd(&self, kind: BatchLoss, io: BatchLossBwd<'_>) -> Result<()>;
    }
}

/// The operands, checked; the first has two axes (one for ranking).
pub(crate) struct BatchShape<'a> {
    pub(crate) x: Vec<View<'a>>,
    pub(crate) rows: usize,
    pub(crate) width: usize,
}

fn check_inputs<'a>(
    op: &'static str,
    kind: BatchLoss,
    x: &[Option<View<'a>>; 3],
    ids: Option<&View<'a>>,
) -> Result<BatchShape<'a>> {
    let names = kind.names();
    let optional = |i: usize| matches!(kind, BatchLoss::InfoNce { .. }) && i == 2;
    let mut views = vec![];
    for (i, v) in x.iter().enumerate() {
        match (v, names.get(i)) {
            (Some(v), Some(name)) => {
                check::float(op, name, v)?;
                check::contiguous(op, name, v)?;
                views.push(*v);
            }
            (None, Some(name)) if !optional(i) => {
                return Err(GpuError::invalid(op, name, "an operand", "nothing"));
            }
            (Some(_), None) => return Err(GpuError::invalid(op, "x", "no further operand", "a buffer")),
            _ => {}
        }
    }
    let first = views[0];
    let rank = if kind == BatchLoss::PairwiseRanking { 1 } else { 2 };
    if first.shape().len() != rank {
        let got = format!("{:?}", first.shape());
        return Err(GpuError::invalid(op, names[0], format!("{rank} axes"), got));
    }
    let (rows, width) = (first.shape()[0], first.shape().get(1).copied().unwrap_or(1));
    for (i, v) in views.iter().enumerate() {
        check::dtype(op, names[i], v, first.dtype())?;
        match optional(i) {
            true if v.shape().len() == 2 && v.shape()[1] == width => {}
            true => {
                return Err(GpuError::invalid(
                    op,
                    names[i],
                    format!("shape [K, {width}]"),
                    format!("{:?}", v.shape()),
                ));
            }
            false => check::shape(op, names[i], v, first.shape())?,
        }
    }
    let tau = match kind {
        BatchLoss::NtXent { tau } | BatchLoss::InfoNce { tau } | BatchLoss::SupCon { tau } => tau,
        _ => 1.0,
    };
    if tau.is_nan() || tau <= 0.0 {
        return Err(GpuError::invalid(op, "tau", "a temperature above 0", format!("{tau}")));
    }
    let takes_ids = matches!(kind, BatchLoss::SupCon { .. } | BatchLoss::MoeBalance | BatchLoss::Lovasz);
    match ids {
        Some(v) if takes_ids => {
            check::one_of(op, "ids", v, &[DType::I32, DType::I64])?;
            check::contiguous(op, "ids", v)?;
            let fits = match kind {
                BatchLoss::MoeBalance => v.shape().len() == 2 && v.shape()[0] == rows,
                _ => v.shape() == [rows],
            };
            if !fits {
                return Err(GpuError::invalid(
                    op,
                    "ids",
                    format!("ids of {rows} rows"),
                    format!("{:?}", v.shape()),
                ));
            }
        }
        None if !takes_ids => {}
        _ => return Err(GpuError::invalid(op, "ids", "ids where the loss has them", "the contrary")),
    }
    Ok(BatchShape { x: views, rows, width })
}

/// Checks of [`BatchLossOps::batch_loss`](super::BatchLossOps::batch_loss).
pub(crate) fn check_batch_loss<'a>(kind: BatchLoss, io: &BatchLossFwd<'a>) -> Result<BatchShape<'a>> {
    const OP: &str = "batch_loss";
    let s = check_inputs(OP, kind, &io.x, io.ids.as_ref())?;
    one_element(OP, "loss", &io.loss.as_view(), &[s.x[0].dtype().accumulator()])?;
    let inputs: Vec<_> = s.x.iter().chain(&io.ids).map(|v| ("x", *v)).collect();
    check::separate_output(OP, "loss", &io.loss, &inputs)?;
    Ok(s)
}

/// Checks of [`BatchLossOps::batch_loss_bwd`](super::BatchLossOps::batch_loss_bwd).
pub(crate) fn check_batch_loss_bwd<'a>(kind: BatchLoss, io: &BatchLossBwd<'a>) -> Result<BatchShape<'a>> {
    const OP: &str = "batch_loss_bwd";
    let s = check_inputs(OP, kind, &io.x, io.ids.as_ref())?;
    one_element(OP, "gy", &io.gy, &[s.x[0].dtype().accumulator(), s.x[0].dtype()])?;
    let mut others: Vec<_> = s.x.iter().chain(&io.ids).chain([&io.gy]).map(|v| ("x", *v)).collect();
    for (i, g) in io.dx.iter().enumerate() {
        let Some(g) = g else { continue };
        let has = !(kind == BatchLoss::PairwiseRanking && i == 1);
        let Some(x) = s.x.get(i).filter(|_| has) else {
            return Err(GpuError::invalid(
                OP,
                "dx",
                "gradients of operands that have one",
                format!("place {i}"),
            ));
        };
        let v = g.out.as_view();
        check::dtype(OP, "dx", &v, x.dtype())?;
        check::shape(OP, "dx", &v, x.shape())?;
        check::contiguous(OP, "dx", &v)?;
        check::separate_output(OP, "dx", &g.out, &others)?;
        others.push(("dx", v));
    }
    Ok(s)
}
