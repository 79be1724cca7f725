//! Movement and creation. What a [`Layout`](crate::Layout) can express (reshape, permute, slice, expand, diagonal, windows, pixel shuffle)
//! is a view plus [`ShapeOps::strided_copy`]; only the rest has kernels of its own.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;

/// How [`ShapeOps::pad`] fills what lies outside.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum PadMode {
    /// A constant.
    Constant(f64),
    /// Mirrored without repeating the border; needs padding below the size.
    Reflect,
    /// The border value.
    Replicate,
    /// Wrapped around; needs padding not above the size.
    Circular,
}

/// Which triangle [`ShapeOps::triangle`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Triangle {
    /// On and below diagonal k.
    Lower,
    /// On and above diagonal k.
    Upper,
}

op_family! {
    /// Movement and creation: exact and deterministic, any dtype, any strides unless stated.
    pub trait ShapeOps : Shape => SHAPE_OPS {
        /// y = x element by element, both of one shape and dtype and of any strides (`x.contiguous()`, permute, transpose, slice, set_slice).
        /// Transposes go through tiles. With `accumulate` (floats only): y += x.
        fn strided_copy(&self, x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// Concatenates along `axis`; the other sizes agree; empty inputs are allowed. Oracle `torch.cat`.
        fn concat(&self, axis: usize, xs: &[View<'_>], y: ViewMut<'_>) -> Result<()>;
        /// y = value everywhere, converted to y's dtype (`full`, `zeros`). Integers take the truncated value.
        fn fill(&self, value: f64, y: ViewMut<'_>) -> Result<()>;
        /// y = the element with this bit pattern (little-endian, as many bytes as y's dtype has); keeps NaN payloads and i64 values (`fill_buffer`).
        fn fill_bytes(&self, pattern: &[u8], y: ViewMut<'_>) -> Result<()>;
        /// y[i] = start + i*step over a vector. Oracle `torch.arange`.
        fn arange(&self, start: f64, step: f64, y: ViewMut<'_>) -> Result<()>;
        /// y[i] from start to end in equal steps, computed from the nearer end, the ends exact. Oracle `torch.linspace`.
        fn linspace(&self, start: f64, end: f64, y: ViewMut<'_>) -> Result<()>;
        /// Pads axis i of x by `pads[i] = (before, after)`; negative crops. y has the padded shape. Oracle `F.pad`. `Invalid` for reflect padding
        /// not below the size or circular padding above it.
        fn pad(&self, mode: PadMode, pads: &[(isize, isize)], x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradient of [`ShapeOps::pad`]: each cell of x gathers all positions that read it.
        fn pad_bwd(&self, mode: PadMode, pads: &[(isize, isize)], dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Reverses `axes`. Its own gradient. Oracle `torch.flip`.
        fn flip(&self, axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// Rotates `axes[i]` by `shifts[i]` (positive: towards higher positions). The gradient rolls by the negative. Oracle `torch.roll`.
        fn roll(&self, shifts: &[isize], axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// Keeps one triangle of the last two axes relative to diagonal `k`, zeros elsewhere. Its own gradient. Oracle `torch.tril`, `torch.triu`.
        fn triangle(&self, side: Triangle, k: isize, x: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// Repeats each element of `axis`: `repeats` times, or `counts[i]` times (i32 per element; their sum must be y's size, which the
        /// device checks: a mismatch is `IndexOutOfRange`). Oracle `torch.repeat_interleave`.
        fn repeat_interleave(&self, axis: usize, repeats: usize, counts: Option<View<'_>>, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradient of [`ShapeOps::repeat_interleave`]: sums the copies.
        fn repeat_interleave_bwd(&self, axis: usize, repeats: usize, counts: Option<View<'_>>, dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Gradient of windows of `size` every `step` along `axis` (the window is dy's last axis): overlap-add into dx.
        fn unfold_bwd(&self, axis: usize, size: usize, step: usize, dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
    }
}
