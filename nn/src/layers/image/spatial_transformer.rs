//! Images turned, scaled and moved as a network says.

use trefoil::ops::activation::Activation;
use trefoil::ops::resample::{GridSample, SampleMode, SamplePadding};

use super::warp::{identity, widened};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::containers::sequential::Sequential;
use crate::layers::linear::dense::Dense;
use crate::layers::spatial::{PerAxis, positive};
use crate::layers::utility::shape::Flatten;
use crate::layers::utility::statistics::Mean;
use crate::module::{Init, InitContext, Layer, Visitor, auxiliary, hooks};

const OP: &str = "SpatialTransformer";

/// Spatial transformer of Jaderberg et al. (2015), `[B, C, H, W] -> [B, C, H', W']`: a localization network gives each image an affine map
/// theta `[2, 3]`, and cell (x, y) of the result is the image at theta (x, y, 1), between cells by bilinear interpolation, as
/// `F.grid_sample(x, F.affine_grid(theta, ..))`. Gradients flow to the image both ways. The ends of the axes are at -1 and 1.
///
/// The localization network is a layer `[B, C, H, W] -> [B, 6]`, by default W2 tanh(W1 m + b1) + b2 of the means m of the channels; it begins
/// as the identity. State: `localization.2.weight [32, H W]` from U(-a, a) of Glorot and Bengio, `localization.2.bias` = 0,
/// `localization.3.weight [6, 32]` = 0, `localization.3.bias` = (1, 0, 0, 0, 1, 0).
///
/// Errors of `forward`: another shape than at construction; a localization network that gives another shape than `[B, 6]`. A map that is NaN
/// gives NaN.
#[derive(Debug)]
pub struct SpatialTransformer {
    cx: InitContext,
    input: [usize; 3],
    output: [usize; 2],
    localization: Box<dyn Layer>,
    sample: GridSample,
    identity_reg: f64,
}

impl SpatialTransformer {
    /// From images of `in_channels` channels and `in_size` (height, width) to `out_size`, with zeros outside of the image. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        in_size: impl PerAxis<usize, 2>,
        out_size: impl PerAxis<usize, 2>,
    ) -> Result<Self> {
        let ([h, w], output) = (in_size.per_axis(), out_size.per_axis());
        let sizes = [("in_channels", in_channels), ("in_height", h), ("in_width", w)];
        let sizes = sizes.into_iter().chain([("out_height", output[0]), ("out_width", output[1])]);
        for (arg, n) in sizes {
            positive(OP, arg, &[n])?;
        }
        Ok(SpatialTransformer {
            cx: cx.clone(),
            input: [in_channels, h, w],
            output,
            localization: Box::new(means_to_map(cx, h.saturating_mul(w), 32)?),
            sample: GridSample::new(SampleMode::Linear),
            identity_reg: 0.0,
        })
    }

    /// Sets the number of hidden features of the default localization network (default 32) and makes it anew. Errors: 0.
    pub fn hidden(self, hidden: usize) -> Result<Self> {
        positive(OP, "hidden", &[hidden])?;
        let [_, h, w] = self.input;
        let net = means_to_map(&self.cx, h.saturating_mul(w), hidden)?;
        Ok(self.localization(net))
    }

    /// Sets the localization network, `[B, C, H, W] -> [B, 6]`.
    pub fn localization(mut self, net: impl Layer + 'static) -> Self {
        self.localization = Box::new(net);
        self
    }

    /// Sets what lies outside of the image (default zeros).
    pub fn padding(mut self, padding: SamplePadding) -> Self {
        self.sample = self.sample.padding(padding);
        self
    }

    /// Whether -1 and 1 are the centers of the outer cells in place of their outer edges (default false).
    pub fn align_corners(mut self, on: bool) -> Self {
        self.sample = self.sample.align_corners(on);
        self
    }

    /// Adds this times the squared distance of a map from the identity, its mean over the images, to the loss (default 0). Errors: a negative
    /// or infinite weight.
    pub fn identity_reg(mut self, weight: f64) -> Result<Self> {
        if !(weight >= 0.0 && weight.is_finite()) {
            return Err(invalid(OP, "identity_reg", "a finite number of at least 0", format!("{weight}")));
        }
        self.identity_reg = weight;
        Ok(self)
    }
}

/// The localization network of the means of the channels, which begins as the identity.
fn means_to_map(cx: &InitContext, cells: usize, hidden: usize) -> Result<Sequential> {
    let first = Dense::new(cx, cells, hidden)?.init(Init::Glorot, Init::Zeros)?.activation(Activation::Tanh);
    let last = Dense::new(cx, hidden, 6)?.init(Init::Zeros, Init::Zeros)?;
    if let Some(bias) = last.bias() {
        bias.set(identity(cx.device(), cx.param_dtype())?.flatten(0, 1)?);
    }
    Ok(Sequential::new().push(Mean::new(&[1])).push(Flatten::default()).push(first).push(last))
}

impl Layer for SpatialTransformer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [c, h, w] = self.input;
        let b = match x.shape() {
            [b, item @ ..] if *item == self.input => *b,
            other => {
                let expected = format!("shape [B, {c}, {h}, {w}]");
                return Err(invalid(OP, "x", expected, format!("shape {other:?}")));
            }
        };
        let theta = hooks::layer("localization", &*self.localization, x)?;
        if theta.shape() != [b, 6] {
            let got = format!("shape {:?}", theta.shape());
            return Err(invalid(OP, "localization", format!("a network that gives shape [{b}, 6]"), got));
        }
        let theta = widened(&theta.reshape(&[b, 2, 3])?)?;
        if self.identity_reg > 0.0 {
            // The mean runs over the six numbers of a map too, over which the distance is a sum.
            let unit = identity(theta.device(), theta.dtype())?;
            auxiliary::add(|| theta.sub(&unit)?.square()?.mean()?.mul_scalar(6.0 * self.identity_reg))?;
        }
        let grid = theta.affine_grid(&self.output, self.sample.align_corners)?;
        widened(x)?.grid_sample(&grid, self.sample)?.to_dtype(x.dtype())
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("localization", &*self.localization);
    }
}
