//! Pooling in f32, plane by plane, in place.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Windows, divisor, part};
use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::Kernels;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, Values, change_all, each_chunk, each_chunk_in, each_pair_in};
use crate::cpu::vector::{Narrow, simd};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::pool::*;

/// Cells of a window that are summed before the sum is widened.
const SUMMED: usize = 1024;

/// Planes that a thread takes at least.
fn several(len: usize) -> usize {
    (CHUNK / len.max(1)).max(1)
}

/// The cells of a window as one range of the plane, where they follow each other.
fn range(cells: &[usize]) -> Option<Range<usize>> {
    let (first, last) = (*cells.first()?, *cells.last()?);
    (last - first + 1 == cells.len()).then_some(first..last + 1)
}

/// The sum of a window.
fn sum<T: Narrow>(plane: &[T], cells: &[usize]) -> f64 {
    let Some(range) = range(cells) else {
        let part = |cells: &[usize]| f64::from(cells.iter().map(|&c| plane[c].widen()).sum::<f32>());
        return cells.chunks(SUMMED).map(part).sum();
    };
    let part = |x: &[T]| {
        let (mut lanes, all) = ([0.0f32; 16], x.chunks_exact(16));
        let rest: f32 = all.remainder().iter().map(|x| x.widen()).sum();
        all.for_each(|x| lanes.iter_mut().zip(x).for_each(|(l, x)| *l += x.widen()));
        f64::from(lanes.iter().sum::<f32>() + rest)
    };
    simd!(plane[range].chunks(SUMMED).map(part).sum())
}

/// Windows that follow each other, each the one before moved by `step` cells.
struct Run {
    windows: Range<usize>,
    step: usize,
}

impl Run {
    fn all(windows: &Windows) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let mut last: &[usize] = &[];
        for (i, (cells, _)) in windows.iter().enumerate() {
            let step = match (last.first(), cells.first()) {
                (Some(a), Some(b)) if b > a => b - a,
                _ => 0,
            };
            let moved =
                step > 0 && last.len() == cells.len() && last.iter().zip(cells).all(|(a, b)| a + step == *b);
            match runs.last_mut() {
                Some(run) if moved && (run.step == step || run.windows.len() == 1) => {
                    (run.windows.end, run.step) = (i + 1, step);
                }
                _ => runs.try_push(Run { windows: i..i + 1, step: 1 })?,
            }
            last = cells;
        }
        Ok(runs)
    }
}

/// Windows whose cells are brought together at a time, where they do not lie side by side.
const TOGETHER: usize = 16;

/// Values and places of the maxima of a run of windows, of which `cells` is the first: the first of the largest cells, or the last that is NaN.
#[inline(always)]
fn maxima(plane: &[f32], cells: &[usize], step: usize, y: &mut [f32], at: &mut [i32]) {
    y.fill(f32::NEG_INFINITY);
    at.fill(-1);
    for (i, &c) in cells.iter().enumerate() {
        let any = i == 0;
        if step == 1 {
            larger(&plane[c..], any, [c, 1], y, at);
            continue;
        }
        for (j, (y, at)) in y.chunks_mut(TOGETHER).zip(at.chunks_mut(TOGETHER)).enumerate() {
            let first = c + j * TOGETHER * step;
            let mut x = [0.0; TOGETHER];
            bring_together(&plane[first..], step, &mut x[..y.len()]);
            larger(&x, any, [first, step], y, at);
        }
    }
}

/// Every element of `x` that is `step` behind the one before.
#[inline(always)]
fn bring_together(x: &[f32], step: usize, to: &mut [f32]) {
    let pairs = if step == 2 { x.as_chunks::<2>().0 } else { &[] };
    to.iter_mut().zip(pairs).for_each(|(to, x)| *to = x[0]);
    // Of the last pair there may be the first alone.
    let done = pairs.len().min(to.len());
    to[done..]
        .iter_mut()
        .zip(x[(done * step).min(x.len())..].iter().step_by(step))
        .for_each(|(to, x)| *to = *x);
}

/// Values replaced by those of `x` that are larger, or NaN, or `any`, and their places, which begin at `c`.
#[inline(always)]
fn larger(x: &[f32], any: bool, [c, step]: [usize; 2], y: &mut [f32], at: &mut [i32]) {
    let (c, step) = (c as i32, step as i32);
    for (i, ((y, at), &x)) in (0i32..).zip(y.iter_mut().zip(at).zip(x)) {
        let take = any | (x > *y) | x.is_nan();
        *y = if take { x } else { *y };
        *at = if take { c + i * step } else { *at };
    }
}

/// Planes of 16-bit data as f32, and places of maxima that nobody asked for.
struct Room {
    x: Vec<f32>,
    y: Vec<f32>,
    at: Vec<i32>,
}

/// Lets `f` add to each plane of a gradient in f32, which begins with what is there, or with zeros.
fn add_planes<T: Narrow>(
    op: &'static str,
    g: &PoolGeometry,
    dx: &GradMut<'_>,
    f: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<()> {
    let n = g.plane();
    let room = || filled(if T::DTYPE == DType::F32 { 0 } else { n }, 0.0f32);
    change_all::<T>(op, &dx.out, |all| {
        each_chunk_in(all, n, Share::at_least(several(n)), &room, &|room, p, plane| {
            T::change(plane, room, |plane| {
                if !dx.accumulate {
                    plane.fill(0.0);
                }
                f(p, plane);
            });
            Ok(())
        })
    })
}

/// Why planes are left to the reference.
pub(super) fn why_not(g: &PoolGeometry) -> Option<&'static str> {
    [g.planes, g.plane(), g.windows()]
        .contains(&0)
        .then_some("planes without elements are done by the reference")
}

impl Kernels {
    pub(super) fn max_pool_in_f32<T: Narrow>(
        &self,
        g: &PoolGeometry,
        x: View<'_>,
        y: ViewMut<'_>,
        index: Option<ViewMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "max_pool";
        let (x, windows, m) = (Values::<T>::new(OP, x, &[y.block().id()])?, Windows::new(g)?, g.windows());
        let runs = Run::all(&windows)?;
        let plane = |room: &mut Room, p: usize, y: &mut [T], at: &mut [i32]| {
            let x = T::widened(&x[part(p, g.plane())], &mut room.x);
            T::change(y, &mut room.y, |y| {
                simd!(for Run { windows: w, step } in &runs {
                    let cells = &windows.cells[windows.windows[w.start].0.clone()];
                    maxima(x, cells, *step, &mut y[w.clone()], &mut at[w.clone()]);
                });
            });
        };
        let wide = |n| filled(if T::DTYPE == DType::F32 { 0 } else { n }, 0.0f32);
        let room = || -> Result<Room> {
            let at = filled(if index.is_none() { m } else { 0 }, 0i32)?;
            Ok(Room { x: wide(g.plane())?, y: wide(m)?, at })
        };
        change_all::<T>(OP, &y, |y| {
            let share = Share::at_least(several(m));
            match &index {
                Some(index) => change_all::<i32>(OP, index, |at| {
                    each_pair_in((y, at), [m, m], share, &room, &|room, p, y, at| {
                        plane(room, p, y, at);
                        Ok(())
                    })
                }),
                None => each_chunk_in(y, m, share, &room, &|room, p, y| {
                    let mut at = std::mem::take(&mut room.at);
                    plane(room, p, y, &mut at);
                    room.at = at;
                    Ok(())
                }),
            }
        })
    }

    pub(super) fn max_pool_bwd_in_f32<T: Narrow>(
        &self,
        g: &PoolGeometry,
        dy: View<'_>,
        index: View<'_>,
        dx: &GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "max_pool_bwd";
        let dy = Values::<T>::new(OP, dy, &[dx.out.block().id()])?;
        let at = Values::<i32>::new(OP, index, &[])?;
        let (windows, m, wrong) = (Windows::new(g)?, g.windows(), AtomicBool::new(false));
        add_planes::<T>(OP, g, dx, |p, dx| {
            let upstream = dy[part(p, m)].iter().zip(&at[part(p, m)]);
            for ((dy, &at), (cells, _)) in upstream.zip(windows.iter()) {
                match usize::try_from(at) {
                    Ok(c) if cells.binary_search(&c).is_ok() => dx[c] += dy.widen(),
                    _ if at < -1 || at as i64 >= g.plane() as i64 => wrong.store(true, Ordering::Relaxed),
                    _ => {}
                }
            }
        })?;
        if wrong.into_inner() {
            self.flag_index_error(OP);
        }
        Ok(())
    }

    pub(super) fn avg_pool_in_f32<T: Narrow>(
        &self,
        g: &PoolGeometry,
        x: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "avg_pool";
        let (x, windows, m) = (Values::<T>::new(OP, x, &[y.block().id()])?, Windows::new(g)?, g.windows());
        change_all::<T>(OP, &y, |y| {
            each_chunk(y, m, Share::at_least(several(g.plane())), &|p, y| {
                let x = &x[part(p, g.plane())];
                for (y, (cells, count)) in y.iter_mut().zip(windows.iter()) {
                    *y = T::narrow((sum(x, cells) / divisor(g, count)) as f32);
                }
            });
            Ok(())
        })
    }

    pub(super) fn avg_pool_bwd_in_f32<T: Narrow>(
        &self,
        g: &PoolGeometry,
        dy: View<'_>,
        dx: &GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "avg_pool_bwd";
        let dy = Values::<T>::new(OP, dy, &[dx.out.block().id()])?;
        let (windows, m) = (Windows::new(g)?, g.windows());
        add_planes::<T>(OP, g, dx, |p, dx| {
            for (dy, (cells, count)) in dy[part(p, m)].iter().zip(windows.iter()) {
                let share = (f64::from(dy.widen()) / divisor(g, count)) as f32;
                match range(cells) {
                    Some(range) => simd!(dx[range].iter_mut().for_each(|x| *x += share)),
                    None => cells.iter().for_each(|&c| dx[c] += share),
                }
            }
        })
    }
}
