//! How convolutions, their adjoints and their weight gradients run.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::ops::conv::ConvShape;
use crate::spec::BLOCK;

/// Extents and displacements below which the kernels' 32-bit positions hold (`GK_FAR` with room for sums).
pub(crate) const NEAR: usize = 1 << 27;
/// Counts that 32-bit indices hold.
pub(crate) const COUNT: usize = 1 << 30;
/// Phases of an adjoint beyond which their blocks are too small to be worth a tile.
const PHASES: usize = 4096;
/// Elements of partial sums beyond which a sum is not split further.
const PARTS: usize = 1 << 27;
/// Rows of an item of the depthwise kernels (`GK_STRIP`).
const STRIP: usize = 2;

const SOURCE: &str = "kernels/common/conv/conv.c, weight.c";

/// The variants of all products of the family. The portable one takes the best of those after it, and a matrix product where the convolution is one.
const VARIANTS: &[Variant] = &[
    Variant { name: "cudnn", source: "vendor library" },
    Variant { name: "matrix_cores", source: "kernels/common/conv/matrix.c" },
    Variant { name: PORTABLE, source: "kernels/common/conv/conv.c, weight.c, direct.c" },
    Variant { name: "tile_128", source: SOURCE },
    Variant { name: "tile_64", source: SOURCE },
    Variant { name: "tile_64x256", source: SOURCE },
    Variant { name: "tile_32x256", source: SOURCE },
    Variant { name: "tile_16x256", source: SOURCE },
    Variant { name: "split_k", source: SOURCE },
    Variant { name: "direct", source: "kernels/common/conv/direct.c" },
];

/// A number of the variants.
pub(super) const VENDOR: usize = 0;
const MATRIX: usize = 1;
const AUTO: usize = 2;
const TILE_128: usize = 3;
const TILE_64: usize = 4;
const TILE_64X256: usize = 5;
const TILE_32X256: usize = 6;
const TILE_16X256: usize = 7;
const SPLIT_K: usize = 8;

/// Side of the square tile of the kernels for matrix cores; elements of 16 bits in 16 bytes; terms of a stage.
pub(super) const MATRIX_SIDE: usize = 128;
pub(super) const ITEM: usize = 8;
const STAGE: usize = 64;
/// Elements that 32-bit positions of those kernels reach.
const MATRIX_REACH: usize = 1 << 31;

/// Bytes of local memory of a tile of `rows`: as many stages as `conv/matrix.c` has.
pub(super) fn matrix_local(rows: usize, caps: &Caps) -> usize {
    let stages = if caps.matrix_cores { 3 } else { 2 };
    stages * (rows + MATRIX_SIDE * MATRIX_SIDE / rows) * STAGE * 2
}

/// Whether the kernels for matrix cores take a convolution at all.
fn matrix_fits(s: &ConvShape, dtype: DType, caps: &Caps) -> Result<(), Reason> {
    if !matches!(dtype, DType::F16 | DType::Bf16) {
        return Err(format!("{dtype} is not f16 or bf16").into());
    }
    if s.groups > 1 {
        return Err("it has groups".into());
    }
    let local = matrix_local(64, caps).max(matrix_local(MATRIX_SIDE, caps));
    if local > caps.shared_bytes as usize {
        return Err(format!("it needs {local} bytes of local memory, of {}", caps.shared_bytes).into());
    }
    let product = |v: &[usize]| v.iter().fold(1, |a: usize, &b| a.saturating_mul(b));
    let (ci, co) = (s.ci.next_multiple_of(ITEM), s.co.next_multiple_of(ITEM));
    let reads = product(&[s.n, ci, s.in_plane()]).max(product(&[s.n, co, s.out_plane()]));
    let far = (0..3).any(|a| reach(s, a) >= NEAR || s.stride[a] >= NEAR);
    if far || reads.max(product(&[ci, co, s.taps()])) >= MATRIX_REACH {
        return Err("its extents need 64-bit positions".into());
    }
    if s.ci == 0 || s.co == 0 || s.n * s.in_plane() * s.out_plane() == 0 {
        return Err("an extent is 0".into());
    }
    Ok(())
}

/// Why the vendor's library is not asked.
const FEW_CHANNELS: &str = "the kernels of this library are faster for a few channels per group";
const POINTWISE: &str = "a convolution of one tap is a matrix product";

/// A convolution, or its adjoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConvProblem<'a> {
    pub(crate) s: ConvShape,
    /// The adjoint: x has the convolution's output shape, y its input shape.
    pub(crate) back: bool,
    pub(crate) dtype: DType,
    /// Whether all operands are channels last; else all are contiguous.
    pub(crate) last: bool,
    /// Whether the vendor's library takes it, or why not.
    pub(crate) vendor: Result<(), &'a str>,
}

/// A weight gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WeightProblem<'a> {
    pub(crate) s: ConvShape,
    pub(crate) dtype: DType,
    /// Whether all operands are channels last; else all are contiguous.
    pub(crate) last: bool,
    /// Whether the vendor's library takes it, or why not.
    pub(crate) vendor: Result<(), &'a str>,
}

/// The tile kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tile {
    Square128,
    Wide64,
    Wide32,
    Wide16,
    Square64,
}

/// How a convolution runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConvPlan {
    /// By the vendor's library.
    Vendor,
    /// On matrix cores, in tiles of that many rows.
    Matrix(usize),
    /// A matrix product with every image, or with the elements of all images where channels are last.
    Pointwise,
    /// Tiles of the product of weights and columns, and parts of k.
    Tiles { tile: Tile, parts: usize },
    /// Outputs in blocks of rows of four, each of one channel.
    Depthwise(Depthwise),
    /// Strips of outputs along the height, which share rows.
    Strips,
    /// An output per thread.
    Direct,
}

/// How a weight gradient runs; sums are split into runs of `per` terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightPlan {
    /// By the vendor's library.
    Vendor,
    /// On matrix cores, in `splits` runs of `per` terms.
    Matrix { splits: usize, per: usize },
    /// A matrix product over the elements of all images, channels last.
    Pointwise,
    /// Tiles of that side.
    Tiles { side: usize, splits: usize, per: usize },
    /// A block per channel and run of items.
    Depthwise { items: Depthwise, splits: usize, per: usize },
    /// A block per pair of channels, chunk of taps and run.
    Direct { splits: usize, per: usize },
}

/// Items of a depthwise convolution with 3 x 3 taps that keeps the map's size, as `depthwise.c` takes it: of a row, and of a map along its height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depthwise {
    pub(crate) quads: usize,
    pub(crate) strips: usize,
}

impl Depthwise {
    /// `Some` where the kernels for it apply, given that each output channel reads one channel.
    fn of(s: &ConvShape) -> Option<Depthwise> {
        let same = s.kernel == [1, 3, 3] && s.pad == [0, 1, 1] && s.input == s.output && s.input[0] == 1;
        let unit = s.stride == [1; 3] && s.dilation[1..] == [1, 1];
        let [_, height, width] = s.input;
        let (quads, strips) = (width.div_ceil(4), height.div_ceil(STRIP));
        let items = [s.n, s.ci.max(s.co), quads, strips].iter().fold(1, |a: usize, &b| a.saturating_mul(b));
        (same && unit && items <= i32::MAX as usize).then_some(Depthwise { quads, strips })
    }
}

impl Tile {
    /// Rows and columns.
    pub(super) fn size(self) -> (usize, usize) {
        match self {
            Tile::Square128 => (128, 128),
            Tile::Wide64 => (64, 256),
            Tile::Wide32 => (32, 256),
            Tile::Wide16 => (16, 256),
            Tile::Square64 => (64, 64),
        }
    }

    /// Row tiles, column tiles, and blocks in all for one part of k.
    pub(super) fn blocks(self, p: &ConvProblem<'_>) -> (usize, usize, usize) {
        let (bm, bn) = self.size();
        let (mt, ct) = (p.channels().0.div_ceil(bm), p.columns().div_ceil(bn));
        (mt, ct, mt.saturating_mul(ct).saturating_mul(p.s.groups).saturating_mul(p.phases().iter().product()))
    }
}

/// Extent of a window along an axis, padding included.
fn reach(s: &ConvShape, axis: usize) -> usize {
    s.kernel[axis].saturating_mul(s.dilation[axis]).saturating_add(s.pad[axis])
}

/// Whether a convolution is a matrix product with every image: one tap, stride 1, no padding.
fn pointwise(s: &ConvShape) -> bool {
    s.groups == 1 && s.taps() == 1 && s.stride == [1; 3] && s.pad == [0; 3] && s.input == s.output
}

fn units(caps: &Caps) -> usize {
    (caps.compute_units as usize).max(1)
}

impl ConvProblem<'_> {
    /// Output channels per group, and channels that are summed over.
    pub(super) fn channels(&self) -> (usize, usize) {
        if self.back { (self.s.cig(), self.s.cog()) } else { (self.s.cog(), self.s.cig()) }
    }

    /// The map that is read, and the one that is written.
    pub(super) fn maps(&self) -> ([usize; 3], [usize; 3]) {
        if self.back { (self.s.output, self.s.input) } else { (self.s.input, self.s.output) }
    }

    pub(super) fn phases(&self) -> [usize; 3] {
        if self.back { self.s.stride } else { [1; 3] }
    }

    /// Output positions of the largest phase in all images.
    pub(super) fn columns(&self) -> usize {
        let (steps, (_, to)) = (self.phases(), self.maps());
        self.s.n * to.iter().zip(steps).map(|(n, s)| n.div_ceil(s)).product::<usize>()
    }

    /// Whether blocks of every phase are few enough.
    fn few_phases(&self) -> Result<(), Reason> {
        match self.phases().iter().fold(1, |a: usize, &b| a.saturating_mul(b)) > PHASES {
            true => Err("its stride has too many phases".into()),
            false => Ok(()),
        }
    }

    /// Whether 32-bit positions and the plan of a tile can describe it.
    fn fits(&self) -> Result<(), Reason> {
        let (s, (m, r), (from, to)) = (&self.s, self.channels(), self.maps());
        let far = |a: usize| from[a] >= NEAR || to[a] >= NEAR || reach(s, a) >= NEAR || s.stride[a] >= NEAR;
        let product = |v: &[usize]| v.iter().fold(1, |a: usize, &b| a.saturating_mul(b));
        if (0..3).any(far) || product(&[s.groups, m.next_multiple_of(128), r, s.taps()]) >= COUNT {
            return Err("its extents need 64-bit positions".into());
        }
        self.few_phases()?;
        let plane = |v: [usize; 3]| v.iter().product::<usize>();
        if r * plane(from) >= COUNT || s.n.saturating_mul(plane(to)) >= COUNT {
            return Err("its maps need 64-bit positions".into());
        }
        Ok(())
    }

    /// Whether the convolution is a matrix product that is worth one.
    fn product(&self) -> bool {
        pointwise(&self.s) && (self.last || self.s.in_plane() >= 32)
    }

    /// Whether strips of outputs along the height can share rows.
    fn strips(&self) -> bool {
        let s = &self.s;
        let flat = s.kernel[0] == 1 && s.input[0] == 1 && s.output[0] == 1 && s.pad[0] == 0;
        self.channels().1 == 1 && flat && s.stride[1] == 1 && s.dilation[1] == 1 && s.kernel[1] > 1
    }

    fn direct(&self) -> ConvPlan {
        match Depthwise::of(&self.s).filter(|_| self.channels().1 == 1) {
            Some(items) => ConvPlan::Depthwise(items),
            None if self.strips() => ConvPlan::Strips,
            None => ConvPlan::Direct,
        }
    }

    /// Tile and parts of k that fill the device best. A function of the problem and the device alone, so results repeat.
    fn tiling(&self, caps: &Caps) -> (Tile, usize) {
        let ((m, r), units) = (self.channels(), units(caps));
        if self.dtype == DType::F64 || caps.is_cpu {
            return (Tile::Square64, 1);
        }
        let large =
            if m.next_multiple_of(64) < m.next_multiple_of(128) { Tile::Wide64 } else { Tile::Square128 };
        let tile = match m {
            0..=16 => Tile::Wide16,
            17..=32 => Tile::Wide32,
            _ if large.blocks(self).2 >= units => large,
            _ => Tile::Square64,
        };
        let (blocks, phases) = (tile.blocks(self).2.max(1), self.phases().iter().product::<usize>().max(1));
        let k = r * self.s.taps() / phases;
        if blocks * 2 > units * 2 || k < 256 {
            return (tile, 1);
        }
        (tile, (units * 2).div_ceil(blocks).min(k / 128).clamp(1, 32))
    }

    /// Tiles of few rows and many places where there are few rows.
    fn matrix(&self) -> ConvPlan {
        ConvPlan::Matrix(if self.channels().0 <= 64 { 64 } else { MATRIX_SIDE })
    }

    /// Why the kernels of this library come before the vendor's.
    pub(super) fn own(&self) -> Option<&'static str> {
        let (m, r) = self.channels();
        match () {
            () if self.s.groups > 1 && m <= 4 && r <= 4 => Some(FEW_CHANNELS),
            () if self.product() => Some(POINTWISE),
            () => None,
        }
    }

    /// What the portable variant does.
    pub(super) fn best(&self, caps: &Caps) -> ConvPlan {
        let (m, r) = self.channels();
        if self.product() && r > 0 {
            return ConvPlan::Pointwise;
        }
        if r == 0 || self.fits().is_err() || (self.s.groups > 1 && m <= 4 && r <= 4) {
            return self.direct();
        }
        let (tile, parts) = self.tiling(caps);
        ConvPlan::Tiles { tile, parts }
    }
}

impl Problem for ConvProblem<'_> {
    type Plan = ConvPlan;

    const VARIANTS: &'static [Variant] = VARIANTS;

    fn plan(&self, variant: usize, caps: &Caps) -> Result<ConvPlan, Reason> {
        let r = self.channels().1;
        let tiles = |tile, parts| {
            self.fits()?;
            Ok(if r == 0 { self.direct() } else { ConvPlan::Tiles { tile, parts } })
        };
        let large = |tile| match self.dtype {
            DType::F64 => Err("f64 has no tile of this size".into()),
            _ => tiles(tile, 1),
        };
        match variant {
            VENDOR => self.vendor.map(|()| ConvPlan::Vendor).map_err(|why| why.to_string().into()),
            MATRIX => {
                self.few_phases()?;
                matrix_fits(&self.s, self.dtype, caps).map(|()| self.matrix())
            }
            AUTO => Ok(self.best(caps)),
            TILE_128 => large(Tile::Square128),
            TILE_64 => tiles(Tile::Square64, 1),
            TILE_64X256 => large(Tile::Wide64),
            TILE_32X256 => large(Tile::Wide32),
            TILE_16X256 => large(Tile::Wide16),
            SPLIT_K if r * self.s.taps() < 32 => Err("the sums are short".into()),
            SPLIT_K => tiles(Tile::Square64, self.tiling(caps).1.max(2)),
            _ => Ok(self.direct()),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        let ((m, r), taps) = (self.channels(), self.s.taps());
        // One tap is a product with every image; few rows, or terms, leave most of a tile empty. Strided adjoints of long sums run there all the same:
        // the gradient of images of a 7 x 7 window with strides of 2 took 1.8 ms on an H100, some nine on portable kernels.
        let strided = self.back && self.s.stride != [1; 3];
        let full = m >= 16 && r * taps >= 64 || strided && r * taps >= 1024;
        variant != MATRIX || (caps.matrix_cores && !pointwise(&self.s) && full)
    }
}

impl WeightProblem<'_> {
    /// Terms of a sum.
    fn terms(&self) -> usize {
        self.s.n * self.s.out_plane()
    }

    /// Elements of the gradient.
    fn size(&self) -> usize {
        self.s.co * self.s.cig() * self.s.taps()
    }

    /// Whether 32-bit positions can describe the gradient.
    fn fits(&self) -> Result<(), Reason> {
        let s = &self.s;
        let far = |a: usize| s.input[a].max(s.output[a]).max(s.stride[a]).max(reach(s, a)) >= NEAR;
        let large = s.cig() * s.in_plane() >= COUNT || s.n.saturating_mul(s.out_plane()) >= COUNT;
        if (0..3).any(far) || large || s.cig() * s.taps() >= COUNT {
            return Err("its extents need 64-bit positions".into());
        }
        Ok(())
    }

    /// Runs, and the terms of each, for `want` blocks of which one run of all sums takes `blocks`; a run has `shortest` terms at least and a multiple
    /// of `unit`.
    fn runs(&self, terms: usize, [want, blocks]: [usize; 2], shortest: usize, unit: usize) -> [usize; 2] {
        let splits = (want / blocks.max(1)).min(terms / shortest).min(PARTS / self.size().max(1));
        self.cut(terms, splits.max(1), unit)
    }

    fn cut(&self, terms: usize, splits: usize, unit: usize) -> [usize; 2] {
        let per = terms.max(1).div_ceil(splits).next_multiple_of(unit);
        [terms.div_ceil(per), per]
    }

    /// Tiles of 128 with `large`, else of 64; `least` splits at least.
    fn tiles(&self, large: bool, least: usize, caps: &Caps) -> WeightPlan {
        let (s, side) = (&self.s, if large { 128 } else { 64 });
        let blocks = s.cog().div_ceil(side) * (s.cig() * s.taps()).div_ceil(side) * s.groups;
        // Two blocks of the large tile are resident per unit, four of the small one.
        let want = units(caps) * if large { 2 } else { 4 };
        let most = (self.terms() / 64).min(PARTS / self.size().max(1));
        let splits = (want / blocks.max(1)).min(most).max(least);
        let [splits, per] = self.cut(self.terms(), splits, 8);
        WeightPlan::Tiles { side, splits, per }
    }

    /// Blocks for two rounds on the device.
    fn matrix(&self, caps: &Caps) -> WeightPlan {
        let s = &self.s;
        let columns = s.taps() * s.ci.next_multiple_of(ITEM);
        let blocks = s.co.div_ceil(MATRIX_SIDE) * columns.div_ceil(MATRIX_SIDE);
        let [splits, per] = self.runs(self.terms(), [units(caps) * 2, blocks], 4 * STAGE, STAGE);
        WeightPlan::Matrix { splits, per }
    }

    fn direct(&self, caps: &Caps) -> WeightPlan {
        let s = &self.s;
        if let Some(items) = Depthwise::of(s).filter(|_| s.cig() == 1) {
            let n = s.n * items.quads * items.strips;
            let block = BLOCK as usize;
            let [splits, per] = self.runs(n, [units(caps) * 8, s.co], block, block);
            return WeightPlan::Depthwise { items, splits, per };
        }
        let blocks = self.size() / s.taps().max(1) * s.taps().div_ceil(9);
        let [splits, per] = self.runs(self.terms(), [units(caps) * 16, blocks], 1024, 256);
        WeightPlan::Direct { splits, per }
    }

    /// Why the kernels of this library come before the vendor's.
    pub(super) fn own(&self) -> Option<&'static str> {
        match () {
            () if self.few_channels() => Some(FEW_CHANNELS),
            () if self.product() => Some(POINTWISE),
            () => None,
        }
    }

    fn few_channels(&self) -> bool {
        self.s.groups > 1 && self.s.cog() <= 4 && self.s.cig() <= 4
    }

    /// Whether it is one matrix product.
    fn product(&self) -> bool {
        self.last && pointwise(&self.s)
    }

    /// What the portable variant does.
    pub(super) fn best(&self, caps: &Caps) -> WeightPlan {
        let s = &self.s;
        if self.product() {
            return WeightPlan::Pointwise;
        }
        if self.few_channels() || self.fits().is_err() {
            return self.direct(caps);
        }
        let large = self.dtype != DType::F64 && !caps.is_cpu && s.cog() > 64 && s.cig() * s.taps() > 64;
        self.tiles(large, 1, caps)
    }
}

impl Problem for WeightProblem<'_> {
    type Plan = WeightPlan;

    const VARIANTS: &'static [Variant] = VARIANTS;

    fn plan(&self, variant: usize, caps: &Caps) -> Result<WeightPlan, Reason> {
        let large = || match self.dtype {
            DType::F64 => Err("f64 has no tile of this size".into()),
            _ => self.fits(),
        };
        match variant {
            VENDOR => self.vendor.map(|()| WeightPlan::Vendor).map_err(|why| why.to_string().into()),
            MATRIX => matrix_fits(&self.s, self.dtype, caps).map(|()| self.matrix(caps)),
            AUTO => Ok(self.best(caps)),
            TILE_128 => large().map(|()| self.tiles(true, 1, caps)),
            TILE_64 => self.fits().map(|()| self.tiles(false, 1, caps)),
            // Tiles of few rows, which weight gradients do not have.
            TILE_64X256 | TILE_32X256 | TILE_16X256 => large().map(|()| self.best(caps)),
            SPLIT_K if self.terms() < 32 => Err("the sums are short".into()),
            SPLIT_K => self.fits().map(|()| self.tiles(false, 2, caps)),
            _ => Ok(self.direct(caps)),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        let s = &self.s;
        variant != MATRIX || (caps.matrix_cores && !self.product() && s.co >= 16 && s.ci * s.taps() >= 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{cpu, gpu};

    /// 3 x 3 taps over images of that side, the size kept.
    fn shape(n: usize, [ci, co, groups]: [usize; 3], side: usize) -> ConvShape {
        ConvShape {
            n,
            groups,
            ci,
            co,
            input: [1, side, side],
            output: [1, side, side],
            kernel: [1, 3, 3],
            stride: [1; 3],
            pad: [0, 1, 1],
            dilation: [1; 3],
        }
    }

    const NONE: Result<(), &str> = Err("no vendor library was found");

    fn conv(s: ConvShape) -> ConvProblem<'static> {
        ConvProblem { s, back: false, dtype: DType::F32, last: false, vendor: NONE }
    }

    #[test]
    fn tiles_fill_the_device() {
        let (gpu, cpu) = (gpu(), cpu());
        let tiles = |tile, parts| Ok(ConvPlan::Tiles { tile, parts });
        let p = conv(shape(32, [128, 128, 1], 56));
        assert_eq!(p.plan(AUTO, &gpu), tiles(Tile::Square128, 1));
        assert_eq!(p.plan(AUTO, &cpu), tiles(Tile::Square64, 1));
        assert_eq!(conv(shape(32, [64, 64, 1], 56)).plan(AUTO, &gpu), tiles(Tile::Wide64, 1));
        assert_eq!(conv(shape(32, [64, 16, 1], 56)).plan(AUTO, &gpu), tiles(Tile::Wide16, 1));
        // Few blocks and long sums: k is split.
        assert_eq!(conv(shape(1, [512, 512, 1], 7)).plan(AUTO, &gpu), tiles(Tile::Square64, 32));
        let double = ConvProblem { dtype: DType::F64, ..p };
        assert_eq!(double.plan(AUTO, &gpu), tiles(Tile::Square64, 1));
        assert!(double.plan(TILE_128, &gpu).is_err_and(|e| e.contains("f64")));
    }

    #[test]
    fn strided_adjoints_run_on_matrix_cores_unless_their_phases_are_many() {
        let hopper = Caps { matrix_cores: true, shared_bytes: 227 << 10, ..gpu() };
        let half = |s| ConvProblem { dtype: DType::Bf16, back: true, ..conv(s) };
        // Images of three channels: few rows, but long sums.
        let images = ConvShape {
            kernel: [1, 7, 7],
            stride: [1, 2, 2],
            output: [1, 28, 28],
            ..shape(8, [3, 64, 1], 56)
        };
        assert!(half(images).prefers(MATRIX, &hopper));
        assert!(!half(ConvShape { stride: [1; 3], ..images }).prefers(MATRIX, &hopper));
        assert!(half(images).plan(MATRIX, &hopper).is_ok());
        let far = ConvShape { stride: [1, 65, 65], output: [1, 1, 1], ..images };
        assert!(half(far).plan(MATRIX, &hopper).is_err_and(|e| e.contains("phases")));
    }

    #[test]
    fn special_shapes_have_kernels_of_their_own() {
        let gpu = gpu();
        let s = shape(8, [64, 64, 64], 56);
        assert_eq!(conv(s).plan(AUTO, &gpu), Ok(ConvPlan::Depthwise(Depthwise { quads: 14, strips: 28 })));
        let wide = ConvShape { kernel: [1, 5, 5], pad: [0, 2, 2], ..s };
        assert_eq!(conv(wide).plan(AUTO, &gpu), Ok(ConvPlan::Strips));
        let stepped = ConvShape { stride: [1, 2, 2], output: [1, 28, 28], ..s };
        assert_eq!(conv(stepped).plan(AUTO, &gpu), Ok(ConvPlan::Direct));
        let one = ConvShape { kernel: [1; 3], pad: [0; 3], ..shape(8, [64, 64, 1], 56) };
        assert_eq!(conv(one).plan(AUTO, &gpu), Ok(ConvPlan::Pointwise));
        let none = shape(8, [0, 64, 1], 56);
        assert_eq!(conv(none).plan(TILE_64, &gpu), Ok(ConvPlan::Direct));
    }

    #[test]
    fn the_vendor_library_comes_first_but_for_few_channels_and_single_taps() {
        let gpu = gpu();
        let p = conv(shape(32, [64, 64, 1], 56));
        assert!(p.plan(VENDOR, &gpu).is_err_and(|why| why.contains("no vendor library")));
        assert_eq!(ConvProblem { vendor: Ok(()), ..p }.plan(VENDOR, &gpu), Ok(ConvPlan::Vendor));
        assert_eq!(p.own(), None);
        let one = ConvShape { kernel: [1; 3], pad: [0; 3], ..shape(8, [64, 64, 1], 56) };
        assert_eq!(conv(one).own(), Some(POINTWISE));
        assert_eq!(conv(shape(8, [64, 64, 64], 56)).own(), Some(FEW_CHANNELS));
        assert_eq!(conv(shape(8, [64, 64, 4], 56)).own(), None);
        let weight = |s| WeightProblem { s, dtype: DType::F32, last: false, vendor: Ok(()) };
        assert_eq!(weight(one).plan(VENDOR, &gpu), Ok(WeightPlan::Vendor));
        assert_eq!(weight(one).own(), None);
        assert_eq!(weight(shape(8, [64, 64, 64], 56)).own(), Some(FEW_CHANNELS));
    }

    #[test]
    fn far_taps_take_the_direct_kernels() {
        let gpu = gpu();
        let far = ConvShape { dilation: [1, 1 << 27, 1], ..shape(1, [8, 8, 1], 16) };
        assert_eq!(conv(far).plan(AUTO, &gpu), Ok(ConvPlan::Direct));
        for v in TILE_128..=SPLIT_K {
            assert!(conv(far).plan(v, &gpu).is_err_and(|e| e.contains("64-bit")));
        }
        let w = WeightProblem { s: far, dtype: DType::F32, last: false, vendor: NONE };
        assert!(matches!(w.plan(AUTO, &gpu), Ok(WeightPlan::Direct { .. })));
        assert!(w.plan(TILE_64, &gpu).is_err());
    }

    #[test]
    fn sums_of_weight_gradients_are_split() {
        let (gpu, cpu) = (gpu(), cpu());
        let p =
            WeightProblem { s: shape(32, [128, 128, 1], 56), dtype: DType::F32, last: false, vendor: NONE };
        // 9 tiles of 128 x 128, 264 resident blocks.
        let per = (32 * 56 * 56usize).div_ceil(29).next_multiple_of(8);
        assert_eq!(p.plan(AUTO, &gpu), Ok(WeightPlan::Tiles { side: 128, splits: 29, per }));
        assert!(matches!(p.plan(AUTO, &cpu), Ok(WeightPlan::Tiles { side: 64, .. })));
        let depthwise = WeightProblem { s: shape(8, [64, 64, 64], 56), ..p };
        assert!(matches!(depthwise.plan(AUTO, &gpu), Ok(WeightPlan::Depthwise { .. })));
        // Nothing to sum, and nothing to write.
        for s in [shape(0, [8, 8, 1], 16), shape(2, [0, 8, 1], 16), shape(2, [8, 0, 1], 16)] {
            let empty = WeightProblem { s, ..p };
            assert!(matches!(empty.plan(AUTO, &gpu), Ok(WeightPlan::Tiles { .. })));
            assert!(empty.plan(VARIANTS.len() - 1, &gpu).is_ok());
        }
    }
}
