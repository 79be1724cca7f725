//! Distances: validation and launch.

mod search;

use crate::buffer::{GradMut, View, ViewMut};
use crate::engine::Engine;
use crate::engine::launch::{Grid, adds, aligned16, int, long};
use crate::error::Result;
use crate::ops::distance::*;
use crate::spec::BLOCK;
use crate::spec::kernels::distance::*;

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

/// The number under which the kernels know a similarity, p and eps.
fn numbers(op: Similarity) -> (i32, f64, f64) {
    match op {
        Similarity::Distance { p, eps } => (mode(p), p, eps),
        Similarity::Cosine { eps } => (5, 2.0, eps),
    }
}

/// How distances lie: steps from row to row and from partner to partner, or the packed half of a symmetric matrix.
struct Partners {
    step: usize,
    next: usize,
    packed: bool,
}

/// Launch geometry of the kernels for vectors in pairs.
struct Couples {
    grid: Grid,
    items: i64,
    len: i64,
    inner: i64,
    lanes: i32,
    wide: i32,
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
        let args = DistanceTileArgs {
            a: self.arg_in(a),
            b: self.arg_in(b),
            y: self.arg_in(y),
            rows: long(e.rows),
            cols: long(e.cols),
            len: long(e.len),
            packed: i32::from(packed),
            mode: mode(p),
            p,
        };
        let blocks = e.batch * e.rows.div_ceil(TILE) * e.cols.div_ceil(TILE);
        self.launch(&DISTANCE_TILE, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
    }

    /// Gradient of the `rows` vectors of `a`.
    fn distance_grad(
        &self,
        p: f64,
        e: Pairs,
        partners: Partners,
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
        let fill = self.target_blocks() / 2;
        let splits = if blocks < fill { (fill / blocks).min(e.cols / 256).clamp(1, 256) } else { 1 };
        let part = (splits > 1).then(|| self.scratch(dt.accumulator(), splits * n)).transpose()?;
        let part = part.as_ref().map(|b| b.view());
        let accumulate = i32::from(g.accumulate);
        let args = DistanceBwdArgs {
            dy: self.arg_in(dy),
            y: self.arg_in(y),
            a: self.arg_in(a),
            b: self.arg_in(b),
            da: self.arg_in(&da),
            part: self.arg_opt(part.as_ref()),
            batches: long(e.batch),
            rows: long(e.rows),
            others: long(e.cols),
            len: long(e.len),
            step: long(partners.step),
            next: long(partners.next),
            splits: int(splits),
            packed: i32::from(partners.packed),
            mode: mode(p),
            p,
            accumulate,
        };
        self.launch(&DISTANCE_BWD, dt, "", Grid::Blocks([blocks * splits, 1, 1]), &args)?;
        match part {
            Some(part) => {
                let args = DistanceCombineArgs {
                    part: self.arg_in(&part),
                    da: self.arg_in(&da),
                    n: long(n),
                    splits: int(splits),
                    accumulate,
                };
                self.launch(&DISTANCE_COMBINE, dt, "", Grid::Stride(n), &args)
            }
            None => Ok(()),
        }
    }

    /// The launch geometry over vectors in pairs.
    fn couples(&self, [outer, len, inner]: [usize; 3], views: &[&View<'_>]) -> Couples {
        let w = views.first().map_or(1, |v| 16 / v.dtype().size());
        let wide = inner == 1 && len.is_multiple_of(w) && views.iter().all(|v| aligned16(v));
        let (items, most) = (outer * inner, BLOCK as usize);
        let steps = if wide { len / w } else { len };
        // Across rows, 32 of them side by side fill the accesses.
        let most = if inner == 1 { most } else { most / inner.next_power_of_two().min(32) };
        let lanes = steps.div_ceil(4).clamp(1, most).next_power_of_two();
        let blocks = items.div_ceil(BLOCK as usize / lanes);
        Couples {
            grid: Grid::Blocks([blocks, 1, 1]),
            items: long(items),
            len: long(len),
            inner: long(inner),
            lanes: int(lanes),
            wide: i32::from(wide),
        }
    }
}

impl DistanceOps for Engine {
    fn cdist(&self, p: f64, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let e = check_cdist(p, &a, &b, &y)?;
        let v = y.as_view();
        self.check_owner_all("cdist", &[("a", a), ("b", b), ("y", v)])?;
        self.distance_tiles(p, e, false, &a, &b, &v)
    }

    fn cdist_bwd(&self, p: f64, io: CdistBwd<'_>) -> Result<()> {
        const OP: &str = "cdist_bwd";
        let e = check_cdist_bwd(p, &io)?;
        let CdistBwd { dy, a, b, y, da, db } = io;
        let out = |g: &Option<GradMut<'_>>| g.is_some();
        self.check_owner_all(OP, &[("dy", dy), ("a", a), ("b", b), ("y", y)])?;
        for (arg, g) in [("da", &da), ("db", &db)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        if !out(&da) && !out(&db) {
            return Ok(());
        }
        if let Some(g) = &da {
            let partners = Partners { step: e.cols, next: 1, packed: false };
            self.distance_grad(p, e, partners, [&dy, &y, &a, &b], g)?;
        }
        if let Some(g) = &db {
            let turned = Pairs { rows: e.cols, cols: e.rows, ..e };
            let partners = Partners { step: 1, next: e.cols, packed: false };
            self.distance_grad(p, turned, partners, [&dy, &y, &b, &a], g)?;
        }
        Ok(())
    }

    fn pdist(&self, p: f64, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let e = check_pdist(p, &x, &y)?;
        let v = y.as_view();
        self.check_owner_all("pdist", &[("x", x), ("y", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        self.distance_tiles(p, e, true, &x, &x, &v)
    }

    fn pdist_bwd(&self, p: f64, dy: View<'_>, x: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()> {
        let e = check_pdist_bwd(p, &dy, &x, &y, &dx)?;
        self.check_owner_all("pdist_bwd", &[("dy", dy), ("x", x), ("y", y), ("dx", dx.out.as_view())])?;
        let partners = Partners { step: 0, next: 1, packed: true };
        self.distance_grad(p, e, partners, [&dy, &y, &x, &x], &dx)
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
        self.check_owner_all("similarity", &[("a", a), ("b", b), ("y", v)])?;
        let Couples { grid, items, len, inner, lanes, wide } = self.couples(e, &[&a, &b]);
        let (mode, p, eps) = numbers(op);
        let args = SimilarityArgs {
            a: self.arg_in(&a),
            b: self.arg_in(&b),
            y: self.arg_in(&v),
            items,
            len,
            inner,
            lanes,
            wide,
            mode,
            p,
            eps,
        };
        self.launch(&SIMILARITY, dt, "", grid, &args)
    }

    fn similarity_bwd(&self, op: Similarity, axis: usize, io: SimilarityBwd<'_>) -> Result<()> {
        const OP: &str = "similarity_bwd";
        let e = check_similarity_bwd(op, axis, &io)?;
        let SimilarityBwd { dy, a, b, da, db } = io;
        let dt = a.dtype();
        self.check_owner_all(OP, &[("dy", dy), ("a", a), ("b", b)])?;
        let mut views = vec![a, b];
        for (arg, g) in [("da", &da), ("db", &db)] {
            if let Some(g) = g {
                self.check_owner(OP, arg, &g.out.as_view())?;
                views.push(g.out.as_view());
            }
        }
        if views.len() == 2 {
            return Ok(());
        }
        let couples = self.couples(e, &views.iter().collect::<Vec<_>>());
        let Couples { grid, items, len, inner, lanes, wide } = couples;
        let (mode, p, eps) = numbers(op);
        let out = |g: &Option<GradMut<'_>>| self.arg_opt_out(g.as_ref().map(|g| &g.out));
        let args = SimilarityBwdArgs {
            dy: self.arg_in(&dy),
            a: self.arg_in(&a),
            b: self.arg_in(&b),
            da: out(&da),
            db: out(&db),
            items,
            len,
            inner,
            lanes,
            wide,
            mode,
            p,
            eps,
            add_a: adds(&da),
            add_b: adds(&db),
        };
        self.launch(&SIMILARITY_BWD, dt, "", grid, &args)
    }
}
