//! How matrix products run: the vendor's library, kernels for matrix cores, or a tile kernel.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};

use super::bf16x6::Bf16x6;
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::Grid;
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::ops::gemm::Extents;

/// Rows (after exchanging the operands if need be) up to which the skinny tile serves.
pub(crate) const SKINNY: usize = 16;

const SOURCE: &str = "kernels/common/gemm/gemm.c";
pub(super) const SPECIALIZED: Variant =
    Variant { name: "warp_specialized", source: "kernels/common/gemm/matrix_specialized.c" };
pub(super) const SPECIALIZED_WIDE: Variant =
    Variant { name: "warp_specialized_256", source: "kernels/common/gemm/matrix_wide.c" };

/// Rows and columns of a tile of `gemm/matrix.c` and `gemm/matrix_specialized.c`, and terms of a stage.
pub(crate) const MATRIX_SIDE: usize = 128;
const MATRIX_TERMS: usize = 64;
/// Columns of a tile of `gemm/matrix_wide.c`.
pub(crate) const WIDE: usize = 256;

/// How the operands of a product lie in memory, by the letters of BLAS: A by rows and B by rows (`nn`) or columns (`nt`), or A by columns and
/// B by rows (`tn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    Nn,
    Nt,
    Tn,
}

impl Form {
    /// Its own of what the three forms have.
    pub(super) fn of<T>(self, [nn, nt, tn]: [T; 3]) -> T {
        match self {
            Form::Nn => nn,
            Form::Nt => nt,
            Form::Tn => tn,
        }
    }
}

/// Side of a tile of `gemm/cluster.c`.
pub(crate) const CLUSTER_SIDE: usize = 32;

// Numbers of the variants, in the order of [`GemmProblem::VARIANTS`].
pub(super) const PARTS: usize = 0;
const CLUSTER: usize = 1;
pub(super) const BF16X6_128: usize = 2;
pub(super) const BF16X6_64: usize = 3;
/// cuBLASLt, or the library of a driver that is not this crate's.
pub(crate) const CUBLASLT: usize = 4;
pub(crate) const HIPBLASLT: usize = 5;
const SPECIALIZED_256: usize = 6;
const SPECIALIZED_128: usize = 7;
const MATRIX: usize = 8;
const TILES: usize = 9;
const TILE_128: usize = 10;
const TILE_64: usize = 11;
const SKINNY_TILE: usize = 12;
const SPLIT_K: usize = 13;
/// CLBlast. Which of its kernels and those of this crate are faster depends on the device, and its first product of a type compiles for seconds: only where
/// it is pinned, was measured, or is asked about is the library opened.
pub(crate) const CLBLAST: usize = 14;

/// What a vendor's library says to a product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Library<'a> {
    /// Number of the variant that is this library's.
    pub(crate) variant: usize,
    /// Whether it takes the product, or why not.
    pub(crate) answer: Result<(), &'a str>,
}

impl Library<'_> {
    /// What distinguishes problems. A library that is not always asked does not.
    fn key(&self) -> Option<Result<(), &str>> {
        (self.variant != CLBLAST).then_some(self.answer)
    }
}

impl Debug for Library<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key() {
            Some(answer) => answer.fmt(f),
            None => f.write_str("on demand"),
        }
    }
}

impl Hash for Library<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// A product. Where nothing is written or summed there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GemmProblem<'a> {
    pub(crate) e: Extents,
    /// Type of A and B.
    pub(crate) dtype: DType,
    pub(crate) tf32: bool,
    /// Whether the vendor's library takes the product of the operands' parts in TF32, or why not.
    pub(crate) parts: Result<(), &'a str>,
    /// The vendor's library.
    pub(crate) vendor: Library<'a>,
    /// How its operands lie in memory where neighbours in one direction of each are neighbours there, and whether each consists of whole items of 16 bytes; or why not.
    pub(crate) layout: Result<(Form, [bool; 2]), &'static str>,
    /// Whether it is no more than the products and biases of columns, in the type of the operands and in rows of whole items of 16 bytes; or why not.
    pub(crate) plain: Result<(), &'static str>,
    /// Whether results and what is added to them lie in rows, at multiples of four numbers, and vectors along these.
    pub(crate) rows: bool,
    /// Whether terms of one sum are neighbours in the operand of the longer side of the result.
    pub(crate) long_along_k: bool,
}

/// The tile kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tile {
    /// On matrix cores: 128 rows and so many columns.
    Matrix {
        form: Form,
        columns: usize,
        local: usize,
    },
    Square128,
    Square64,
    Skinny,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GemmPlan {
    /// By the vendor's library, from the parts of its operands in TF32.
    Parts,
    /// By the vendor's library.
    Vendor,
    /// By clusters of blocks, each block with so many terms of a tile.
    Cluster { form: Form, items: [bool; 2], blocks: usize, per: usize },
    /// As six products in bf16 on matrix cores, each block with so many terms of a tile.
    Bf16x6 { form: Form, tile: Bf16x6, per: usize, grid: Grid },
    /// By a warp-specialised kernel on matrix cores.
    Specialized(Form, Grid),
    /// The same with tiles of [`WIDE`] columns.
    Wide(Form, Grid),
    /// By tiles, with k split.
    Tiles { tile: Tile, splits: usize },
}

/// Pairs of tiles of so many columns: tiles of [`WIDE`] columns lie one below the other, others side by side.
fn pairs(columns: usize, [down, n, batch]: [usize; 3]) -> usize {
    let (down, across) = match columns {
        WIDE => (down.div_ceil(2), n.div_ceil(WIDE)),
        _ => (down, n.div_ceil(2 * columns)),
    };
    down.saturating_mul(across).saturating_mul(batch)
}

/// Blocks and local memory of `gemm/matrix_specialized.c`, or with tiles of [`WIDE`] columns of `gemm/matrix_wide.c`, for `down` tiles of rows of `batch`
/// products of `n` columns; or why the device does not have that.
pub(crate) fn specialized_grid(
    columns: usize,
    [down, n, batch]: [usize; 3],
    caps: &Caps,
) -> Result<Grid, Reason> {
    if !caps.tensor_maps {
        return Err("the device has no maps of tensors".into());
    }
    let (stages, beside) = match columns {
        // The tile, in 16 bits and rows with a gap, and biases.
        WIDE => (3, MATRIX_SIDE * (WIDE + 8) * 2 + WIDE * 4),
        // Sums of 16 rows and 64 columns of eight warps.
        _ => (6, 8 * 16 * 64 * 4),
    };
    let local = stages * (MATRIX_SIDE + columns) * MATRIX_TERMS * 2 + beside;
    let gates = 3 << 10; // and 64 tiles
    if local + gates > caps.shared_bytes as usize {
        return Err(
            format!("it needs {} bytes of local memory, of {}", local + gates, caps.shared_bytes).into()
        );
    }
    let pairs = pairs(columns, [down, n, batch]);
    if pairs > i32::MAX as usize / 2 {
        return Err("it has too many tiles".into());
    }
    let clusters = pairs.min((caps.compute_units as usize / 2).max(1));
    Ok(Grid::BlocksOf { blocks: 2 * clusters, threads: 384, local })
}

/// Whether pairs of tiles of [`WIDE`] columns take less time than the larger number of pairs of [`MATRIX_SIDE`]: the blocks of the device take one pair
/// after the other, and a wide pair takes 0.93 times as long as two others (H200; 102 and 111 us for 8,192 x 4,096 x 1,024, 27 and 29 for 2,048 x 2,048 x
/// 2,048, 187 and 201 for 4,096 x 4,096 x 4,096).
pub(super) fn wide_is_faster(tiles: [usize; 3], caps: &Caps) -> bool {
    let clusters = (caps.compute_units as usize / 2).max(1);
    let turns = |columns| pairs(columns, tiles).div_ceil(clusters);
    turns(WIDE).saturating_mul(186) <= turns(MATRIX_SIDE).saturating_mul(100)
}

/// Columns of a tile of `gemm/matrix.c` and `gemm/ragged_matrix.c` (it has [`MATRIX_SIDE`] rows), and local memory of a block, as `gemm/matrix_tile.h` has
/// them; or why the device does not have that.
pub(crate) fn matrix_tile(caps: &Caps) -> Result<(usize, usize), Reason> {
    let have = caps.shared_bytes as usize;
    let (columns, stages) = match caps.ptx() {
        true if have >= 96 << 10 => (MATRIX_SIDE, 3),
        // NVIDIA's OpenCL.
        true => (MATRIX_SIDE / 2, 2),
        false => (MATRIX_SIDE, 2),
    };
    let local = stages * (MATRIX_SIDE + columns) * MATRIX_TERMS * 2;
    match local <= have {
        true => Ok((columns, local)),
        false => Err(format!("it needs {local} bytes of local memory, of {have}").into()),
    }
}

impl Tile {
    /// Blocks for one part of k.
    pub(crate) fn blocks(self, e: Extents) -> usize {
        let (bm, bn) = match self {
            Tile::Matrix { columns, .. } => (MATRIX_SIDE, columns),
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
    // Thin products have little arithmetic to hide their loads behind: more blocks keep more of them in flight.
    let want = units * if e.m.min(e.n) <= SKINNY { 4 } else { 2 };
    let turned = tile == Tile::Skinny && e.m > SKINNY;
    let blocks = tile.blocks(if turned { Extents { m: e.n, n: e.m, ..e } } else { e });
    if caps.is_cpu || blocks * 2 > want || e.k < 256 {
        return (tile, 1);
    }
    // A small product over a long k has no other blocks than these.
    (tile, want.div_ceil(blocks.max(1)).min(e.k / 128).min(512))
}

impl GemmProblem<'_> {
    fn vendor(&self, variant: usize) -> Result<GemmPlan, Reason> {
        let e = self.e;
        if self.vendor.variant != variant {
            return Err(
                "no vendor library of this name: the driver interface of the device has another".into()
            );
        }
        self.vendor.answer.map_err(|why| why.to_string())?;
        if variant == CLBLAST || self.dtype != DType::F32 || self.tf32 {
            return Ok(GemmPlan::Vendor);
        }
        // Measured on an H200: 1.4 times the vendor library's speed for 16 x 4096 x 4096, twice for 128 x 256 x 10, of which that splits k; but 0.75
        // for 16 x 20,000 x 1,024 and 0.6 for 8 x 64 x 200,000, where one of k and the larger side is far above the other, and half of it for one
        // row or column, and up to four where the long operand lies along k: the library has kernels for products of a matrix and a vector.
        let (thin, long, k) = (e.m.min(e.n), e.m.max(e.n), e.k);
        let vectors = e.batch == 1 && (thin == 1 || thin <= 4 && self.long_along_k);
        if thin <= SKINNY && !vectors && k * long >= 1 << 20 && long <= 8 * k && k <= 8 * long {
            return Err("the skinny kernel reads f32 operands of this shape faster".into());
        }
        if e.k <= SKINNY && e.m * e.n * e.batch <= 1 << 18 {
            return Err("a tile's kernel adds so few f32 terms faster".into());
        }
        Ok(GemmPlan::Vendor)
    }

    /// Tiles of [`CLUSTER_SIDE`] rows and columns.
    fn cluster_tiles(&self) -> usize {
        let e = self.e;
        e.m.div_ceil(CLUSTER_SIDE).saturating_mul(e.n.div_ceil(CLUSTER_SIDE)).saturating_mul(e.batch)
    }

    fn cluster(&self, caps: &Caps) -> Result<GemmPlan, Reason> {
        let (e, cluster) = (self.e, caps.cluster as usize);
        if cluster < 2 {
            return Err("the device has no clusters of blocks".into());
        }
        if self.dtype != DType::F32 {
            return Err("operands are not f32".into());
        }
        let (form, items) = self.layout?;
        let blocks = self.cluster_tiles().saturating_mul(cluster);
        if [e.m, e.n, e.k, blocks].into_iter().any(|n| n > i32::MAX as usize / 2) {
            return Err("a size is above 2^30".into());
        }
        // Parts begin at items of 16 bytes.
        Ok(GemmPlan::Cluster { form, items, blocks, per: e.k.div_ceil(cluster).next_multiple_of(4) })
    }

    /// How the operands lie, if they consist of whole items of 16 bytes.
    pub(super) fn by_items(&self) -> Result<Form, Reason> {
        match self.layout? {
            (form, [true, true]) => Ok(form),
            _ => Err("rows of an operand are no whole items of 16 bytes at multiples of 16 bytes".into()),
        }
    }

    /// How the operands lie, if kernels for matrix cores take them: these copy items of 16 bytes.
    fn halves(&self) -> Result<Form, Reason> {
        if !matches!(self.dtype, DType::F16 | DType::Bf16) {
            return Err("operands are neither f16 nor bf16".into());
        }
        self.by_items()
    }

    /// By a warp-specialised kernel with tiles of so many columns.
    fn specialized(&self, columns: usize, caps: &Caps) -> Result<GemmPlan, Reason> {
        let (e, form) = (self.e, self.halves()?);
        if !self.rows {
            return Err(
                "results, or what is added to them, do not lie in rows at multiples of four numbers".into()
            );
        }
        if [e.m, e.n, e.k, e.batch].into_iter().any(|n| n > i32::MAX as usize / 2) {
            return Err("a size is above 2^30".into());
        }
        let grid = specialized_grid(columns, [e.m.div_ceil(MATRIX_SIDE), e.n, e.batch], caps)?;
        if columns == WIDE {
            self.plain?;
            return Ok(GemmPlan::Wide(form, grid));
        }
        Ok(GemmPlan::Specialized(form, grid))
    }

    fn matrix_cores(&self, caps: &Caps) -> Result<GemmPlan, Reason> {
        let (form, (columns, local)) = (self.halves()?, matrix_tile(caps)?);
        let tile = Tile::Matrix { form, columns, local };
        // Two blocks run on a unit at a time.
        let (want, blocks) = (2 * (caps.compute_units as usize).max(1), tile.blocks(self.e).max(1));
        let splits = if caps.is_cpu || 2 * blocks > want { 1 } else { want / blocks };
        Ok(GemmPlan::Tiles { tile, splits: splits.min(self.e.k / 256).max(1) })
    }
}

impl Problem for GemmProblem<'_> {
    type Plan = GemmPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "cublaslt_tf32x3", source: "kernels/common/gemm/parts.c" },
        Variant { name: "cluster_split_k", source: "kernels/common/gemm/cluster.c" },
        Variant { name: "bf16x6_128", source: "kernels/common/gemm/matrix_bf16x6_128.c" },
        Variant { name: "bf16x6", source: "kernels/common/gemm/matrix_bf16x6.c" },
        Variant { name: "cublaslt", source: "vendor library" },
        Variant { name: "hipblaslt", source: "vendor library" },
        SPECIALIZED_WIDE,
        SPECIALIZED,
        Variant { name: "matrix_cores", source: "kernels/common/gemm/matrix.c" },
        Variant { name: PORTABLE, source: SOURCE },
        Variant { name: "tile_128", source: SOURCE },
        Variant { name: "tile_64", source: SOURCE },
        Variant { name: "skinny", source: SOURCE },
        Variant { name: "split_k", source: SOURCE },
        Variant { name: "clblast", source: "vendor library" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<GemmPlan, Reason> {
        let e = self.e;
        let (tile, splits) = tiling(e, self.dtype, caps);
        let (tile, splits) = match variant {
            PARTS => return self.parts.map(|()| GemmPlan::Parts).map_err(|why| why.to_string().into()),
            CLUSTER => return self.cluster(caps),
            BF16X6_128 => return self.bf16x6(Some(Bf16x6::Side128), caps),
            BF16X6_64 => return self.bf16x6(self.sharing(caps), caps),
            CUBLASLT | HIPBLASLT | CLBLAST => return self.vendor(variant),
            SPECIALIZED_256 => return self.specialized(WIDE, caps),
            SPECIALIZED_128 => return self.specialized(MATRIX_SIDE, caps),
            MATRIX => return self.matrix_cores(caps),
            TILES => (tile, splits),
            TILE_128 if self.dtype == DType::F64 => return Err("f64 has no tile of this size".into()),
            TILE_128 => (Tile::Square128, 1),
            TILE_64 => (Tile::Square64, 1),
            SKINNY_TILE if e.m.min(e.n) > SKINNY => return Err("both M and N are above 16".into()),
            SKINNY_TILE => (Tile::Skinny, splits),
            SPLIT_K if e.k < 64 => return Err("K is below 64".into()),
            _ => (Tile::Square64, splits.max(2)),
        };
        Ok(GemmPlan::Tiles { tile, splits })
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        let e = self.e;
        // Few rows or columns leave most of a tile empty.
        let whole = e.m.min(e.n) > SKINNY;
        let few = 2 * Tile::Square128.blocks(e) < caps.compute_units as usize;
        match variant {
            // An element is split once and used as often as the other operand has rows.
            PARTS => e.m.min(e.n).min(e.k) >= 256,
            // Measured on an H200 against cuBLASLt, which splits k by two kernels: 6.2 of 8.9 us for 128 x 256 x 784, 4.0 of 6.1 for 128 x 256 x 256, 3.1
            // of 6.5 for 128 x 10 x 256, 3.6 of 5.6 for 128 x 256 x 12, 8.8 of 11.0 for 128 x 512 x 784; but 4.6 of 4.4 for 256 x 256 x 128 and 8.9 of
            // 7.3 for 128 x 128 x 2,048.
            CLUSTER => {
                let tiles = self.cluster_tiles();
                let few = tiles.saturating_mul(caps.cluster as usize) <= 4 * caps.compute_units as usize;
                let shared = (64..=1024).contains(&e.k) && e.k >= tiles.saturating_mul(4);
                !self.tf32 && few && (shared || e.k <= SKINNY)
            }
            BF16X6_128 => self.bf16x6_is_faster(Some(Bf16x6::Side128), [3, 4], caps),
            BF16X6_64 => self.bf16x6_is_faster(self.sharing(caps), [1, 2], caps),
            // A block has all of k: too few blocks for the device are slower than tiles with k split.
            SPECIALIZED_256 | SPECIALIZED_128 if few => false,
            SPECIALIZED_256 => whole && wide_is_faster([e.m.div_ceil(MATRIX_SIDE), e.n, e.batch], caps),
            SPECIALIZED_128 => whole,
            MATRIX => whole && caps.matrix_cores.is_some(),
            CLBLAST => false,
            _ => true,
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::MatrixCores;
    use crate::engine::geometry::tests::{chosen, cpu, gpu};

    pub(in crate::engine::ops::gemm) const TAKEN: Library<'static> =
        Library { variant: CUBLASLT, answer: Ok(()) };

    pub(in crate::engine::ops::gemm) fn problem(m: usize, n: usize, k: usize) -> GemmProblem<'static> {
        let e = Extents { batch: 1, m, n, k };
        GemmProblem {
            e,
            dtype: DType::F32,
            tf32: false,
            parts: Err("no vendor library was found"),
            vendor: Library { variant: CUBLASLT, answer: Err("no vendor library was found") },
            layout: Ok((Form::Nt, [true; 2])),
            plain: Err("f32"),
            rows: true,
            long_along_k: false,
        }
    }

    #[test]
    fn tiles_and_splits_fill_the_device() {
        let (gpu, cpu) = (gpu(), cpu());
        let tiles = |tile, splits| Ok(GemmPlan::Tiles { tile, splits });
        assert_eq!(problem(4096, 4096, 4096).plan(TILES, &gpu), tiles(Tile::Square128, 1));
        assert_eq!(problem(512, 512, 512).plan(TILES, &gpu), tiles(Tile::Square64, 4));
        assert_eq!(problem(64, 64, 1 << 20).plan(TILES, &gpu), tiles(Tile::Square64, 264));
        assert_eq!(problem(16, 4096, 4096).plan(TILES, &gpu), tiles(Tile::Skinny, 32));
        assert_eq!(problem(4096, 16, 4096).plan(TILES, &gpu), tiles(Tile::Skinny, 32));
        assert_eq!(problem(16, 4096, 4096).plan(TILES, &cpu), tiles(Tile::Square64, 1));
        assert_eq!(problem(512, 512, 512).plan(TILES, &cpu), tiles(Tile::Square128, 1));
        let double = GemmProblem { dtype: DType::F64, ..problem(4096, 4096, 64) };
        assert_eq!(double.plan(TILES, &gpu), tiles(Tile::Square64, 1));
    }

    #[test]
    fn the_vendor_library_comes_first_but_for_thin_products() {
        let gpu = gpu();
        let taken = |p: GemmProblem<'static>| GemmProblem { vendor: TAKEN, ..p };
        assert_eq!(taken(problem(1024, 1024, 1024)).plan(CUBLASLT, &gpu), Ok(GemmPlan::Vendor));
        assert!(
            problem(1024, 1024, 1024).plan(CUBLASLT, &gpu).is_err_and(|e| e.contains("no vendor library"))
        );
        let amd = GemmProblem {
            vendor: Library { variant: HIPBLASLT, answer: Ok(()) },
            ..problem(1024, 1024, 1024)
        };
        assert_eq!((chosen(&amd, &gpu), amd.plan(HIPBLASLT, &gpu)), ("hipblaslt", Ok(GemmPlan::Vendor)));
        assert!(amd.plan(CUBLASLT, &gpu).is_err_and(|e| e.contains("has another")));
        assert!(taken(problem(64, 64, 64)).plan(HIPBLASLT, &gpu).is_err_and(|e| e.contains("has another")));
        let thin = taken(problem(16, 4096, 4096));
        assert!(thin.plan(CUBLASLT, &gpu).is_err_and(|e| e.contains("skinny")));
        for long in [problem(20_000, 16, 1024), problem(64, 8, 200_000), problem(200_000, 8, 64)] {
            assert_eq!(taken(long).plan(CUBLASLT, &gpu), Ok(GemmPlan::Vendor), "{:?}", long.e);
        }
        assert_eq!(GemmProblem { tf32: true, ..thin }.plan(CUBLASLT, &gpu), Ok(GemmPlan::Vendor));
        for (rows, long_along_k, vendor) in
            [(1, false, true), (1, true, true), (4, true, true), (4, false, false), (5, true, false)]
        {
            let p = GemmProblem { long_along_k, ..taken(problem(rows, 4096, 4096)) };
            assert_eq!(p.plan(CUBLASLT, &gpu).is_ok(), vendor, "{rows} {long_along_k}");
            let batched = GemmProblem { e: Extents { batch: 2, ..p.e }, ..p };
            assert!(batched.plan(CUBLASLT, &gpu).is_err());
        }
        assert!(taken(problem(128, 256, 10)).plan(CUBLASLT, &gpu).is_err_and(|e| e.contains("so few")));
        assert_eq!(taken(problem(1024, 1024, 10)).plan(CUBLASLT, &gpu), Ok(GemmPlan::Vendor));
    }

    #[test]
    fn a_library_on_demand_is_no_rule_s_choice_and_no_part_of_the_key() {
        let gpu = gpu();
        let with = |answer| {
            let vendor = Library { variant: CLBLAST, answer };
            GemmProblem { vendor, ..problem(1024, 1024, 1024) }
        };
        let (asked, other) = (with(Ok(())), with(Err("it was not asked")));
        assert_eq!((chosen(&asked, &gpu), asked.plan(CLBLAST, &gpu)), (PORTABLE, Ok(GemmPlan::Vendor)));
        assert!(other.plan(CLBLAST, &gpu).is_err_and(|e| e.contains("not asked")));
        assert!(asked.plan(CUBLASLT, &gpu).is_err_and(|e| e.contains("another")));
        let keys = [&asked, &other].map(|p| (ProblemKey::text(p), ProblemKey::digest(p, "gemm")));
        assert_eq!(keys[0], keys[1]);
        let always = |answer| GemmProblem { vendor: Library { variant: CUBLASLT, answer }, ..asked };
        assert_ne!(always(Ok(())).text(), always(Err("no")).text());
        // Thin products are its own to take.
        let thin = GemmProblem { vendor: asked.vendor, ..problem(16, 4096, 4096) };
        assert_eq!(thin.plan(CLBLAST, &gpu), Ok(GemmPlan::Vendor));
    }

    #[test]
    fn small_products_of_many_terms_are_shared_by_clusters() {
        let hopper = Caps { cluster: 8, compute_units: 132, ..gpu() };
        let taken = |m, n, k| GemmProblem { vendor: TAKEN, ..problem(m, n, k) };
        let p = taken(128, 256, 784);
        let plan = GemmPlan::Cluster { form: Form::Nt, items: [true; 2], blocks: 256, per: 100 };
        assert_eq!((chosen(&p, &hopper), p.plan(CLUSTER, &hopper)), ("cluster_split_k", Ok(plan)));
        for (m, n, k, cluster) in
            [(128, 512, 784, true), (128, 256, 10, true), (128, 256, 32, false), (512, 512, 512, false)]
        {
            assert_eq!(chosen(&taken(m, n, k), &hopper) == "cluster_split_k", cluster, "{m} x {n} x {k}");
        }
        assert_eq!(chosen(&taken(128, 128, 2048), &hopper), "cublaslt");
        assert_eq!(chosen(&GemmProblem { tf32: true, ..p }, &hopper), "cublaslt");
        let other = GemmProblem { layout: Err("gaps"), ..p };
        assert_eq!(other.plan(CLUSTER, &hopper), Err("gaps".into()));
        assert!(
            p.plan(CLUSTER, &Caps { cluster: 1, ..hopper.clone() }).is_err_and(|e| e.contains("no clusters"))
        );
        let half = GemmProblem { dtype: DType::Bf16, ..p };
        assert!(half.plan(CLUSTER, &hopper).is_err_and(|e| e.contains("not f32")));
    }

    #[test]
    fn parts_serve_large_products_that_ask_for_them() {
        let asked = |n| GemmProblem { parts: Ok(()), vendor: TAKEN, ..problem(n, n, n) };
        assert_eq!(chosen(&asked(1024), &gpu()), "cublaslt_tf32x3");
        assert_eq!(asked(128).plan(PARTS, &gpu()), Ok(GemmPlan::Parts));
        assert_eq!(chosen(&asked(250), &gpu()), "cublaslt");
        assert!(problem(1024, 1024, 1024).plan(PARTS, &gpu()).is_err());
    }

    #[test]
    fn pinned_tiles_refuse_what_they_cannot_do() {
        let gpu = gpu();
        let p = problem(128, 128, 32);
        let double = GemmProblem { dtype: DType::F64, ..p };
        assert!(double.plan(TILE_128, &gpu).is_err_and(|e| e.contains("f64")));
        assert!(p.plan(SKINNY_TILE, &gpu).is_err_and(|e| e.contains("above 16")));
        assert!(p.plan(SPLIT_K, &gpu).is_err_and(|e| e.contains("below 64")));
        let split = GemmPlan::Tiles { tile: Tile::Square64, splits: 2 };
        assert_eq!(problem(128, 128, 64).plan(SPLIT_K, &gpu), Ok(split));
    }

    #[test]
    fn sixteen_bit_products_run_on_matrix_cores() {
        let hopper = Caps {
            matrix_cores: Some(MatrixCores::Ptx),
            tensor_maps: true,
            compute_units: 132,
            shared_bytes: 227 << 10,
            ..gpu()
        };
        let half = |m, n, k| GemmProblem { dtype: DType::Bf16, ..problem(m, n, k) };
        let large = half(4096, 4096, 4096);
        assert_eq!(chosen(&large, &hopper), "warp_specialized");
        let grid = Grid::BlocksOf { blocks: 132, threads: 384, local: 224 << 10 };
        assert_eq!(large.plan(SPECIALIZED_128, &hopper), Ok(GemmPlan::Specialized(Form::Nt, grid)));
        let plain = GemmProblem { plain: Ok(()), ..large };
        let wide = Grid::BlocksOf { blocks: 132, threads: 384, local: 216_064 };
        assert_eq!(
            (chosen(&plain, &hopper), plain.plan(SPECIALIZED_256, &hopper)),
            ("warp_specialized_256", Ok(GemmPlan::Wide(Form::Nt, wide)))
        );
        assert_eq!(large.plan(SPECIALIZED_256, &hopper), Err("f32".into()));
        // 66 clusters take 32 rows of tiles in a turn by pairs of 256 rows and columns, as two turns by 128 x 256; 66 rows with 640 columns in two, as three.
        assert!(wide_is_faster([32, 1024, 1], &hopper) && !wide_is_faster([66, 640, 1], &hopper));
        // 3 x 2 tiles are three pairs, and too few for the device.
        let few = Grid::BlocksOf { blocks: 6, threads: 384, local: 224 << 10 };
        assert_eq!(
            half(300, 200, 64).plan(SPECIALIZED_128, &hopper),
            Ok(GemmPlan::Specialized(Form::Nt, few))
        );
        assert_eq!(chosen(&half(300, 200, 64), &hopper), "matrix_cores");
        let tile = |columns, local| Tile::Matrix { form: Form::Nt, columns, local };
        let split = GemmPlan::Tiles { tile: tile(128, 96 << 10), splits: 33 };
        assert_eq!(half(256, 512, 1 << 16).plan(MATRIX, &hopper), Ok(split));
        assert_eq!(chosen(&GemmProblem { rows: false, ..large }, &hopper), "matrix_cores");
        assert_eq!(chosen(&large, &Caps { tensor_maps: false, ..hopper.clone() }), "matrix_cores");
        let short = Caps { shared_bytes: 48 << 10, ..hopper.clone() };
        let narrow = GemmPlan::Tiles { tile: tile(64, 48 << 10), splits: 1 };
        assert_eq!((chosen(&large, &short), large.plan(MATRIX, &short)), ("matrix_cores", Ok(narrow)));
        assert_eq!(chosen(&large, &Caps { shared_bytes: 32 << 10, ..hopper.clone() }), PORTABLE);
        assert_eq!(chosen(&large, &gpu()), PORTABLE);
        // AMD's devices: two stages in 64 KiB.
        let amd = GemmPlan::Tiles { tile: tile(128, 64 << 10), splits: 1 };
        for cores in [MatrixCores::Mfma, MatrixCores::Wmma] {
            let caps = Caps { matrix_cores: Some(cores), shared_bytes: 64 << 10, ..gpu() };
            assert_eq!((chosen(&large, &caps), large.plan(MATRIX, &caps)), ("matrix_cores", Ok(amd)));
        }
        assert_eq!(chosen(&half(16, 4096, 4096), &hopper), PORTABLE);
        assert_eq!(chosen(&GemmProblem { layout: Err("gaps"), ..large }, &hopper), PORTABLE);
    }
}
