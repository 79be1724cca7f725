//! Convolution on the CPU: plain loops over the definition in f64; columns and the `gemm` crate for everything else.

pub(super) mod causal;
mod definition;
pub(super) mod deformable;
mod vectorized;

use rayon::prelude::*;

use self::definition::{forward64, input_grad64, weight_grad64};
use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::activation;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, change};
use crate::cpu::vector::product::{packed, turned};
use crate::cpu::vector::with_narrow;
use crate::cpu::{CpuBackend, HostElement, gather, gather_f64, store_grad, with_dtype, wrong_storage};
use crate::dtype::DType;
use crate::error::Result;
use crate::matmul::product;
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
fn columns<T: Copy>(s: &ConvShape, runs: &[Vec<Run>], x: &[T], col: &mut [T]) {
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

fn fits(op: &'static str, ok: bool) -> Result<()> {
    if ok { Ok(()) } else { Err(wrong_storage(op, DType::F32)) }
}

fn forward32(op: &'static str, s: &ConvShape, x: &[f32], w: &[f32]) -> Result<Vec<f32>> {
    let runs = all_runs(s)?;
    let (out, m, k) = (s.out_plane(), s.cog(), s.cig() * s.taps());
    let mut y = filled(s.n * s.co * out, 0.0)?;
    let from = s.cig() * s.in_plane();
    // What lies beyond x stays 0 in the columns of every image.
    let done = y.par_chunks_mut((m * out).max(1)).enumerate().map_init(
        || filled(k * out, 0.0),
        |col, (i, y)| {
            let col = col.as_mut().map_err(|e| e.clone())?;
            columns(s, &runs, &x[i * from..][..from], col);
            let a = (w, packed(i % s.groups * m * k, k));
            fits(
                op,
                product(
                    (m, out, k),
                    1.0,
                    a,
                    (col, packed(0, out)),
                    0.0,
                    (y, packed(0, out)),
                    s.n * s.groups == 1,
                ),
            )
        },
    );
    done.try_for_each(|r| r).map(|()| y)
}

fn input_grad32(op: &'static str, s: &ConvShape, dy: &[f32], w: &[f32]) -> Result<Vec<f32>> {
    let runs = all_runs(s)?;
    let (plane, out, m, k) = (s.in_plane(), s.out_plane(), s.cog(), s.cig() * s.taps());
    let mut dx = filled(s.n * s.ci * plane, 0.0)?;
    let done = dx.par_chunks_mut((s.cig() * plane).max(1)).enumerate().map_init(
        || filled(k * out, 0.0),
        |col, (i, dx)| {
            let col = col.as_mut().map_err(|e| e.clone())?;
            let a = (w, turned(i % s.groups * m * k, k));
            let b = (dy, packed(i * m * out, out));
            let ok = product((k, out, m), 1.0, a, b, 0.0, (col, packed(0, out)), s.n * s.groups == 1);
            fold(s, &runs, col, dx);
            fits(op, ok)
        },
    );
    done.try_for_each(|r| r).map(|()| dx)
}

/// Adds columns to the places in x that they came from.
fn fold<T: Copy + std::ops::AddAssign>(s: &ConvShape, runs: &[Vec<Run>], col: &[T], x: &mut [T]) {
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

/// Images whose gradients of the weights one thread sums up; the number is fixed, so that results do not depend on that of the threads.
const IMAGES: usize = 8;

fn weight_grad32(op: &'static str, s: &ConvShape, x: &[f32], dy: &[f32]) -> Result<Vec<f32>> {
    let runs = all_runs(s)?;
    let (out, m, k) = (s.out_plane(), s.cog(), s.cig() * s.taps());
    let from = s.cig() * s.in_plane();
    // Sums over some images, [groups, m, k]; one image alone leaves the threads to its product.
    let part = |first: usize| {
        let (mut dw, mut col) = (filled(s.co * k, 0.0)?, filled(k * out, 0.0)?);
        let ok = (first..(first + IMAGES).min(s.n)).all(|n| {
            dw.chunks_mut((m * k).max(1)).enumerate().all(|(g, dw)| {
                let i = n * s.groups + g;
                columns(s, &runs, &x[i * from..][..from], &mut col);
                let (a, b) = ((dy, packed(i * m * out, out)), (&*col, turned(0, out)));
                let beta = if n == first { 0.0 } else { 1.0 };
                product((m, k, out), 1.0, a, b, beta, (dw, packed(0, k)), s.n * s.groups == 1)
            })
        });
        fits(op, ok).map(|()| dw)
    };
    let parts = (0..s.n.div_ceil(IMAGES)).into_par_iter().map(|i| part(i * IMAGES));
    let mut dw = filled(s.co * k, 0.0)?;
    for part in parts.try_vec()? {
        dw.iter_mut().zip(part?).for_each(|(a, b)| *a += b);
    }
    Ok(dw)
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

/// What comes before and after the products: f32 for f32 data, f64 for all other.
trait Real: HostElement {
    /// A product; `narrow`: of 16-bit data, which is computed in f32.
    fn product(
        step: Step,
        op: &'static str,
        s: &ConvShape,
        narrow: bool,
        a: &[Self],
        b: &[Self],
    ) -> Result<Vec<Self>>;

    /// Elements of a view.
    fn values(op: &'static str, v: View<'_>) -> Result<Vec<Self>> {
        if v.dtype() == Self::DTYPE {
            return gather(op, v);
        }
        gather_f64(op, v)?.into_iter().map(Self::from_f64).try_vec()
    }
}

impl Real for f32 {
    fn product(
        step: Step,
        op: &'static str,
        s: &ConvShape,
        _: bool,
        a: &[f32],
        b: &[f32],
    ) -> Result<Vec<f32>> {
        match step {
            Step::Forward => forward32(op, s, a, b),
            Step::Input => input_grad32(op, s, a, b),
            Step::Weight => weight_grad32(op, s, a, b),
        }
    }
}

impl Real for f64 {
    fn product(
        step: Step,
        op: &'static str,
        s: &ConvShape,
        narrow: bool,
        a: &[f64],
        b: &[f64],
    ) -> Result<Vec<f64>> {
        if narrow {
            let [a, b] = [a, b].map(|v| v.iter().map(|&x| x as f32).try_vec());
            return f32::product(step, op, s, narrow, &a?, &b?)?.into_iter().map(f64::from).try_vec();
        }
        match step {
            Step::Forward => forward64(s, a, b),
            Step::Input => input_grad64(s, a, b),
            Step::Weight => weight_grad64(s, a, b),
        }
    }
}

/// Scale, bias, residual, activation, for values of the arithmetic's type: f64 of f64 and 16-bit data, f32 of f32.
fn finish<T: HostElement>(op: &'static str, act: Activation, mut y: Vec<T>, io: &ConvIo<'_>) -> Result<()> {
    let shape = io.y.shape();
    let plane = shape[2..].iter().product::<usize>().max(1);
    let vector = |v: Option<View<'_>>| v.map(|v| gather_f64(op, v)).transpose();
    let (scale, bias, residual) = (vector(io.scale)?, vector(io.bias)?, vector(io.residual)?);
    let plain = scale.is_none() && bias.is_none() && residual.is_none();
    let planes = |y: &mut Vec<T>, f: &(dyn Fn(usize, &mut [T]) + Sync)| {
        let all = y.par_chunks_mut(plane).with_min_len((CHUNK / plane).max(1));
        all.enumerate().for_each(|(i, y)| f(i, y));
    };
    // The activation sees the same number whether z is stored or not.
    let at_once = io.z.is_none() && act != Activation::Identity;
    if !plain || at_once {
        planes(&mut y, &|i, y| {
            let c = i % shape[1];
            let (a, b) = (scale.as_ref().map_or(1.0, |s| s[c]), bias.as_ref().map_or(0.0, |b| b[c]));
            let residual = residual.as_ref().map(|r| &r[i * plane..][..plane]);
            for (j, y) in y.iter_mut().enumerate() {
                let z = T::from_f64(y.to_f64() * a + b + residual.map_or(0.0, |r| r[j]));
                *y = if at_once { T::from_f64(activation::value(act, z.to_f64())) } else { z };
            }
        });
    }
    if let Some(z) = &io.z {
        store_as(op, z, &y)?;
        if act != Activation::Identity {
            planes(&mut y, &|_, y| {
                y.iter_mut().for_each(|y| *y = T::from_f64(activation::value(act, y.to_f64())));
            });
        }
    }
    store_as(op, &io.y, &y)
}

/// Stores values of the arithmetic's type, rounded to the view's dtype.
fn store_as<T: HostElement>(op: &'static str, v: &ViewMut<'_>, data: &[T]) -> Result<()> {
    if v.dtype() == T::DTYPE {
        return change::<T>(op, v, |at, y| y.copy_from_slice(&data[at..at + y.len()]));
    }
    with_dtype!(v.dtype(), S => change::<S>(op, v, |at, y| {
        y.iter_mut().zip(&data[at..]).for_each(|(y, x)| *y = HostElement::from_f64(x.to_f64()));
    }))
}

/// Stores values of the arithmetic's type into a gradient, overwriting or adding.
fn give<T: HostElement>(op: &'static str, g: &GradMut<'_>, data: &[T]) -> Result<()> {
    if !g.accumulate {
        return store_as(op, &g.out, data);
    }
    with_dtype!(g.out.dtype(), S => change::<S>(op, &g.out, |at, y| {
        let sum = |y: S, x: T| HostElement::from_f64(HostElement::to_f64(y) + x.to_f64());
        y.iter_mut().zip(&data[at..]).for_each(|(y, &x)| *y = sum(*y, x));
    }))
}

/// dy times the derivative of the activation.
fn slope<T: Real>(
    op: &'static str,
    act: Activation,
    dy: View<'_>,
    saved: Option<View<'_>>,
) -> Result<Vec<T>> {
    let mut dy = T::values(op, dy)?;
    let Some(saved) = saved.filter(|_| act != Activation::Identity) else { return Ok(dy) };
    let f = if act.reads_output() { activation::from_output } else { activation::gradient };
    let saved = T::values(op, saved)?;
    dy.iter_mut().zip(saved).for_each(|(d, s)| *d = T::from_f64(f(act, d.to_f64(), s.to_f64())));
    Ok(dy)
}

/// Sums per channel of a tensor [N, C, ...].
pub(in crate::cpu) fn channel_sums<T: HostElement>(
    v: &[T],
    channels: usize,
    plane: usize,
) -> Result<Vec<f64>> {
    let planes: Vec<&[T]> = v.chunks(plane.max(1)).try_vec()?;
    let sum = |c: usize| {
        let mine = planes.iter().skip(c).step_by(channels);
        mine.map(|p| p.iter().map(|x| x.to_f64()).sum::<f64>()).sum()
    };
    (0..channels).into_par_iter().map(sum).try_vec()
}

impl CpuBackend {
    fn conv_forward(&self, op: &'static str, way: Direction, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        let s = check_conv(op, way, p, &io)?;
        // Forward, a transposed convolution is the input gradient of a convolution.
        let step = if way == Direction::Conv { Step::Forward } else { Step::Input };
        let _timed = self.count(op);
        if self.in_f32(op, io.x.dtype(), vectorized::why_not(Some(&s), io.z.is_some()))? {
            return with_narrow!(io.x.dtype(), T => self.conv_in_f32::<T>(op, step, &s, p.act, io));
        }
        match io.x.dtype() {
            DType::F32 => self.conv_forward_in::<f32>(op, step, &s, p.act, io),
            _ => self.conv_forward_in::<f64>(op, step, &s, p.act, io),
        }
    }

    fn conv_backward(&self, op: &'static str, way: Direction, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        let shape = check_conv_bwd(op, way, p, &io)?;
        let _timed = self.count(op);
        if self.in_f32(op, io.dy.dtype(), vectorized::why_not(shape.as_ref(), false))? {
            return with_narrow!(io.dy.dtype(), T => self.conv_bwd_in_f32::<T>(op, way, p.act, shape, io));
        }
        match io.dy.dtype() {
            DType::F32 => self.conv_backward_in::<f32>(op, way, p, shape, io),
            _ => self.conv_backward_in::<f64>(op, way, p, shape, io),
        }
    }

    fn conv_forward_in<T: Real>(
        &self,
        op: &'static str,
        step: Step,
        s: &ConvShape,
        act: Activation,
        io: ConvIo<'_>,
    ) -> Result<()> {
        let narrow = io.x.dtype() != DType::F64;
        let y = T::product(step, op, s, narrow, &T::values(op, io.x)?, &T::values(op, io.w)?)?;
        finish(op, act, y, &io)
    }

    fn conv_backward_in<T: Real>(
        &self,
        op: &'static str,
        way: Direction,
        p: &Conv,
        shape: Option<ConvShape>,
        io: ConvBwd<'_>,
    ) -> Result<()> {
        let dz: Vec<T> = slope(op, p.act, io.dy, io.saved)?;
        if let Some(g) = &io.dresidual {
            give(op, g, &dz)?;
        }
        if let Some(g) = &io.dbias {
            let plane = io.dy.shape()[2..].iter().product();
            store_grad(op, g, &channel_sums(&dz, io.dy.shape()[1], plane)?)?;
        }
        let Some(s) = shape else { return Ok(()) };
        let narrow = io.dy.dtype() != DType::F64;
        // Of a transposed convolution, dx is a convolution of dz, and dz takes the place of the input in dw.
        if let (Some(g), Some(w)) = (&io.dx, io.w) {
            let step = if way == Direction::Conv { Step::Input } else { Step::Forward };
            give(op, g, &T::product(step, op, &s, narrow, &dz, &T::values(op, w)?)?)?;
        }
        if let (Some(g), Some(x)) = (&io.dw, io.x) {
            let x = T::values(op, x)?;
            let (a, b) = if way == Direction::Conv { (&x, &dz) } else { (&dz, &x) };
            give(op, g, &T::product(Step::Weight, op, &s, narrow, a, b)?)?;
        }
        Ok(())
    }
}

impl ConvOps for CpuBackend {
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
