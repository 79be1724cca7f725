//! Convolution on the CPU: plain loops over the definition in f64; columns and the `gemm` crate for everything else.

use rayon::prelude::*;

use super::activation;
use super::{CpuBackend, gather, gather_f64, store_f64, store_grad, wrong_storage};
use crate::buffer::{GradMut, View};
use crate::dtype::DType;
use crate::error::Result;
use crate::matmul::{Place, product};
use crate::ops::*;

/// Neighbouring windows whose element number `k` lies in the input: the first one, the place that it reads, and how many. Later ones read places
/// that are a stride further each.
struct Run {
    out: usize,
    at: usize,
    len: usize,
}

impl ConvShape {
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
pub(super) fn cells([d, h, w]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..d).flat_map(move |a| (0..h).flat_map(move |b| (0..w).map(move |c| [a, b, c])))
}

/// y = conv(x, w) by definition.
fn forward64(s: &ConvShape, x: &[f64], w: &[f64]) -> Vec<f64> {
    let (plane, out, taps, cig) = (s.in_plane(), s.out_plane(), s.taps(), s.cig());
    let mut y = vec![0.0; s.n * s.co * out];
    y.par_chunks_mut(out.max(1)).enumerate().for_each(|(i, y)| {
        let (n, o) = (i / s.co, i % s.co);
        for c in 0..cig {
            let x = &x[(n * s.ci + o / s.cog() * cig + c) * plane..][..plane];
            for (t, k) in cells(s.kernel).enumerate() {
                let w = w[(o * cig + c) * taps + t];
                for r in s.runs(k) {
                    let x = x[r.at..].iter().step_by(s.stride[2]);
                    y[r.out..r.out + r.len].iter_mut().zip(x).for_each(|(y, x)| *y += w * x);
                }
            }
        }
    });
    y
}

/// dx of conv by definition: every product goes where its input came from.
fn input_grad64(s: &ConvShape, dy: &[f64], w: &[f64]) -> Vec<f64> {
    let (plane, out, taps, cig, cog) = (s.in_plane(), s.out_plane(), s.taps(), s.cig(), s.cog());
    let mut dx = vec![0.0; s.n * s.ci * plane];
    dx.par_chunks_mut(plane.max(1)).enumerate().for_each(|(i, dx)| {
        let (n, c) = (i / s.ci, i % s.ci);
        for o in c / cig * cog..(c / cig + 1) * cog {
            let dy = &dy[(n * s.co + o) * out..][..out];
            for (t, k) in cells(s.kernel).enumerate() {
                let w = w[(o * cig + c % cig) * taps + t];
                for r in s.runs(k) {
                    let dx = dx[r.at..].iter_mut().step_by(s.stride[2]);
                    dx.zip(&dy[r.out..r.out + r.len]).for_each(|(dx, dy)| *dx += w * dy);
                }
            }
        }
    });
    dx
}

/// dw of conv by definition.
fn weight_grad64(s: &ConvShape, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let (plane, out, taps, cig) = (s.in_plane(), s.out_plane(), s.taps(), s.cig());
    let mut dw = vec![0.0; s.co * cig * taps];
    dw.par_chunks_mut(taps.max(1)).enumerate().for_each(|(i, dw)| {
        let (o, c) = (i / cig, i % cig);
        for n in 0..s.n {
            let x = &x[(n * s.ci + o / s.cog() * cig + c) * plane..][..plane];
            let dy = &dy[(n * s.co + o) * out..][..out];
            for (dw, k) in dw.iter_mut().zip(cells(s.kernel)) {
                for r in s.runs(k) {
                    let x = x[r.at..].iter().step_by(s.stride[2]);
                    *dw += dy[r.out..r.out + r.len].iter().zip(x).map(|(dy, x)| dy * x).sum::<f64>();
                }
            }
        }
    });
    dw
}

/// Columns [channels * taps, windows] of some channels. `col` holds zeros where windows reach beyond x.
fn columns<T: Copy>(s: &ConvShape, x: &[T], col: &mut [T]) {
    let (plane, out) = (s.in_plane(), s.out_plane());
    for (x, col) in x.chunks(plane.max(1)).zip(col.chunks_mut(s.taps() * out)) {
        for (k, col) in cells(s.kernel).zip(col.chunks_mut(out)) {
            for r in s.runs(k) {
                let (to, from) = (&mut col[r.out..r.out + r.len], &x[r.at..]);
                match s.stride[2] {
                    1 => to.copy_from_slice(&from[..r.len]),
                    step => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(c, &x)| *c = x),
                }
            }
        }
    }
}

fn fits(op: &'static str, ok: bool) -> Result<()> {
    if ok { Ok(()) } else { Err(wrong_storage(op, DType::F32)) }
}

fn packed(at: usize, cols: usize) -> Place {
    Place { at, rows: cols, cols: 1 }
}

fn turned(at: usize, cols: usize) -> Place {
    Place { at, rows: 1, cols }
}

fn forward32(op: &'static str, s: &ConvShape, x: &[f32], w: &[f32]) -> Result<Vec<f32>> {
    let (out, m, k) = (s.out_plane(), s.cog(), s.cig() * s.taps());
    let mut y = vec![0.0; s.n * s.co * out];
    let from = s.cig() * s.in_plane();
    let ok = y.par_chunks_mut((m * out).max(1)).enumerate().all(|(i, y)| {
        let mut col = vec![0.0; k * out];
        columns(s, &x[i * from..][..from], &mut col);
        let a = (w, packed(i % s.groups * m * k, k));
        product((m, out, k), 1.0, a, (&col, packed(0, out)), 0.0, (y, packed(0, out)), s.n * s.groups == 1)
    });
    fits(op, ok).map(|()| y)
}

fn input_grad32(op: &'static str, s: &ConvShape, dy: &[f32], w: &[f32]) -> Result<Vec<f32>> {
    let (plane, out, m, k) = (s.in_plane(), s.out_plane(), s.cog(), s.cig() * s.taps());
    let mut dx = vec![0.0; s.n * s.ci * plane];
    let ok = dx.par_chunks_mut((s.cig() * plane).max(1)).enumerate().all(|(i, dx)| {
        let mut col = vec![0.0; k * out];
        let a = (w, turned(i % s.groups * m * k, k));
        let b = (dy, packed(i * m * out, out));
        let ok = product((k, out, m), 1.0, a, b, 0.0, (&mut col, packed(0, out)), s.n * s.groups == 1);
        fold(s, &col, dx);
        ok
    });
    fits(op, ok).map(|()| dx)
}

/// Adds columns to the places in x that they came from.
fn fold<T: Copy + std::ops::AddAssign>(s: &ConvShape, col: &[T], x: &mut [T]) {
    let (plane, out) = (s.in_plane(), s.out_plane());
    for (x, col) in x.chunks_mut(plane.max(1)).zip(col.chunks(s.taps() * out)) {
        for (k, col) in cells(s.kernel).zip(col.chunks(out)) {
            for r in s.runs(k) {
                let x = x[r.at..].iter_mut().step_by(s.stride[2]);
                x.zip(&col[r.out..r.out + r.len]).for_each(|(x, &c)| *x += c);
            }
        }
    }
}

fn weight_grad32(op: &'static str, s: &ConvShape, x: &[f32], dy: &[f32]) -> Result<Vec<f32>> {
    let (out, m, k) = (s.out_plane(), s.cog(), s.cig() * s.taps());
    let mut dw = vec![0.0; s.co * k];
    let from = s.cig() * s.in_plane();
    let ok = dw.par_chunks_mut((m * k).max(1)).enumerate().all(|(g, dw)| {
        let mut col = vec![0.0; k * out];
        (0..s.n).all(|n| {
            let i = n * s.groups + g;
            columns(s, &x[i * from..][..from], &mut col);
            let a = (dy, packed(i * m * out, out));
            let beta = if n == 0 { 0.0 } else { 1.0 };
            product((m, k, out), 1.0, a, (&col, turned(0, out)), beta, (dw, packed(0, k)), s.groups == 1)
        })
    });
    fits(op, ok).map(|()| dw)
}

/// Elements in f32.
fn values(op: &'static str, v: View<'_>) -> Result<Vec<f32>> {
    if v.dtype() == DType::F32 {
        return gather(op, v);
    }
    Ok(gather_f64(op, v)?.into_iter().map(|x| x as f32).collect())
}

fn wide(v: Vec<f32>) -> Vec<f64> {
    v.into_iter().map(f64::from).collect()
}

/// The three products of a convolution, as f64 values whatever they were computed in.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// x, w to y.
    Forward,
    /// dy, w to dx.
    Input,
    /// x, dy to dw.
    Weight,
}

impl Step {
    pub(super) fn run(self, op: &'static str, s: &ConvShape, a: View<'_>, b: View<'_>) -> Result<Vec<f64>> {
        if a.dtype() == DType::F64 {
            let (a, b) = (gather_f64(op, a)?, gather_f64(op, b)?);
            return Ok(match self {
                Step::Forward => forward64(s, &a, &b),
                Step::Input => input_grad64(s, &a, &b),
                Step::Weight => weight_grad64(s, &a, &b),
            });
        }
        let (a, b) = (values(op, a)?, values(op, b)?);
        Ok(wide(match self {
            Step::Forward => forward32(op, s, &a, &b)?,
            Step::Input => input_grad32(op, s, &a, &b)?,
            Step::Weight => weight_grad32(op, s, &a, &b)?,
        }))
    }
}

/// Scale, bias, residual, activation.
pub(super) fn finish(op: &'static str, act: Activation, mut y: Vec<f64>, io: &ConvIo<'_>) -> Result<()> {
    let shape = io.y.shape();
    let plane = shape[2..].iter().product::<usize>().max(1);
    let vector = |v: Option<View<'_>>| v.map(|v| gather_f64(op, v)).transpose();
    let (scale, bias, residual) = (vector(io.scale)?, vector(io.bias)?, vector(io.residual)?);
    for (i, y) in y.iter_mut().enumerate() {
        let c = i / plane % shape[1];
        *y = *y * scale.as_ref().map_or(1.0, |s| s[c])
            + bias.as_ref().map_or(0.0, |b| b[c])
            + residual.as_ref().map_or(0.0, |r| r[i]);
    }
    if let Some(z) = &io.z {
        store_f64(op, z, &y)?;
    }
    y.iter_mut().for_each(|y| *y = activation::value(act, *y));
    store_f64(op, &io.y, &y)
}

/// dy times the derivative of the activation.
fn slope(op: &'static str, act: Activation, dy: View<'_>, saved: Option<View<'_>>) -> Result<Vec<f64>> {
    let dy = gather_f64(op, dy)?;
    let Some(saved) = saved.filter(|_| act != Activation::Identity) else { return Ok(dy) };
    let f = if act.reads_output() { activation::from_output } else { activation::gradient };
    Ok(dy.into_iter().zip(gather_f64(op, saved)?).map(|(d, s)| f(act, d, s)).collect())
}

/// Sums per channel of a tensor [N, C, ...].
pub(super) fn channel_sums(v: &[f64], channels: usize, plane: usize) -> Vec<f64> {
    let mut sums = vec![0.0; channels];
    v.chunks(plane.max(1)).enumerate().for_each(|(i, v)| sums[i % channels] += v.iter().sum::<f64>());
    sums
}

impl CpuBackend {
    fn conv_backward(&self, op: &'static str, way: Direction, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        let shape = check_conv_bwd(op, way, p, &io)?;
        self.count();
        let dz = slope(op, p.act, io.dy, io.saved)?;
        if let Some(g) = &io.dresidual {
            store_grad(op, g, &dz)?;
        }
        if let Some(g) = &io.dbias {
            let plane = io.dy.shape()[2..].iter().product();
            store_grad(op, g, &channel_sums(&dz, io.dy.shape()[1], plane))?;
        }
        let Some(s) = shape else { return Ok(()) };
        // The products read dz from a tensor: that of f64 data keeps all digits, others are computed in f32 anyway.
        let wide = io.dy.dtype().accumulator();
        let held;
        let dz = if p.act == Activation::Identity {
            io.dy
        } else {
            held = self.alloc(wide, dz.len())?;
            let out = held.alias_mut().reshape(io.dy.shape())?;
            store_f64(op, &out, &dz)?;
            out.as_view()
        };
        // Of a transposed convolution, dx is a convolution of dz, and dz takes the place of the input in dw.
        if let (Some(g), Some(w)) = (&io.dx, io.w) {
            let step = if way == Direction::Conv { Step::Input } else { Step::Forward };
            store_grad(op, g, &step.run(op, &s, dz, w)?)?;
        }
        if let (Some(g), Some(x)) = (&io.dw, io.x) {
            let (a, b) = if way == Direction::Conv { (x, dz) } else { (dz, x) };
            store_grad(op, g, &Step::Weight.run(op, &s, a, b)?)?;
        }
        Ok(())
    }
}

impl ConvOps for CpuBackend {
    fn conv(&self, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        const OP: &str = "conv";
        let s = check_conv(OP, Direction::Conv, p, &io)?;
        self.count();
        finish(OP, p.act, Step::Forward.run(OP, &s, io.x, io.w)?, &io)
    }

    fn conv_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        self.conv_backward("conv_bwd", Direction::Conv, p, io)
    }

    fn conv_transpose(&self, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        const OP: &str = "conv_transpose";
        let s = check_conv(OP, Direction::Transpose, p, &io)?;
        self.count();
        finish(OP, p.act, Step::Input.run(OP, &s, io.x, io.w)?, &io)
    }

    fn conv_transpose_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        self.conv_backward("conv_transpose_bwd", Direction::Transpose, p, io)
    }

    fn im2col(&self, p: &Conv, kernel: &[usize], x: View<'_>, col: GradMut<'_>) -> Result<()> {
        const OP: &str = "im2col";
        let s = check_columns(OP, p, kernel, &x, &col.out.as_view(), &col.out)?;
        self.count();
        let x = gather_f64(OP, x)?;
        let mut out = vec![0.0; col.out.numel()];
        columns(&s, &x, &mut out);
        store_grad(OP, &col, &out)
    }

    fn col2im(&self, p: &Conv, kernel: &[usize], col: View<'_>, x: GradMut<'_>) -> Result<()> {
        const OP: &str = "col2im";
        let s = check_columns(OP, p, kernel, &x.out.as_view(), &col, &x.out)?;
        self.count();
        let col = gather_f64(OP, col)?;
        let mut sum = vec![0.0; x.out.numel()];
        fold(&s, &col, &mut sum);
        store_grad(OP, &x, &sum)
    }

    fn causal_conv1d(&self, act: Activation, io: CausalConvIo<'_>) -> Result<()> {
        self.causal_forward(act, io)
    }

    fn causal_conv1d_bwd(&self, act: Activation, io: CausalConvBwd<'_>) -> Result<()> {
        self.causal_backward(act, io)
    }

    fn deform_conv(&self, p: &Conv, io: DeformConvIo<'_>) -> Result<()> {
        self.deform_forward(p, io)
    }

    fn deform_conv_bwd(&self, p: &Conv, io: DeformConvBwd<'_>) -> Result<()> {
        self.deform_backward(p, io)
    }
}
