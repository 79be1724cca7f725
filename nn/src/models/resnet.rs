//! ResNet.

use trefoil::ops::activation::Activation;

use super::conv;
use crate::core::error::Result;
use crate::layers::{
    BasicBlock, BatchNormalization, BottleneckBlock, Dense, GlobalPooling, MaxPooling, Sequential,
};
use crate::module::InitContext;

/// What a [`ResNet`] is made of.
#[derive(Debug, Clone, Copy)]
pub struct ResNetConfig {
    bottleneck: bool,
    blocks: [usize; 4],
    num_classes: usize,
    width: usize,
    in_channels: usize,
    small_images: bool,
    zero_init_residual: bool,
}

impl ResNetConfig {
    /// Of [`BasicBlock`]s, this many in each of the four stages.
    pub fn basic(blocks: [usize; 4], num_classes: usize) -> Self {
        ResNetConfig {
            bottleneck: false,
            blocks,
            num_classes,
            width: 64,
            in_channels: 3,
            small_images: false,
            zero_init_residual: false,
        }
    }

    /// Of [`BottleneckBlock`]s, this many in each of the four stages; `[3, 4, 23, 3]` is ResNet-101.
    pub fn bottleneck(blocks: [usize; 4], num_classes: usize) -> Self {
        ResNetConfig { bottleneck: true, ..Self::basic(blocks, num_classes) }
    }

    /// ResNet-18.
    pub fn resnet18(num_classes: usize) -> Self {
        Self::basic([2, 2, 2, 2], num_classes)
    }

    /// ResNet-34.
    pub fn resnet34(num_classes: usize) -> Self {
        Self::basic([3, 4, 6, 3], num_classes)
    }

    /// ResNet-50.
    pub fn resnet50(num_classes: usize) -> Self {
        Self::bottleneck([3, 4, 6, 3], num_classes)
    }

    /// Sets the channels of the first stage, which double with each stage (default 64).
    pub fn width(mut self, width: usize) -> Self {
        self.width = width;
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

    /// Lets every block begin as its shortcut, see [`BasicBlock::zero_init_residual`].
    pub fn zero_init_residual(mut self) -> Self {
        self.zero_init_residual = true;
        self
    }
}

/// ResNet (He et al., 2016), torchvision's `ResNet`: `[B, C, H, W] -> [B, num_classes]` (logits).
///
/// State: `conv1.weight`, `bn1`, `layer1.0` and so on as in [`BasicBlock`] or [`BottleneckBlock`], `fc.weight`, `fc.bias`.
#[derive(Debug)]
pub struct ResNet(pub(super) Sequential);

impl ResNet {
    /// Makes a model. Errors: a size of 0, by the name of the part.
    pub fn new(cx: &InitContext, config: &ResNetConfig) -> Result<Self> {
        let c = config;
        let (cells, stride) = if c.small_images { (3, 1) } else { (7, 2) };
        let stem = conv(cx, [c.in_channels, c.width], cells, stride, c.width.saturating_mul(cells * cells))?;
        let norm = BatchNormalization::new(cx, c.width)?.activation(Activation::Relu);
        let mut net = Sequential::new().named("conv1", stem).named("bn1", norm);
        if !c.small_images {
            net = net.named("maxpool", MaxPooling::new(3)?.stride(2).padding(1));
        }
        let mut channels = c.width;
        for (i, &blocks) in c.blocks.iter().enumerate() {
            let (mut stage, width) = (Sequential::new(), c.width.saturating_mul(1 << i));
            for j in 0..blocks {
                let stride = if i > 0 && j == 0 { 2 } else { 1 };
                if c.bottleneck {
                    let block = BottleneckBlock::new(cx, channels, width, stride)?;
                    stage =
                        stage.push(if c.zero_init_residual { block.zero_init_residual()? } else { block });
                    channels = width.saturating_mul(4);
                } else {
                    let block = BasicBlock::new(cx, channels, width, stride)?;
                    stage =
                        stage.push(if c.zero_init_residual { block.zero_init_residual()? } else { block });
                    channels = width;
                }
            }
            net = net.named(format!("layer{}", i + 1), stage);
        }
        let head = Dense::new(cx, channels, c.num_classes)?;
        Ok(ResNet(net.named("avgpool", GlobalPooling::avg().keepdim(false)).named("fc", head)))
    }
}

/// ResNet-18, `torchvision.models.resnet18`. Errors: no classes.
pub fn resnet18(cx: &InitContext, num_classes: usize) -> Result<ResNet> {
    ResNet::new(cx, &ResNetConfig::resnet18(num_classes))
}

/// ResNet-34, `torchvision.models.resnet34`. Errors: no classes.
pub fn resnet34(cx: &InitContext, num_classes: usize) -> Result<ResNet> {
    ResNet::new(cx, &ResNetConfig::resnet34(num_classes))
}

/// ResNet-50, `torchvision.models.resnet50`. Errors: no classes.
pub fn resnet50(cx: &InitContext, num_classes: usize) -> Result<ResNet> {
    ResNet::new(cx, &ResNetConfig::resnet50(num_classes))
}
