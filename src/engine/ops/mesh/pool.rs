//! Pooling of the elements of a mesh: scores, their softmax, the largest of them.

use crate::buffer::{Buffer, GradMut, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, code_of_op, int, long, pow2};
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::ops::mesh::*;
use crate::ops::softmax::{Softmax, SoftmaxOps};
use crate::ops::sort::SortOps;
use crate::spec::kernels::mesh::*;

/// Threads that share a row of this width, and blocks that rows of it take.
fn rows(count: usize, width: usize) -> (usize, Grid) {
    let lanes = pow2(width.div_ceil(4), 32);
    (lanes, Grid::Blocks([count.div_ceil(LANES / lanes), 1, 1]))
}

/// Elements of a chunk whose share of the weight's gradient a thread sums.
const CHUNK: usize = 128;

impl Engine {
    /// The gradient of the scores, and the place of each element among those that were kept, -1 for none.
    fn mesh_pool_scores_bwd(
        &self,
        op: &'static str,
        n: &PoolSizes,
        io: &MeshPoolBwd<'_>,
    ) -> Result<[Buffer; 2]> {
        let (dt, stat) = (io.x.dtype(), io.share.dtype());
        let [dshare, ds] = [self.scratch(stat, n.elements)?, self.scratch(stat, n.elements)?];
        let place = self.scratch(DType::I32, n.elements)?;
        self.fill_pattern(&[0; 8], &dshare.view())?;
        self.fill_pattern(&[0xff; 4], &place.view())?;
        let (lanes, grid) = rows(n.kept, n.channels);
        let args = MeshPoolDshareArgs {
            dy: self.arg_in(&io.dy),
            x: self.arg_in(&io.x),
            kept: self.arg_in(&io.kept),
            dshare: self.arg_in(&dshare.view()),
            place: self.arg_in(&place.view()),
            err: self.arg_error(),
            count: long(n.kept),
            elements: long(n.elements),
            width: long(n.channels),
            lanes: int(lanes),
            wide: wide_index(&io.kept),
            code: code_of_op(op),
        };
        self.launch(&MESH_POOL_DSHARE, dt, "", grid, &args)?;
        self.softmax_bwd(Softmax::Softmax, 0, dshare.view(), io.share, ds.alias_mut().into())?;
        Ok([ds, place])
    }

    fn mesh_pool_dw(
        &self,
        n: &PoolSizes,
        scale: f64,
        io: &MeshPoolBwd<'_>,
        ds: &Buffer,
        dw: &GradMut<'_>,
    ) -> Result<()> {
        let (dt, chunks) = (io.x.dtype(), n.elements.div_ceil(CHUNK));
        let part = self.scratch(dt.accumulator(), chunks * n.channels)?;
        let args = MeshPoolDwArgs {
            x: self.arg_in(&io.x),
            ds: self.arg_in(&ds.view()),
            part: self.arg_in(&part.view()),
            n: long(part.len()),
            elements: long(n.elements),
            width: long(n.channels),
            chunk: long(CHUNK),
        };
        self.launch(&MESH_POOL_DW, dt, "", Grid::Stride(part.len()), &args)?;
        let args = MeshPoolDwCombineArgs {
            part: self.arg_in(&part.view()),
            dw: self.arg_out(&dw.out),
            width: long(n.channels),
            chunks: long(chunks),
            scale,
            accumulate: i32::from(dw.accumulate),
        };
        self.launch(&MESH_POOL_DW_COMBINE, dt, "", Grid::Stride(n.channels), &args)
    }
}

impl MeshPoolOps for Engine {
    fn mesh_pool(&self, temperature: f64, io: MeshPoolIo<'_>) -> Result<()> {
        const OP: &str = "mesh_pool";
        let n = check_mesh_pool(temperature, &io)?;
        let [y, kept, share] = [&io.y, &io.kept, &io.share].map(ViewMut::as_view);
        self.check_owner_all(OP, &[("x", io.x), ("w", io.w), ("y", y), ("kept", kept), ("share", share)])?;
        if n.elements == 0 {
            return Ok(());
        }
        let (dt, stat) = (io.x.dtype(), share.dtype());
        let [scores, largest] = [self.scratch(stat, n.elements)?, self.scratch(stat, n.kept)?];
        let (lanes, grid) = rows(n.elements, n.channels);
        let args = MeshPoolScoresArgs {
            x: self.arg_in(&io.x),
            w: self.arg_in(&io.w),
            score: self.arg_in(&scores.view()),
            elements: long(n.elements),
            width: long(n.channels),
            lanes: int(lanes),
            scale: temperature.recip(),
        };
        self.launch(&MESH_POOL_SCORES, dt, "", grid, &args)?;
        self.softmax(Softmax::Softmax, 0, scores.view(), io.share)?;
        self.topk(0, true, scores.view(), largest.alias_mut(), io.kept)?;
        let args = MeshPoolGatherArgs {
            x: self.arg_in(&io.x),
            share: self.arg_in(&share),
            kept: self.arg_in(&kept),
            y: self.arg_in(&y),
            n: long(y.numel()),
            width: long(n.channels),
            wide: wide_index(&kept),
        };
        self.launch(&MESH_POOL_GATHER, dt, "", Grid::Stride(y.numel()), &args)
    }

    fn mesh_pool_bwd(&self, temperature: f64, io: MeshPoolBwd<'_>) -> Result<()> {
        const OP: &str = "mesh_pool_bwd";
        let n = check_mesh_pool_bwd(temperature, &io)?;
        let operands = [("dy", io.dy), ("x", io.x), ("w", io.w), ("kept", io.kept), ("share", io.share)];
        self.check_owner_all(OP, &operands)?;
        let [dx, dw] = [&io.dx, &io.dw].map(|g| g.as_ref().map(|g| g.out.as_view()));
        self.check_owner_all(OP, &[("dx", dx), ("dw", dw)])?;
        if n.channels == 0 {
            return Ok(());
        }
        if n.elements == 0 {
            let empty = io.dw.filter(|g| !g.accumulate);
            return empty.map_or(Ok(()), |g| self.fill_pattern(&[0; 8], &g.out.as_view()));
        }
        let [ds, place] = self.mesh_pool_scores_bwd(OP, &n, &io)?;
        let scale = temperature.recip();
        if let Some(to) = &io.dx {
            let args = MeshPoolDxArgs {
                dy: self.arg_in(&io.dy),
                w: self.arg_in(&io.w),
                share: self.arg_in(&io.share),
                ds: self.arg_in(&ds.view()),
                place: self.arg_in(&place.view()),
                dx: self.arg_out(&to.out),
                n: long(io.x.numel()),
                width: long(n.channels),
                scale,
                accumulate: i32::from(to.accumulate),
            };
            self.launch(&MESH_POOL_DX, io.x.dtype(), "", Grid::Stride(io.x.numel()), &args)?;
        }
        io.dw.as_ref().map_or(Ok(()), |to| self.mesh_pool_dw(&n, scale, &io, &ds, to))
    }
}
