//! Pooling in f32, plane by plane, in place.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use super::{Windows, divisor, part};
use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::CpuBackend;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Values, change_all};
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

/// Place and value of a window's maximum: the first of the largest cells, or the last that is NaN.
#[inline]
fn maximum<T: Narrow>(plane: &[T], cells: &[usize]) -> (i32, f32) {
    let Some((&first, others)) = cells.split_first() else { return (-1, f32::NEG_INFINITY) };
    let (mut at, mut value) = (first, plane[first].widen());
    for &c in others {
        let x = plane[c].widen();
        if x > value || x.is_nan() {
            (at, value) = (c, x);
        }
    }
    (at as i32, value)
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
        let planes = all.par_chunks_mut(n).with_min_len(several(n)).enumerate();
        let done = planes.map_init(room, |room, (p, plane)| {
            let room = room.as_mut().map_err(|e| e.clone())?;
            T::change(plane, room, |plane| {
                if !dx.accumulate {
                    plane.fill(0.0);
                }
                f(p, plane);
            });
            Ok(())
        });
        done.try_for_each(|r| r)
    })
}

/// Why planes are left to the reference.
pub(super) fn why_not(g: &PoolGeometry) -> Option<&'static str> {
    [g.planes, g.plane(), g.windows()]
        .contains(&0)
        .then_some("planes without elements are done by the reference")
}

impl CpuBackend {
    pub(super) fn max_pool_in_f32<T: Narrow>(
        &self,
        g: &PoolGeometry,
        x: View<'_>,
        y: ViewMut<'_>,
        index: Option<ViewMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "max_pool";
        let (x, windows, m) = (Values::<T>::new(OP, x, &[y.block().id()])?, Windows::new(g)?, g.windows());
        let plane = |p: usize, y: &mut [T], at: &mut [i32]| {
            let x = &x[part(p, g.plane())];
            for (i, (y, (cells, _))) in y.iter_mut().zip(windows.iter()).enumerate() {
                let (place, value) = maximum(x, cells);
                *y = T::narrow(value);
                if let Some(at) = at.get_mut(i) {
                    *at = place;
                }
            }
        };
        change_all::<T>(OP, &y, |y| {
            let y = y.par_chunks_mut(m).with_min_len(several(m)).enumerate();
            match index {
                Some(index) => change_all::<i32>(OP, &index, |at| {
                    y.zip(at.par_chunks_mut(m)).for_each(|((p, y), at)| plane(p, y, at));
                    Ok(())
                }),
                None => {
                    y.for_each(|(p, y)| plane(p, y, &mut []));
                    Ok(())
                }
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
            y.par_chunks_mut(m).with_min_len(several(g.plane())).enumerate().for_each(|(p, y)| {
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
