//! The blocks of ResNet.

use trefoil::ops::activation::Activation;

use super::{conv_without_bias, fan_out, he_normal, images};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::{named, positive};
use crate::layers::{BatchNormalization, Convolutional, Sequential};
use crate::module::{InitContext, Layer, Visitor, hooks};

/// What a convolution is made of, beside its inputs.
struct Shape {
    outputs: usize,
    kernel_size: usize,
    stride: usize,
    groups: usize,
}

/// A convolution and a batch normalization.
#[derive(Debug)]
struct Stage {
    conv: Convolutional,
    norm: BatchNormalization,
}

impl Stage {
    fn new(cx: &InitContext, inputs: usize, s: &Shape) -> Result<Self> {
        let weight = he_normal(fan_out(s.outputs, s.kernel_size));
        let conv = conv_without_bias(cx, [inputs, s.outputs], s.kernel_size, s.groups, weight)?;
        Ok(Stage { conv: conv.stride(s.stride), norm: BatchNormalization::new(cx, s.outputs)? })
    }

    fn with_relu(self) -> Self {
        Stage { norm: self.norm.activation(Activation::Relu), ..self }
    }
}

/// Names of the parts.
const NAMES: [[&str; 2]; 3] = [["conv1", "bn1"], ["conv2", "bn2"], ["conv3", "bn3"]];

/// Convolutions with a relu behind each; that of the last one reads the sum with the input, or with its projection where shapes differ.
#[derive(Debug)]
struct Stages {
    kind: &'static str,
    inputs: usize,
    inner: Vec<Stage>,
    last: Stage,
    downsample: Option<Sequential>,
}

impl Stages {
    fn new(
        cx: &InitContext,
        kind: &'static str,
        inputs: usize,
        inner: &[Shape],
        last: &Shape,
    ) -> Result<Self> {
        let (mut stages, mut channels, mut stride) = (vec![], inputs, last.stride);
        for s in inner {
            stages.push(Stage::new(cx, channels, s)?.with_relu());
            (channels, stride) = (s.outputs, stride.saturating_mul(s.stride));
        }
        let mut downsample = None;
        if stride != 1 || last.outputs != inputs {
            let shape = Shape { outputs: last.outputs, kernel_size: 1, stride, groups: 1 };
            let Stage { conv, norm } = Stage::new(cx, inputs, &shape)?;
            downsample = Some(Sequential::new().push(conv).push(norm));
        }
        let last = Stage::new(cx, channels, last)?.with_relu();
        Ok(Stages { kind, inputs, inner: stages, last, downsample })
    }

    /// Lets the last normalization give 0 at first.
    fn zero_init_residual(&self) -> Result<()> {
        self.last.norm.weight().map_or(Ok(()), |gamma| gamma.get().detach().fill(0.0))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(self.kind, self.inputs, x, |x| {
            let mut y = x.clone();
            for (s, [conv, bn]) in self.inner.iter().zip(NAMES) {
                y = hooks::layer(bn, &s.norm, &hooks::layer(conv, &s.conv, &y)?)?;
            }
            let (s, [conv, bn]) = (&self.last, NAMES[self.inner.len()]);
            let y = hooks::layer(conv, &s.conv, &y)?;
            let shortcut = match &self.downsample {
                Some(d) => hooks::layer("downsample", d, x)?,
                None => x.clone(),
            };
            hooks::call(bn, &s.norm, &[&y, &shortcut], || s.norm.add_forward(&y, &shortcut))
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (s, [conv, bn]) in self.inner.iter().chain([&self.last]).zip(NAMES) {
            v.child(conv, &s.conv);
            v.child(bn, &s.norm);
        }
        if let Some(d) = &self.downsample {
            v.child("downsample", d);
        }
    }
}

/// The block of ResNet-18 and ResNet-34 (He et al., 2016), torchvision's `BasicBlock`: relu(shortcut + bn2(conv2(relu(bn1(conv1(x)))))) with
/// convolutions of 3x3 cells, `[B, C, H, W] -> [B, O, ceil(H/stride), ceil(W/stride)]`. The shortcut is x, or where that has another shape a
/// convolution of 1x1 cells with batch normalization. Also takes inputs without the batch axis.
///
/// State: `conv1.weight [O, C, 3, 3]`, `conv2.weight [O, O, 3, 3]`, `downsample.0.weight [O, C, 1, 1]`, from N(0, 2 / fan_out); `bn1`, `bn2`
/// and `downsample.1` as in [`BatchNormalization`].
///
/// Errors of `forward`: rank; another number of channels than C.
#[derive(Debug)]
pub struct BasicBlock(Stages);

impl BasicBlock {
    const KIND: &'static str = "BasicBlock";

    /// `in_channels -> out_channels` channels; the first convolution has the stride. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_channels: usize, out_channels: usize, stride: usize) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[in_channels])?;
        positive(Self::KIND, "out_channels", &[out_channels])?;
        positive(Self::KIND, "stride", &[stride])?;
        let conv = |stride| Shape { outputs: out_channels, kernel_size: 3, stride, groups: 1 };
        let stages = Stages::new(cx, Self::KIND, in_channels, &[conv(stride)], &conv(1));
        named(Self::KIND, stages).map(BasicBlock)
    }

    /// Fills the weight of the last normalization with 0, so that the block begins as its shortcut (Goyal et al., 2017).
    pub fn zero_init_residual(self) -> Result<Self> {
        self.0.zero_init_residual()?;
        Ok(self)
    }
}

/// The block of ResNet-50 and deeper ones (He et al., 2016), torchvision's `Bottleneck`: relu(shortcut + bn3(conv3(y))) with
/// y = relu(bn2(conv2(relu(bn1(conv1(x)))))), `[B, C, H, W] -> [B, 4*base_channels, ceil(H/stride), ceil(W/stride)]`. The convolutions have
/// 1x1, 3x3 and 1x1 cells, the second one the stride ("ResNet v1.5"), and the width `base_channels` between them. The shortcut is x, or where
/// that has another shape a convolution of 1x1 cells with batch normalization. Also takes inputs without the batch axis.
///
/// State: `conv1.weight [width, C, 1, 1]`, `conv2.weight [width, width/groups, 3, 3]`, `conv3.weight [4*base_channels, width, 1, 1]`,
/// `downsample.0.weight [4*base_channels, C, 1, 1]`, from N(0, 2 / fan_out); `bn1`, `bn2`, `bn3` and `downsample.1` as in
/// [`BatchNormalization`].
///
/// Errors of `forward`: rank; another number of channels than C.
#[derive(Debug)]
pub struct BottleneckBlock(Stages);

impl BottleneckBlock {
    const KIND: &'static str = "BottleneckBlock";

    /// `in_channels -> 4*base_channels` channels, without groups. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_channels: usize, base_channels: usize, stride: usize) -> Result<Self> {
        Self::with_groups(cx, in_channels, base_channels, stride, 1, 64)
    }

    /// As [`new`](Self::new) with groups of the second convolution (ResNeXt) and the width floor(base_channels*base_width/64)*groups (wide
    /// ResNet). Errors: a size or width of 0.
    pub fn with_groups(
        cx: &InitContext,
        in_channels: usize,
        base_channels: usize,
        stride: usize,
        groups: usize,
        base_width: usize,
    ) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[in_channels])?;
        positive(Self::KIND, "base_channels", &[base_channels])?;
        positive(Self::KIND, "stride", &[stride])?;
        positive(Self::KIND, "groups", &[groups])?;
        let width = base_channels.saturating_mul(base_width) / 64;
        if width == 0 {
            let got = format!("{base_width} with {base_channels} base_channels");
            return Err(invalid(Self::KIND, "base_width", "at least 64 / base_channels", got));
        }
        let width = width.saturating_mul(groups);
        let inner = [
            Shape { outputs: width, kernel_size: 1, stride: 1, groups: 1 },
            Shape { outputs: width, kernel_size: 3, stride, groups },
        ];
        let last = Shape { outputs: base_channels.saturating_mul(4), kernel_size: 1, stride: 1, groups: 1 };
        let stages = Stages::new(cx, Self::KIND, in_channels, &inner, &last);
        named(Self::KIND, stages).map(BottleneckBlock)
    }

    /// Fills the weight of the last normalization with 0, so that the block begins as its shortcut (Goyal et al., 2017).
    pub fn zero_init_residual(self) -> Result<Self> {
        self.0.zero_init_residual()?;
        Ok(self)
    }
}

macro_rules! block {
    ($($block:ident)*) => {$(
        impl Layer for $block {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.0.forward(x)
            }

            fn visit(&self, v: &mut Visitor<'_>) {
                self.0.visit(v);
            }
        }
    )*};
}
block!(BasicBlock BottleneckBlock);
