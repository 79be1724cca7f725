//! Operands of convolutions in f32, and what comes before and after the products.

use super::Plan;
use crate::buffer::{View, ViewMut};
use crate::cpu::conv::Step;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, Values, change, change_all, collected, each_chunk, operands};
use crate::cpu::vector::{Narrow, ROOM, activation, change_in_f32, put, simd, write_or_add};
use crate::cpu::{Kernels, store_grad};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::activation::Activation;
use crate::ops::conv::*;

/// Elements as f32: in place, or in `room`.
fn wide<'a, T: Narrow>(x: Option<&'a Values<'_, T>>, room: &'a mut Vec<f32>) -> Result<&'a [f32]> {
    let x: &[T] = x.map_or(&[], |x| x);
    if T::DTYPE != DType::F32 {
        *room = filled(x.len(), 0.0)?;
    }
    Ok(T::widened(x, room))
}

/// One number per channel.
fn vector<T: Narrow>(op: &'static str, v: Option<View<'_>>) -> Result<Option<Vec<f32>>> {
    v.map(|v| Values::<T>::new(op, v, &[])?.iter().map(|x| x.widen()).try_vec()).transpose()
}

/// Sums of the channels of a tensor [N, C, ...].
fn channel_sums(x: &[f32], channels: usize, plane: usize) -> Result<Vec<f64>> {
    let sum = |c: usize| -> f64 {
        let mine = x.chunks(plane).skip(c).step_by(channels);
        simd!(mine.flat_map(|x| x.chunks(1024)).map(lane_sum).sum())
    };
    collected(channels, 1, &sum)
}

/// The sum of a short slice, in several sums that vector instructions add at once.
#[inline(always)]
fn lane_sum(x: &[f32]) -> f64 {
    let (mut lanes, all) = ([0.0f32; 16], x.chunks_exact(16));
    let rest: f32 = all.remainder().iter().sum();
    all.for_each(|x| lanes.iter_mut().zip(x).for_each(|(l, x)| *l += x));
    f64::from(lanes.iter().sum::<f32>() + rest)
}

/// Why a convolution is left to the reference.
pub(in crate::cpu::conv) fn why_not(s: Option<&ConvShape>, z: Option<&ViewMut<'_>>) -> Option<&'static str> {
    let empty = |s: &ConvShape| [s.n, s.ci, s.co, s.in_plane(), s.out_plane(), s.taps()].contains(&0);
    match s.is_some_and(empty) {
        true => Some("convolutions without elements are done by the reference"),
        false => z.is_some_and(|z| z.dtype() != DType::F32).then_some(
            "the value before the activation, as a second output of 16 bits, is stored by the reference",
        ),
    }
}

impl Kernels {
    pub(in crate::cpu::conv) fn conv_in_f32<T: Narrow>(
        &self,
        op: &'static str,
        step: Step,
        s: &ConvShape,
        act: Activation,
        io: ConvIo<'_>,
    ) -> Result<()> {
        let (scale, bias) = (vector::<T>(op, io.scale)?, vector::<T>(op, io.bias)?);
        let read = [Some(io.x), Some(io.w), io.residual];
        let written = [Some(io.y.block().id()), io.z.as_ref().map(|z| z.block().id())];
        let [x, w, residual] = operands::<T, 3>(op, read, &written)?;
        let [mut of_x, mut of_w] = [Vec::new(), Vec::new()];
        let both = (wide(x.as_ref(), &mut of_x)?, wide(w.as_ref(), &mut of_w)?);
        let (channels, plane) = (io.y.shape()[1], io.y.shape()[2..].iter().product::<usize>());
        let finish = |image: usize, y: &mut [f32]| {
            for (i, y) in y.chunks_mut(plane).enumerate() {
                let of = |v: &Option<Vec<f32>>, without| v.as_ref().map_or(without, |v| v[i % channels]);
                let (a, b) = (of(&scale, 1.0), of(&bias, 0.0));
                simd!({
                    if scale.is_some() || bias.is_some() {
                        y.iter_mut().for_each(|y| *y = *y * a + b);
                    }
                    if let Some(r) = &residual {
                        let r = &r[(image * channels + i) * plane..];
                        y.iter_mut().zip(r).for_each(|(y, r)| *y += r.widen());
                    }
                });
            }
            // With a second output y holds the value before the activation first.
            if io.z.is_none() {
                activation::activate(act, y);
            }
        };
        let plan = Plan::new(op, s)?;
        change_all::<T>(op, &io.y, |y| match step {
            Step::Forward => plan.forward(both, y, finish),
            _ => plan.input_grad(both, y, finish),
        })?;
        let Some(z) = &io.z else { return Ok(()) };
        {
            let y = Values::<T>::new(op, io.y.as_view(), &[z.block().id()])?;
            change::<T>(op, z, |at, z| z.copy_from_slice(&y[at..at + z.len()]))?;
        }
        change::<T>(op, &io.y, |_, y| {
            for y in y.chunks_mut(ROOM) {
                T::change(y, &mut [0.0; ROOM], |y| activation::activate(act, y));
            }
        })
    }

    pub(in crate::cpu::conv) fn conv_bwd_in_f32<T: Narrow>(
        &self,
        op: &'static str,
        way: Direction,
        act: Activation,
        shape: Option<ConvShape>,
        io: ConvBwd<'_>,
    ) -> Result<()> {
        let saved = io.saved.filter(|_| act != Activation::Identity);
        let written =
            [&io.dx, &io.dw, &io.dbias, &io.dresidual].map(|g| g.as_ref().map(|g| g.out.block().id()));
        let [dy, x, w, saved] = operands::<T, 4>(op, [Some(io.dy), io.x, io.w, saved], &written)?;
        let mut room = [(); 4].map(|_| Vec::new());
        let [of_dy, of_x, of_w, of_saved] = &mut room;
        let (dy, saved) = (wide(dy.as_ref(), of_dy)?, wide(saved.as_ref(), of_saved)?);
        let mut changed = Vec::new();
        if !saved.is_empty() {
            changed = dy.try_to_vec()?;
            let slope = match act.reads_output() {
                true => activation::differentiate_from_output,
                false => activation::differentiate,
            };
            each_chunk(&mut changed, CHUNK, Share::ANY, &|i, d| {
                slope(act, d, &saved[i * CHUNK..][..d.len()])
            });
        }
        let dz = if changed.is_empty() { dy } else { &changed };
        if let Some(g) = &io.dresidual {
            put(op, g, dz)?;
        }
        if let Some(g) = &io.dbias {
            let plane = io.dy.shape()[2..].iter().product();
            store_grad(op, g, &channel_sums(dz, io.dy.shape()[1], plane)?)?;
        }
        let Some(s) = shape else { return Ok(()) };
        let plan = Plan::new(op, &s)?;
        // Of a transposed convolution, dx is a convolution of dz, and dz takes the place of the input in dw.
        if let (Some(g), true) = (&io.dx, w.is_some()) {
            let both = (dz, wide(w.as_ref(), of_w)?);
            match g.accumulate {
                false => change_all::<T>(op, &g.out, |dx| plan.data_grad(way, both, dx))?,
                // Added when whole: the sum does not depend on how the products were cut.
                true => {
                    let mut dx = filled(g.out.numel(), 0.0f32)?;
                    plan.data_grad(way, both, &mut dx)?;
                    change_in_f32::<T>(op, g, |at, y| y.copy_from_slice(&dx[at..at + y.len()]))?;
                }
            }
        }
        if let (Some(g), true) = (&io.dw, x.is_some()) {
            let x = wide(x.as_ref(), of_x)?;
            let (x, dz) = if way == Direction::Conv { (x, dz) } else { (dz, x) };
            write_or_add(op, g, |dw, beta| plan.weight_grad(x, dz, beta, dw))?;
        }
        Ok(())
    }
}
