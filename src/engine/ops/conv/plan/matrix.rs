//! Convolutions on matrix cores: their tiles, which problems they take, and how much of their work is of use.

use super::{NEAR, reach, units};
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::Reason;
use crate::ops::conv::ConvShape;

/// Elements of 16 bits in 16 bytes, of which channels are a multiple.
pub(in crate::engine::ops::conv) const ITEM: usize = 8;
/// Terms of a stage.
pub(super) const STAGE: usize = 64;
/// Elements that 32-bit positions of these kernels reach.
const REACH: usize = 1 << 31;

/// A window with a stride of two across images of up to four channels, whose places two by two are one place of eight channels: fewer zeros are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::ops::conv) struct Fold {
    /// The convolution of folded places.
    pub(in crate::engine::ops::conv) s: ConvShape,
    /// What the kernels call `fold`: 1, or 2 where the first place lies before the window.
    pub(in crate::engine::ops::conv) code: usize,
}

impl Fold {
    /// `Some` where a convolution, or its weight gradient, can be folded.
    pub(in crate::engine::ops::conv) fn of(s: &ConvShape) -> Option<Fold> {
        let [stride, dilation, width] = [s.stride[2], s.dilation[2], s.input[2]];
        if s.groups > 1 || s.ci > ITEM / 2 || stride != 2 || dilation != 1 || !width.is_multiple_of(2) {
            return None;
        }
        let (mut folded, code) = (*s, 1 + s.pad[2] % 2);
        folded.ci = ITEM;
        (folded.input[2], folded.stride[2]) = (width / 2, 1);
        (folded.kernel[2], folded.pad[2]) = ((s.kernel[2] + code) / 2, s.pad[2].div_ceil(2));
        Some(Fold { s: folded, code })
    }
}

/// A tile of the kernels for matrix cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatrixTile {
    /// 128 rows and 128 places of 16-bit operands.
    Square128,
    /// 64 rows and 256 places of 16-bit operands.
    Wide64,
    /// 64 rows and 128 places of operands in f32, as three parts in bf16.
    Bf16x6,
}

impl MatrixTile {
    /// Rows, and places of a convolution or columns of a weight gradient.
    pub(in crate::engine::ops::conv) fn size(self) -> [usize; 2] {
        match self {
            MatrixTile::Square128 => [128, 128],
            MatrixTile::Wide64 => [64, 256],
            MatrixTile::Bf16x6 => [64, 128],
        }
    }

    /// Bytes of local memory: as many stages as `conv/matrix.c` and `conv/matrix_bf16x6.c` have.
    pub(in crate::engine::ops::conv) fn local(self, caps: &Caps) -> usize {
        let stages = if caps.ptx() { 3 } else { 2 };
        let parts = if self == MatrixTile::Bf16x6 { 3 } else { 1 };
        stages * parts * self.size().iter().sum::<usize>() * STAGE * 2
    }

    /// Blocks of `rows` by `columns`.
    pub(super) fn blocks(self, [rows, columns]: [usize; 2]) -> usize {
        let [high, wide] = self.size();
        rows.div_ceil(high).saturating_mul(columns.div_ceil(wide))
    }

    /// Whether the kernels take a convolution of that type at all.
    pub(super) fn fits(self, s: &ConvShape, dtype: DType, caps: &Caps) -> Result<(), Reason> {
        let parts = self == MatrixTile::Bf16x6;
        match dtype {
            DType::F32 if parts && !caps.warp_groups => Err("the device has no products by groups of warps")?,
            DType::F32 if parts => {}
            _ if parts => Err(format!("{dtype} is not f32"))?,
            DType::F16 | DType::Bf16 => {}
            _ => Err(format!("{dtype} is not f16 or bf16"))?,
        }
        if s.groups > 1 {
            return Err("it has groups".into());
        }
        let local = self.local(caps);
        if local > caps.shared_bytes as usize {
            return Err(format!("it needs {local} bytes of local memory, of {}", caps.shared_bytes).into());
        }
        let product = |v: &[usize]| v.iter().fold(1, |a: usize, &b| a.saturating_mul(b));
        let (ci, co) = (s.ci.next_multiple_of(ITEM), s.co.next_multiple_of(ITEM));
        let reads = product(&[s.n, ci, s.in_plane()]).max(product(&[s.n, co, s.out_plane()]));
        let far = (0..3).any(|a| reach(s, a) >= NEAR || s.stride[a] >= NEAR);
        if far || reads.max(product(&[ci, co, s.taps()])) >= REACH {
            return Err("its extents need 64-bit positions".into());
        }
        if s.ci == 0 || s.co == 0 || s.n * s.in_plane() * s.out_plane() == 0 {
            return Err("an extent is 0".into());
        }
        Ok(())
    }

    /// The share of multiplications that count, of those that all multiprocessors could do while the blocks run.
    pub(super) fn share(self, w: &Work, caps: &Caps) -> f64 {
        let ([high, wide], units) = (self.size(), units(caps));
        let blocks = self.blocks([w.rows, w.columns]).saturating_mul(w.copies);
        let done =
            blocks.next_multiple_of(units) as f64 * (high * wide * w.terms.next_multiple_of(STAGE)) as f64;
        w.products / done.max(1.0)
    }
}

/// What blocks multiply.
pub(super) struct Work {
    /// Outputs of a matrix of them.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// How many matrices there are: phases of an adjoint, runs of a weight gradient.
    pub(super) copies: usize,
    /// Terms of a sum, padding included.
    pub(super) terms: usize,
    /// Multiplications that the convolution asks for.
    pub(super) products: f64,
}

/// The least share with which six products in bf16 are faster than the f32 of a vendor's library. Of convolutions cuDNN reached about 41 TFLOP/s on an
/// H200, these kernels 64 to 80 of full tiles: a share of 0.5 was 1.08 times as fast (32 channels), one of 0.33 took 1.4 times as long. Weight gradients
/// of that library that repeat bit by bit are slower; none of a smaller share was measured.
pub(super) const SHARE_BESIDE_VENDOR: f64 = 0.45;
/// The same beside portable kernels; by their speed, not measured side by side.
pub(super) const SHARE: f64 = 0.2;
