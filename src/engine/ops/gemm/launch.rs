//! The launches of a product: tiles with split sums, warp-specialised kernels, the epilogue.

use super::plan::{Form, SKINNY, Tile};
use super::product::{MatrixOperand, Product};
use crate::driver::{DimsArg, Ptr, TensorMap};
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, args_from, dims, pow2};
use crate::error::Result;
use crate::spec::Kernel;
use crate::spec::kernels::gemm::*;

/// The kernel of a tile.
fn tile_kernel(tile: Tile) -> &'static Kernel<GemmTileArgs> {
    match tile {
        Tile::Matrix { form: Form::Nn, .. } => &GEMM_MATRIX_NN,
        Tile::Matrix { form: Form::Nt, .. } => &GEMM_MATRIX_NT,
        Tile::Matrix { form: Form::Tn, .. } => &GEMM_MATRIX_TN,
        Tile::Square128 => &GEMM_TILE128,
        Tile::Square64 => &GEMM_TILE64,
        Tile::Skinny => &GEMM_SKINNY,
    }
}

/// Tensor maps of both operands for warp-specialised kernels, and whether each has a matrix for every batch.
fn maps(q: &Product, form: Form) -> ([TensorMap; 2], [bool; 2]) {
    let (e, [a_columns, b_columns]) = (q.e, [form == Form::Tn, form == Form::Nt]);
    let batches = |t: MatrixOperand| if t.steps[2] == 0 { 1 } else { e.batch };
    let (ab, bb) = (batches(q.a), batches(q.b));
    let (ai, ao) = if a_columns { (e.m, e.k) } else { (e.k, e.m) };
    let (bi, bo) = if b_columns { (e.k, e.n) } else { (e.n, e.k) };
    ([q.a.map(ai, ao, ab, a_columns), q.b.map(bi, bo, bb, b_columns)], [ab > 1, bb > 1])
}

/// Arguments of a tile's kernel; `part` takes the sums where k is split.
fn tile_args(q: &Product, part: Ptr, size: DimsArg) -> GemmTileArgs {
    let (e, [sc, sr, sv, sy, sz]) = (q.e, q.outer_dims());
    GemmTileArgs {
        a: q.a.arg(),
        b: q.b.arg(),
        c: Product::opt(q.c),
        bias: Product::opt(q.bias),
        residual: Product::opt(q.residual),
        scale: Product::opt(q.scale),
        y: q.y.arg(),
        z: Product::opt(q.z),
        part,
        size,
        sa: q.a.side(e.m, e.k, q.dtype),
        sb: q.b.transposed().side(e.n, e.k, q.dtype),
        sc,
        sr,
        sv,
        sy,
        sz,
        alpha: q.alpha,
        beta: q.beta,
        act: q.act.0,
        p: q.act.1,
    }
}

/// Arguments of kernels that leave no sums to others.
pub(super) fn whole_args(q: &Product, size: DimsArg) -> GemmClusterArgs {
    let tile = tile_args(q, Ptr::NULL, size);
    args_from!(tile => GemmClusterArgs [
        a b c bias residual scale y z size sa sb sc sr sv sy sz alpha beta act p
    ] {})
}

impl Engine {
    /// Runs the tile kernel, and the second pass where k is split.
    pub(super) fn tiles(&self, q: &Product, tile: Tile, splits: usize) -> Result<()> {
        if tile == Tile::Skinny && q.e.m > SKINNY {
            return self.tiles(&q.swapped(), tile, splits);
        }
        let e = q.e;
        // Whole steps of any tile, so that 16-byte loads stay aligned.
        let per = e.k.div_ceil(splits).next_multiple_of(32);
        let splits = e.k.div_ceil(per);
        let blocks = tile.blocks(e).saturating_mul(splits);
        if blocks > i32::MAX as usize && e.batch > 1 {
            let half = e.batch / 2;
            self.tiles(&q.batches(0, half), tile, splits)?;
            return self.tiles(&q.batches(half, e.batch - half), tile, splits);
        }
        let part = (splits > 1).then(|| self.scratch(q.real(), splits * e.batch * e.m * e.n)).transpose()?;
        let view = part.as_ref().map(|p| p.view());
        let args = tile_args(q, self.arg_opt(view.as_ref()), q.size(splits, per));
        let grid = match tile {
            Tile::Matrix { local, .. } => Grid::BlocksWithLocal([blocks, 1, 1], local),
            _ => Grid::Blocks([blocks, 1, 1]),
        };
        self.launch(tile_kernel(tile), q.dtype, q.op(), grid, &args)?;
        match view {
            Some(part) => self.finish(q, Some(&MatrixOperand::packed(&part, e)), splits, q.alpha),
            None => Ok(()),
        }
    }

    /// Runs the kernel of clusters, whose blocks have `per` terms each; `items`: operands that consist of whole items of 16 bytes.
    pub(super) fn cluster(
        &self,
        q: &Product,
        form: Form,
        items: [bool; 2],
        [blocks, per]: [usize; 2],
    ) -> Result<()> {
        let args = whole_args(q, q.size(usize::from(items[0]) + 2 * usize::from(items[1]), per));
        let kernel = form.of([&GEMM_CLUSTER_NN, &GEMM_CLUSTER_NT, &GEMM_CLUSTER_TN]);
        let grid = Grid::BlocksOf { blocks, threads: 128, local: 0 };
        self.launch(kernel, q.dtype, q.op(), grid, &args)
    }

    /// Runs the warp-specialised kernel with tiles of 256 columns.
    pub(super) fn wide(&self, q: &Product, form: Form, grid: Grid) -> Result<()> {
        let (e, ([a, b], [ab, bb])) = (q.e, maps(q, form));
        let args = GemmWideArgs {
            a,
            b,
            bias: Product::opt(q.bias),
            y: q.y.arg(),
            size: dims([e.m, e.n, e.k, e.batch, usize::from(ab), usize::from(bb)]),
            row: q.y.steps[0] as i64,
            batch: q.y.steps[2] as i64,
            alpha: q.alpha,
        };
        let kernel = form.of([&GEMM_WIDE_NN, &GEMM_WIDE_NT, &GEMM_WIDE_TN]);
        self.launch(kernel, q.dtype, "", grid, &args)
    }

    /// Runs the warp-specialised kernel with tiles of 128 columns and all epilogues.
    pub(super) fn specialized(&self, q: &Product, form: Form, grid: Grid) -> Result<()> {
        let (e, ([a, b], [ab, bb])) = (q.e, maps(q, form));
        let places = |t: Option<MatrixOperand>| t.map_or([0; 2], |t| [t.steps[0], t.steps[2]]);
        let args = GemmSpecializedArgs {
            a,
            b,
            c: Product::opt(q.c),
            bias: Product::opt(q.bias),
            residual: Product::opt(q.residual),
            scale: Product::opt(q.scale),
            y: q.y.arg(),
            z: Product::opt(q.z),
            size: dims([e.m, e.n, e.k, e.batch, usize::from(ab), usize::from(bb), 0]),
            steps: dims([q.c, q.residual, Some(q.y), q.z].into_iter().flat_map(places)),
            alpha: q.alpha,
            beta: q.beta,
            p: q.act.1,
            act: q.act.0,
        };
        let kernel = form.of([&GEMM_SPECIALIZED_NN, &GEMM_SPECIALIZED_NT, &GEMM_SPECIALIZED_TN]);
        self.launch(kernel, q.dtype, q.op(), grid, &args)
    }

    /// Adds `splits` contiguous partial results and applies the epilogue.
    pub(crate) fn finish(
        &self,
        q: &Product,
        part: Option<&MatrixOperand>,
        splits: usize,
        alpha: f64,
    ) -> Result<()> {
        let e = q.e;
        let [sc, sr, sv, sy, sz] = q.outer_dims();
        // Threads that share the splits of a result.
        let lanes = pow2(splits.div_ceil(8), 32);
        let args = GemmFinishArgs {
            part: Product::opt(part.copied()),
            c: Product::opt(q.c),
            bias: Product::opt(q.bias),
            residual: Product::opt(q.residual),
            scale: Product::opt(q.scale),
            y: q.y.arg(),
            z: Product::opt(q.z),
            size: q.size(splits, lanes),
            sc,
            sr,
            sv,
            sy,
            sz,
            alpha,
            beta: q.beta,
            act: q.act.0,
            p: q.act.1,
        };
        let blocks = (e.batch * e.m * e.n.div_ceil(4)).div_ceil(LANES / lanes);
        self.launch(
            &GEMM_FINISH,
            q.dtype,
            q.op(),
            Grid::Blocks([blocks.min(self.target_blocks() * 8), 1, 1]),
            &args,
        )
    }
}
