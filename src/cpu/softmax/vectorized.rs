//! Softmax in f32, in place on rows of the result, or on [cols, inner] slabs where the axis is not the last.

use crate::buffer::{GradMut, View};
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, each_chunk_in};
use crate::cpu::vector::math::exp;
use crate::cpu::vector::{self, fill, row, row_parts, simd_widest};
use crate::error::Result;
use crate::ops::softmax::Softmax;

/// y = softmax(y) of rows.
fn rows(kind: Softmax, y: &mut [f32], cols: usize) {
    simd_widest!({
        for y in y.chunks_exact_mut(cols) {
            let top = row::max(y);
            match kind {
                Softmax::Softmax => {
                    y.iter_mut().for_each(|y| *y = exp(*y - top));
                    let factor = (1.0 / row::sum(y)) as f32;
                    y.iter_mut().for_each(|y| *y *= factor);
                }
                Softmax::LogSoftmax => {
                    let ln = row::sum_of(y, y, |y, _| exp(y - top)).ln() as f32;
                    y.iter_mut().for_each(|y| *y = *y - top - ln);
                }
            }
        }
    });
}

/// y = softmax(y) of the columns of a slab.
fn columns(kind: Softmax, y: &mut [f32], inner: usize) -> Result<()> {
    let mut top = repeated(inner, f32::NEG_INFINITY)?;
    let mut sums = filled(inner, 0.0f64)?;
    simd_widest!({
        for y in y.chunks_exact(inner) {
            top.iter_mut().zip(y).for_each(|(m, y)| *m = if *y > *m { *y } else { *m });
        }
        for y in y.chunks_exact_mut(inner) {
            for ((y, m), s) in y.iter_mut().zip(&top).zip(&mut sums) {
                *y -= m;
                let e = exp(*y);
                *s += f64::from(e);
                *y = if kind == Softmax::Softmax { e } else { *y };
            }
        }
    });
    let log = kind == Softmax::LogSoftmax;
    let last: Vec<f32> = sums.iter().map(|s| if log { s.ln() } else { 1.0 / s } as f32).try_vec()?;
    simd_widest!({
        for y in y.chunks_exact_mut(inner) {
            match kind {
                Softmax::Softmax => y.iter_mut().zip(&last).for_each(|(y, f)| *y *= f),
                Softmax::LogSoftmax => y.iter_mut().zip(&last).for_each(|(y, l)| *y -= l),
            }
        }
    });
    Ok(())
}

/// Gradients of rows, or of columns of a slab, from the upstream gradient and the forward's result.
struct Backward {
    kind: Softmax,
    scale: f32,
}

impl Backward {
    /// What is summed over a slice.
    #[inline(always)]
    fn term(&self, d: f32, y: f32) -> f32 {
        if self.kind == Softmax::Softmax { d * y } else { d }
    }

    /// The gradient, from the sum.
    #[inline(always)]
    fn gradient(&self, d: f32, y: f32, sum: f32) -> f32 {
        match self.kind {
            Softmax::Softmax => self.scale * y * (d - sum),
            Softmax::LogSoftmax => d - exp(y) * sum,
        }
    }

    fn rows(&self, [d, y]: [&[f32]; 2], dx: &mut [f32], cols: usize) {
        simd_widest!({
            for (dx, (d, y)) in dx.chunks_exact_mut(cols).zip(d.chunks_exact(cols).zip(y.chunks_exact(cols)))
            {
                let sum = row::sum_of(d, y, |d, y| self.term(d, y)) as f32;
                dx.iter_mut().zip(d.iter().zip(y)).for_each(|(x, (d, y))| *x = self.gradient(*d, *y, sum));
            }
        });
    }

    fn columns(&self, [d, y]: [&[f32]; 2], dx: &mut [f32], inner: usize) -> Result<()> {
        let mut sums = filled(inner, 0.0f64)?;
        simd_widest!({
            for (d, y) in d.chunks_exact(inner).zip(y.chunks_exact(inner)) {
                let both = sums.iter_mut().zip(d.iter().zip(y));
                both.for_each(|(s, (d, y))| *s += f64::from(self.term(*d, *y)));
            }
            for (dx, (d, y)) in
                dx.chunks_exact_mut(inner).zip(d.chunks_exact(inner).zip(y.chunks_exact(inner)))
            {
                let both = dx.iter_mut().zip(d.iter().zip(y)).zip(&sums);
                both.for_each(|((x, (d, y)), s)| *x = self.gradient(*d, *y, *s as f32));
            }
        });
        Ok(())
    }
}

/// Calls `f` with [cols, inner] slabs and the number of their first element.
fn slabs(y: &mut [f32], slab: usize, f: impl Fn(usize, &mut [f32]) -> Result<()> + Sync) -> Result<()> {
    let share = Share::at_least((CHUNK / slab).max(1));
    each_chunk_in(y, slab, share, &|| Ok(()), &|(), i, y| f(i * slab, y))
}

pub(super) fn softmax(
    op: &'static str,
    kind: Softmax,
    [_, cols, inner]: [usize; 3],
    x: View<'_>,
    y: &GradMut<'_>,
) -> Result<()> {
    if x.numel() == 0 {
        return Ok(());
    }
    let x = vector::values(op, x, &[y.out.block().id()])?;
    fill(op, y, |y| match inner {
        1 => {
            row_parts(y, cols, |first, y| {
                y.copy_from_slice(&x[first..first + y.len()]);
                rows(kind, y, cols);
            });
            Ok(())
        }
        _ => slabs(y, cols * inner, |first, y| {
            y.copy_from_slice(&x[first..first + y.len()]);
            columns(kind, y, inner)
        }),
    })
}

pub(super) fn softmax_bwd(
    op: &'static str,
    (kind, scale): (Softmax, f64),
    [_, cols, inner]: [usize; 3],
    [dy, y]: [View<'_>; 2],
    dx: &GradMut<'_>,
) -> Result<()> {
    if y.numel() == 0 {
        return Ok(());
    }
    let [block, of_dy, of_y] = [dx.out.block().id(), dy.block().id(), y.block().id()];
    let (dy, y) = (vector::values(op, dy, &[block, of_y])?, vector::values(op, y, &[block, of_dy])?);
    let b = Backward { kind, scale: scale as f32 };
    fill(op, dx, |dx| match inner {
        1 => {
            row_parts(dx, cols, |first, dx| {
                let part = first..first + dx.len();
                b.rows([&dy[part.clone()], &y[part]], dx, cols);
            });
            Ok(())
        }
        _ => slabs(dx, cols * inner, |first, dx| {
            let part = first..first + dx.len();
            b.columns([&dy[part.clone()], &y[part]], dx, inner)
        }),
    })
}

pub(super) fn masked_softmax(
    op: &'static str,
    scale: f64,
    x: View<'_>,
    mask: Option<View<'_>>,
    y: &GradMut<'_>,
) -> Result<()> {
    let (cols, scale) = (x.shape().last().copied().unwrap_or(1), scale as f32);
    if x.numel() == 0 {
        return Ok(());
    }
    let [block, of_x] = [y.out.block().id(), x.block().id()];
    let mask = mask.map(|m| vector::values(op, m.broadcast_to(x.shape())?, &[block, of_x])).transpose()?;
    let x = vector::values(op, x, &[block])?;
    fill(op, y, |y| {
        row_parts(y, cols, |first, y| {
            let part = first..first + y.len();
            simd_widest!(y.iter_mut().zip(&x[part.clone()]).for_each(|(y, x)| *y = scale * x));
            if let Some(mask) = &mask {
                vector::add(y, &mask[part]);
            }
            rows(Softmax::Softmax, y, cols);
        });
        Ok(())
    })
}
