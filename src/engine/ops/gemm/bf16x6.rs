//! Products of f32 as six products in bf16 on matrix cores (`gemm/bf16x6.h`): tiles, plan, launch.

use super::launch::whole_args;
use super::plan::{Form, GemmPlan, GemmProblem};
use super::product::Product;
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::engine::plan::Reason;
use crate::error::Result;
use crate::ops::gemm::Extents;
use crate::spec::Kernel;
use crate::spec::kernels::gemm::*;

/// The tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bf16x6 {
    /// 64 x 64, of which so many blocks of a cluster (1, 2 or 8) share the terms.
    Side64 { share: usize },
    /// 128 x 128.
    Side128,
}

impl Bf16x6 {
    /// Terms of a stage, and the most of a block with tiles of 64 x 64: longer sums of large parts would lose more to rounding.
    const STAGE: usize = 64;
    const MOST: usize = 512;

    fn side(self) -> usize {
        match self {
            Bf16x6::Side64 { .. } => 64,
            Bf16x6::Side128 => 128,
        }
    }

    fn share(self) -> usize {
        match self {
            Bf16x6::Side64 { share } => share,
            Bf16x6::Side128 => 1,
        }
    }

    /// Terms of a block of `k`.
    fn terms(self, k: usize) -> usize {
        k.div_ceil(self.share()).next_multiple_of(Self::STAGE)
    }

    fn tiles(self, e: Extents) -> usize {
        let side = self.side();
        e.m.div_ceil(side).saturating_mul(e.n.div_ceil(side)).saturating_mul(e.batch)
    }

    /// Bytes of local memory: two stages of three parts of both operands, and the sums that a cluster's blocks give each other.
    fn local(self) -> usize {
        let given = if self.share() > 1 { self.side() * self.side() * 4 } else { 0 };
        2 * 6 * self.side() * Self::STAGE * 2 + given
    }
}

/// The kernel of six products in bf16 for operands that lie so.
fn bf16x6_kernel(tile: Bf16x6, form: Form) -> &'static Kernel<GemmClusterArgs> {
    form.of(match tile {
        Bf16x6::Side128 => [&GEMM_BF16X6_128_NN, &GEMM_BF16X6_128_NT, &GEMM_BF16X6_128_TN],
        Bf16x6::Side64 { share: 1 } => [&GEMM_BF16X6_NN, &GEMM_BF16X6_NT, &GEMM_BF16X6_TN],
        Bf16x6::Side64 { share: 2 } => [&GEMM_BF16X6_PAIR_NN, &GEMM_BF16X6_PAIR_NT, &GEMM_BF16X6_PAIR_TN],
        Bf16x6::Side64 { .. } => [&GEMM_BF16X6_CLUSTER_NN, &GEMM_BF16X6_CLUSTER_NT, &GEMM_BF16X6_CLUSTER_TN],
    })
}

impl GemmProblem<'_> {
    /// Tiles of six products in bf16 whose terms as few blocks share as fill the device; none where tiles of 64 x 64 have too many terms.
    pub(super) fn sharing(&self, caps: &Caps) -> Option<Bf16x6> {
        let k = self.e.k;
        let fits = |tile: &Bf16x6| {
            let share = tile.share();
            tile.terms(k) <= Bf16x6::MOST && (share == 1 || k >= share * Bf16x6::STAGE && caps.cluster >= 8)
        };
        let all = || [1, 2, 8].into_iter().map(|share| Bf16x6::Side64 { share }).filter(fits);
        all().find(|&tile| self.fills(tile, 3, 4, caps)).or(all().next_back())
    }

    /// Whether the blocks are at least `a` / `b` of the device's compute units.
    fn fills(&self, tile: Bf16x6, a: usize, b: usize, caps: &Caps) -> bool {
        tile.tiles(self.e).saturating_mul(tile.share()).saturating_mul(b) >= a * caps.compute_units as usize
    }

    /// Whether so many blocks, of compute units, and terms are enough for six products in bf16 to be faster than one in f32. Measured on an H200 against
    /// cuBLASLt, with tiles of 64 x 64: 8.0 of 11.1 us for 2,048 x 384 x 128, 8.2 of 13.6 for 2,048 x 128 x 512, 8.8 of 10.8 for 384 x 128 x 2,048; but 5.0 of
    /// 4.1 for 2,048 x 128 x 64 and 8.4 of 7.4 for 128 x 128 x 2,048; of 128 x 128: 13.2 of 17.3 for 2,048 x 1,024 x 128, 227 of 342 for 2,048 cubed.
    pub(super) fn bf16x6_is_faster(&self, tile: Option<Bf16x6>, [a, b]: [usize; 2], caps: &Caps) -> bool {
        let e = self.e;
        // An incomplete tile takes as long as a full one: three quarters of all are results.
        let full = |tile: Bf16x6| {
            let all = tile.tiles(e).saturating_mul(tile.side() * tile.side());
            e.m.saturating_mul(e.n).saturating_mul(e.batch).saturating_mul(4) >= all.saturating_mul(3)
        };
        !self.tf32 && e.k >= 128 && tile.is_some_and(|tile| full(tile) && self.fills(tile, a, b, caps))
    }

    pub(super) fn bf16x6(&self, tile: Option<Bf16x6>, caps: &Caps) -> Result<GemmPlan, Reason> {
        if !caps.warp_groups {
            return Err("the device has no products by groups of warps".into());
        }
        if self.dtype != DType::F32 {
            return Err("operands are not f32".into());
        }
        let (e, form) = (self.e, self.by_items()?);
        let tile = tile.ok_or_else(|| format!("blocks add up to {} terms, of {}", Bf16x6::MOST, e.k))?;
        let (blocks, local) = (tile.tiles(e).saturating_mul(tile.share()), tile.local());
        if local > caps.shared_bytes as usize {
            return Err(format!("it needs {local} bytes of local memory, of {}", caps.shared_bytes).into());
        }
        if [e.m, e.n, e.k, blocks].into_iter().any(|n| n > i32::MAX as usize / 2) {
            return Err("a size is above 2^30".into());
        }
        let grid = Grid::BlocksOf { blocks, threads: 256, local };
        Ok(GemmPlan::Bf16x6 { form, tile, per: tile.terms(e.k), grid })
    }
}

impl Engine {
    /// Runs the kernel of six products in bf16, whose blocks have `per` terms each.
    pub(super) fn bf16x6(
        &self,
        q: &Product,
        form: Form,
        tile: Bf16x6,
        (per, grid): (usize, Grid),
    ) -> Result<()> {
        let args = whole_args(q, q.size(1, per));
        self.launch(bf16x6_kernel(tile, form), q.dtype, q.op(), grid, &args)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::{TAKEN, problem};
    use super::super::plan::{BF16X6_64, BF16X6_128};
    use super::*;
    use crate::engine::geometry::tests::{chosen, gpu};
    use crate::engine::plan::Problem;

    #[test]
    fn six_products_in_bf16_serve_f32_where_they_fill_the_device() {
        let hopper =
            Caps { warp_groups: true, cluster: 8, compute_units: 132, shared_bytes: 227 << 10, ..gpu() };
        let taken = |m, n, k| GemmProblem { vendor: TAKEN, ..problem(m, n, k) };
        let shares = |p: GemmProblem<'_>| match p.plan(BF16X6_64, &hopper) {
            Ok(GemmPlan::Bf16x6 { tile: Bf16x6::Side64 { share }, per, .. }) => Some((share, per)),
            _ => None,
        };
        for (m, n, k, name, shared) in [
            (2048, 384, 128, "bf16x6", Some((1, 128))),
            (2048, 128, 512, "bf16x6", Some((2, 256))),
            (384, 128, 2048, "bf16x6", Some((8, 256))),
            (2048, 2048, 2048, "bf16x6_128", Some((8, 256))),
            (2048, 128, 64, "cublaslt", Some((1, 64))),
            (8192, 65, 512, "cublaslt", Some((1, 512))),
            (8192, 129, 512, "cublaslt", Some((1, 512))),
            (128, 128, 2048, "cublaslt", Some((8, 256))),
            (128, 128, 4100, "cublaslt", None),
        ] {
            let p = taken(m, n, k);
            assert_eq!((chosen(&p, &hopper), shares(p)), (name, shared), "{m} x {n} x {k}");
            assert_eq!(chosen(&GemmProblem { tf32: true, ..p }, &hopper), "cublaslt");
            let other = Caps { warp_groups: false, ..hopper.clone() };
            assert!(p.plan(BF16X6_128, &other).is_err_and(|e| e.contains("groups of warps")));
        }
        let p = taken(2048, 2048, 2048);
        let grid = Grid::BlocksOf { blocks: 256, threads: 256, local: 192 << 10 };
        let plan = GemmPlan::Bf16x6 { form: Form::Nt, tile: Bf16x6::Side128, per: 2048, grid };
        assert_eq!(p.plan(BF16X6_128, &hopper), Ok(plan));
        // Without clusters blocks share no terms.
        let alone = Caps { cluster: 1, ..hopper.clone() };
        assert!(p.plan(BF16X6_64, &alone).is_err_and(|e| e.contains("512 terms, of 2048")));
        let odd = GemmProblem { layout: Ok((Form::Nt, [true, false])), ..p };
        assert!(odd.plan(BF16X6_128, &hopper).is_err_and(|e| e.contains("16 bytes")));
        let half = GemmProblem { dtype: DType::Bf16, ..p };
        assert!(half.plan(BF16X6_64, &hopper).is_err_and(|e| e.contains("not f32")));
    }
}
