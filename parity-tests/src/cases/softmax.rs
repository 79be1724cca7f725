//! Softmax.

use trefoil::ops::softmax::Softmax;

use super::Bound::Derived;
use super::{Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::{Any, Coarse};
use crate::sampler::Sample;

fn softmax(cx: &Cx<'_>, kind: Softmax) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.softmax(kind, cx.axis("axis", x.shape().len())?, x, y.m())?)
}

fn softmax_backward(cx: &Cx<'_>, kind: Softmax) -> R {
    let (dy, y) = (cx.x("dy")?, cx.x("y")?);
    let dx = cx.like("dx", &y)?;
    Ok(cx.gpu.softmax_bwd(kind, cx.axis("axis", y.shape().len())?, dy, y, dx.g())?)
}

fn draw_axis(s: &mut Sample) {
    let shape = s.shape();
    s.put("x", &shape, Any);
    let axis = s.below(shape.len());
    s.arg("axis", axis);
}

/// Beside axes of shapes on edges, contiguous rows of each length that has kernels of its own: rows in the registers of a block (2, 4 or 8 items
/// per thread), and long rows, either `many`, which are for clusters of blocks, or few, which are split.
fn draw_softmax(s: &mut Sample, many: bool) {
    let (v, half) = (s.vector(), s.vector() > 4);
    let block = 256 * v;
    let shape = match (s.aligned(), many) {
        (Some(0), _) => [3, if half { block / 2 } else { block * 5 }],
        (Some(1), true) if !half => [3, block * 7 + 1],
        (Some(1), _) => [3, 12 * v],
        (Some(2), true) => [18, 33_000],
        (Some(2), false) => [2, 33_000],
        (Some(3), true) => [18, 8_200],
        (Some(3), false) => [3, 20 * v],
        _ if s.small || s.below(10) > 0 => return draw_axis(s),
        _ => [18, [8_200, 12_289, 33_000][s.below(3)]],
    };
    s.put("x", &shape, Any);
}

fn masked_softmax(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.masked_softmax(cx.f("scale")?, x, cx.opt("mask"), y.m())?)
}

fn masked_softmax_backward(cx: &Cx<'_>) -> R {
    let (dy, y) = (cx.x("dy")?, cx.x("y")?);
    let dx = cx.like("dx", &y)?;
    Ok(cx.gpu.masked_softmax_bwd(cx.f("scale")?, dy, y, dx.g())?)
}

fn draw_masked(s: &mut Sample) {
    let shape = if s.small {
        vec![2, 3, 4]
    } else {
        let edges: [&[usize]; 6] =
            [&[2, 3, 5, 9], &[4, 300], &[3, 2, 64, 64], &[2, 20_000], &[5, 1], &[7, 1030]];
        edges[s.below(edges.len())].to_vec()
    };
    s.put("x", &shape, Any);
    let mut mask = shape.clone();
    match s.below(4) {
        0 => return,
        1 => mask[0] = 1,
        2 => mask = shape[shape.len() - 1..].to_vec(),
        _ => mask[shape.len() - 2] = 1,
    }
    s.put("mask", &mask, Coarse);
    let scale = [0.5, 1.0, 2.0][s.below(3)];
    s.arg("scale", scale);
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k("softmax", "S1.7", "x", "axis=-1", "y", &["softmax"], |cx| softmax(cx, Softmax::Softmax))
            .bound(Derived)
            .sample(|s| draw_softmax(s, true)),
        k("softmax_backward", "S2.6", "dy, y", "axis=-1", "dx", &["softmax_bwd"], |cx| {
            softmax_backward(cx, Softmax::Softmax)
        })
        .bound(Derived)
        .grad_of("softmax"),
    ],
    &[
        k("log_softmax", "B1.11", "x", "axis=-1", "y", &["softmax"], |cx| softmax(cx, Softmax::LogSoftmax))
            .bound(Derived)
            .sample(|s| draw_softmax(s, false)),
        k("log_softmax_backward", "B1.11", "dy, y", "axis=-1", "dx", &["softmax_bwd"], |cx| {
            softmax_backward(cx, Softmax::LogSoftmax)
        })
        .bound(Derived)
        .grad_of("log_softmax"),
    ],
    &[
        k(
            "scaled_masked_softmax",
            "B1.18",
            "x, [mask]",
            "scale=1.0",
            "y",
            &["masked_softmax"],
            masked_softmax,
        )
        .bound(Derived)
        .sample(draw_masked),
        k(
            "scaled_masked_softmax_backward",
            "B1.18",
            "dy, y",
            "scale=1.0",
            "dx",
            &["masked_softmax_bwd"],
            masked_softmax_backward,
        )
        .bound(Derived)
        .grad_of("scaled_masked_softmax"),
    ],
];
