//! Convolution on the CPU: the reference, plain loops over the definition in f64, and products in f32 (`vectorized`).

pub(super) mod causal;
mod definition;
pub(super) mod deformable;
mod vectorized;

use self::definition::{forward64, input_grad64, weight_grad64};
use crate::buffer::{GradMut, View};
use crate::cpu::activation;
use crate::cpu::rnn::round;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, collected, each_chunk};
use crate::cpu::vector::with_narrow;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::activation::Activation;
use crate::ops::conv::*;

/// Neighbouring windows whose element number `k` lies in the input: the first one, the place that it reads, and how many. Later ones read places
/// that are a stride further each.
struct Run {
    out: usize,
    at: usize,
    len: usize,
}

impl ConvShape {
    /// Multiplications of a product, windows beyond the input included.
    fn multiplications(&self) -> usize {
        let sizes = [self.n, self.co, self.cig(), self.out_plane(), self.taps()];
        sizes.into_iter().fold(1, usize::saturating_mul)
    }

    /// What element `k` of windows reads on an axis: number of windows whose element lies before the input, and that of those up to its end.
    fn reach(&self, axis: usize, k: usize) -> (usize, usize) {
        let (shift, pad, stride) = (k * self.dilation[axis], self.pad[axis], self.stride[axis]);
        let below =
            |limit: usize| (limit + pad).saturating_sub(shift).div_ceil(stride).min(self.output[axis]);
        (below(0), below(self.input[axis]))
    }

    /// The runs of all windows, for one element of the window.
    fn runs(&self, k: [usize; 3]) -> impl Iterator<Item = Run> + '_ {
        let [(d0, d1), (h0, h1), (w0, w1)] = [0, 1, 2].map(|a| self.reach(a, k[a]));
        // Not called for windows before the input.
        let place = move |a: usize, o: usize| o * self.stride[a] + k[a] * self.dilation[a] - self.pad[a];
        let rows = (d0..d1).flat_map(move |d| (h0..h1).map(move |h| (d, h)));
        rows.filter(move |_| w0 < w1).map(move |(d, h)| Run {
            out: (d * self.output[1] + h) * self.output[2] + w0,
            at: (place(0, d) * self.input[1] + place(1, h)) * self.input[2] + place(2, w0),
            len: w1 - w0,
        })
    }
}

/// Coordinates of a box in row-major order.
pub(in crate::cpu) fn cells([d, h, w]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..d).flat_map(move |a| (0..h).flat_map(move |b| (0..w).map(move |c| [a, b, c])))
}

/// The runs of all elements of the window; neighbours that go on where the other ends are one.
fn all_runs(s: &ConvShape) -> Result<Vec<Vec<Run>>> {
    let of = |k| -> Result<Vec<Run>> {
        let mut out: Vec<Run> = Vec::new();
        for r in s.runs(k) {
            match out.last_mut() {
                Some(l) if l.out + l.len == r.out && l.at + l.len * s.stride[2] == r.at => l.len += r.len,
                _ => out.try_push(r)?,
            }
        }
        Ok(out)
    };
    cells(s.kernel).map(of).try_vec_ok()
}

/// Columns [channels * taps, windows] of some channels. `col` holds zeros where windows reach beyond x.
fn columns(s: &ConvShape, runs: &[Vec<Run>], x: &[f64], col: &mut [f64]) {
    let (plane, out) = (s.in_plane(), s.out_plane());
    for (x, col) in x.chunks(plane.max(1)).zip(col.chunks_mut(s.taps() * out)) {
        for (runs, col) in runs.iter().zip(col.chunks_mut(out)) {
            for r in runs {
                let (to, from) = (&mut col[r.out..r.out + r.len], &x[r.at..]);
                match s.stride[2] {
                    1 => to.copy_from_slice(&from[..r.len]),
                    step => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(c, &x)| *c = x),
                }
            }
        }
    }
}

/// Adds columns to the places in x that they came from.
fn fold(s: &ConvShape, runs: &[Vec<Run>], col: &[f64], x: &mut [f64]) {
    let (plane, out) = (s.in_plane(), s.out_plane());
    for (x, col) in x.chunks_mut(plane.max(1)).zip(col.chunks(s.taps() * out)) {
        for (runs, col) in runs.iter().zip(col.chunks(out)) {
            for r in runs {
                let (to, from) = (&mut x[r.at..], &col[r.out..r.out + r.len]);
                match s.stride[2] {
                    1 => to.iter_mut().zip(from).for_each(|(x, &c)| *x += c),
                    step => to.iter_mut().step_by(step).zip(from).for_each(|(x, &c)| *x += c),
                }
            }
        }
    }
}

/// The three products of a convolution.
#[derive(Clone, Copy)]
enum Step {
    /// x, w to y.
    Forward,
    /// dy, w to dx.
    Input,
    /// x, dy to dw.
    Weight,
}

/// A product of the reference.
fn product(step: Step, s: &ConvShape, a: &[f64], b: &[f64]) -> Result<Vec<f64>> {
    match step {
        Step::Forward => forward64(s, a, b),
        Step::Input => input_grad64(s, a, b),
        Step::Weight => weight_grad64(s, a, b),
    }
}

/// Scale, bias, residual, activation.
fn finish(op: &'static str, act: Activation, mut y: Vec<f64>, io: &ConvIo<'_>) -> Result<()> {
    let shape = io.y.shape();
    let plane = shape[2..].iter().product::<usize>().max(1);
    let vector = |v: Option<View<'_>>| v.map(|v| gather_f64(op, v)).transpose();
    let (scale, bias, residual) = (vector(io.scale)?, vector(io.bias)?, vector(io.residual)?);
    each_chunk(&mut y, plane, Share::at_least((CHUNK / plane).max(1)), &|i, y| {
        let c = i % shape[1];
        let (a, b) = (scale.as_ref().map_or(1.0, |s| s[c]), bias.as_ref().map_or(0.0, |b| b[c]));
        y.iter_mut().for_each(|y| *y = *y * a + b);
        if let Some(r) = &residual {
            y.iter_mut().zip(&r[i * plane..]).for_each(|(y, r)| *y += r);
        }
    });
    if let Some(z) = &io.z {
        store_f64(op, z, &y)?;
    }
    if act != Activation::Identity {
        each_chunk(&mut y, CHUNK, Share::ANY, &|_, y| {
            y.iter_mut().for_each(|y| *y = activation::value(act, *y))
        });
    }
    store_f64(op, &io.y, &y)
}

/// dy times the derivative of the activation.
fn slope(op: &'static str, act: Activation, dy: View<'_>, saved: Option<View<'_>>) -> Result<Vec<f64>> {
    let mut dy = gather_f64(op, dy)?;
    let Some(saved) = saved.filter(|_| act != Activation::Identity) else { return Ok(dy) };
    let f = if act.reads_output() { activation::from_output } else { activation::gradient };
    let saved = gather_f64(op, saved)?;
    dy.iter_mut().zip(saved).for_each(|(d, s)| *d = f(act, *d, s));
    Ok(dy)
}

/// Stores a gradient or adds it, rounded before: adding in place gives the bits of adding afterwards, as it does in f32.
fn store_rounded(op: &'static str, g: &GradMut<'_>, mut data: Vec<f64>) -> Result<()> {
    if g.accumulate {
        data.iter_mut().for_each(|x| *x = round(g.out.dtype(), *x));
    }
    store_grad(op, g, &data)
}

/// Sums per channel of a tensor [N, C, ...].
pub(in crate::cpu) fn channel_sums(v: &[f64], channels: usize, plane: usize) -> Result<Vec<f64>> {
    let planes: Vec<&[f64]> = v.chunks(plane.max(1)).try_vec()?;
    let sum = |c: usize| planes.iter().skip(c).step_by(channels).map(|p| p.iter().sum::<f64>()).sum();
    collected(channels, 1, &sum)
}

impl Kernels {
    fn conv_forward(&self, op: &'static str, way: Direction, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        let s = check_conv(op, way, p, &io)?;
        // Forward, a transposed convolution is the input gradient of a convolution.
        let step = if way == Direction::Conv { Step::Forward } else { Step::Input };
        let _timed = self.count(op);
        let why_not = vectorized::why_not(Some(&s), io.z.as_ref());
        if self.in_f32_unless_few(op, io.x.dtype(), why_not, s.multiplications())? {
            return with_narrow!(io.x.dtype(), T => self.conv_in_f32::<T>(op, step, &s, p.act, io));
        }
        let y = product(step, &s, &gather_f64(op, io.x)?, &gather_f64(op, io.w)?)?;
        finish(op, p.act, y, &io)
    }

    fn conv_backward(&self, op: &'static str, way: Direction, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        let shape = check_conv_bwd(op, way, p, &io)?;
        let _timed = self.count(op);
        let (why_not, multiplications) = (
            vectorized::why_not(shape.as_ref(), None),
            shape.as_ref().map_or(usize::MAX, ConvShape::multiplications),
        );
        if self.in_f32_unless_few(op, io.dy.dtype(), why_not, multiplications)? {
            return with_narrow!(io.dy.dtype(), T => self.conv_bwd_in_f32::<T>(op, way, p.act, shape, io));
        }
        let dz = slope(op, p.act, io.dy, io.saved)?;
        if let Some(g) = &io.dresidual {
            store_rounded(op, g, dz.try_to_vec()?)?;
        }
        if let Some(g) = &io.dbias {
            let plane = io.dy.shape()[2..].iter().product();
            store_rounded(op, g, channel_sums(&dz, io.dy.shape()[1], plane)?)?;
        }
        let Some(s) = shape else { return Ok(()) };
        // Of a transposed convolution, dx is a convolution of dz, and dz takes the place of the input in dw.
        if let (Some(g), Some(w)) = (&io.dx, io.w) {
            let step = if way == Direction::Conv { Step::Input } else { Step::Forward };
            store_rounded(op, g, product(step, &s, &dz, &gather_f64(op, w)?)?)?;
        }
        if let (Some(g), Some(x)) = (&io.dw, io.x) {
            let x = gather_f64(op, x)?;
            let (a, b) = if way == Direction::Conv { (&x, &dz) } else { (&dz, &x) };
            store_rounded(op, g, product(Step::Weight, &s, a, b)?)?;
        }
        Ok(())
    }
}

impl ConvOps for Kernels {
    fn conv(&self, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        self.conv_forward("conv", Direction::Conv, p, io)
    }

    fn conv_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        self.conv_backward("conv_bwd", Direction::Conv, p, io)
    }

    fn conv_transpose(&self, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        self.conv_forward("conv_transpose", Direction::Transpose, p, io)
    }

    fn conv_transpose_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        self.conv_backward("conv_transpose_bwd", Direction::Transpose, p, io)
    }

    fn im2col(&self, p: &Conv, kernel: &[usize], x: View<'_>, col: GradMut<'_>) -> Result<()> {
        const OP: &str = "im2col";
        let s = check_columns(OP, p, kernel, &x, &col.out.as_view(), &col.out)?;
        let _timed = self.count("im2col");
        let x = gather_f64(OP, x)?;
        let mut out = filled(col.out.numel(), 0.0)?;
        columns(&s, &all_runs(&s)?, &x, &mut out);
        store_grad(OP, &col, &out)
    }

    fn col2im(&self, p: &Conv, kernel: &[usize], col: View<'_>, x: GradMut<'_>) -> Result<()> {
        const OP: &str = "col2im";
        let s = check_columns(OP, p, kernel, &x.out.as_view(), &col, &x.out)?;
        let _timed = self.count("col2im");
        let col = gather_f64(OP, col)?;
        let mut sum = filled(x.out.numel(), 0.0)?;
        fold(&s, &all_runs(&s)?, &col, &mut sum);
        store_grad(OP, &x, &sum)
    }
}
