//! Neural fields: validation, choice of variant, launch.

mod gaussians;
mod plan;
mod rays;
mod splatting;

use self::plan::{RenderProblem, TablePlan, TableProblem, groups};
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, int, long};
use crate::engine::ops::index::scatter::{Into, Scatter, key_type, wide_index};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::field::*;
use crate::ops::index::ScatterReduce;
use crate::spec::kernels::field::*;

/// What the gradients of a grid read.
struct GridOperands<'a> {
    dy: View<'a>,
    x: View<'a>,
    table: View<'a>,
}

impl Engine {
    /// What serves the gradient of a hash grid of 16 levels of 2^19 rows of 2 features at 2^18 positions in f32, that of a grid of 32^3 cells, or 4096
    /// rays of 128 samples.
    pub(crate) fn explain_field(&self, op: &'static str) -> Result<Choice> {
        let table = |entries, rows, width| TableProblem { dtype: DType::F32, entries, rows, width };
        match op {
            "hash_grid_encode_bwd" => self.explain_problem(op, &table(1 << 25, 16 << 19, 2)),
            "trilinear_interpolate_bwd" => self.explain_problem(op, &table(1 << 21, 1 << 15, 16)),
            _ => {
                let sizes = RaySizes { rays: 4096, samples: 128, channels: 3 };
                self.explain_problem(op, &RenderProblem(sizes))
            }
        }
    }

    /// The levels of a grid as its kernels read them.
    fn grid_levels(&self, g: &Grids) -> Result<Ptr> {
        let words = |l: &Level| [l.cells[0], l.cells[1], l.cells[2], l.hashed as usize].map(long);
        Ok(self.table(&g.levels.iter().flat_map(words).collect::<Vec<_>>())?.arg)
    }

    fn grid_encode(&self, g: &Grids, x: &View<'_>, table: &View<'_>, y: &View<'_>) -> Result<()> {
        if y.numel() == 0 {
            return Ok(());
        }
        let groups = groups(g.width);
        let n = g.points * g.levels.len() * groups;
        let args = GridEncodeArgs {
            x: self.arg_in(x),
            table: self.arg_in(table),
            cells: self.grid_levels(g)?,
            y: self.arg_in(y),
            n: long(n),
            levels: long(g.levels.len()),
            rows: long(g.rows),
            width: long(g.width),
            groups: long(groups),
            axes: int(g.axes),
        };
        self.launch(&GRID_ENCODE, y.dtype(), "", Grid::Stride(n), &args)
    }

    fn grid_dx(&self, g: &Grids, o: &GridOperands<'_>, dx: &GradMut<'_>) -> Result<()> {
        if g.points == 0 {
            return Ok(());
        }
        // A table of no words has no memory; without levels none is read.
        let cells = if g.levels.is_empty() { Ptr::NULL } else { self.grid_levels(g)? };
        let args = GridEncodeDxArgs {
            dy: self.arg_in(&o.dy),
            x: self.arg_in(&o.x),
            table: self.arg_in(&o.table),
            cells,
            dx: self.arg_out(&dx.out),
            n: long(g.points),
            levels: long(g.levels.len()),
            rows: long(g.rows),
            width: long(g.width),
            axes: int(g.axes),
            accumulate: i32::from(dx.accumulate),
        };
        self.launch(&GRID_ENCODE_DX, o.x.dtype(), "", Grid::Stride(g.points), &args)
    }

    /// Sorts the corners of all positions by the row that they read; each row then adds up its own.
    fn grid_dtable(
        &self,
        op: &'static str,
        g: &Grids,
        o: &GridOperands<'_>,
        dtable: &GradMut<'_>,
    ) -> Result<()> {
        let (to, dt) = (dtable.out.as_view(), o.x.dtype());
        let (items, rows) = (g.points * g.levels.len(), g.levels.len() * g.rows);
        let entries = items * g.corners();
        if to.numel() == 0 {
            return Ok(());
        }
        if entries == 0 {
            return if dtable.accumulate { Ok(()) } else { self.fill_pattern(&[0; 8], &to) };
        }
        let how = self.plan(op, &TableProblem { dtype: dt, entries, rows, width: g.width })?;
        let keys = self.scratch(key_type(rows), entries)?;
        let weights = self.scratch(dt.accumulator(), entries)?;
        let wide_keys = wide_index(&keys.view());
        let args = GridEncodeKeysArgs {
            x: self.arg_in(&o.x),
            cells: self.grid_levels(g)?,
            keys: self.arg_in(&keys.view()),
            weights: self.arg_in(&weights.view()),
            n: long(items),
            levels: long(g.levels.len()),
            rows: long(g.rows),
            none: long(rows),
            wide_keys,
            axes: int(g.axes),
        };
        self.launch(&GRID_ENCODE_KEYS, dt, "", Grid::Stride(items), &args)?;
        let sorted = self.sorted(op, &keys, rows)?;
        if how == TablePlan::Segments {
            let sources = self.scratch(dt, entries * g.width)?;
            let args = GridEncodeSourcesArgs {
                weights: self.arg_in(&weights.view()),
                dy: self.arg_in(&o.dy),
                sources: self.arg_in(&sources.view()),
                n: long(sources.len()),
                width: long(g.width),
                axes: int(g.axes),
            };
            self.launch(&GRID_ENCODE_SOURCES, dt, "", Grid::Stride(sources.len()), &args)?;
            if !dtable.accumulate {
                self.fill_pattern(&[0; 8], &to)?;
            }
            let sources = sources.view();
            let sums = Scatter::new(&sorted, [1, g.width], ScatterReduce::Sum, &sources);
            return self.scatter_reduction(&sums, Into::Tensor { y: to, include: dtable.accumulate });
        }
        let (keys, positions) = sorted.sorted_views();
        let groups = groups(g.width);
        let args = GridEncodeGatherArgs {
            keys: self.arg_in(&keys),
            positions: self.arg_in(&positions),
            weights: self.arg_in(&weights.view()),
            dy: self.arg_in(&o.dy),
            dtable: self.arg_in(&to),
            n: long(rows * groups),
            entries: long(entries),
            width: long(g.width),
            groups: long(groups),
            wide_keys,
            axes: int(g.axes),
            accumulate: i32::from(dtable.accumulate),
        };
        self.launch(&GRID_ENCODE_GATHER, dt, "", Grid::Stride(rows * groups), &args)
    }

    fn harmonics_dcoefficients(&self, h: &Harmonics, io: &HarmonicsBwd<'_>, to: &GradMut<'_>) -> Result<()> {
        let n = h.points * h.channels;
        let args = HarmonicsDcoefficientsArgs {
            dy: self.arg_in(&io.dy),
            r: self.arg_in(&io.directions),
            dcoefficients: self.arg_out(&to.out),
            n: long(n),
            channels: long(h.channels),
            count: int(h.count),
            accumulate: i32::from(to.accumulate),
        };
        self.launch(&HARMONICS_DCOEFFICIENTS, io.dy.dtype(), "", Grid::Stride(n), &args)
    }

    fn harmonics_dr(&self, h: &Harmonics, io: &HarmonicsBwd<'_>, to: &GradMut<'_>) -> Result<()> {
        let args = HarmonicsDrArgs {
            dy: self.arg_in(&io.dy),
            r: self.arg_in(&io.directions),
            coefficients: self.arg_in(&io.coefficients),
            dr: self.arg_out(&to.out),
            n: long(h.points),
            channels: long(h.channels),
            count: int(h.count),
            accumulate: i32::from(to.accumulate),
        };
        self.launch(&HARMONICS_DR, io.dy.dtype(), "", Grid::Stride(h.points), &args)
    }
}

impl FieldOps for Engine {
    fn hash_grid_encode(&self, p: HashGrid, x: View<'_>, table: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let g = check_hash_grid_encode(p, &x, &table, &y)?;
        let y = y.as_view();
        self.check_owner_all("hash_grid_encode", &[("x", x), ("table", table), ("y", y)])?;
        self.grid_encode(&g, &x, &table, &y)
    }

    fn hash_grid_encode_bwd(&self, p: HashGrid, io: HashGridBwd<'_>) -> Result<()> {
        const OP: &str = "hash_grid_encode_bwd";
        let g = check_hash_grid_encode_bwd(p, &io)?;
        let [dx, dtable] = [&io.dx, &io.dtable].map(|g| g.as_ref().map(|g| g.out.as_view()));
        self.check_owner_all(OP, &[("dy", io.dy), ("x", io.x), ("table", io.table)])?;
        self.check_owner_all(OP, &[("dx", dx), ("dtable", dtable)])?;
        let o = GridOperands { dy: io.dy, x: io.x, table: io.table };
        io.dx.map_or(Ok(()), |to| self.grid_dx(&g, &o, &to))?;
        io.dtable.map_or(Ok(()), |to| self.grid_dtable(OP, &g, &o, &to))
    }

    fn trilinear_interpolate(&self, grid: View<'_>, points: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let g = check_trilinear_interpolate(&grid, &points, &y)?;
        let y = y.as_view();
        self.check_owner_all("trilinear_interpolate", &[("grid", grid), ("points", points), ("y", y)])?;
        self.grid_encode(&g, &points, &grid, &y)
    }

    fn trilinear_interpolate_bwd(&self, io: TrilinearBwd<'_>) -> Result<()> {
        const OP: &str = "trilinear_interpolate_bwd";
        let g = check_trilinear_interpolate_bwd(&io)?;
        let [dgrid, dpoints] = [&io.dgrid, &io.dpoints].map(|g| g.as_ref().map(|g| g.out.as_view()));
        self.check_owner_all(OP, &[("dy", io.dy), ("grid", io.grid), ("points", io.points)])?;
        self.check_owner_all(OP, &[("dgrid", dgrid), ("dpoints", dpoints)])?;
        let o = GridOperands { dy: io.dy, x: io.points, table: io.grid };
        io.dpoints.map_or(Ok(()), |to| self.grid_dx(&g, &o, &to))?;
        io.dgrid.map_or(Ok(()), |to| self.grid_dtable(OP, &g, &o, &to))
    }

    fn spherical_harmonics(
        &self,
        directions: View<'_>,
        coefficients: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "spherical_harmonics";
        let h = check_spherical_harmonics(&directions, &coefficients, &y)?;
        let y = y.as_view();
        let operands = [("directions", directions), ("coefficients", coefficients), ("y", y)];
        self.check_owner_all(OP, &operands)?;
        let args = HarmonicsArgs {
            r: self.arg_in(&directions),
            coefficients: self.arg_in(&coefficients),
            y: self.arg_in(&y),
            n: long(y.numel()),
            channels: long(h.channels),
            count: int(h.count),
        };
        self.launch(&HARMONICS, y.dtype(), "", Grid::Stride(y.numel()), &args)
    }

    fn spherical_harmonics_bwd(&self, io: HarmonicsBwd<'_>) -> Result<()> {
        const OP: &str = "spherical_harmonics_bwd";
        let h = check_spherical_harmonics_bwd(&io)?;
        let operands = [("dy", io.dy), ("directions", io.directions), ("coefficients", io.coefficients)];
        self.check_owner_all(OP, &operands)?;
        let grads = [&io.ddirections, &io.dcoefficients].map(|g| g.as_ref().map(|g| g.out.as_view()));
        self.check_owner_all(OP, &[("ddirections", grads[0]), ("dcoefficients", grads[1])])?;
        io.ddirections.as_ref().map_or(Ok(()), |to| self.harmonics_dr(&h, &io, to))?;
        io.dcoefficients.as_ref().map_or(Ok(()), |to| self.harmonics_dcoefficients(&h, &io, to))
    }
}
