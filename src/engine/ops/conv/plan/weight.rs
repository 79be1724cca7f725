//! How weight gradients run.

use super::matrix::{Fold, ITEM, MatrixTile, SHARE_BESIDE_VENDOR, STAGE, Work};
use super::{
    AUTO, BF16X6, COLUMNS, COUNT, CUDNN, Depthwise, FASTER_ON_MATRIX_CORES, FEW, FEW_CHANNELS, Library,
    MATRIX, MIOPEN, NEAR, PARTS, POINTWISE, SPLIT_K, TILE_16X256, TILE_32X256, TILE_64, TILE_64X256,
    TILE_128, VARIANTS, pointwise, reach, units,
};
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::ops::conv::ConvShape;
use crate::spec::BLOCK;
use std::cmp::Reverse;

/// A weight gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WeightProblem<'a> {
    pub(crate) s: ConvShape,
    pub(crate) dtype: DType,
    /// Whether all operands are channels last; else all are contiguous.
    pub(crate) last: bool,
    /// Whether the caller lets operands in f32 be rounded to TF32.
    pub(crate) tf32: bool,
    /// What the vendor's library says to it.
    pub(crate) vendor: Library<'a>,
}

/// How a weight gradient runs; sums are split into runs of `per` terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightPlan {
    /// By the vendor's library.
    Vendor,
    /// On matrix cores, in tiles of that kind and `splits` runs of `per` terms.
    Matrix { tile: MatrixTile, splits: usize, per: usize },
    /// A matrix product over the elements of all images, channels last.
    Pointwise,
    /// Tiles of that side.
    Tiles { side: usize, splits: usize, per: usize },
    /// A block per channel and run of items.
    Depthwise { items: Depthwise, splits: usize, per: usize },
    /// A block per pair of channels, chunk of taps and run.
    Direct { splits: usize, per: usize },
}

impl WeightProblem<'_> {
    /// Terms of a sum.
    fn terms(&self) -> usize {
        self.s.n * self.s.out_plane()
    }

    /// Elements of the gradient.
    pub(in crate::engine::ops::conv) fn size(&self) -> usize {
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

    /// Rows and columns of the gradient as a matrix; parts may be folded.
    fn matrix_size(&self, tile: MatrixTile) -> [usize; 2] {
        let folded = Fold::of(&self.s).filter(|_| tile == MatrixTile::Bf16x6);
        let s = folded.map_or(self.s, |fold| fold.s);
        [s.co, s.taps() * s.ci.next_multiple_of(ITEM)]
    }

    /// Two blocks of 16-bit operands are resident per unit.
    fn matrix(&self, caps: &Caps) -> WeightPlan {
        let tile = MatrixTile::Square128;
        let want = [units(caps) * 2, tile.blocks(self.matrix_size(tile))];
        let [splits, per] = self.runs(self.terms(), want, 4 * STAGE, STAGE);
        WeightPlan::Matrix { tile, splits, per }
    }

    /// Of parts one is: of the most runs in one to four turns of all units the fewest that keep them busy, to a twentieth.
    fn matrix_parts(&self, caps: &Caps) -> [usize; 2] {
        let tile = MatrixTile::Bf16x6;
        let (units, blocks) = (units(caps), tile.blocks(self.matrix_size(tile)).max(1));
        let most = (self.terms() / (4 * STAGE)).min(PARTS / self.size().max(1)).max(1);
        let turns = (1..=4).map(|turns| (turns * units / blocks).clamp(1, most));
        let busy = |splits: usize| {
            let blocks = blocks.saturating_mul(splits);
            20 * blocks / blocks.next_multiple_of(units)
        };
        let splits = turns.min_by_key(|&splits| (Reverse(busy(splits)), splits)).unwrap_or(1);
        self.cut(self.terms(), splits, STAGE)
    }

    /// The share of six products in bf16 that counts.
    fn share(&self, caps: &Caps) -> f64 {
        let tile = MatrixTile::Bf16x6;
        let ([rows, columns], [copies, terms]) = (self.matrix_size(tile), self.matrix_parts(caps));
        let products = [self.size(), self.terms()].iter().map(|&n| n as f64).product();
        tile.share(&Work { rows, columns, copies, terms, products }, caps)
    }

    fn direct(&self, caps: &Caps) -> WeightPlan {
        let s = &self.s;
        if let Some(items) = Depthwise::of(s).filter(|_| s.cig() == 1) {
            let n = s.n * items.quads * items.strips;
            let block = BLOCK as usize;
            // Items of strides of two are large: with half the blocks each thread has several before its block adds up sums.
            let blocks = units(caps) * if items.stride == 2 { 4 } else { 8 };
            let [splits, per] = self.runs(n, [blocks, s.co], block, block);
            return WeightPlan::Depthwise { items, splits, per };
        }
        let blocks = self.size() / s.taps().max(1) * s.taps().div_ceil(9);
        let [splits, per] = self.runs(self.terms(), [units(caps) * 16, blocks], 1024, 256);
        WeightPlan::Direct { splits, per }
    }

    /// Why the kernels of this library come before the vendor's.
    pub(in crate::engine::ops::conv) fn own(&self, caps: &Caps) -> Option<&'static str> {
        let parts = || MatrixTile::Bf16x6.fits(&self.s, self.dtype, caps).is_ok();
        match () {
            () if self.few_channels() => Some(FEW_CHANNELS),
            () if self.product() => Some(POINTWISE),
            () if !self.tf32 && parts() && (self.share(caps) >= SHARE_BESIDE_VENDOR || self.short(caps)) => {
                Some(FASTER_ON_MATRIX_CORES)
            }
            () => None,
        }
    }

    /// Whether all runs of six products in bf16 are short and run at once: a vendor's library adds such sums up without runs. On an H200 the gradient
    /// of one tap over 128 x 64 channels and 4,096 places took it 140 microseconds.
    fn short(&self, caps: &Caps) -> bool {
        let (tile, [splits, per]) = (MatrixTile::Bf16x6, self.matrix_parts(caps));
        let blocks = tile.blocks(self.matrix_size(tile)).saturating_mul(splits);
        splits >= 4 && per <= 8 * STAGE && blocks <= units(caps)
    }

    fn few_channels(&self) -> bool {
        self.s.groups > 1 && self.s.cog() <= 4 && self.s.cig() <= 4
    }

    /// Whether it is one matrix product.
    fn product(&self) -> bool {
        (self.last || self.s.in_plane() == 1) && pointwise(&self.s)
    }

    /// What the portable variant does.
    pub(in crate::engine::ops::conv) fn best(&self, caps: &Caps) -> WeightPlan {
        if self.product() { WeightPlan::Pointwise } else { self.convolution(caps) }
    }

    /// The same by kernels for convolutions.
    pub(in crate::engine::ops::conv) fn convolution(&self, caps: &Caps) -> WeightPlan {
        let s = &self.s;
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
            CUDNN | MIOPEN => self.vendor.takes(variant).map(|()| WeightPlan::Vendor),
            BF16X6 => MatrixTile::Bf16x6.fits(&self.s, self.dtype, caps).map(|()| {
                let [splits, per] = self.matrix_parts(caps);
                WeightPlan::Matrix { tile: MatrixTile::Bf16x6, splits, per }
            }),
            FEW => Err("it is no adjoint".into()),
            COLUMNS => Err("sums over all images have no columns".into()),
            MATRIX => MatrixTile::Square128.fits(&self.s, self.dtype, caps).map(|()| self.matrix(caps)),
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
        match variant {
            BF16X6 if self.product() => false,
            BF16X6 => self.vendor.loses(self.tf32, self.share(caps)) || !self.tf32 && self.short(caps),
            MATRIX => caps.matrix_cores.is_some() && !self.product() && s.co >= 16 && s.ci * s.taps() >= 64,
            _ => true,
        }
    }
}
