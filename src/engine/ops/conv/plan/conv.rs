//! How convolutions and their adjoints run.

use super::few::FewTile;
use super::matrix::{Fold, ITEM, MatrixTile, SHARE_BESIDE_VENDOR, STAGE, Work};
use super::{
    AUTO, BF16X6, COLUMNS, COUNT, CUDNN, Depthwise, FASTER_ON_MATRIX_CORES, FEW, FEW_CHANNELS, FEW_ROWS,
    Library, MATRIX, MIOPEN, NEAR, PARTS, POINTWISE, SPLIT_K, TILE_16X256, TILE_32X256, TILE_64, TILE_64X256,
    TILE_128, Tile, VARIANTS, pointwise, reach, units,
};
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::ops::conv::ConvShape;

/// Phases of an adjoint beyond which their blocks are too small to be worth a tile.
const PHASES: usize = 4096;
/// The least stages of a run of six products in bf16.
const LEAST: usize = 4;

/// A convolution, or its adjoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConvProblem<'a> {
    pub(crate) s: ConvShape,
    /// The adjoint: x has the convolution's output shape, y its input shape.
    pub(crate) back: bool,
    pub(crate) dtype: DType,
    /// Whether all operands are channels last; else all are contiguous.
    pub(crate) last: bool,
    /// Whether the caller lets operands in f32 be rounded to TF32.
    pub(crate) tf32: bool,
    /// What the vendor's library says to it.
    pub(crate) vendor: Library<'a>,
}

/// How a convolution runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConvPlan {
    /// By the vendor's library.
    Vendor,
    /// On matrix cores, in tiles of that kind; sums in so many runs of so many stages, or [1, 0].
    Matrix { tile: MatrixTile, runs: [usize; 2] },
    /// Two by two outputs of few channels per thread and place.
    Few(FewTile),
    /// A matrix product whose result is the columns of windows, which are added up.
    Columns,
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

impl ConvProblem<'_> {
    /// Output channels per group, and channels that are summed over.
    pub(in crate::engine::ops::conv) fn channels(&self) -> (usize, usize) {
        if self.back { (self.s.cig(), self.s.cog()) } else { (self.s.cog(), self.s.cig()) }
    }

    /// The map that is read, and the one that is written.
    pub(in crate::engine::ops::conv) fn maps(&self) -> ([usize; 3], [usize; 3]) {
        if self.back { (self.s.output, self.s.input) } else { (self.s.input, self.s.output) }
    }

    pub(in crate::engine::ops::conv) fn phases(&self) -> [usize; 3] {
        if self.back { self.s.stride } else { [1; 3] }
    }

    /// Output positions of the largest phase in all images.
    pub(in crate::engine::ops::conv) fn columns(&self) -> usize {
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
    pub(super) fn fits(&self) -> Result<(), Reason> {
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
        // Images of one place are the rows of a matrix.
        pointwise(&self.s) && (self.last || self.s.in_plane() >= 32 || self.s.in_plane() == 1)
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
    fn matrix(&self, caps: &Caps) -> ConvPlan {
        let narrow = self.channels().0 <= 64 && MatrixTile::Wide64.local(caps) <= caps.shared_bytes as usize;
        ConvPlan::Matrix {
            tile: if narrow { MatrixTile::Wide64 } else { MatrixTile::Square128 },
            runs: [1, 0],
        }
    }

    /// Whether the kernels for matrix cores that have tiles of that kind take it.
    fn fits_matrix(&self, tile: MatrixTile, caps: &Caps) -> Result<(), Reason> {
        self.few_phases()?;
        tile.fits(&self.s, self.dtype, caps)
    }

    /// Whether it can be a matrix product whose result is columns of windows.
    fn columns_fit(&self) -> Result<(), Reason> {
        let (s, (m, r)) = (&self.s, self.channels());
        let image = [m, s.taps(), s.out_plane()].iter().fold(1, |a: usize, &b| a.saturating_mul(b));
        if !matches!(self.dtype, DType::F32 | DType::F64) {
            return Err(format!("columns in {} would be rounded before they are added up", self.dtype).into());
        }
        match () {
            () if !self.back => Err("it is no adjoint".into()),
            () if s.groups > 1 => Err("it has groups".into()),
            () if image >= COUNT => Err("columns of an image are too many".into()),
            () if image == 0 || s.n == 0 || r == 0 => Err("an extent is 0".into()),
            () => self.fits(),
        }
    }

    /// Whether columns are faster: an adjoint with strides and few channels leaves most of the rows of tiles empty. With columns the backward pass of images
    /// of three channels, with a 7 x 7 window and strides of two, took 2.1 ms on an H200, with cuDNN's kernels that repeat bit by bit 2.8.
    fn few_rows(&self, caps: &Caps) -> bool {
        let (m, r) = self.channels();
        self.s.stride != [1; 3] && m <= 8 && r >= 16 && !caps.is_cpu && self.columns_fit().is_ok()
    }

    /// Whether sums by place are faster: beside columns, a vendor's library and tiles of which most rows are empty.
    fn prefers_few(&self, caps: &Caps) -> bool {
        self.channels().1 >= 16 && !self.last && !caps.is_cpu && self.few().is_ok()
    }

    /// Terms of a sum as six products in bf16 have them, padding included: of an adjoint with strides those of a phase, on average.
    fn parts_terms(&self) -> usize {
        let (r, copies) = (self.channels().1, self.phases().iter().product::<usize>());
        let folded = Fold::of(&self.s).filter(|_| !self.back).map_or(self.s, |fold| fold.s);
        let channels = if self.back { r } else { folded.ci }.next_multiple_of(ITEM);
        (channels * folded.taps()).div_ceil(copies.max(1))
    }

    /// Those of the phase that has the most, or more.
    fn parts_terms_most(&self) -> usize {
        if !self.back {
            return self.parts_terms();
        }
        // A phase has every tap of an axis that is a multiple of this away from its first.
        let step = |a: usize| {
            (1..self.s.stride[a]).find(|u| (u * self.s.dilation[a]).is_multiple_of(self.s.stride[a]))
        };
        let taps = (0..3).map(|a| self.s.kernel[a].div_ceil(step(a).unwrap_or(self.s.stride[a]).max(1)));
        taps.product::<usize>().saturating_mul(self.s.co.next_multiple_of(ITEM))
    }

    /// Runs of six products in bf16, and the stages of each, for as many blocks as there are units; none of a run where tiles are enough.
    fn parts_runs(&self, caps: &Caps) -> [usize; 2] {
        let phases = self.phases().iter().product::<usize>();
        let blocks = MatrixTile::Bf16x6.blocks([self.channels().0, self.columns()]).saturating_mul(phases);
        let stages = self.parts_terms_most().div_ceil(STAGE);
        let most = (PARTS / self.channels().0.saturating_mul(self.columns()).saturating_mul(phases).max(1))
            .min(stages / LEAST);
        let runs = (units(caps) / blocks.max(1)).min(most);
        if runs < 2 {
            return [1, 0];
        }
        let per = stages.div_ceil(runs);
        [stages.div_ceil(per), per]
    }

    /// The share of six products in bf16 that counts.
    fn share(&self, caps: &Caps) -> f64 {
        let (s, (m, r), copies) = (&self.s, self.channels(), self.phases().iter().product::<usize>());
        let runs = self.parts_runs(caps)[0];
        let terms = self.parts_terms().div_ceil(runs);
        // Windows that lie in part outside the map are whole here, as they are for a vendor's library.
        let places = if self.back { s.in_plane() } else { s.out_plane() };
        let products: f64 = [m, r, s.taps(), s.n, places].iter().map(|&n| n as f64).product();
        let products = products / copies.max(1) as f64;
        let copies = copies.saturating_mul(runs);
        MatrixTile::Bf16x6.share(&Work { rows: m, columns: self.columns(), copies, terms, products }, caps)
    }

    /// Why the kernels of this library come before the vendor's.
    pub(in crate::engine::ops::conv) fn own(&self, caps: &Caps) -> Option<&'static str> {
        let (m, r) = self.channels();
        let parts = || self.fits_matrix(MatrixTile::Bf16x6, caps).is_ok();
        match () {
            () if self.s.groups > 1 && m <= 4 && r <= 4 => Some(FEW_CHANNELS),
            () if self.product() => Some(POINTWISE),
            () if (self.prefers_few(caps) || self.few_rows(caps)) && !self.tf32 => Some(FEW_ROWS),
            () if !self.tf32 && parts() && self.share(caps) >= SHARE_BESIDE_VENDOR => {
                Some(FASTER_ON_MATRIX_CORES)
            }
            () => None,
        }
    }

    /// What the portable variant does.
    pub(in crate::engine::ops::conv) fn best(&self, caps: &Caps) -> ConvPlan {
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
            CUDNN | MIOPEN => self.vendor.takes(variant).map(|()| ConvPlan::Vendor),
            BF16X6 => {
                let tile = MatrixTile::Bf16x6;
                self.fits_matrix(tile, caps).map(|()| ConvPlan::Matrix { tile, runs: self.parts_runs(caps) })
            }
            FEW => self.few().map(ConvPlan::Few),
            COLUMNS => self.columns_fit().map(|()| ConvPlan::Columns),
            MATRIX => self.fits_matrix(MatrixTile::Square128, caps).map(|()| self.matrix(caps)),
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
        match variant {
            BF16X6 => !self.product() && self.vendor.loses(self.tf32, self.share(caps)),
            FEW => self.prefers_few(caps) && !(self.tf32 && self.vendor.answer.is_ok()),
            COLUMNS => self.few_rows(caps) && !(self.tf32 && self.vendor.answer.is_ok()),
            MATRIX => caps.matrix_cores.is_some() && !pointwise(&self.s) && full,
            _ => true,
        }
    }
}
