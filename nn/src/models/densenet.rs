//! DenseNet.

use trefoil::ops::activation::Activation;

use super::conv;
use crate::core::error::Result;
use crate::layers::{
    BatchNormalization, Dense, DenseBlock, GlobalPooling, MaxPooling, Sequential, Transition,
};
use crate::module::{Init, InitContext};

/// What a [`DenseNet`] is made of.
#[derive(Debug, Clone, Copy)]
pub struct DenseNetConfig {
    blocks: [usize; 4],
    num_classes: usize,
    growth_rate: usize,
    init_features: usize,
    in_channels: usize,
    small_images: bool,
    drop_rate: f64,
}

impl DenseNetConfig {
    /// With this many layers in each of the four blocks, a growth rate of 32, 64 channels in front of the first block.
    pub fn new(blocks: [usize; 4], num_classes: usize) -> Self {
        DenseNetConfig {
            blocks,
            num_classes,
            growth_rate: 32,
            init_features: 64,
            in_channels: 3,
            small_images: false,
            drop_rate: 0.0,
        }
    }

    /// DenseNet-121.
    pub fn densenet121(num_classes: usize) -> Self {
        Self::new([6, 12, 24, 16], num_classes)
    }

    /// Sets the channels that each layer adds, and twice as many in front of the first block (default 32).
    pub fn growth_rate(mut self, growth_rate: usize) -> Self {
        (self.growth_rate, self.init_features) = (growth_rate, growth_rate.saturating_mul(2));
        self
    }

    /// Sets the channels of the images (default 3).
    pub fn in_channels(mut self, channels: usize) -> Self {
        self.in_channels = channels;
        self
    }

    /// Begins with a convolution of 3x3 cells in place of 7x7, without stride and pooling, as is usual for images of 32x32 pixels.
    pub fn small_images(mut self) -> Self {
        self.small_images = true;
        self
    }

    /// Sets the probability of the dropout behind each layer (default 0).
    pub fn drop_rate(mut self, p: f64) -> Self {
        self.drop_rate = p;
        self
    }
}

/// DenseNet-BC (Huang et al., 2017), torchvision's `DenseNet`: `[B, C, H, W] -> [B, num_classes]` (logits).
///
/// State: under `features.`, `conv0.weight`, `norm0`, `denseblock1` as in [`DenseBlock`], `transition1` as in [`Transition`] and so on,
/// `norm5`; `classifier.weight`, `classifier.bias`. Files of torchvision's server call `norm1` of a layer `norm.1` and so on, which
/// torchvision renames when it loads them.
#[derive(Debug)]
pub struct DenseNet(pub(super) Sequential);

impl DenseNet {
    /// Makes a model. Errors: a size of 0 or a probability outside of [0, 1], by the name of the part.
    pub fn new(cx: &InitContext, config: &DenseNetConfig) -> Result<Self> {
        let c = config;
        let norm = |channels| -> Result<BatchNormalization> {
            Ok(BatchNormalization::new(cx, channels)?.activation(Activation::Relu))
        };
        let mut channels = c.init_features;
        let (cells, stride) = if c.small_images { (3, 1) } else { (7, 2) };
        let stem =
            conv(cx, [c.in_channels, channels], cells, stride, c.in_channels.saturating_mul(cells * cells))?;
        let mut features = Sequential::new().named("conv0", stem).named("norm0", norm(channels)?);
        if !c.small_images {
            features = features.named("pool0", MaxPooling::new(3)?.stride(2).padding(1));
        }
        for (i, layers) in c.blocks.into_iter().enumerate() {
            if i > 0 {
                features = features.named(format!("transition{i}"), Transition::new(cx, channels)?);
                channels /= 2;
            }
            let block = DenseBlock::new(cx, layers, channels, c.growth_rate)?.drop_rate(c.drop_rate)?;
            features = features.named(format!("denseblock{}", i + 1), block);
            channels = channels.saturating_add(layers.saturating_mul(c.growth_rate));
        }
        features = features.named("norm5", norm(channels)?);
        let classifier = Dense::new(cx, channels, c.num_classes)?.init(Init::Lin, Init::Zeros)?;
        let net = Sequential::new().named("features", features);
        let net = net.named("avgpool", GlobalPooling::avg().keepdim(false));
        Ok(DenseNet(net.named("classifier", classifier)))
    }
}

/// DenseNet-121, `torchvision.models.densenet121`. Errors: no classes.
pub fn densenet121(cx: &InitContext, num_classes: usize) -> Result<DenseNet> {
    DenseNet::new(cx, &DenseNetConfig::densenet121(num_classes))
}
