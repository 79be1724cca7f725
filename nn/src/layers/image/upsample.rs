//! Interpolation layers.

use trefoil::ops::resample::{Interpolate, InterpolateMode};

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::{PerAxis, batched, positive};
use crate::module::Layer;

/// Images brought to another size, `torch.nn.Upsample`: `[B, C, H, W] -> [B, C, H', W']`.
pub type Upsampling = UpsampleNd<2>;

/// Volumes brought to another size, `torch.nn.Upsample`: `[B, C, D, H, W] -> [B, C, D', H', W']`.
pub type Upsample3D = UpsampleNd<3>;

/// What an output is sized by.
#[derive(Debug, Clone, Copy)]
enum Target<const N: usize> {
    Scale([f64; N]),
    Size([usize; N]),
}

/// Interpolation over N = 1 to 3 spatial axes. Also takes inputs without the batch axis. The mode is nearest unless set otherwise;
/// `InterpolateMode::Linear` is PyTorch's linear, bilinear or trilinear.
///
/// Errors of `forward`: rank; `align_corners` in other modes than linear and cubic; results without cells; cubic interpolation by factors
/// that give no whole number of cells.
#[derive(Debug, Clone, Copy)]
pub struct UpsampleNd<const N: usize> {
    target: Target<N>,
    how: Interpolate,
}

impl<const N: usize> UpsampleNd<N> {
    const KIND: &'static str = match N {
        2 => "Upsampling",
        3 => "Upsample3D",
        _ => "UpsampleNd",
    };

    /// To floor(n * factor) cells per axis, positions 1/factor apart. Errors: factors that are not positive and finite.
    pub fn scale(factor: impl PerAxis<f64, N>) -> Result<Self> {
        let factor = factor.per_axis();
        if !factor.iter().all(|&s| s > 0.0 && s.is_finite()) {
            let got = format!("{factor:?}");
            return Err(invalid(Self::KIND, "scale_factor", "positive factors", got));
        }
        Ok(UpsampleNd { target: Target::Scale(factor), how: Interpolate::new(InterpolateMode::Nearest) })
    }

    /// To a given size. Errors: a size of 0.
    pub fn size(size: impl PerAxis<usize, N>) -> Result<Self> {
        let size = size.per_axis();
        positive(Self::KIND, "size", &size)?;
        Ok(UpsampleNd { target: Target::Size(size), how: Interpolate::new(InterpolateMode::Nearest) })
    }

    setters! {
        /// Sets how values between cells are made.
        mode: InterpolateMode => how.mode;
    }

    /// Linear and cubic: whether the outer cells stay where they are (default false).
    pub fn align_corners(mut self, on: bool) -> Self {
        self.how = self.how.align_corners(on);
        self
    }
}

impl<const N: usize> Layer for UpsampleNd<N> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, N, x, |x| match &self.target {
            Target::Scale(factor) => x.interpolate_by(factor, self.how),
            Target::Size(size) => x.interpolate(size, self.how),
        })
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }
}
