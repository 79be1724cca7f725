//! Distances: validation and launch.

use crate::spec::kernels::distance::*;
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, int, long, real};
use crate::error::Result;
use crate::ops::distance::*;
use crate::spec::BLOCK;

/// Sides of the tiles (`GK_TILE`, `GK_HALF_TILE`).
const TILE: usize = 64;
const HALF_TILE: usize = 32;

/// The number under which kernels know a kind of p.
fn mode(p: f64) -> i32 {
    match p {
        0.0 => 0,
        1.0 => 1,
        2.0 => 2,
        f64::INFINITY => 3,
        _ => 4,
    }
}

/// Kind, p and eps.
fn numbers(op: Similarity, dt: DType) -> [Arg; 3] {
    let (mode, p, eps) = match op {
        Similarity::Distance { p, eps } => (mode(p), p, eps),
        Similarity::Cosine { eps } => (5, 2.0, eps),
    };
    [Arg::I32(mode), real(dt, p), real(dt, eps)]
}

impl Engine {
    fn distance_tiles(
        &self,
        p: f64,
        e: Pairs,
        packed: bool,
        a: &View<'_>,
        b: &View<'_>,
        y: &View<'_>,
    ) -> Result<()> {
        let dt = a.dtype();
        let args = [
            self.arg_in(a),
            self.arg_in(b),
            self.arg_in(y),
            long(e.rows),
            long(e.cols),
            long(e.len),
            int(packed as usize),
            Arg::I32(mode(p)),
            real(dt, p),
        ];
        let blocks = e.batch * e.rows.div_ceil(TILE) * e.cols.div_ceil(TILE);
        self.launch_list(&DISTANCE_TILE.spec, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
    }

    /// Gradient of the `rows` vectors of `a`; `steps` are those of dy and y from row to row and from partner to partner.
    #[allow(clippy::too_many_arguments)]
    fn distance_grad(
        &self,
        p: f64,
        e: Pairs,
        steps: [usize; 2],
        packed: bool,
        [dy, y, a, b]: [&View<'_>; 4],
        g: &GradMut<'_>,
    ) -> Result<()> {
        let (dt, da) = (a.dtype(), g.out.as_view());
        let n = da.numel();
        if n == 0 {
            return Ok(());
        }
        let blocks = e.batch * e.rows.div_ceil(TILE) * e.len.div_ceil(HALF_TILE);
        // Few vectors with many partners: partners are shared out.
        let fill = self.fill() / 2;
        let splits = if blocks < fill { (fill / blocks).min(e.cols / 256).clamp(1, 256) } else { 1 };
        let part = (splits > 1).then(|| self.scratch(dt.accumulator(), splits * n)).transpose()?;
        let part = part.as_ref().map(|b| b.view());
        let accumulate = int(g.accumulate as usize);
        let args = [
            self.arg_in(dy),
            self.arg_in(y),
            self.arg_in(a),
            self.arg_in(b),
            self.arg_in(&da),
            self.arg_opt(part.as_ref()),
            long(e.batch),
            long(e.rows),
            long(e.cols),
            long(e.len),
            long(steps[0]),
            long(steps[1]),
            int(splits),
            int(packed as usize),
            Arg::I32(mode(p)),
            real(dt, p),
            accumulate,
        ];
        self.launch_list(&DISTANCE_BWD.spec, dt, "", Grid::Blocks([blocks * splits, 1, 1]), &args)?;
        match part {
            Some(part) => {
                let args = [self.arg_in(&part), self.arg_in(&da), long(n), int(splits), accumulate];
                self.launch_list(&DISTANCE_JOIN.spec, dt, "", Grid::Stride(n), &args)
            }
            None => Ok(()),
        }
    }

    /// Sizes, lanes and width of the kernels for vectors in pairs, and their grid.
    fn couples(&self, [outer, len, inner]: [usize; 3], views: &[&View<'_>]) -> (Grid, [Arg; 5]) {
        let w = views.first().map_or(1, |v| 16 / v.dtype().size());
        let wide = inner == 1 && len.is_multiple_of(w) && views.iter().all(|v| aligned16(v));
        let (items, most) = (outer * inner, BLOCK as usize);
        let steps = if wide { len / w } else { len };
        // Across rows, 32 of them side by side fill the accesses.
        let most = if inner == 1 { most } else { most / inner.next_power_of_two().min(32) };
        let lanes = steps.div_ceil(4).clamp(1, most).next_power_of_two();
        let blocks = items.div_ceil(BLOCK as usize / lanes);
        (Grid::Blocks([blocks, 1, 1]), [long(items), long(len), long(inner), int(lanes), int(wide as usize)])
    }
}

impl DistanceOps for Engine {
    fn cdist(&self, p: f64, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let e = check_cdist(p, &a, &b, &y)?;
        let v = y.as_view();
        self.own_all("cdist", &[("a", a), ("b", b), ("y", v)])?;
        self.distance_tiles(p, e, false, &a, &b, &v)
    }

    fn cdist_bwd(&self, p: f64, io: CdistBwd<'_>) -> Result<()> {
        const OP: &str = "cdist_bwd";
        let e = check_cdist_bwd(p, &io)?;
        let CdistBwd { dy, a, b, y, da, db } = io;
        let out = |g: &Option<GradMut<'_>>| g.is_some();
        self.own_all(OP, &[("dy", dy), ("a", a), ("b", b), ("y", y)])?;
        for (arg, g) in [("da", &da), ("db", &db)] {
            g.as_ref().map_or(Ok(()), |g| self.own(OP, arg, &g.out.as_view()))?;
        }
        if !out(&da) && !out(&db) {
            return Ok(());
        }
        if let Some(g) = &da {
            self.distance_grad(p, e, [e.cols, 1], false, [&dy, &y, &a, &b], g)?;
        }
        if let Some(g) = &db {
            let turned = Pairs { rows: e.cols, cols: e.rows, ..e };
            self.distance_grad(p, turned, [1, e.cols], false, [&dy, &y, &b, &a], g)?;
        }
        Ok(())
    }

    fn pdist(&self, p: f64, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let e = check_pdist(p, &x, &y)?;
        let v = y.as_view();
        self.own_all("pdist", &[("x", x), ("y", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        self.distance_tiles(p, e, true, &x, &x, &v)
    }

    fn pdist_bwd(&self, p: f64, dy: View<'_>, x: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()> {
        let e = check_pdist_bwd(p, &dy, &x, &y, &dx)?;
        self.own_all("pdist_bwd", &[("dy", dy), ("x", x), ("y", y), ("dx", dx.out.as_view())])?;
        self.distance_grad(p, e, [0, 1], true, [&dy, &y, &x, &x], &dx)
    }

    fn similarity(
        &self,
        op: Similarity,
        axis: usize,
        a: View<'_>,
        b: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let e = check_similarity(op, axis, &a, &b, &y)?;
        let (v, dt) = (y.as_view(), a.dtype());
        self.own_all("similarity", &[("a", a), ("b", b), ("y", v)])?;
        let (grid, walk) = self.couples(e, &[&a, &b]);
        let args =
            [&[self.arg_in(&a), self.arg_in(&b), self.arg_in(&v)], &walk[..], &numbers(op, dt)].concat();
        self.launch_list(&SIMILARITY.spec, dt, "", grid, &args)
    }

    fn similarity_bwd(&self, op: Similarity, axis: usize, io: SimilarityBwd<'_>) -> Result<()> {
        const OP: &str = "similarity_bwd";
        let e = check_similarity_bwd(op, axis, &io)?;
        let SimilarityBwd { dy, a, b, da, db } = io;
        let dt = a.dtype();
        self.own_all(OP, &[("dy", dy), ("a", a), ("b", b)])?;
        let mut views = vec![a, b];
        for (arg, g) in [("da", &da), ("db", &db)] {
            if let Some(g) = g {
                self.own(OP, arg, &g.out.as_view())?;
                views.push(g.out.as_view());
            }
        }
        if views.len() == 2 {
            return Ok(());
        }
        let (grid, walk) = self.couples(e, &views.iter().collect::<Vec<_>>());
        let out = |g: &Option<GradMut<'_>>| self.arg_opt_out(g.as_ref().map(|g| &g.out));
        let adds = |g: &Option<GradMut<'_>>| int(g.as_ref().is_some_and(|g| g.accumulate) as usize);
        let operands = [self.arg_in(&dy), self.arg_in(&a), self.arg_in(&b), out(&da), out(&db)];
        let args = [&operands[..], &walk, &numbers(op, dt), &[adds(&da), adds(&db)]].concat();
        self.launch_list(&SIMILARITY_BWD.spec, dt, "", grid, &args)
    }
}
