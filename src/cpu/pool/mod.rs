//! Pooling on the CPU, from the definition: each window is a list of cells.

mod vectorized;

use std::ops::Range;

use bytemuck::Pod;

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, each_chunk};
use crate::cpu::vector::with_narrow;
use crate::cpu::{Kernels, gather, gather_f64, store, store_f64, store_grad};
use crate::error::Result;
use crate::ops::pool::*;

/// The windows of one axis.
struct Axis {
    /// For each window its cells inside the input, and how many cells it counts in an average.
    windows: Vec<(Vec<usize>, usize)>,
}

impl Axis {
    fn new(g: &PoolGeometry, a: usize) -> Result<Axis> {
        let (n, m) = (g.input[a], g.output[a]);
        let windows = (0..m).map(|o| -> Result<_> {
            if g.adaptive {
                let cells: Vec<usize> = (o * n / m..((o + 1) * n).div_ceil(m)).try_vec()?;
                let count = cells.len();
                return Ok((cells, count));
            }
            let (k, p, start) = (g.kernel[a], g.padding[a], o * g.stride[a]);
            // The elements of the window that lie in the input; the kernel may be far longer than that.
            let below = |limit: usize| limit.saturating_sub(start).div_ceil(g.dilation[a]).min(k);
            let cells = (below(p)..below(n + p)).map(|j| start + j * g.dilation[a] - p).try_vec()?;
            let count = if g.count_include_pad { (start + k).min(n + 2 * p) - start } else { cells.len() };
            Ok((cells, count))
        });
        Ok(Axis { windows: windows.try_vec_ok()? })
    }
}

/// The windows of a plane in row-major order.
struct Windows {
    /// Positions in the plane, in order, of all windows' cells.
    cells: Vec<usize>,
    /// For each window its cells in the list, and how many cells it counts in an average.
    windows: Vec<(Range<usize>, usize)>,
}

impl Windows {
    fn new(g: &PoolGeometry) -> Result<Self> {
        let axes = [Axis::new(g, 0)?, Axis::new(g, 1)?, Axis::new(g, 2)?];
        let [_, h, w] = g.input;
        let (mut cells, mut windows) = (Vec::new(), Vec::new());
        for (ds, nd) in &axes[0].windows {
            for (hs, nh) in &axes[1].windows {
                for (ws, nw) in &axes[2].windows {
                    let start = cells.len();
                    for d in ds {
                        for r in hs {
                            cells.try_extend(ws.iter().map(|c| (d * h + r) * w + c))?;
                        }
                    }
                    windows.try_push((start..cells.len(), nd * nh * nw))?;
                }
            }
        }
        Ok(Windows { cells, windows })
    }

    /// The cells of each window, and how many it counts.
    fn iter(&self) -> impl Iterator<Item = (&[usize], usize)> {
        self.windows.iter().map(|(cells, count)| (&self.cells[cells.clone()], *count))
    }
}

/// Calls `f` with each plane of a tensor, where there are any, and its number.
fn each_plane<T: Pod>(all: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if let Some(few) = CHUNK.checked_div(len) {
        each_chunk(all, len, Share::at_least(few.max(1)), &f);
    }
}

/// The part of plane number `p` in a list of planes of `len` elements.
fn part(p: usize, len: usize) -> Range<usize> {
    p * len..(p + 1) * len
}

fn divisor(g: &PoolGeometry, count: usize) -> f64 {
    g.divisor.map_or(count as f64, |d| d as f64)
}

impl PoolOps for Kernels {
    fn max_pool(
        &self,
        windows: Pooling,
        x: View<'_>,
        y: ViewMut<'_>,
        index: Option<ViewMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "max_pool";
        let g = check_max_pool(windows, &x, &y, index.as_ref())?;
        let _timed = self.count("max_pool");
        if self.in_f32(OP, x.dtype(), vectorized::why_not(&g))? {
            return with_narrow!(x.dtype(), T => self.max_pool_in_f32::<T>(&g, x, y, index));
        }
        let (from, m) = (gather_f64(OP, x)?, g.windows());
        let (mut values, mut at) = (filled(g.planes * m, 0.0)?, filled(g.planes * m, -1i32)?);
        let windows = Windows::new(&g)?;
        each_plane(&mut at, m, |p, at| {
            let plane = &from[part(p, g.plane())];
            for (at, (cells, _)) in at.iter_mut().zip(windows.iter()) {
                let Some(&first) = cells.first() else { continue };
                let later = |best: usize, &c: &usize| {
                    if plane[c] > plane[best] || plane[c].is_nan() { c } else { best }
                };
                *at = cells.iter().fold(first, later) as i32;
            }
        });
        each_plane(&mut values, m, |p, values| {
            let (plane, at) = (&from[part(p, g.plane())], &at[part(p, m)]);
            let cell = |at: i32| usize::try_from(at).map_or(f64::NEG_INFINITY, |c| plane[c]);
            values.iter_mut().zip(at).for_each(|(v, &at)| *v = cell(at));
        });
        store_f64(OP, &y, &values)?;
        index.map_or(Ok(()), |i| store(OP, &i, &at))
    }

    fn max_pool_bwd(&self, windows: Pooling, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "max_pool_bwd";
        let g = check_max_pool_bwd(windows, &dy, &index, &dx)?;
        let _timed = self.count("max_pool_bwd");
        if self.in_f32(OP, dy.dtype(), vectorized::why_not(&g))? {
            return with_narrow!(dy.dtype(), T => self.max_pool_bwd_in_f32::<T>(&g, dy, index, &dx));
        }
        let (from, at, m) = (gather_f64(OP, dy)?, gather::<i32>(OP, index)?, g.windows());
        let mut sums = filled(g.planes * g.plane(), 0.0)?;
        let windows = Windows::new(&g)?;
        each_plane(&mut sums, g.plane(), |p, sums| {
            let upstream = from[part(p, m)].iter().zip(&at[part(p, m)]);
            for ((value, &at), (cells, _)) in upstream.zip(windows.iter()) {
                if at < -1 || at as i64 >= g.plane() as i64 {
                    self.flag_index_error(OP);
                }
                if let Some(c) = usize::try_from(at).ok().filter(|c| cells.binary_search(c).is_ok()) {
                    sums[c] += value;
                }
            }
        });
        store_grad(OP, &dx, &sums)
    }

    fn avg_pool(&self, windows: Pooling, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "avg_pool";
        let g = check_avg_pool(windows, &x, &y)?;
        let _timed = self.count("avg_pool");
        if self.in_f32(OP, x.dtype(), vectorized::why_not(&g))? {
            return with_narrow!(x.dtype(), T => self.avg_pool_in_f32::<T>(&g, x, y));
        }
        let (from, m) = (gather_f64(OP, x)?, g.windows());
        let mut values = filled(g.planes * m, 0.0)?;
        let windows = Windows::new(&g)?;
        each_plane(&mut values, m, |p, values| {
            let plane = &from[part(p, g.plane())];
            for (value, (cells, count)) in values.iter_mut().zip(windows.iter()) {
                *value = cells.iter().map(|&c| plane[c]).sum::<f64>() / divisor(&g, count);
            }
        });
        store_f64(OP, &y, &values)
    }

    fn avg_pool_bwd(&self, windows: Pooling, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "avg_pool_bwd";
        let g = check_avg_pool_bwd(windows, &dy, &dx)?;
        let _timed = self.count("avg_pool_bwd");
        if self.in_f32(OP, dy.dtype(), vectorized::why_not(&g))? {
            return with_narrow!(dy.dtype(), T => self.avg_pool_bwd_in_f32::<T>(&g, dy, &dx));
        }
        let (from, m) = (gather_f64(OP, dy)?, g.windows());
        let mut sums = filled(g.planes * g.plane(), 0.0)?;
        let windows = Windows::new(&g)?;
        each_plane(&mut sums, g.plane(), |p, plane| {
            for (value, (cells, count)) in from[part(p, m)].iter().zip(windows.iter()) {
                let share = value / divisor(&g, count);
                cells.iter().for_each(|&c| plane[c] += share);
            }
        });
        store_grad(OP, &dx, &sums)
    }
}
