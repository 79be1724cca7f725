//! Capsules of an image.

use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::layers::conv::convolutional::Convolutional;
use crate::layers::spatial::{PerAxis, batched, positive};
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "PrimaryCapsule";

/// Convolution whose channels are capsules (Sabour et al., 2017), `[B, C, H, W] -> [B, H', W', P, D]`: channel p D + d is component d of
/// capsule p, and each capsule is [squashed](Tensor::squash). [`Flatten::new(1, 3)`](crate::layers::Flatten) makes the `[B, H' W' P, D]` that
/// is routed. Also takes inputs without the batch axis.
///
/// State: `conv.weight [P D, C, k, k]`, `conv.bias [P D]`, as in [`Convolutional`].
///
/// Errors of `forward`: rank; another number of channels; windows larger than the image.
#[derive(Debug)]
pub struct PrimaryCapsule {
    conv: Convolutional,
    sizes: [usize; 2],
}

impl PrimaryCapsule {
    /// `capsule_channels` capsules of `capsule_dim` numbers at each position, by windows of 9 by 9 cells that lie 2 apart. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        capsule_channels: usize,
        capsule_dim: usize,
    ) -> Result<Self> {
        Self::with_kernel(cx, in_channels, capsule_channels, capsule_dim, 9)
    }

    /// As [`new`](Self::new) with windows of another size. Errors: a size of 0.
    pub fn with_kernel(
        cx: &InitContext,
        in_channels: usize,
        capsule_channels: usize,
        capsule_dim: usize,
        kernel_size: impl PerAxis<usize, 2>,
    ) -> Result<Self> {
        positive(OP, "capsule_channels", &[capsule_channels])?;
        positive(OP, "capsule_dim", &[capsule_dim])?;
        let channels = capsule_channels.saturating_mul(capsule_dim);
        let conv = Convolutional::new(cx, in_channels, channels, kernel_size)?.stride(2);
        Ok(PrimaryCapsule { conv, sizes: [capsule_channels, capsule_dim] })
    }

    /// Sets the stride, the distance of neighbouring windows (default 2).
    pub fn stride(mut self, stride: impl PerAxis<usize, 2>) -> Self {
        self.conv = self.conv.stride(stride);
        self
    }
}

impl Layer for PrimaryCapsule {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(OP, 2, x, |x| {
            let y = hooks::layer("conv", &self.conv, x)?;
            let ([p, d], [h, w]) = (self.sizes, [y.shape()[2], y.shape()[3]]);
            y.reshape(&[y.shape()[0], p, d, h, w])?.permute(&[0, 3, 4, 1, 2])?.contiguous()?.squash(-1)
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("conv", &self.conv);
    }
}
