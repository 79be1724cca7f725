//! The blocks of ESRGAN.

use trefoil::ops::activation::Activation;

use super::images;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Convolutional;
use crate::layers::spatial::{named, positive};
use crate::module::{Init, InitContext, Layer, Visitor, hooks};

/// Error unless a residual may be scaled so.
pub(super) fn check_residual_scale(layer: &'static str, scale: f64) -> Result<()> {
    if (0.0..=1.0).contains(&scale) {
        return Ok(());
    }
    Err(invalid(layer, "residual_scale", "a number in [0, 1]", format!("{scale}")))
}

/// Names of the convolutions whose results are joined to what they read.
const GROWING: [&str; 4] = ["conv1", "conv2", "conv3", "conv4"];

/// Residual dense block of ESRGAN (Wang et al., 2018): x + 0.2 conv5([x, x1, .., x4]) with x_i = leaky_relu(conv_i([x, .., x_(i-1)])),
/// `[B, C, H, W] -> [B, C, H, W]`. Each convolution of 3x3 cells reads the input and the results of all before it, joined along the
/// channels. Also takes inputs without the batch axis.
///
/// State: `conv1.weight [grow, C, 3, 3]` to `conv4.weight [grow, C + 3*grow, 3, 3]`, `conv5.weight [C, C + 4*grow, 3, 3]`, from N(0, s^2)
/// with s = 0.1 sqrt(2 / fan_in); biases `conv1.bias` and so on = 0.
///
/// Errors of `forward`: rank; another number of channels than C.
#[derive(Debug)]
pub struct ResidualDenseBlock {
    channels: usize,
    scale: f64,
    growing: Vec<Convolutional>,
    last: Convolutional,
}

impl ResidualDenseBlock {
    const KIND: &'static str = "ResidualDenseBlock";

    /// `num_feat` channels, `num_grow_ch` of each inner convolution (64 and 32 in the paper), residuals times 0.2, leaky relu of slope 0.2.
    /// Errors: a size of 0.
    pub fn new(cx: &InitContext, num_feat: usize, num_grow_ch: usize) -> Result<Self> {
        positive(Self::KIND, "num_feat", &[num_feat])?;
        positive(Self::KIND, "num_grow_ch", &[num_grow_ch])?;
        let conv = |i: usize, outputs: usize| -> Result<Convolutional> {
            let inputs = num_feat.saturating_add(num_grow_ch.saturating_mul(i));
            let std = 0.1 * (2.0 / (9.0 * inputs as f64)).sqrt();
            let conv = Convolutional::lazy(cx, outputs, 3)?.padding(1);
            named(Self::KIND, conv.init(Init::Normal { mean: 0.0, std }, Init::Zeros)?.inputs(inputs))
        };
        let growing = (0..GROWING.len()).map(|i| conv(i, num_grow_ch)).collect::<Result<_>>()?;
        let last = conv(GROWING.len(), num_feat)?;
        ResidualDenseBlock { channels: num_feat, scale: 0.2, growing, last }.negative_slope(0.2)
    }

    /// Sets what the residual is multiplied by. Errors: outside of [0, 1].
    pub fn residual_scale(mut self, scale: f64) -> Result<Self> {
        check_residual_scale(Self::KIND, scale)?;
        self.scale = scale;
        Ok(self)
    }

    /// Sets the slope of the leaky relu. Errors: not a finite number.
    pub fn negative_slope(mut self, slope: f64) -> Result<Self> {
        if !slope.is_finite() {
            return Err(invalid(Self::KIND, "negative_slope", "a finite number", format!("{slope}")));
        }
        let act = Activation::LeakyRelu { slope };
        self.growing = self.growing.into_iter().map(|conv| conv.activation(act)).collect();
        Ok(self)
    }
}

impl Layer for ResidualDenseBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(Self::KIND, self.channels, x, |x| {
            let mut all = x.clone();
            for (name, conv) in GROWING.into_iter().zip(&self.growing) {
                all = Tensor::concat(1, &[&all, &hooks::layer(name, conv, &all)?])?;
            }
            x.add_scaled(&hooks::layer("conv5", &self.last, &all)?, self.scale)
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (name, conv) in GROWING.into_iter().zip(&self.growing) {
            v.child(name, conv);
        }
        v.child("conv5", &self.last);
    }
}

/// Names of the blocks.
const BLOCKS: [&str; 3] = ["rdb1", "rdb2", "rdb3"];

/// Residual in residual dense block of ESRGAN (Wang et al., 2018): x + 0.2 rdb3(rdb2(rdb1(x))) of three [`ResidualDenseBlock`]s,
/// `[B, C, H, W] -> [B, C, H, W]`. Also takes inputs without the batch axis.
///
/// State: that of the blocks under `rdb1.`, `rdb2.` and `rdb3.`.
///
/// Errors of `forward`: rank; another number of channels than C.
#[derive(Debug)]
pub struct Rrdb {
    channels: usize,
    scale: f64,
    blocks: Vec<ResidualDenseBlock>,
}

impl Rrdb {
    const KIND: &'static str = "Rrdb";

    /// `num_feat` channels, `num_grow_ch` of each inner convolution (64 and 32 in the paper), residuals times 0.2. Errors: a size of 0.
    pub fn new(cx: &InitContext, num_feat: usize, num_grow_ch: usize) -> Result<Self> {
        let block = |_| ResidualDenseBlock::new(cx, num_feat, num_grow_ch);
        let blocks = named(Self::KIND, BLOCKS.into_iter().map(block).collect())?;
        Ok(Rrdb { channels: num_feat, scale: 0.2, blocks })
    }

    /// Sets what the residual and those of the blocks are multiplied by. Errors: outside of [0, 1].
    pub fn residual_scale(self, scale: f64) -> Result<Self> {
        check_residual_scale(Self::KIND, scale)?;
        let blocks = self.blocks.into_iter().map(|b| b.residual_scale(scale)).collect::<Result<_>>()?;
        Ok(Rrdb { scale, blocks, ..self })
    }
}

impl Layer for Rrdb {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(Self::KIND, self.channels, x, |x| {
            let mut blocks = BLOCKS.into_iter().zip(&self.blocks);
            let y = blocks.try_fold(x.clone(), |y, (name, block)| hooks::layer(name, block, &y))?;
            x.add_scaled(&y, self.scale)
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (name, block) in BLOCKS.into_iter().zip(&self.blocks) {
            v.child(name, block);
        }
    }
}
