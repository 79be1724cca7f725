//! Pooling on the CPU, from the definition: each window is a list of cells.

use std::ops::Range;

use super::{CpuBackend, gather, gather_f64, store, store_f64, store_grad};
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;
use crate::ops::*;

/// The windows of one axis.
struct Axis {
    /// For each window its cells inside the input, and how many cells it counts in an average.
    windows: Vec<(Vec<usize>, usize)>,
}

impl Axis {
    fn new(g: &PoolGeometry, a: usize) -> Axis {
        let (n, m) = (g.input[a], g.output[a]);
        let windows = (0..m).map(|o| {
            if g.adaptive {
                let cells: Vec<usize> = (o * n / m..((o + 1) * n).div_ceil(m)).collect();
                let count = cells.len();
                return (cells, count);
            }
            let (k, p, start) = (g.kernel[a], g.padding[a], o * g.stride[a]);
            // Positions in the padded axis.
            let inside = |q: usize| q.checked_sub(p).filter(|&c| c < n);
            let cells: Vec<usize> = (0..k).filter_map(|j| inside(start + j * g.dilation[a])).collect();
            let count = if g.count_include_pad { (start + k).min(n + 2 * p) - start } else { cells.len() };
            (cells, count)
        });
        Axis { windows: windows.collect() }
    }
}

/// Calls `f(window, cells, count)` for the windows of a plane in row-major order; cells are positions in the plane, in order.
fn each_window(g: &PoolGeometry, mut f: impl FnMut(usize, &[usize], usize)) {
    let axes: [Axis; 3] = std::array::from_fn(|a| Axis::new(g, a));
    let [_, h, w] = g.input;
    let (mut window, mut cells) = (0, vec![]);
    for (ds, nd) in &axes[0].windows {
        for (hs, nh) in &axes[1].windows {
            for (ws, nw) in &axes[2].windows {
                cells.clear();
                for d in ds {
                    for r in hs {
                        cells.extend(ws.iter().map(|c| (d * h + r) * w + c));
                    }
                }
                f(window, &cells, nd * nh * nw);
                window += 1;
            }
        }
    }
}

/// The part of plane number `p` in a list of planes of `len` elements.
fn part(p: usize, len: usize) -> Range<usize> {
    p * len..(p + 1) * len
}

fn divisor(g: &PoolGeometry, count: usize) -> f64 {
    g.divisor.map_or(count as f64, |d| d as f64)
}

impl PoolOps for CpuBackend {
    fn max_pool(
        &self,
        windows: Pooling,
        x: View<'_>,
        y: ViewMut<'_>,
        index: Option<ViewMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "max_pool";
        let g = check_max_pool(windows, &x, &y, index.as_ref())?;
        self.count();
        let (from, m) = (gather_f64(OP, x)?, g.windows());
        let (mut values, mut at) = (vec![f64::NEG_INFINITY; g.planes * m], vec![-1i32; g.planes * m]);
        each_window(&g, |o, cells, _| {
            for p in 0..g.planes {
                let plane = &from[part(p, g.plane())];
                let Some(&first) = cells.first() else { continue };
                let mut best = first;
                for &c in cells {
                    if plane[c] > plane[best] || plane[c].is_nan() {
                        best = c;
                    }
                }
                (values[p * m + o], at[p * m + o]) = (plane[best], best as i32);
            }
        });
        store_f64(OP, &y, &values)?;
        index.map_or(Ok(()), |i| store(OP, &i, &at))
    }

    fn max_pool_bwd(&self, windows: Pooling, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "max_pool_bwd";
        let g = check_max_pool_bwd(windows, &dy, &index, &dx)?;
        self.count();
        let (from, at, m) = (gather_f64(OP, dy)?, gather::<i32>(OP, index)?, g.windows());
        let mut sums = vec![0.0; g.planes * g.plane()];
        each_window(&g, |o, cells, _| {
            for p in 0..g.planes {
                let (value, at) = (from[p * m + o], at[p * m + o]);
                if at < -1 || at as i64 >= g.plane() as i64 {
                    self.flag_index_error(OP);
                }
                if let Some(c) = usize::try_from(at).ok().filter(|c| cells.binary_search(c).is_ok()) {
                    sums[p * g.plane() + c] += value;
                }
            }
        });
        store_grad(OP, &dx, &sums)
    }

    fn avg_pool(&self, windows: Pooling, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "avg_pool";
        let g = check_avg_pool(windows, &x, &y)?;
        self.count();
        let (from, m) = (gather_f64(OP, x)?, g.windows());
        let mut values = vec![0.0; g.planes * m];
        each_window(&g, |o, cells, count| {
            for p in 0..g.planes {
                let plane = &from[part(p, g.plane())];
                values[p * m + o] = cells.iter().map(|&c| plane[c]).sum::<f64>() / divisor(&g, count);
            }
        });
        store_f64(OP, &y, &values)
    }

    fn avg_pool_bwd(&self, windows: Pooling, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "avg_pool_bwd";
        let g = check_avg_pool_bwd(windows, &dy, &dx)?;
        self.count();
        let (from, m) = (gather_f64(OP, dy)?, g.windows());
        let mut sums = vec![0.0; g.planes * g.plane()];
        each_window(&g, |o, cells, count| {
            for p in 0..g.planes {
                let share = from[p * m + o] / divisor(&g, count);
                let plane = &mut sums[part(p, g.plane())];
                cells.iter().for_each(|&c| plane[c] += share);
            }
        });
        store_grad(OP, &dx, &sums)
    }
}
