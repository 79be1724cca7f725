//! Norms of gradients, and their scaling in place.

use super::list::{List, grad_tensors};
use crate::buffer::{Buffer, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::error::Result;
use crate::ops::optimizer::*;
use crate::spec::kernels::optimizer::*;

/// `kind` of the kernels for a norm's degree.
pub(super) fn norm_kind(p: &ClipNorm) -> i32 {
    match p.p {
        1.0 => 1,
        2.0 => 2,
        p if p.is_infinite() => 3,
        _ => 0,
    }
}

impl Engine {
    /// Type of gradients that are changed in place, and the launches that serve them.
    pub(super) fn gradient_lists(
        &self,
        op: &'static str,
        grads: &[ViewMut<'_>],
    ) -> Result<(DType, Vec<List>)> {
        for g in grads {
            self.check_owner(op, "grads", &g.as_view())?;
        }
        let dt = grads.first().map_or(DType::F32, ViewMut::dtype);
        Ok((dt, self.lists(op, &grad_tensors(grads.iter().map(ViewMut::as_view)))?))
    }

    /// Sums of all blocks for the norm of gradients, and their number.
    pub(super) fn norm_partials(&self, dt: DType, lists: &[List], p: &ClipNorm) -> Result<(Buffer, i64)> {
        // Enough blocks to fill any device; by size alone, so that the tree is the same on every run.
        let blocks: Vec<_> = lists.iter().map(|l| l.chunks.min(2048)).collect();
        let n: usize = blocks.iter().sum();
        let partial = self.scratch(dt.accumulator(), 4 * n.max(1))?;
        let mut at = 0;
        for (list, &b) in lists.iter().zip(&blocks) {
            let table = self.table(&list.words)?;
            let args = GradientNormPartialArgs {
                table: table.arg,
                tensors: list.tensors as i32,
                g: list.bases[1],
                partial: self.arg_in(&partial.view().range(4 * at, 4 * b)?),
                kind: norm_kind(p),
                p: p.p,
            };
            self.launch(&GRADIENT_NORM_PARTIAL, dt, "", Grid::Blocks([b, 1, 1]), &args)?;
            at += b;
        }
        Ok((partial, n as i64))
    }

    pub(super) fn scale_grads(
        &self,
        dt: DType,
        lists: &[List],
        coef: Ptr,
        mode: i32,
        bound: f64,
    ) -> Result<()> {
        for list in lists {
            let table = self.table(&list.words)?;
            let args = GradScaleArgs {
                table: table.arg,
                tensors: list.tensors as i32,
                g: list.bases[1],
                coef,
                mode,
                bound,
            };
            self.launch(&GRAD_SCALE, dt, "", list.grid(), &args)?;
        }
        Ok(())
    }
}
