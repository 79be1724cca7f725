//! Loops of vector instructions in f32.

use crate::buffer::{GradMut, View};
use crate::cpu::scratch::*;
use crate::cpu::vector::{self, Blocks, math, row, simd};
use crate::cpu::{places, store_grad};
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::check;
use crate::ops::elementwise::*;

type VectorUnary = Box<dyn Fn(&[f32], &mut [f32]) + Sync>;
type VectorBinary = Box<dyn Fn(&[f32], &[f32], &mut [f32]) + Sync>;

/// The functions with a loop of vector instructions.
pub(super) fn vector_unary(op: Unary) -> Option<VectorUnary> {
    fn each(f: impl Fn(f32) -> f32 + Sync + 'static) -> Option<VectorUnary> {
        Some(Box::new(move |x, y| simd!(y.iter_mut().zip(x).for_each(|(y, x)| *y = f(*x)))))
    }
    match op {
        Unary::Neg => each(|x| -x),
        Unary::Abs => each(f32::abs),
        Unary::Exp => each(math::exp),
        Unary::Log => each(math::ln),
        Unary::Sqrt => each(f32::sqrt),
        Unary::Rsqrt => each(|x| 1.0 / x.sqrt()),
        Unary::Square => each(|x| x * x),
        Unary::Reciprocal => each(|x| 1.0 / x),
        // The constant keeps its digits.
        Unary::Scale { c } => each(move |x| (c * f64::from(x)) as f32),
        Unary::AddScalar { c } => each(move |x| (f64::from(x) + c) as f32),
        Unary::RsubScalar { c } => each(move |x| (c - f64::from(x)) as f32),
        _ => None,
    }
}

/// As [`vector_unary`], for two operands.
pub(super) fn vector_binary(op: Binary) -> Option<VectorBinary> {
    fn each(f: impl Fn(f32, f32) -> f32 + Sync + 'static) -> Option<VectorBinary> {
        Some(Box::new(move |a, b, y| {
            simd!(y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (a, b))| *y = f(*a, *b)));
        }))
    }
    match op {
        Binary::Add { alpha: 1.0 } => each(|a, b| a + b),
        Binary::Add { alpha } => each(move |a, b| a + alpha as f32 * b),
        Binary::Sub => each(|a, b| a - b),
        Binary::Mul => each(|a, b| a * b),
        Binary::Div => each(|a, b| a / b),
        Binary::Maximum => each(|a, b| if a > b || a.is_nan() { a } else { b }),
        Binary::Minimum => each(|a, b| if a < b || a.is_nan() { a } else { b }),
        _ => None,
    }
}

/// The gradient of an operand: dy times a number, or times the other operand.
#[derive(Clone, Copy)]
pub(super) enum Slope {
    Scale(f64),
    Times,
}

/// Those of both operands, where they are so simple.
pub(super) fn slopes(op: Binary) -> Option<[Slope; 2]> {
    match op {
        Binary::Add { alpha } => Some([Slope::Scale(1.0), Slope::Scale(alpha)]),
        Binary::Sub => Some([Slope::Scale(1.0), Slope::Scale(-1.0)]),
        Binary::Mul => Some([Slope::Times; 2]),
        _ => None,
    }
}

/// Why gradients are not written one after the other: one may lie where an operand does.
pub(super) fn shared_block(io: &BinaryBwd<'_>) -> Result<Option<&'static str>> {
    let written = [&io.da, &io.db].into_iter().flatten().map(|g| g.out.as_view());
    let blocks = Blocks([io.dy, io.a, io.b].into_iter().chain(written).map(|v| v.block().id()).try_vec()?);
    let shared =
        [&io.da, &io.db].into_iter().flatten().any(|g| !blocks.of_others(&g.out.as_view()).is_empty());
    Ok(shared.then_some("gradients in the block of an operand are computed by the reference"))
}

pub(super) fn binary_bwd(slopes: [Slope; 2], io: &BinaryBwd<'_>) -> Result<()> {
    const OP: &str = "binary_bwd";
    let shape = io.dy.shape();
    for ((slope, other), g) in slopes.into_iter().zip([io.b, io.a]).zip([&io.da, &io.db]) {
        let Some(g) = g else { continue };
        let (factor, other) = match slope {
            Slope::Scale(c) => (c, None),
            Slope::Times => (1.0, Some(other.broadcast_to(shape)?)),
        };
        if g.out.shape() != shape {
            summed(OP, io.dy, other, factor, g)?;
        } else if let Some(other) = other {
            vector::map2(OP, [io.dy, other], g, |a, b, y| {
                simd!(y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (a, b))| *y = a * b));
            })?;
        } else {
            let c = factor as f32;
            vector::map1(OP, io.dy, g, |x, y| simd!(y.iter_mut().zip(x).for_each(|(y, x)| *y = c * x)))?;
        }
    }
    Ok(())
}

/// Sums of dy, or of dy times another operand, over the axes along which a gradient's shape was repeated; they are added in f64.
fn summed(
    op: &'static str,
    dy: View<'_>,
    other: Option<View<'_>>,
    factor: f64,
    g: &GradMut<'_>,
) -> Result<()> {
    let small = Layout::contiguous(g.out.shape());
    let repeated = check::layout(op, "grad", small.and_then(|l| l.broadcast_to(dy.shape())))?;
    let (Some((&n, outer)), Some((&stride, steps))) =
        (dy.shape().split_last(), repeated.strides().split_last())
    else {
        return Ok(());
    };
    let of_dy = [dy.block().id()];
    let (rows, values) = (dy.numel().checked_div(n).unwrap_or(0), vector::values(op, dy, &[])?);
    let other = other.map(|v| vector::values(op, v, &of_dy)).transpose()?;
    let mut sums = filled(g.out.numel(), 0.0f64)?;
    for (i, at) in places(outer, steps, repeated.offset(), rows).enumerate() {
        let (dy, sums) = (&values[i * n..][..n], &mut sums[at..]);
        let other = other.as_ref().map(|v| &v[i * n..][..n]);
        simd!(match (stride, other) {
            (0, None) => sums[0] += row::sum(dy),
            (0, Some(b)) => sums[0] += row::dot(dy, b),
            (_, None) => sums.iter_mut().zip(dy).for_each(|(s, d)| *s += f64::from(*d)),
            (_, Some(b)) => {
                let terms = dy.iter().zip(b).map(|(d, b)| f64::from(*d) * f64::from(*b));
                sums.iter_mut().zip(terms).for_each(|(s, t)| *s += t);
            }
        });
    }
    sums.iter_mut().for_each(|s| *s *= factor);
    store_grad(op, g, &sums)
}
