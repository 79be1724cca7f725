//! How matrix products run: the vendor's library, or a tile kernel.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::ops::gemm::Extents;

/// Rows (after exchanging the operands if need be) up to which the skinny tile serves.
pub(crate) const SKINNY: usize = 16;

const SOURCE: &str = "kernels/common/gemm/gemm.c";

/// A product. Where nothing is written or summed there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GemmProblem<'a> {
    pub(crate) e: Extents,
    /// Type of A and B.
    pub(crate) dtype: DType,
    pub(crate) tf32: bool,
    /// Whether the vendor's library takes it, or why not.
    pub(crate) vendor: Result<(), &'a str>,
}

/// The tile kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tile {
    Square128,
    Square64,
    Skinny,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GemmPlan {
    /// By the vendor's library.
    Vendor,
    /// By tiles, with k split.
    Tiles { tile: Tile, splits: usize },
}

impl Tile {
    /// Blocks for one part of k.
    pub(crate) fn blocks(self, e: Extents) -> usize {
        let (bm, bn) = match self {
            Tile::Square128 => (128, 128),
            Tile::Square64 => (64, 64),
            Tile::Skinny => (SKINNY, 256),
        };
        e.m.div_ceil(bm).saturating_mul(e.n.div_ceil(bn)).saturating_mul(e.batch)
    }
}

/// Tile and number of splits of k that fill the device best. A function of the problem and the device alone, so results repeat.
pub(crate) fn tiling(e: Extents, dtype: DType, caps: &Caps) -> (Tile, usize) {
    let units = (caps.compute_units as usize).max(1);
    // Threads of a CPU run one after the other: those of a tile that lie beyond the product take as long as the others.
    let narrow = caps.is_cpu && e.m.min(e.n) <= 64;
    let tile = if e.m.min(e.n) <= SKINNY && e.m.max(e.n) >= 128 && !caps.is_cpu {
        Tile::Skinny
    } else if dtype != DType::F64 && Tile::Square128.blocks(e) >= units && !narrow {
        Tile::Square128
    } else {
        Tile::Square64
    };
    // The skinny tile has little arithmetic to hide its loads behind: more blocks keep more of them in flight.
    let want = units * if tile == Tile::Skinny { 4 } else { 2 };
    let turned = tile == Tile::Skinny && e.m > SKINNY;
    let blocks = tile.blocks(if turned { Extents { m: e.n, n: e.m, ..e } } else { e });
    if caps.is_cpu || blocks * 2 > want || e.k < 256 {
        return (tile, 1);
    }
    // A small product over a long k has no other blocks than these.
    (tile, want.div_ceil(blocks.max(1)).min(e.k / 128).min(512))
}

impl GemmProblem<'_> {
    fn vendor(&self) -> Result<GemmPlan, Reason> {
        let e = self.e;
        self.vendor.map_err(|why| why.to_string())?;
        // Measured on an H200: 1.4 times the vendor library's speed for 16 x 4096 x 4096.
        let thin = e.m.min(e.n) <= SKINNY && e.k * e.m.max(e.n) >= 1 << 20;
        if self.dtype == DType::F32 && !self.tf32 && thin {
            return Err("the skinny kernel reads f32 operands of this shape faster".into());
        }
        Ok(GemmPlan::Vendor)
    }
}

impl Problem for GemmProblem<'_> {
    type Plan = GemmPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "cublaslt", source: "vendor library" },
        Variant { name: PORTABLE, source: SOURCE },
        Variant { name: "tile_128", source: SOURCE },
        Variant { name: "tile_64", source: SOURCE },
        Variant { name: "skinny", source: SOURCE },
        Variant { name: "split_k", source: SOURCE },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<GemmPlan, Reason> {
        let e = self.e;
        let (tile, splits) = tiling(e, self.dtype, caps);
        let (tile, splits) = match variant {
            0 => return self.vendor(),
            1 => (tile, splits),
            2 if self.dtype == DType::F64 => return Err("f64 has no tile of this size".into()),
            2 => (Tile::Square128, 1),
            3 => (Tile::Square64, 1),
            4 if e.m.min(e.n) > SKINNY => return Err("both M and N are above 16".into()),
            4 => (Tile::Skinny, splits),
            _ if e.k < 64 => return Err("K is below 64".into()),
            _ => (Tile::Square64, splits.max(2)),
        };
        Ok(GemmPlan::Tiles { tile, splits })
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{cpu, gpu};

    fn problem(m: usize, n: usize, k: usize) -> GemmProblem<'static> {
        let e = Extents { batch: 1, m, n, k };
        GemmProblem { e, dtype: DType::F32, tf32: false, vendor: Err("no vendor library was found") }
    }

    #[test]
    fn tiles_and_splits_fill_the_device() {
        let (gpu, cpu) = (gpu(), cpu());
        let tiles = |tile, splits| Ok(GemmPlan::Tiles { tile, splits });
        assert_eq!(problem(4096, 4096, 4096).plan(1, &gpu), tiles(Tile::Square128, 1));
        assert_eq!(problem(512, 512, 512).plan(1, &gpu), tiles(Tile::Square64, 4));
        assert_eq!(problem(64, 64, 1 << 20).plan(1, &gpu), tiles(Tile::Square64, 264));
        assert_eq!(problem(16, 4096, 4096).plan(1, &gpu), tiles(Tile::Skinny, 32));
        assert_eq!(problem(4096, 16, 4096).plan(1, &gpu), tiles(Tile::Skinny, 32));
        assert_eq!(problem(16, 4096, 4096).plan(1, &cpu), tiles(Tile::Square64, 1));
        assert_eq!(problem(512, 512, 512).plan(1, &cpu), tiles(Tile::Square128, 1));
        let double = GemmProblem { dtype: DType::F64, ..problem(4096, 4096, 64) };
        assert_eq!(double.plan(1, &gpu), tiles(Tile::Square64, 1));
    }

    #[test]
    fn the_vendor_library_comes_first_but_for_thin_products() {
        let gpu = gpu();
        let taken = |p: GemmProblem<'static>| GemmProblem { vendor: Ok(()), ..p };
        assert_eq!(taken(problem(1024, 1024, 1024)).plan(0, &gpu), Ok(GemmPlan::Vendor));
        assert!(problem(1024, 1024, 1024).plan(0, &gpu).is_err_and(|e| e.contains("no vendor library")));
        let thin = taken(problem(16, 4096, 4096));
        assert!(thin.plan(0, &gpu).is_err_and(|e| e.contains("skinny")));
        assert_eq!(GemmProblem { tf32: true, ..thin }.plan(0, &gpu), Ok(GemmPlan::Vendor));
    }

    #[test]
    fn pinned_tiles_refuse_what_they_cannot_do() {
        let gpu = gpu();
        let p = problem(128, 128, 32);
        let double = GemmProblem { dtype: DType::F64, ..p };
        assert!(double.plan(2, &gpu).is_err_and(|e| e.contains("f64")));
        assert!(p.plan(4, &gpu).is_err_and(|e| e.contains("above 16")));
        assert!(p.plan(5, &gpu).is_err_and(|e| e.contains("below 64")));
        let split = GemmPlan::Tiles { tile: Tile::Square64, splits: 2 };
        assert_eq!(problem(128, 128, 64).plan(5, &gpu), Ok(split));
    }
}
