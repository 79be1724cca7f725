//! Convolutions and attention of a vendor library: what one is asked for, and what a library of a driver offers.

use super::{RawMem, RawStream};
use crate::DType;
use crate::error::Result;

/// Which of its three tensors a convolution computes from the other two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConvPass {
    /// y from x and w.
    Forward,
    /// The gradient of x from w and the gradient of y; also what a transposed convolution computes.
    Input,
    /// The gradient of w from x and the gradient of y.
    Weight,
}

/// A tensor of a convolution: batch (of w: output channels), channels (of w: those of a group), and the spatial axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConvTensor {
    /// Extents; those beyond the problem's axes are 1.
    pub extents: [usize; 5],
    /// Strides in elements: channels first, channels last, or any other order.
    pub strides: [usize; 5],
}

impl ConvTensor {
    /// A tensor whose axes lie in memory in their order, without gaps.
    pub(crate) fn packed(extents: [usize; 5]) -> Self {
        let mut strides = [1; 5];
        (0..4).rev().for_each(|a| strides[a] = strides[a + 1] * extents[a + 1]);
        ConvTensor { extents, strides }
    }

    /// A tensor whose channels lie side by side, without gaps.
    pub(crate) fn channels_last(extents: [usize; 5]) -> Self {
        let mut strides = [extents[1]; 5];
        (2..4).rev().for_each(|a| strides[a] = strides[a + 1] * extents[a + 1]);
        strides[0] = strides[2] * extents[2];
        strides[1] = 1;
        ConvTensor { extents, strides }
    }
}

/// One convolution, or one of its gradients, for a vendor library. Windows are not flipped; what lies outside x counts as 0. There are as many groups
/// as x has times the channels of w.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct VendorConvProblem {
    /// What is computed.
    pub pass: ConvPass,
    /// Spatial axes, 2 or 3.
    pub axes: usize,
    /// The convolution's input, or the gradient of it.
    pub x: ConvTensor,
    /// Its weight, or the gradient of it.
    pub w: ConvTensor,
    /// Its output, or the gradient of it.
    pub y: ConvTensor,
    /// Zeros before each axis.
    pub pad: [usize; 3],
    /// Zeros behind each axis.
    pub pad_end: [usize; 3],
    /// Distance of windows.
    pub stride: [usize; 3],
    /// Distance of a window's elements.
    pub dilation: [usize; 3],
    /// Type of all three tensors; sums are in f32.
    pub dtype: DType,
    /// f32 operands may be rounded to TF32.
    pub tf32: bool,
    /// Bytes at a multiple of which all three tensors begin.
    pub align: usize,
}

impl VendorConvProblem {
    /// Additions and multiplications.
    pub fn operations(&self) -> usize {
        let outputs = self.y.extents.iter().fold(2usize, |a, &b| a.saturating_mul(b));
        self.w.extents[1..].iter().fold(outputs, |a, &b| a.saturating_mul(b))
    }

    /// Whether there is something to compute, and libraries can count its elements in 32 bits.
    #[cfg(any(feature = "driver-cuda", feature = "driver-hip"))]
    pub(crate) fn narrow(&self) -> std::result::Result<(), String> {
        let all = [&self.x, &self.w, &self.y];
        if all.iter().any(|t| t.extents.contains(&0)) {
            return Err("an extent is 0".into());
        }
        let last = |sum: usize, (&n, s): (&usize, usize)| sum.saturating_add((n - 1).saturating_mul(s));
        let far = |t: &ConvTensor| t.extents.iter().zip(t.strides).fold(0, last) > i32::MAX as usize;
        let wide =
            [self.pad, self.pad_end, self.stride, self.dilation].iter().flatten().any(|&v| v > 1 << 20);
        if wide || all.into_iter().any(far) {
            return Err("its positions need 64 bits".into());
        }
        Ok(())
    }
}

/// Convolutions of a vendor library, loaded at run time.
pub trait VendorConv: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// Whether the library takes this problem; the reason if not. Cheap after the first call of a problem.
    fn applicable(&self, p: &VendorConvProblem) -> std::result::Result<(), String>;

    /// Bytes of workspace that the next [`VendorConv::run`] wants for this problem.
    fn workspace(&self, p: &VendorConvProblem) -> usize;

    /// Whether ways to compute the problem may be timed on the stream: it is large, nobody turned that off, and the stream's work is run, not recorded.
    ///
    /// # Safety
    /// The stream is a live one of the library's driver.
    unsafe fn may_time(&self, s: RawStream, p: &VendorConvProblem) -> bool {
        let _ = (s, p);
        false
    }

    /// Queues the problem; memory arguments are (memory, byte offset) of x, w and y, of which the pass says which one is written. The first call of a
    /// large problem may wait for the stream, to find out which of the library's kernels is the fastest. From then on the same kernel serves the problem.
    ///
    /// # Safety
    /// All memory is live, as large as the problem says and aligned as it says; what is written overlaps nothing that is read; the workspace has the
    /// size that was asked for and overlaps nothing.
    unsafe fn run(
        &self,
        s: RawStream,
        p: &VendorConvProblem,
        tensors: [(RawMem, u64); 3],
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()>;
}

/// A tensor of attention: batch, heads, rows (queries or keys), columns; columns lie side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct AttentionTensor {
    /// Extents.
    pub extents: [usize; 4],
    /// Strides in elements.
    pub strides: [usize; 4],
}

impl AttentionTensor {
    /// A tensor whose axes lie in memory in their order, without gaps.
    pub(crate) fn packed(extents: [usize; 4]) -> Self {
        let mut strides = [1; 4];
        (0..3).rev().for_each(|a| strides[a] = strides[a + 1] * extents[a + 1]);
        AttentionTensor { extents, strides }
    }
}

/// O = softmax(scale * Q K^T) V, or its gradients, for a vendor library. Key and value heads divide the query heads, which share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct VendorAttentionProblem {
    /// Queries.
    pub q: AttentionTensor,
    /// Keys.
    pub k: AttentionTensor,
    /// Values.
    pub v: AttentionTensor,
    /// The result.
    pub o: AttentionTensor,
    /// Gradients of o, q, k and v, where gradients are computed.
    pub gradients: Option<[AttentionTensor; 4]>,
    /// Whether the forward pass writes the logarithms of the sums, f32 [batch, heads, queries], packed; the backward pass reads them.
    pub logarithms: bool,
    /// Key j is visible to query i if j <= i, else all are.
    pub causal: bool,
    /// Type of all tensors but the logarithms; sums are in f32.
    pub dtype: DType,
}

/// Attention of a vendor library, loaded at run time.
pub trait VendorAttention: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// Whether the library takes this problem; the reason if not. Cheap after the first call of a problem.
    fn applicable(&self, p: &VendorAttentionProblem) -> std::result::Result<(), String>;

    /// Whether gradients repeat bit by bit, for which libraries give up speed.
    fn repeats(&self) -> bool {
        true
    }

    /// Bytes of workspace that the problem wants.
    fn workspace(&self, p: &VendorAttentionProblem) -> usize;

    /// Queues the problem, whose scores are multiplied by `scale`. Memory arguments are (memory, byte offset) of q, k, v, o and the logarithms, then of
    /// the gradients of o, q, k and v if the problem has any. Written are o and the logarithms, or the last three.
    ///
    /// # Safety
    /// All memory is live, as large as the problem says and aligned to 16 bytes; what is written overlaps nothing else; the workspace has the size that
    /// was asked for and overlaps nothing.
    unsafe fn run(
        &self,
        s: RawStream,
        p: &VendorAttentionProblem,
        scale: f32,
        tensors: &[(RawMem, u64)],
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()>;
}
