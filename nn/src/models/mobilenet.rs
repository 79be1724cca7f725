//! MobileNetV2.

use trefoil::ops::activation::Activation;

use super::conv;
use crate::core::error::Result;
use crate::layers::{
    Activate, BatchNormalization, Dense, Dropout, GlobalPooling, InvertedResidualBlock, Sequential,
};
use crate::module::{Init, InitContext};

/// Stages: ratio of expansion, channels, blocks, stride of the first of them.
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

/// What a [`MobileNetV2`] is made of.
#[derive(Debug, Clone, Copy)]
pub struct MobileNetV2Config {
    num_classes: usize,
    width_mult: f64,
    in_channels: usize,
    small_images: bool,
    dropout: f64,
}

impl MobileNetV2Config {
    /// The channels of the paper, images of 3 channels, dropout 0.2.
    pub fn new(num_classes: usize) -> Self {
        MobileNetV2Config { num_classes, width_mult: 1.0, in_channels: 3, small_images: false, dropout: 0.2 }
    }

    /// Multiplies the numbers of channels, which become multiples of 8; only factors above 1 change that of the last features, 1280.
    pub fn width_mult(mut self, factor: f64) -> Self {
        self.width_mult = factor;
        self
    }

    /// Sets the channels of the images (default 3).
    pub fn in_channels(mut self, channels: usize) -> Self {
        self.in_channels = channels;
        self
    }

    /// Leaves out the stride of the first convolution, as is usual for images of 32x32 pixels.
    pub fn small_images(mut self) -> Self {
        self.small_images = true;
        self
    }

    /// Sets the probability of the dropout in front of the classifier.
    pub fn dropout(mut self, p: f64) -> Self {
        self.dropout = p;
        self
    }

    /// The nearest multiple of 8 that is at least 8 and 9/10 of `channels * factor`.
    fn scaled(channels: usize, factor: f64) -> usize {
        let wanted = channels as f64 * factor;
        let nearest = (((wanted + 4.0) as usize) / 8).saturating_mul(8).max(8);
        if (nearest as f64) < 0.9 * wanted { nearest.saturating_add(8) } else { nearest }
    }
}

/// MobileNetV2 (Sandler et al., 2018), torchvision's `MobileNetV2`: `[B, C, H, W] -> [B, num_classes]` (logits).
///
/// State: `features.0` (a convolution and its normalization as `0.weight` and `1.weight`, ..), `features.1` to `features.17` as in
/// [`InvertedResidualBlock`], `features.18` like `features.0`, `classifier.1.weight`, `classifier.1.bias`.
#[derive(Debug)]
pub struct MobileNetV2(pub(super) Sequential);

impl MobileNetV2 {
    /// Makes a model. Errors: a size of 0 or a probability outside of [0, 1], by the name of the part.
    pub fn new(cx: &InitContext, config: &MobileNetV2Config) -> Result<Self> {
        let activated = |channels: [usize; 2], kernel_size: usize, stride| -> Result<Sequential> {
            let fan = channels[1].saturating_mul(kernel_size * kernel_size);
            let conv = conv(cx, channels, kernel_size, stride, fan)?;
            let norm = BatchNormalization::new(cx, channels[1])?;
            Ok(Sequential::new().push(conv).push(norm).push(Activate(Activation::Relu6)))
        };
        let c = config;
        let mut channels = MobileNetV2Config::scaled(32, c.width_mult);
        let stride = if c.small_images { 1 } else { 2 };
        let mut features = Sequential::new().push(activated([c.in_channels, channels], 3, stride)?);
        for (expand_ratio, outputs, blocks, stride) in STAGES {
            let outputs = MobileNetV2Config::scaled(outputs, c.width_mult);
            for j in 0..blocks {
                let stride = if j == 0 { stride } else { 1 };
                features =
                    features.push(InvertedResidualBlock::new(cx, channels, outputs, stride, expand_ratio)?);
                channels = outputs;
            }
        }
        let last = MobileNetV2Config::scaled(1280, c.width_mult.max(1.0));
        features = features.push(activated([channels, last], 1, 1)?);
        let head =
            Dense::new(cx, last, c.num_classes)?.init(Init::Normal { mean: 0.0, std: 0.01 }, Init::Zeros)?;
        let classifier = Sequential::new().push(Dropout::new(cx, c.dropout)?).push(head);
        let pool = GlobalPooling::avg().keepdim(false);
        let net = Sequential::new().named("features", features).named("avgpool", pool);
        Ok(MobileNetV2(net.named("classifier", classifier)))
    }
}

/// MobileNetV2, `torchvision.models.mobilenet_v2`. Errors: no classes.
pub fn mobilenet_v2(cx: &InitContext, num_classes: usize) -> Result<MobileNetV2> {
    MobileNetV2::new(cx, &MobileNetV2Config::new(num_classes))
}
