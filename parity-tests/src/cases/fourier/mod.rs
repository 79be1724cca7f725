//! Discrete Fourier transforms. Complex tensors have a trailing axis of 2, which axes do not count.

mod stft;

use trefoil::ops::fourier::Fft;
use trefoil::{Buffer, DType, View, ViewMut};

use super::Bound::Derived;
use super::{Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::Any;
use crate::sampler::Sample;

const F32: &[DType] = &[DType::F32];

/// Axes of a tensor of this rank, in the order of the case.
fn axes(cx: &Cx<'_>, rank: usize) -> R<Vec<usize>> {
    let list = cx.ints("axes")?;
    let one = |a: i64| if a < 0 { a + rank as i64 } else { a };
    list.into_iter()
        .map(|a| usize::try_from(one(a)).ok().filter(|a| *a < rank))
        .collect::<Option<_>>()
        .ok_or_else(|| Fail::Case("axes out of range".into()))
}

/// Factor of a transform over sequences of `n` elements in all.
fn scale(cx: &Cx<'_>, n: usize, inverse: bool) -> R<f64> {
    Ok(match (cx.s("norm")?.as_str(), inverse) {
        ("ortho", _) => 1.0 / (n as f64).sqrt(),
        ("backward", true) | ("forward", false) => 1.0 / n as f64,
        ("backward", false) | ("forward", true) => 1.0,
        (norm, _) => return Err(Fail::Case(format!("norm {norm} is unknown"))),
    })
}

/// Transforms of complex numbers along some axes, one after the other; the last one writes `y`.
fn along(cx: &Cx<'_>, p: Fft, axes: &[usize], x: View<'_>, y: ViewMut<'_>) -> R {
    let shape = x.shape().to_vec();
    let mut at: Option<Buffer> = None;
    for (i, &axis) in axes.iter().enumerate() {
        let from = match &at {
            Some(b) => b.shaped(&shape)?,
            None => x,
        };
        // The factor once.
        let p = if i == 0 { p } else { p.scale(1.0) };
        if i + 1 == axes.len() {
            return Ok(cx.gpu.fft(&p, axis, from, y.into())?);
        }
        let next = cx.scratch(x.dtype(), x.numel())?;
        cx.gpu.fft(&p, axis, from, next.alias_mut().reshape(&shape)?.into())?;
        at = Some(next);
    }
    Ok(cx.gpu.strided_copy(x, y.into())?)
}

fn sizes(shape: &[usize], axes: &[usize]) -> usize {
    axes.iter().map(|&a| shape[a]).product()
}

/// fft, ifft, and their gradients, which have the other sign.
fn complex(cx: &Cx<'_>, [input, output]: [&str; 2], inverse: bool, gradient: bool) -> R {
    let x = cx.x(input)?;
    let rank = x.shape().len().saturating_sub(1);
    let axes = axes(cx, rank)?;
    let factor = scale(cx, sizes(x.shape(), &axes), inverse)?;
    let y = cx.like(output, &x)?;
    along(cx, Fft::new().inverse(inverse != gradient).scale(factor), &axes, x, y.m())
}

/// Real numbers to bins: the last listed axis first, which must be the last one here, then the others. `inner`: see [`Fft`].
fn to_bins(cx: &Cx<'_>, x: View<'_>, output: &str, axes: &[usize], p: Fft) -> R {
    let Some((&last, others)) = axes.split_last().filter(|(l, _)| **l + 1 == x.shape().len()) else {
        return Err(Fail::Case("the last listed axis is the last one".into()));
    };
    let mut shape = x.shape().to_vec();
    shape[last] = shape[last] / 2 + 1;
    shape.push(2);
    let y = cx.out(output, x.dtype(), &shape)?;
    if others.is_empty() {
        return Ok(cx.gpu.rfft(&p, x, y.g())?);
    }
    let bins = cx.scratch(x.dtype(), shape.iter().product())?;
    cx.gpu.rfft(&p, x, bins.alias_mut().reshape(&shape)?.into())?;
    along(cx, Fft::new().inverse(p.inverse), others, bins.shaped(&shape)?, y.m())
}

/// Bins to n real numbers: the reverse.
fn to_reals(cx: &Cx<'_>, x: View<'_>, output: &str, (axes, n): (&[usize], usize), p: Fft) -> R {
    let rank = x.shape().len().saturating_sub(1);
    let Some((&last, others)) = axes.split_last().filter(|(l, _)| **l + 1 == rank) else {
        return Err(Fail::Case("the last listed axis is the last one".into()));
    };
    let mut shape = x.shape()[..rank].to_vec();
    shape[last] = n;
    let y = cx.out(output, x.dtype(), &shape)?;
    let bins = cx.scratch(x.dtype(), x.numel())?;
    let all = x.shape();
    along(cx, Fft::new().inverse(p.inverse), others, x, bins.alias_mut().reshape(all)?)?;
    Ok(cx.gpu.irfft(&p, bins.shaped(all)?, y.g())?)
}

fn rfft(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let axes = axes(cx, x.shape().len())?;
    let factor = scale(cx, sizes(x.shape(), &axes), false)?;
    to_bins(cx, x, "y", &axes, Fft::new().scale(factor))
}

fn rfft_backward(cx: &Cx<'_>) -> R {
    let shape = cx.dims("input_size")?;
    let axes = axes(cx, shape.len())?;
    let factor = scale(cx, sizes(&shape, &axes), false)?;
    let n = shape.last().copied().unwrap_or_default();
    to_reals(cx, cx.x("dy")?, "dx", (&axes, n), Fft::new().inverse(true).scale(factor).inner(0.5))
}

fn irfft(cx: &Cx<'_>) -> R {
    let (x, n) = (cx.x("x")?, cx.n("n")?);
    let rank = x.shape().len().saturating_sub(1);
    let axes = axes(cx, rank)?;
    let others = sizes(x.shape(), &axes[..axes.len().saturating_sub(1)]);
    to_reals(cx, x, "y", (&axes, n), Fft::new().inverse(true).scale(scale(cx, others * n, true)?))
}

fn irfft_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let axes = axes(cx, dy.shape().len())?;
    let factor = scale(cx, sizes(dy.shape(), &axes), true)?;
    to_bins(cx, dy, "dx", &axes, Fft::new().scale(factor).inner(2.0))
}

/// Lengths of all variants: small factors, long ones that take two passes, large prime factors.
fn length(s: &mut Sample) -> usize {
    if s.small {
        return 1 + s.below(9);
    }
    [1, 2, 12, 143, 256, 1000, 1024, 17, 202, 2310, 4096][s.below(11)]
}

fn norm(s: &mut Sample) {
    let norm = ["backward", "forward", "ortho"][s.below(3)];
    s.arg("norm", norm);
}

fn draw_complex(s: &mut Sample) {
    let n = length(s);
    let [outer, inner] = [1 + s.below(3), [1, 1, 3, 16][s.below(4)]];
    s.put("x", &[outer, n, inner, 2], Any);
    let axes = if s.coin() { vec![1] } else { vec![0, 1] };
    s.arg("axes", axes);
    norm(s);
}

fn draw_real(s: &mut Sample) {
    let n = length(s);
    let outer = 1 + s.below(4);
    s.put("x", &[outer, n], Any);
    let axes = if s.coin() { vec![-1] } else { vec![0, 1] };
    s.arg("axes", axes);
    norm(s);
}

fn draw_bins(s: &mut Sample) {
    let n = length(s);
    let outer = 1 + s.below(4);
    s.put("x", &[outer, n / 2 + 1, 2], Any);
    s.arg("n", n);
    let axes = if s.coin() { vec![-1] } else { vec![0, 1] };
    s.arg("axes", axes);
    norm(s);
}

/// Arguments of all transforms.
const ARGS: &str = "axes=[-1], norm=\"backward\"";

/// What transforms to real numbers call.
const IRFFT: &[&str] = &["irfft", "fft", "strided_copy"];

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k("fft", "B10.1", "x", ARGS, "y", &["fft"], |cx| complex(cx, ["x", "y"], false, false))
            .dtypes(F32)
            .bound(Derived)
            .sample(draw_complex),
        k("fft_backward", "B10.1", "dy", ARGS, "dx", &["fft"], |cx| complex(cx, ["dy", "dx"], false, true))
            .dtypes(F32)
            .bound(Derived)
            .grad_of("fft"),
        k("ifft", "B10.1", "x", ARGS, "y", &["fft"], |cx| complex(cx, ["x", "y"], true, false))
            .dtypes(F32)
            .bound(Derived)
            .sample(draw_complex),
        k("ifft_backward", "B10.1", "dy", ARGS, "dx", &["fft"], |cx| complex(cx, ["dy", "dx"], true, true))
            .dtypes(F32)
            .bound(Derived)
            .grad_of("ifft"),
        k("rfft", "B10.1", "x", ARGS, "y", &["rfft", "fft"], rfft)
            .dtypes(F32)
            .bound(Derived)
            .sample(draw_real),
        k(
            "rfft_backward",
            "B10.1",
            "dy",
            "input_size, axes=[-1], norm=\"backward\"",
            "dx",
            IRFFT,
            rfft_backward,
        )
        .dtypes(F32)
        .bound(Derived)
        .grad_of("rfft"),
        k("irfft", "B10.1", "x", "n, axes=[-1], norm=\"backward\"", "y", IRFFT, irfft)
            .dtypes(F32)
            .bound(Derived)
            .sample(draw_bins),
        k(
            "irfft_backward",
            "B10.1",
            "dy",
            "n, axes=[-1], norm=\"backward\"",
            "dx",
            &["rfft", "fft"],
            irfft_backward,
        )
        .dtypes(F32)
        .bound(Derived)
        .grad_of("irfft"),
    ],
    stft::ROWS,
];
