//! Search among vectors.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, int, long};
use crate::error::Result;
use crate::ops::distance::*;
use crate::spec::BLOCK;
use crate::spec::kernels::distance::*;

/// Sides of a tile of scores (`GK_QUERIES`, `GK_POINTS`), and points of a thread of `pq_scan`.
const QUERIES: usize = 16;
const POINTS: usize = 64;
const EACH: usize = 8;
/// Most keys of a query that are ranked by counting.
const RANKED: usize = 2048;

/// The number under which kernels know a metric.
fn number(metric: Metric) -> i32 {
    match metric {
        Metric::SquaredEuclidean => 0,
        Metric::InnerProduct => 1,
        Metric::Cosine => 2,
    }
}

impl SearchOps for Engine {
    fn distance_matrix(
        &self,
        metric: Metric,
        queries: View<'_>,
        points: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let e = check_distance_matrix(&queries, &points, &y)?;
        let y = y.as_view();
        self.check_owner_all("distance_matrix", &[("queries", queries), ("points", points), ("y", y)])?;
        let tiles = e.count.div_ceil(QUERIES).saturating_mul(e.n.div_ceil(POINTS));
        let args = DistanceMatrixArgs {
            queries: self.arg_in(&queries),
            points: self.arg_in(&points),
            y: self.arg_in(&y),
            count: long(e.count),
            n: long(e.n),
            len: long(e.len),
            metric: number(metric),
        };
        self.launch(&DISTANCE_MATRIX, y.dtype(), "", Grid::Blocks([tiles, 1, 1]), &args)
    }

    fn nearest(
        &self,
        metric: Metric,
        queries: View<'_>,
        points: View<'_>,
        y: ViewMut<'_>,
        index: ViewMut<'_>,
    ) -> Result<()> {
        let (e, k) = check_nearest(&queries, &points, &y, &index)?;
        let (y, index) = (y.as_view(), index.as_view());
        let operands = [("queries", queries), ("points", points), ("y", y), ("index", index)];
        self.check_owner_all("nearest", &operands)?;
        if e.count == 0 || k == 0 {
            return Ok(());
        }
        let down = e.count.div_ceil(QUERIES);
        // As many shares of the points as fill the device.
        let most = e.n.div_ceil(POINTS).min(RANKED / k).max(1);
        let splits = self.target_blocks().div_ceil(down).min(most);
        let total = e.count.saturating_mul(splits * k);
        let keys = self.scratch(y.dtype().accumulator(), total)?;
        let ids = self.scratch(DType::I32, total)?;
        let args = NearestListsArgs {
            queries: self.arg_in(&queries),
            points: self.arg_in(&points),
            keys: self.arg_in(&keys.view()),
            ids: self.arg_in(&ids.view()),
            count: long(e.count),
            n: long(e.n),
            len: long(e.len),
            metric: number(metric),
            k: int(k),
            splits: int(splits),
        };
        let grid = Grid::Blocks([down * splits, 1, 1]);
        self.launch(&NEAREST_LISTS, y.dtype(), "", grid, &args)?;
        let args = NearestMergeArgs {
            keys: args.keys,
            ids: args.ids,
            y: self.arg_in(&y),
            index: self.arg_in(&index),
            count: long(e.count),
            total: int(splits * k),
            k: int(k),
            metric: number(metric),
            wide: i32::from(index.dtype() == DType::I64),
        };
        self.launch(&NEAREST_MERGE, y.dtype(), "", Grid::Blocks([e.count, 1, 1]), &args)
    }

    fn pq_tables(
        &self,
        metric: Metric,
        queries: View<'_>,
        centroids: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let e = check_pq_tables(metric, &queries, &centroids, &y)?;
        let y = y.as_view();
        self.check_owner_all("pq_tables", &[("queries", queries), ("centroids", centroids), ("y", y)])?;
        let args = PqTablesArgs {
            queries: self.arg_in(&queries),
            centroids: self.arg_in(&centroids),
            y: self.arg_in(&y),
            count: long(e.count),
            parts: long(e.n),
            len: long(e.len),
            metric: number(metric),
        };
        self.launch(&PQ_TABLES, y.dtype(), "", Grid::Stride(y.numel()), &args)
    }

    fn pq_scan(&self, tables: View<'_>, codes: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let e = check_pq_scan(&tables, &codes, &y)?;
        let y = y.as_view();
        self.check_owner_all("pq_scan", &[("tables", tables), ("codes", codes), ("y", y)])?;
        let args = PqScanArgs {
            tables: self.arg_in(&tables),
            codes: self.arg_in(&codes),
            y: self.arg_in(&y),
            count: long(e.count),
            n: long(e.n),
            parts: long(e.len),
        };
        let blocks = e.count.saturating_mul(e.n.div_ceil(EACH * BLOCK as usize));
        self.launch(&PQ_SCAN, y.dtype(), "", Grid::Blocks([blocks, 1, 1]), &args)
    }
}
