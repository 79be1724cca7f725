//! Neural fields: signatures and checks.

mod gaussians;
mod rays;
mod splatting;

pub use self::gaussians::*;
pub use self::rays::*;
pub use self::splatting::*;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;

/// The levels of a hash grid: level l has floor(base * growth^l) cells along each axis.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct HashGrid {
    /// Cells of level 0 along an axis, at least 1.
    pub base: usize,
    /// Factor from level to level, at least 1.
    pub growth: f64,
}

impl HashGrid {
    /// Levels from `base` cells on.
    pub const fn new(base: usize, growth: f64) -> Self {
        HashGrid { base, growth }
    }
}

io_struct! {
    /// Operands of [`FieldOps::hash_grid_encode_bwd`].
    #[derive(Debug)]
    pub struct HashGridBwd<'a> {
        /// Upstream gradient, shape of the forward's result.
        pub dy: View<'a>,
        /// Forward's positions.
        pub x: View<'a>,
        /// Forward's table.
        pub table: View<'a>,
        /// Gradient of the positions.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the table.
        pub dtable: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`FieldOps::trilinear_interpolate_bwd`].
    #[derive(Debug)]
    pub struct TrilinearBwd<'a> {
        /// Upstream gradient, shape of the forward's result.
        pub dy: View<'a>,
        /// Forward's grid.
        pub grid: View<'a>,
        /// Forward's points.
        pub points: View<'a>,
        /// Gradient of the grid.
        pub dgrid: Option<GradMut<'a>>,
        /// Gradient of the points.
        pub dpoints: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`FieldOps::spherical_harmonics_bwd`].
    #[derive(Debug)]
    pub struct HarmonicsBwd<'a> {
        /// Upstream gradient, shape of the forward's result.
        pub dy: View<'a>,
        /// Forward's directions.
        pub directions: View<'a>,
        /// Forward's coefficients.
        pub coefficients: View<'a>,
        /// Gradient of the directions.
        pub ddirections: Option<GradMut<'a>>,
        /// Gradient of the coefficients.
        pub dcoefficients: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Features of positions and directions: f32, f16, bf16, f64, operands of one dtype, contiguous. Positions count from 0 to 1 along each axis, and
    /// those beyond are moved to the border, where they have no gradient; one that is NaN gives NaN and adds nothing to the gradient of what it
    /// reads. Deterministic. Errors: `Invalid` for shapes, dtypes, parameters out of range, overlap.
    pub trait FieldOps : Field => FIELD_OPS {
        /// y[p, l F..(l + 1) F] = the features of the 2^D corners of the cell of level l that holds x\[p\], mixed linearly; x [P, D] for D = 2 or 3,
        /// table [L, T, F], y [P, L F]. Along an axis level l has N = floor(base growth^l) cells, at most 2^24; N x is the place among them. Corner
        /// (i, j, k) has row i + j (N + 1) + k (N + 1)^2 where a level's (N + 1)^D corners fit T rows, else (i ^ 2654435761 j ^ 805459861 k) mod T in
        /// 32 bits. Source Müller et al. (2022): Instant Neural Graphics Primitives.
        fn hash_grid_encode(&self, p: HashGrid, x: View<'_>, table: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`FieldOps::hash_grid_encode`]. A row of the table gets the sum over all corners that it serves, in the order of their
        /// positions; x gets N times the differences of the corners, of the upper cell where it lies between two.
        fn hash_grid_encode_bwd(&self, p: HashGrid, io: HashGridBwd<'_>) -> Result<()>;
        /// y\[p\] = the features of the eight corners of a cell, mixed linearly: grid [D, H, W, C], points [P, 3] as (x, y, z), y [P, C]. Along an axis
        /// 0 is the first corner and 1 the last. Oracle `F.grid_sample(grid.permute(3, 0, 1, 2)[None], 2 * points - 1, align_corners=True,
        /// padding_mode="border")`.
        fn trilinear_interpolate(&self, grid: View<'_>, points: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`FieldOps::trilinear_interpolate`], as of [`FieldOps::hash_grid_encode_bwd`].
        fn trilinear_interpolate_bwd(&self, io: TrilinearBwd<'_>) -> Result<()>;
        /// y[p, c] = sum over k of Y_k(directions\[p\]) coefficients[p, c, k]: directions [P, 3] of length 1, coefficients [P, C, K] with K = (d + 1)^2
        /// for degree d of 0 to 4, y [P, C]. The real basis with the phase (-1)^m, by l, then m from -l to l; of other directions r the solid
        /// harmonics |r|^l Y. Source PlenOctrees (Yu et al., 2021).
        fn spherical_harmonics(&self, directions: View<'_>, coefficients: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`FieldOps::spherical_harmonics`]; that of the directions is the one of the solid harmonics.
        fn spherical_harmonics_bwd(&self, io: HarmonicsBwd<'_>) -> Result<()>;
    }
}

/// The most cells along an axis.
const MOST_CELLS: usize = 1 << 24;

/// One level of a checked grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level {
    /// Cells along x, y, z; 0 for an axis that is none, or has one corner.
    pub(crate) cells: [usize; 3],
    /// Whether rows are found by hashing.
    pub(crate) hashed: bool,
}

/// A checked table of features at the corners of cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grids {
    pub(crate) points: usize,
    /// 2 or 3.
    pub(crate) axes: usize,
    pub(crate) levels: Vec<Level>,
    /// Rows of the table that a level has.
    pub(crate) rows: usize,
    /// Features of a row.
    pub(crate) width: usize,
}

impl Grids {
    /// Corners of a cell.
    pub(crate) fn corners(&self) -> usize {
        1 << self.axes
    }
}

fn operand(op: &'static str, arg: &'static str, v: &View<'_>, like: &View<'_>) -> Result<()> {
    check::float(op, arg, v)?;
    check::dtype(op, arg, v, like.dtype())?;
    check::contiguous(op, arg, v)
}

/// A gradient, if it is wanted; later outputs keep apart from it.
fn gradient<'a>(
    op: &'static str,
    arg: &'static str,
    g: Option<&GradMut<'a>>,
    of: &View<'_>,
    seen: &mut Vec<(&'static str, View<'a>)>,
) -> Result<()> {
    g.map_or(Ok(()), |g| check::exact_output(op, arg, &g.out, of.shape(), of.dtype(), seen))
}

impl HashGrid {
    /// The levels of a table of `rows` rows each.
    fn levels(self, op: &'static str, count: usize, axes: usize, rows: usize) -> Result<Vec<Level>> {
        if self.base == 0 || self.base > MOST_CELLS {
            let want = format!("1 to {MOST_CELLS} cells");
            return Err(GpuError::invalid(op, "base", want, self.base.to_string()));
        }
        if !(self.growth >= 1.0 && self.growth.is_finite()) {
            let got = self.growth.to_string();
            return Err(GpuError::invalid(op, "growth", "a finite number of at least 1", got));
        }
        let mut levels = Vec::new();
        for l in 0..count {
            let cells = (self.base as f64 * self.growth.powi(l.min(1 << 30) as i32)).floor();
            if cells > MOST_CELLS as f64 {
                let got = format!("{cells} cells at level {l}");
                return Err(GpuError::invalid(op, "growth", format!("at most {MOST_CELLS} cells"), got));
            }
            let n = cells as usize;
            let corners = (n as u128 + 1).pow(axes as u32);
            let cells = [n, n, if axes == 3 { n } else { 0 }];
            levels.push(Level { cells, hashed: corners > rows as u128 });
        }
        Ok(levels)
    }
}

/// Most levels of a hash grid.
const MOST_LEVELS: usize = 1 << 10;

fn check_hash_grid(
    op: &'static str,
    p: HashGrid,
    x: &View<'_>,
    table: &View<'_>,
    y: (&'static str, &View<'_>),
) -> Result<Grids> {
    check::float(op, "x", x)?;
    let &[points, axes @ (2 | 3)] = x.shape() else {
        return Err(GpuError::invalid(op, "x", "shape [P, 2] or [P, 3]", format!("{:?}", x.shape())));
    };
    let &[count, rows, width] = table.shape() else {
        return Err(GpuError::invalid(op, "table", "shape [L, T, F]", format!("{:?}", table.shape())));
    };
    if rows == 0 || rows > i32::MAX as usize || count > MOST_LEVELS {
        let want = format!("at most {MOST_LEVELS} levels of 1 to 2^31 - 1 rows");
        return Err(GpuError::invalid(op, "table", want, format!("{:?}", table.shape())));
    }
    check::shape(op, y.0, y.1, &[points, count.saturating_mul(width)])?;
    for (arg, v) in [("x", x), ("table", table), y] {
        operand(op, arg, v, x)?;
    }
    Ok(Grids { points, axes, levels: p.levels(op, count, axes, rows)?, rows, width })
}

/// Checks of [`FieldOps::hash_grid_encode`].
pub(crate) fn check_hash_grid_encode(
    p: HashGrid,
    x: &View<'_>,
    table: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<Grids> {
    const OP: &str = "hash_grid_encode";
    let g = check_hash_grid(OP, p, x, table, ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("x", *x), ("table", *table)])?;
    Ok(g)
}

/// Checks of [`FieldOps::hash_grid_encode_bwd`].
pub(crate) fn check_hash_grid_encode_bwd(p: HashGrid, io: &HashGridBwd<'_>) -> Result<Grids> {
    const OP: &str = "hash_grid_encode_bwd";
    let g = check_hash_grid(OP, p, &io.x, &io.table, ("dy", &io.dy))?;
    let mut seen = vec![("dy", io.dy), ("x", io.x), ("table", io.table)];
    gradient(OP, "dx", io.dx.as_ref(), &io.x, &mut seen)?;
    gradient(OP, "dtable", io.dtable.as_ref(), &io.table, &mut seen)?;
    Ok(g)
}

fn check_trilinear(
    op: &'static str,
    grid: &View<'_>,
    points: &View<'_>,
    y: (&'static str, &View<'_>),
) -> Result<Grids> {
    let &[depth, height, columns, width] = grid.shape() else {
        return Err(GpuError::invalid(op, "grid", "shape [D, H, W, C]", format!("{:?}", grid.shape())));
    };
    let sizes = [columns, height, depth];
    let rows = sizes.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).unwrap_or(usize::MAX);
    if rows == 0 || rows > i32::MAX as usize || sizes.iter().any(|&n| n > MOST_CELLS) {
        let want = format!("1 to 2^31 - 1 corners, at most {MOST_CELLS} along an axis");
        return Err(GpuError::invalid(op, "grid", want, format!("{:?}", grid.shape())));
    }
    let &[count, 3] = points.shape() else {
        return Err(GpuError::invalid(op, "points", "shape [P, 3]", format!("{:?}", points.shape())));
    };
    check::shape(op, y.0, y.1, &[count, width])?;
    for (arg, v) in [("grid", grid), ("points", points), y] {
        operand(op, arg, v, grid)?;
    }
    let level = Level { cells: sizes.map(|n| n - 1), hashed: false };
    Ok(Grids { points: count, axes: 3, levels: vec![level], rows, width })
}

/// Checks of [`FieldOps::trilinear_interpolate`].
pub(crate) fn check_trilinear_interpolate(
    grid: &View<'_>,
    points: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<Grids> {
    const OP: &str = "trilinear_interpolate";
    let g = check_trilinear(OP, grid, points, ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("grid", *grid), ("points", *points)])?;
    Ok(g)
}

/// Checks of [`FieldOps::trilinear_interpolate_bwd`].
pub(crate) fn check_trilinear_interpolate_bwd(io: &TrilinearBwd<'_>) -> Result<Grids> {
    const OP: &str = "trilinear_interpolate_bwd";
    let g = check_trilinear(OP, &io.grid, &io.points, ("dy", &io.dy))?;
    let mut seen = vec![("dy", io.dy), ("grid", io.grid), ("points", io.points)];
    gradient(OP, "dgrid", io.dgrid.as_ref(), &io.grid, &mut seen)?;
    gradient(OP, "dpoints", io.dpoints.as_ref(), &io.points, &mut seen)?;
    Ok(g)
}

/// Sizes of checked spherical harmonics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Harmonics {
    pub(crate) points: usize,
    pub(crate) channels: usize,
    /// Functions of the basis, (degree + 1)^2.
    pub(crate) count: usize,
}

fn check_harmonics(
    op: &'static str,
    directions: &View<'_>,
    coefficients: &View<'_>,
    y: (&'static str, &View<'_>),
) -> Result<Harmonics> {
    let &[points, 3] = directions.shape() else {
        let got = format!("{:?}", directions.shape());
        return Err(GpuError::invalid(op, "directions", "shape [P, 3]", got));
    };
    let &[first, channels, count @ (1 | 4 | 9 | 16 | 25)] = coefficients.shape() else {
        let want = "shape [P, C, K] with K of 1, 4, 9, 16 or 25";
        return Err(GpuError::invalid(op, "coefficients", want, format!("{:?}", coefficients.shape())));
    };
    if first != points {
        let (want, got) = (format!("{points} points"), format!("{:?}", coefficients.shape()));
        return Err(GpuError::invalid(op, "coefficients", want, got));
    }
    check::shape(op, y.0, y.1, &[points, channels])?;
    for (arg, v) in [("directions", directions), ("coefficients", coefficients), y] {
        operand(op, arg, v, directions)?;
    }
    Ok(Harmonics { points, channels, count })
}

/// Checks of [`FieldOps::spherical_harmonics`].
pub(crate) fn check_spherical_harmonics(
    directions: &View<'_>,
    coefficients: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<Harmonics> {
    const OP: &str = "spherical_harmonics";
    let h = check_harmonics(OP, directions, coefficients, ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("directions", *directions), ("coefficients", *coefficients)])?;
    Ok(h)
}

/// Checks of [`FieldOps::spherical_harmonics_bwd`].
pub(crate) fn check_spherical_harmonics_bwd(io: &HarmonicsBwd<'_>) -> Result<Harmonics> {
    const OP: &str = "spherical_harmonics_bwd";
    let h = check_harmonics(OP, &io.directions, &io.coefficients, ("dy", &io.dy))?;
    let mut seen = vec![("dy", io.dy), ("directions", io.directions), ("coefficients", io.coefficients)];
    gradient(OP, "ddirections", io.ddirections.as_ref(), &io.directions, &mut seen)?;
    gradient(OP, "dcoefficients", io.dcoefficients.as_ref(), &io.coefficients, &mut seen)?;
    Ok(h)
}
