//! Images as sequences of patches.

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::conv::convolutional::Convolutional;
use crate::layers::spatial::{PerAxis, batched, positive};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Patches of an image, projected (Vision Transformer; Dosovitskiy et al., 2021), timm's `PatchEmbed`: `[B, C, H, W] -> [B, N, E]` with
/// N = H/pH * W/pW tokens in row-major order. Neither class token nor positions. Also takes inputs without the batch axis.
///
/// State: `proj.weight [E, C, pH, pW]`, `proj.bias [E]`, both from U(-a, a) with a = 1/sqrt(C*pH*pW) unless set otherwise.
///
/// Errors of `forward`: rank; another number of channels than at first; sizes that patches do not divide.
#[derive(Debug)]
pub struct PatchEmbedding {
    proj: Convolutional,
    patch: [usize; 2],
    flatten: bool,
}

impl PatchEmbedding {
    const KIND: &'static str = "PatchEmbedding";

    /// Patches of images of `in_channels` channels as vectors of `embed_dim` numbers, with bias. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        patch_size: impl PerAxis<usize, 2>,
        embed_dim: usize,
    ) -> Result<Self> {
        let patch_size = patch_size.per_axis();
        Self::check(patch_size, embed_dim)?;
        Ok(Self::of(Convolutional::new(cx, in_channels, embed_dim, patch_size)?, patch_size))
    }

    /// The first forward fixes the number of input channels and makes the parameters. Errors: a size of 0.
    pub fn lazy(cx: &InitContext, patch_size: impl PerAxis<usize, 2>, embed_dim: usize) -> Result<Self> {
        let patch_size = patch_size.per_axis();
        Self::check(patch_size, embed_dim)?;
        Ok(Self::of(Convolutional::lazy(cx, embed_dim, patch_size)?, patch_size))
    }

    fn check(patch: [usize; 2], embed: usize) -> Result<()> {
        positive(Self::KIND, "patch_size", &patch)?;
        positive(Self::KIND, "embed_dim", &[embed])
    }

    fn of(proj: Convolutional, patch: [usize; 2]) -> Self {
        PatchEmbedding { proj: proj.stride(patch), patch, flatten: true }
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.proj = self.proj.no_bias();
        self
    }

    setters! {
        /// Whether the result is a sequence (default true) or stays an image `[B, E, H/pH, W/pW]`.
        flatten: bool => flatten;
    }

    /// Sets how weight and bias are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        self.proj = self.proj.init(weight, bias)?;
        Ok(self)
    }

    /// The weight `[E, C, pH, pW]`, once the number of input channels is known.
    pub fn weight(&self) -> Option<&Param> {
        self.proj.weight()
    }

    /// The bias `[E]`, if there is one and the number of input channels is known.
    pub fn bias(&self) -> Option<&Param> {
        self.proj.bias()
    }
}

impl Layer for PatchEmbedding {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, 2, x, |x| {
            let (size, patch) = (&x.shape()[2..], self.patch);
            if size.iter().zip(&patch).any(|(n, p)| !n.is_multiple_of(*p)) {
                let expected = format!("height and width divisible by {patch:?}");
                return Err(invalid(Self::KIND, "x", expected, format!("shape {:?}", x.shape())));
            }
            let y = hooks::layer("proj", &self.proj, x)?;
            if self.flatten { y.flatten(2, -1)?.transpose(1, 2) } else { Ok(y) }
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("proj", &self.proj);
    }
}
