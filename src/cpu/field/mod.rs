//! Neural fields on the CPU, in f64.

mod dual;
mod gaussians;
mod harmonics;
mod rays;
mod splatting;

use rayon::prelude::*;

use self::harmonics::basis;
use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::field::*;

/// Where a position lies in a level: in the cell behind corner `first`, `part` of a cell behind it along each axis.
struct Place {
    first: [usize; 3],
    part: [f64; 3],
    /// Derivative of `part` by the position.
    slope: [f64; 3],
}

/// A corner of a cell: its row in the table, whether it is the upper one along each axis, and its share.
struct Corner {
    row: usize,
    upper: [bool; 3],
    weight: f64,
}

impl Place {
    /// `None` for a position that is NaN.
    fn new(level: &Level, x: &[f64]) -> Option<Self> {
        let mut p = Place { first: [0; 3], part: [0.0; 3], slope: [0.0; 3] };
        for (a, &x) in x.iter().enumerate() {
            if x.is_nan() {
                return None;
            }
            let (cells, inside) = (level.cells[a], x.clamp(0.0, 1.0));
            let along = inside * cells as f64;
            p.first[a] = (along as usize).min(cells.saturating_sub(1));
            p.part[a] = along - p.first[a] as f64;
            p.slope[a] = if inside == x { cells as f64 } else { 0.0 };
        }
        Some(p)
    }

    fn share(&self, axis: usize, upper: bool) -> f64 {
        if upper { self.part[axis] } else { 1.0 - self.part[axis] }
    }

    fn corners(&self, g: &Grids, level: &Level) -> impl Iterator<Item = Corner> {
        (0..g.corners()).map(move |k| {
            let upper = [0, 1, 2].map(|a| k >> a & 1 == 1);
            let at = [0, 1, 2].map(|a| (self.first[a] + upper[a] as usize).min(level.cells[a]));
            let weight = (0..g.axes).map(|a| self.share(a, upper[a])).product();
            Corner { row: row(level, at, g.rows), upper, weight }
        })
    }
}

/// The row of a corner.
fn row(level: &Level, [i, j, k]: [usize; 3], rows: usize) -> usize {
    if level.hashed {
        let spread = |n: usize, by: u32| (n as u32).wrapping_mul(by);
        return (spread(i, 1) ^ spread(j, 2_654_435_761) ^ spread(k, 805_459_861)) as usize % rows;
    }
    let [nx, ny, _] = level.cells.map(|n| n + 1);
    (k * ny + j) * nx + i
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Features of positions x [P, D] from a table [L, T, F].
fn encode(g: &Grids, x: &[f64], table: &[f64]) -> Result<Vec<f64>> {
    let width = g.levels.len() * g.width;
    let mut y = filled(g.points * width, 0.0)?;
    if width == 0 {
        return Ok(y);
    }
    y.par_chunks_mut(width).zip(x.par_chunks(g.axes)).for_each(|(y, x)| {
        for ((l, level), y) in g.levels.iter().enumerate().zip(y.chunks_mut(g.width)) {
            let Some(place) = Place::new(level, x) else {
                y.fill(f64::NAN);
                continue;
            };
            for c in place.corners(g, level) {
                let features = &table[(l * g.rows + c.row) * g.width..][..g.width];
                y.iter_mut().zip(features).for_each(|(y, f)| *y += c.weight * f);
            }
        }
    });
    Ok(y)
}

/// The gradient of the table.
fn table_gradient(g: &Grids, dy: &[f64], x: &[f64], len: usize) -> Result<Vec<f64>> {
    let mut dtable = filled(len, 0.0)?;
    for (p, x) in x.chunks(g.axes).enumerate() {
        for (l, level) in g.levels.iter().enumerate() {
            let Some(place) = Place::new(level, x) else { continue };
            let dy = &dy[(p * g.levels.len() + l) * g.width..][..g.width];
            for c in place.corners(g, level) {
                let to = &mut dtable[(l * g.rows + c.row) * g.width..][..g.width];
                to.iter_mut().zip(dy).for_each(|(t, d)| *t += c.weight * d);
            }
        }
    }
    Ok(dtable)
}

/// The gradient of one position.
fn position_gradient(g: &Grids, dy: &[f64], x: &[f64], table: &[f64]) -> [f64; 3] {
    let mut dx = [0.0; 3];
    for (l, level) in g.levels.iter().enumerate() {
        let Some(place) = Place::new(level, x) else { return [f64::NAN; 3] };
        let dy = &dy[l * g.width..][..g.width];
        for c in place.corners(g, level) {
            let along = dot(dy, &table[(l * g.rows + c.row) * g.width..][..g.width]);
            for a in (0..g.axes).filter(|&a| place.slope[a] != 0.0) {
                let others = (0..g.axes).filter(|&b| b != a).map(|b| place.share(b, c.upper[b]));
                let sign = if c.upper[a] { 1.0 } else { -1.0 };
                dx[a] += sign * place.slope[a] * others.product::<f64>() * along;
            }
        }
    }
    dx
}

/// Both gradients, where they are wanted.
fn gradients(
    op: &'static str,
    g: &Grids,
    [dy, x, table]: [View<'_>; 3],
    dx: Option<GradMut<'_>>,
    dtable: Option<GradMut<'_>>,
) -> Result<()> {
    let (dy, at) = (gather_f64(op, dy)?, gather_f64(op, x)?);
    if let Some(to) = dx {
        let (table, width) = (gather_f64(op, table)?, g.levels.len() * g.width);
        let mut all = with_capacity(at.len())?;
        for (p, x) in at.chunks(g.axes).enumerate() {
            let d = position_gradient(g, &dy[p * width..][..width], x, &table);
            all.try_extend(d[..g.axes].iter().copied())?;
        }
        store_grad(op, &to, &all)?;
    }
    let Some(to) = dtable else { return Ok(()) };
    store_grad(op, &to, &table_gradient(g, &dy, &at, table.numel())?)
}

impl FieldOps for Kernels {
    fn hash_grid_encode(&self, p: HashGrid, x: View<'_>, table: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "hash_grid_encode";
        let g = check_hash_grid_encode(p, &x, &table, &y)?;
        let _timed = self.count(OP);
        store_f64(OP, &y, &encode(&g, &gather_f64(OP, x)?, &gather_f64(OP, table)?)?)
    }

    fn hash_grid_encode_bwd(&self, p: HashGrid, io: HashGridBwd<'_>) -> Result<()> {
        const OP: &str = "hash_grid_encode_bwd";
        let g = check_hash_grid_encode_bwd(p, &io)?;
        let _timed = self.count(OP);
        gradients(OP, &g, [io.dy, io.x, io.table], io.dx, io.dtable)
    }

    fn trilinear_interpolate(&self, grid: View<'_>, points: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "trilinear_interpolate";
        let g = check_trilinear_interpolate(&grid, &points, &y)?;
        let _timed = self.count(OP);
        store_f64(OP, &y, &encode(&g, &gather_f64(OP, points)?, &gather_f64(OP, grid)?)?)
    }

    fn trilinear_interpolate_bwd(&self, io: TrilinearBwd<'_>) -> Result<()> {
        const OP: &str = "trilinear_interpolate_bwd";
        let g = check_trilinear_interpolate_bwd(&io)?;
        let _timed = self.count(OP);
        gradients(OP, &g, [io.dy, io.points, io.grid], io.dpoints, io.dgrid)
    }

    fn spherical_harmonics(
        &self,
        directions: View<'_>,
        coefficients: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "spherical_harmonics";
        let h = check_spherical_harmonics(&directions, &coefficients, &y)?;
        let _timed = self.count(OP);
        let (r, k) = (gather_f64(OP, directions)?, gather_f64(OP, coefficients)?);
        let mut all = with_capacity(y.numel())?;
        for (p, r) in r.chunks(3).enumerate() {
            let b = basis(r, h.count)?;
            let of = |c: usize| &k[(p * h.channels + c) * h.count..][..h.count];
            all.try_extend(
                (0..h.channels).map(|c| of(c).iter().zip(&b).map(|(k, b)| k * b.value).sum::<f64>()),
            )?;
        }
        store_f64(OP, &y, &all)
    }

    fn spherical_harmonics_bwd(&self, io: HarmonicsBwd<'_>) -> Result<()> {
        const OP: &str = "spherical_harmonics_bwd";
        let h = check_spherical_harmonics_bwd(&io)?;
        let _timed = self.count(OP);
        let (dy, r) = (gather_f64(OP, io.dy)?, gather_f64(OP, io.directions)?);
        let k = gather_f64(OP, io.coefficients)?;
        let (mut dr, mut dk) = (filled(r.len(), 0.0)?, with_capacity(k.len())?);
        for (p, (r, dr)) in r.chunks(3).zip(dr.chunks_mut(3)).enumerate() {
            let b = basis(r, h.count)?;
            for (c, &dy) in dy[p * h.channels..][..h.channels].iter().enumerate() {
                dk.try_extend(b.iter().map(|b| dy * b.value))?;
                for (k, b) in k[(p * h.channels + c) * h.count..][..h.count].iter().zip(&b) {
                    dr.iter_mut().zip(b.slope).for_each(|(d, s)| *d += dy * k * s);
                }
            }
        }
        io.ddirections.map_or(Ok(()), |g| store_grad(OP, &g, &dr))?;
        io.dcoefficients.map_or(Ok(()), |g| store_grad(OP, &g, &dk))
    }
}
