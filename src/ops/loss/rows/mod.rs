//! Losses with one item per row: signatures and checks.

mod operands;
mod variants;

pub(crate) use self::operands::*;
pub use self::variants::*;

use self::Role::{Element, Last, Lead, Row, Shared};
use crate::ops::loss::Reduction;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

io_struct! {
    /// Operands of [`RowLossOps::row_loss`](super::RowLossOps::row_loss); all contiguous, floating ones of one dtype.
    #[derive(Debug)]
    pub struct RowLossFwd<'a> {
        /// Operands in the order that the variant of [`RowLoss`] lists.
        pub x: [Option<View<'a>>; 4],
        /// Class ids (i32, i64), for losses that have them.
        pub ids: Option<View<'a>>,
        /// u8 mask, for losses that have one.
        pub mask: Option<View<'a>>,
        /// One element of the accumulator's dtype, or one item per row in the operands' dtype for `Reduction::None`.
        pub loss: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`RowLossOps::row_loss_bwd`](super::RowLossOps::row_loss_bwd).
    #[derive(Debug)]
    pub struct RowLossBwd<'a> {
        /// Upstream gradient: one element (f32 or the operands' dtype), or one per row for `Reduction::None`.
        pub gy: View<'a>,
        /// As in the forward.
        pub x: [Option<View<'a>>; 4],
        /// As in the forward.
        pub ids: Option<View<'a>>,
        /// As in the forward.
        pub mask: Option<View<'a>>,
        /// Gradients of the operands, in their places.
        pub dx: [Option<GradMut<'a>>; 4] = [const { None }; 4],
    }
}

op_family! {
    /// Losses with one item per row. f32, f16, bf16 and f64 data; items and sums in f32 (f64 for f64) by a fixed tree.
    pub trait RowLossOps : Loss => ROW_LOSS_OPS {
        /// Forward of a row loss. Without rows, Mean is NaN. A class id out of range that is not ignored is `IndexOutOfRange`.
        fn row_loss(&self, kind: RowLoss, reduction: Reduction, io: RowLossFwd<'_>) -> Result<()>;
        /// Gradients of [`RowLossOps::row_loss`], from its operands alone.
        fn row_loss_bwd(&self, kind: RowLoss, reduction: Reduction, io: RowLossBwd<'_>) -> Result<()>;
    }
}

/// Sizes of a row loss.
#[derive(Debug, Clone)]
pub(crate) struct RowShape {
    pub(crate) dtype: DType,
    pub(crate) items: Vec<usize>,
    pub(crate) rows: usize,
    pub(crate) len: usize,
    /// Size of the last axis where rows are single elements; distance of neighbouring classes where rows lie along the class axis.
    pub(crate) width: usize,
}

fn row_shape(op: &'static str, kind: RowLoss, x: &[Option<View<'_>>; 4]) -> Result<RowShape> {
    let missing = |name: &'static str| GpuError::invalid(op, name, "an operand", "nothing");
    // The shape comes from the first operand with a number per element.
    let first =
        kind.operands().iter().zip(x).find_map(|(o, v)| v.as_ref().filter(|_| o.role == Element)).copied();
    let (shape, dtype) = match (first, kind, x) {
        (Some(v), ..) => (v.shape().to_vec(), v.dtype()),
        (None, RowLoss::Ordinal, [_, Some(s), Some(theta), _]) => {
            ([s.shape(), &[theta.numel()]].concat(), s.dtype())
        }
        _ => return Err(missing(kind.operands()[0].name)),
    };
    let rank = shape.len();
    let split = match kind.rows() {
        Rows::LastAxis | Rows::ClassAxis if rank == 0 => {
            return Err(GpuError::invalid(op, "x", "at least one axis", "a scalar"));
        }
        Rows::LastAxis => rank - 1,
        Rows::ClassAxis => rank.min(2) - 1,
        Rows::First(n) if rank < n => {
            return Err(GpuError::invalid(op, "x", format!("at least {n} axes"), format!("{shape:?}")));
        }
        Rows::First(n) => n,
        Rows::Whole => 0,
        Rows::Each => rank,
    };
    let bad = match kind {
        RowLoss::Boxes { .. } => shape[split..] != [4],
        RowLoss::Quantum => rank < 2 || shape[rank - 1] != 2,
        _ => false,
    };
    if bad {
        return Err(GpuError::invalid(op, "p", "a last axis of 4 corners or 2 parts", format!("{shape:?}")));
    }
    // The row is what follows the split; the class axis alone where there is one.
    let strided = kind.strided();
    let behind = if strided { split + 1 } else { rank };
    let width = if strided { shape[behind..].iter().product() } else { shape.last().copied().unwrap_or(1) };
    let items = [&shape[..split], &shape[behind..]].concat();
    Ok(RowShape {
        dtype,
        rows: items.iter().product(),
        items,
        len: shape[split..behind].iter().product(),
        width: width.max(1),
    })
}

fn check_numbers(op: &'static str, kind: RowLoss) -> Result<()> {
    let bad = |arg, want: &'static str, x: f64| Err(GpuError::invalid(op, arg, want, format!("{x}")));
    let positive = |x: f64| x > 0.0 && x.is_finite();
    match kind {
        RowLoss::Triplet { p, .. } if !positive(p) => bad("p", "a finite degree above 0", p),
        RowLoss::CategoricalCe { label_smoothing: e } if !(0.0..=1.0).contains(&e) => {
            bad("label_smoothing", "a share in [0, 1]", e)
        }
        RowLoss::Distillation { temperature: t, .. } if !positive(t) => {
            bad("temperature", "a number above 0", t)
        }
        RowLoss::Dino { student, teacher } if !positive(student) || !positive(teacher) => {
            bad("temperature", "numbers above 0", student.min(teacher))
        }
        RowLoss::Ipo { beta } if !positive(beta) => bad("beta", "a number above 0", beta),
        RowLoss::MulticlassFocal { gamma } if gamma.is_nan() || gamma < 0.0 => {
            bad("gamma", "an exponent not below 0", gamma)
        }
        _ => Ok(()),
    }
}

/// Checks of everything but the outputs; returns the sizes and all inputs.
fn check_inputs<'a>(
    op: &'static str,
    kind: RowLoss,
    x: &[Option<View<'a>>; 4],
    ids: Option<&View<'a>>,
    mask: Option<&View<'a>>,
) -> Result<(RowShape, Vec<(&'static str, View<'a>)>)> {
    check_numbers(op, kind)?;
    let s = row_shape(op, kind, x)?;
    let full: Vec<usize> = match kind.operands().iter().zip(x).find(|(o, v)| o.role == Element && v.is_some())
    {
        Some((_, Some(v))) => v.shape().to_vec(),
        _ => [&s.items[..], &[s.len]].concat(),
    };
    let mut inputs = vec![];
    for (i, v) in x.iter().enumerate() {
        let Some(o) = kind.operands().get(i) else {
            if v.is_some() {
                return Err(GpuError::invalid(op, "x", "no further operand", "a buffer"));
            }
            continue;
        };
        let Some(v) = v else {
            if !o.optional {
                return Err(GpuError::invalid(op, o.name, "an operand", "nothing"));
            }
            continue;
        };
        check::float(op, o.name, v)?;
        check::dtype(op, o.name, v, s.dtype)?;
        check::contiguous(op, o.name, v)?;
        let want = match o.role {
            Element => full.clone(),
            Row => s.items.clone(),
            Shared => vec![s.len],
            Last => vec![s.width],
            Lead => full[..full.len().saturating_sub(1)].to_vec(),
        };
        check::shape(op, o.name, v, &want)?;
        inputs.push((o.name, *v));
    }
    // Operands that come together.
    let together = |a: usize, b: usize| x[a].is_some() == x[b].is_some();
    let ok = match kind {
        RowLoss::Nce => together(2, 3),
        RowLoss::Ordinal => together(1, 2) && x[0].is_some() != x[1].is_some(),
        RowLoss::Circle { .. } => x[1].is_some() != ids.is_some(),
        _ => true,
    };
    if !ok {
        return Err(GpuError::invalid(op, "x", "operands as the loss lists them", "only some of them"));
    }
    match (kind.ids(), ids) {
        (Ids::No, Some(_)) => return Err(GpuError::invalid(op, "ids", "nothing", "a buffer")),
        (Ids::PerRow { optional: false, .. } | Ids::List, None) => {
            return Err(GpuError::invalid(op, "ids", "class ids", "nothing"));
        }
        (how, Some(v)) => {
            check::one_of(op, "ids", v, &[DType::I32, DType::I64])?;
            check::contiguous(op, "ids", v)?;
            check::shape(op, "ids", v, if how == Ids::List { &full } else { &s.items })?;
            inputs.push(("ids", *v));
        }
        _ => {}
    }
    match (kind, mask) {
        (RowLoss::Patches { .. }, None) => return Err(GpuError::invalid(op, "mask", "a mask", "nothing")),
        (RowLoss::Patches { .. } | RowLoss::Depth { .. }, Some(m)) => {
            check::dtype(op, "mask", m, DType::U8)?;
            check::contiguous(op, "mask", m)?;
            check::shape(op, "mask", m, if kind.weighted() { &s.items } else { &full })?;
            inputs.push(("mask", *m));
        }
        (_, Some(_)) => return Err(GpuError::invalid(op, "mask", "nothing", "a buffer")),
        _ => {}
    }
    Ok((s, inputs))
}

/// A loss or an upstream gradient: one element, or one per row.
fn check_result(
    op: &'static str,
    arg: &'static str,
    kind: RowLoss,
    reduction: Reduction,
    v: &View<'_>,
    s: &RowShape,
    scalars: &[DType],
) -> Result<()> {
    if reduction == Reduction::None {
        if kind.rows() == Rows::Whole {
            return Err(GpuError::invalid(op, "reduction", "mean or sum: the loss is a scalar", "none"));
        }
        check::dtype(op, arg, v, s.dtype)?;
        check::shape(op, arg, v, &s.items)?;
        return check::contiguous(op, arg, v);
    }
    crate::ops::loss::one_element(op, arg, v, scalars)
}

/// Checks of [`RowLossOps::row_loss`](super::RowLossOps::row_loss).
pub(crate) fn check_row_loss(kind: RowLoss, reduction: Reduction, io: &RowLossFwd<'_>) -> Result<RowShape> {
    const OP: &str = "row_loss";
    let (s, inputs) = check_inputs(OP, kind, &io.x, io.ids.as_ref(), io.mask.as_ref())?;
    check_result(OP, "loss", kind, reduction, &io.loss.as_view(), &s, &[s.dtype.accumulator()])?;
    check::separate_output(OP, "loss", &io.loss, &inputs)?;
    Ok(s)
}

/// Checks of [`RowLossOps::row_loss_bwd`](super::RowLossOps::row_loss_bwd).
pub(crate) fn check_row_loss_bwd(
    kind: RowLoss,
    reduction: Reduction,
    io: &RowLossBwd<'_>,
) -> Result<RowShape> {
    const OP: &str = "row_loss_bwd";
    let (s, mut inputs) = check_inputs(OP, kind, &io.x, io.ids.as_ref(), io.mask.as_ref())?;
    check_result(OP, "gy", kind, reduction, &io.gy, &s, &[s.dtype.accumulator(), s.dtype])?;
    inputs.push(("gy", io.gy));
    for (i, g) in io.dx.iter().enumerate() {
        let Some(g) = g else { continue };
        let operand = kind.operands().get(i).filter(|o| o.grad).zip(io.x[i].as_ref());
        let Some((o, x)) = operand else {
            return Err(GpuError::invalid(
                OP,
                "dx",
                "gradients of operands that have one",
                format!("place {i}"),
            ));
        };
        let v = g.out.as_view();
        check::dtype(OP, o.name, &v, s.dtype)?;
        check::shape(OP, o.name, &v, x.shape())?;
        check::contiguous(OP, o.name, &v)?;
        check::separate_output(OP, o.name, &g.out, &inputs)?;
        inputs.push(("dx", v));
    }
    Ok(s)
}
