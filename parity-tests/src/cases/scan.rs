//! Scans and segments.

use trefoil::DType;
use trefoil::ops::scan::{CumSum, SegmentReduce, SegmentReduceBwd};

use super::Bound::{Derived, Exact, Function, Sum};
use super::{ANY, Bound, Kernel, ULP, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::{Any, Coarse};
use crate::sampler::Sample;

fn plan(cx: &Cx<'_>) -> R<CumSum> {
    Ok(CumSum::new().exclusive(cx.b("exclusive")?).reverse(cx.b("reverse")?))
}

fn cumsum(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let dtype = if x.dtype().is_float() { x.dtype() } else { DType::I64 };
    let y = cx.out("y", dtype, x.shape())?;
    Ok(cx.gpu.cumsum(plan(cx)?, cx.axis("axis", x.shape().len())?, x, y.g())?)
}

fn cumsum_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.like("dx", &dy)?;
    Ok(cx.gpu.cumsum(plan(cx)?.backward(), cx.axis("axis", dy.shape().len())?, dy, dx.g())?)
}

fn draw_scan(s: &mut Sample) {
    let shape = match s.below(4) {
        _ if s.aligned() == Some(1) => vec![2, 6000, 3],
        // Rows and columns in several tiles and chunks.
        0 if !s.small => {
            [vec![1, 40_000], vec![3, 5001], vec![2, 6000, 3], vec![20_000, 2]][s.below(4)].clone()
        }
        _ => s.shape(),
    };
    s.put("x", &shape, Any);
    let axis = if shape == [2, 6000, 3] { 1 } else { s.below(shape.len()) };
    s.arg("axis", axis);
    for flag in ["exclusive", "reverse"] {
        let on = s.coin();
        s.arg(flag, on);
    }
}

fn segments(cx: &Cx<'_>, op: SegmentReduce) -> R {
    let (x, offsets) = (cx.x("x")?, cx.x("rowptr")?);
    let mut shape = x.shape().to_vec();
    shape[0] = offsets.numel().saturating_sub(1);
    let y = cx.out("y", x.dtype(), &shape)?;
    Ok(cx.gpu.segment_reduce(op, x, offsets, y.m())?)
}

fn segments_backward(cx: &Cx<'_>, op: SegmentReduce) -> R {
    let x = cx.x("x")?;
    let dx = cx.like("dx", &x)?;
    let io = SegmentReduceBwd::new(cx.x("dy")?, cx.x("rowptr")?, dx.g()).x(x);
    Ok(cx.gpu.segment_reduce_bwd(op, io)?)
}

fn std(cx: &Cx<'_>) -> R<SegmentReduce> {
    Ok(SegmentReduce::Std { eps: cx.f("eps")? })
}

/// Rows in segments of uneven length, some of them empty.
fn draw_segments(s: &mut Sample) {
    let count = s.below(40);
    let most = match s.below(4) {
        _ if s.small => 4,
        0 => 400,
        _ => 9,
    };
    let mut offsets = vec![0];
    for _ in 0..count {
        let rows = if s.below(4) == 0 { 0 } else { s.below(most) + usize::from(s.small) * 2 };
        offsets.push(offsets[offsets.len() - 1] + rows as i64);
    }
    if !s.small && s.below(5) == 0 {
        offsets = vec![0, 9000, 9003];
    }
    let rows = offsets[offsets.len() - 1] as usize;
    let cols = if s.small { 2 } else { [1, 3, 4, 8, 33, 64, 257][s.below(7)] };
    let dom = if s.coin() { Any } else { Coarse };
    s.put("x", &[rows, cols], dom);
    let dtype = if s.coin() { DType::I64 } else { DType::I32 };
    s.ints("rowptr", dtype, &[offsets.len()], &offsets);
}

fn draw_std(s: &mut Sample) {
    draw_segments(s);
    s.arg("eps", 1e-2);
}

/// Squares of deviations lose what the mean has in excess.
const SPREAD: Bound = Derived;

macro_rules! segment {
    ($name:literal, $op:expr, $args:literal, $draw:expr, $bound:expr, $grad:expr) => {
        &[
            k($name, "B2.13", "x, rowptr:idx", $args, "y", &["segment_reduce"], |cx| segments(cx, $op(cx)?))
                .bound($bound)
                .sample($draw),
            k(
                concat!($name, "_backward"),
                "B2.13",
                "dy, x, rowptr:idx",
                $args,
                "dx",
                &["segment_reduce_bwd"],
                |cx| segments_backward(cx, $op(cx)?),
            )
            .bound($grad)
            .grad_of($name),
        ]
    };
}

macro_rules! fixed {
    ($op:ident) => {
        |_: &Cx<'_>| -> R<SegmentReduce> { Ok(SegmentReduce::$op) }
    };
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k("cumsum", "B2.1", "x", "axis, exclusive=false, reverse=false", "y", &["cumsum"], cumsum)
            .dtypes(ANY)
            .bound(Sum)
            .sample(draw_scan),
        k(
            "cumsum_backward",
            "B2.1",
            "dy",
            "axis, exclusive=false, reverse=false",
            "dx",
            &["cumsum"],
            cumsum_backward,
        )
        .bound(Sum)
        .grad_of("cumsum"),
    ],
    segment!("segment_sum", fixed!(Sum), "-", draw_segments, Sum, Exact),
    segment!("segment_mean", fixed!(Mean), "-", draw_segments, Sum, ULP),
    segment!("segment_max", fixed!(Max), "-", draw_segments, Exact, Function { ulps: 2.0, units: 0.0 }),
    segment!("segment_min", fixed!(Min), "-", draw_segments, Exact, Function { ulps: 2.0, units: 0.0 }),
    segment!("segment_var", fixed!(Var), "-", draw_segments, SPREAD, SPREAD),
    segment!("segment_std", std, "eps=0.0", draw_std, SPREAD, SPREAD),
];
