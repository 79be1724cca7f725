//! How convolutions, their adjoints and their weight gradients run.

pub(super) mod conv;
pub(super) mod few;
pub(super) mod matrix;
#[cfg(test)]
mod tests;
pub(super) mod weight;

use self::conv::ConvProblem;
use crate::device::Caps;
use crate::engine::plan::{PORTABLE, Reason, Variant};
use crate::ops::conv::ConvShape;

/// Extents and displacements below which the kernels' 32-bit positions hold (`GK_FAR` with room for sums).
pub(crate) const NEAR: usize = 1 << 27;
/// Counts that 32-bit indices hold.
pub(crate) const COUNT: usize = 1 << 30;
/// Elements of partial sums beyond which a sum is not split further.
const PARTS: usize = 1 << 27;
/// Elements of the columns of windows that are in memory at a time.
pub(super) const COLUMNS_LIMIT: usize = 1 << 25;
/// Rows of an item of the depthwise kernels (`GK_CONV_STRIP`): of three taps, of more, and of strides of two, those of the larger map.
const STRIP: usize = 2;
const LARGE_STRIP: usize = 4;
const STRIDED_STRIP: usize = 8;

const SOURCE: &str = "kernels/common/conv/conv.c, weight.c";

/// The variants of all products of the family. The portable one takes the best of those after it, and a matrix product where the convolution is one.
const VARIANTS: &[Variant] = &[
    Variant { name: "bf16x6", source: "kernels/common/conv/matrix_bf16x6.c" },
    Variant { name: "few_channels", source: "kernels/common/conv/adjoint_few.c" },
    Variant { name: "columns", source: "kernels/common/conv/columns.c" },
    Variant { name: "cudnn", source: "vendor library" },
    Variant { name: "miopen", source: "vendor library" },
    Variant { name: "matrix_cores", source: "kernels/common/conv/matrix.c" },
    Variant { name: PORTABLE, source: "kernels/common/conv/conv.c, weight.c, direct.c" },
    Variant { name: "tile_128", source: SOURCE },
    Variant { name: "tile_64", source: SOURCE },
    Variant { name: "tile_64x256", source: SOURCE },
    Variant { name: "tile_32x256", source: SOURCE },
    Variant { name: "tile_16x256", source: SOURCE },
    Variant { name: "split_k", source: SOURCE },
    Variant {
        name: "direct",
        source: "kernels/common/conv/direct.c, depthwise.c, depthwise_large.c, depthwise_strided.c",
    },
];

/// Number of the variant that multiplies f32 in bf16, six times.
const BF16X6: usize = 0;
/// Number of the variant for few channels and strides of two.
const FEW: usize = 1;
/// Number of the variant that multiplies columns of windows.
const COLUMNS: usize = 2;
/// Number of the variant by cuDNN, or by the library of a driver that is not this crate's.
pub(super) const CUDNN: usize = 3;
/// Number of the variant by MIOpen.
pub(super) const MIOPEN: usize = 4;
const MATRIX: usize = 5;
const AUTO: usize = 6;
const TILE_128: usize = 7;
const TILE_64: usize = 8;
const TILE_64X256: usize = 9;
const TILE_32X256: usize = 10;
const TILE_16X256: usize = 11;
const SPLIT_K: usize = 12;

/// What the vendor's library of a device says to a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Library<'a> {
    /// Number of the variant that is this library's.
    pub(crate) variant: usize,
    /// Whether it takes the convolution, or why not.
    pub(crate) answer: Result<(), &'a str>,
}

impl<'a> Library<'a> {
    /// A library that is not asked.
    pub(super) const fn unasked(why: &'a str) -> Self {
        Library { variant: CUDNN, answer: Err(why) }
    }

    /// Whether six products in bf16, of which that share counts, come before the library, which rounds operands to TF32 where it may.
    fn loses(&self, tf32: bool, share: f64) -> bool {
        match self.answer {
            Ok(()) => !tf32 && share >= matrix::SHARE_BESIDE_VENDOR,
            Err(_) => share >= matrix::SHARE,
        }
    }

    /// Whether the library is the one of that variant and takes the convolution.
    fn takes(&self, variant: usize) -> Result<(), Reason> {
        if self.variant != variant {
            return Err(
                "no vendor library of this name: the driver interface of the device has another".into()
            );
        }
        self.answer.map_err(|why| why.to_string().into())
    }
}

/// Why the vendor's library is not asked.
const FEW_CHANNELS: &str = "the kernels of this library are faster for a few channels per group";
const POINTWISE: &str = "a convolution of one tap is a matrix product";
const FEW_ROWS: &str = "the kernels of this library are faster where strides leave few channels";
const FASTER_ON_MATRIX_CORES: &str = "six products in bf16 on matrix cores are faster than f32 without them";

/// The tile kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tile {
    Square128,
    Wide64,
    Wide32,
    Wide16,
    Square64,
}

/// Items of a depthwise convolution that keeps the map's size, as `depthwise.c` takes it with 3 x 3 taps and `depthwise_large.c` with 5 x 5 or 7 x 7, or
/// halves it, as `depthwise_strided.c` does with 3 x 3 or 5 x 5: of a row of the input, and of its map along its height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depthwise {
    pub(crate) side: usize,
    pub(crate) stride: usize,
    pub(crate) quads: usize,
    pub(crate) strips: usize,
}

impl Depthwise {
    /// `Some` where the kernels for it apply, given that each output channel reads one channel.
    fn of(s: &ConvShape) -> Option<Depthwise> {
        let (side, stride) = (s.kernel[2], s.stride[2]);
        let strip = match (stride, side) {
            (1, 3) => STRIP,
            (1, 5 | 7) => LARGE_STRIP,
            (2, 3 | 5) => STRIDED_STRIP,
            _ => return None,
        };
        let flat = s.input[0] == 1 && s.output == s.input.map(|n| n.div_ceil(stride));
        let square = s.kernel == [1, side, side] && s.stride == [1, stride, stride];
        let centred = s.pad == [0, side / 2, side / 2] && s.dilation[1..] == [1, 1];
        let [_, height, width] = s.input;
        let (quads, strips) = (width.div_ceil(4), height.div_ceil(strip));
        let items = [s.n, s.ci.max(s.co), quads, strips].iter().fold(1, |a: usize, &b| a.saturating_mul(b));
        let fits = flat && square && centred && items <= i32::MAX as usize;
        fits.then_some(Depthwise { side, stride, quads, strips })
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
