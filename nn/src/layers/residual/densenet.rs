//! The parts of DenseNet.

use trefoil::ops::activation::Activation;
use trefoil::ops::pool::Window;

use super::{conv_without_bias, he_normal, images};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::{argument, named, positive};
use crate::layers::{BatchNormalization, Convolutional, Dropout};
use crate::module::{InitContext, Layer, Visitor, hooks};

/// k x k convolution from N(0, 2 / fan_in).
fn conv(cx: &InitContext, inputs: usize, outputs: usize, kernel_size: usize) -> Result<Convolutional> {
    let fan_in = inputs.saturating_mul(kernel_size * kernel_size);
    conv_without_bias(cx, [inputs, outputs], kernel_size, 1, he_normal(fan_in))
}

/// A batch normalization with a relu.
fn norm(cx: &InitContext, channels: usize) -> Result<BatchNormalization> {
    Ok(BatchNormalization::new(cx, channels)?.activation(Activation::Relu))
}

/// One layer of a [`DenseBlock`] (DenseNet-B; Huang et al., 2017), torchvision's `_DenseLayer`: the new feature maps
/// conv2(relu(norm2(conv1(relu(norm1(x)))))), `[B, C, H, W] -> [B, growth_rate, H, W]`. The first convolution has 1x1 cells, the second one
/// 3x3. Also takes inputs without the batch axis.
///
/// State: `norm1` and `norm2` as in [`BatchNormalization`], `conv1.weight [bn_size*growth_rate, C, 1, 1]` and
/// `conv2.weight [growth_rate, bn_size*growth_rate, 3, 3]` from N(0, 2 / fan_in).
///
/// Errors of `forward`: rank; another number of channels than C.
#[derive(Debug)]
pub struct DenseBlockLayer {
    cx: InitContext,
    channels: usize,
    norm1: BatchNormalization,
    conv1: Convolutional,
    norm2: BatchNormalization,
    conv2: Convolutional,
    dropout: Option<Dropout>,
}

impl DenseBlockLayer {
    const KIND: &'static str = "DenseBlockLayer";

    /// `in_channels -> growth_rate` channels by way of four times as many, without dropout. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_channels: usize, growth_rate: usize) -> Result<Self> {
        Self::with_bn_size(cx, in_channels, growth_rate, 4)
    }

    /// As [`new`](Self::new) by way of `bn_size` times as many channels. Errors: a size of 0.
    pub fn with_bn_size(
        cx: &InitContext,
        in_channels: usize,
        growth_rate: usize,
        bn_size: usize,
    ) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[in_channels])?;
        positive(Self::KIND, "growth_rate", &[growth_rate])?;
        positive(Self::KIND, "bn_size", &[bn_size])?;
        let width = growth_rate.saturating_mul(bn_size);
        Ok(DenseBlockLayer {
            cx: cx.clone(),
            channels: in_channels,
            norm1: norm(cx, in_channels)?,
            conv1: conv(cx, in_channels, width, 1)?,
            norm2: norm(cx, width)?,
            conv2: conv(cx, width, growth_rate, 3)?,
            dropout: None,
        })
    }

    /// Drops elements of the new feature maps in training. Errors: a probability outside of [0, 1].
    pub fn drop_rate(mut self, p: f64) -> Result<Self> {
        let dropout = named(Self::KIND, argument("drop_rate", Dropout::new(&self.cx, p)))?;
        self.dropout = (p > 0.0).then_some(dropout);
        Ok(self)
    }
}

impl Layer for DenseBlockLayer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(Self::KIND, self.channels, x, |x| {
            let y = hooks::layer("conv1", &self.conv1, &hooks::layer("norm1", &self.norm1, x)?)?;
            let y = hooks::layer("conv2", &self.conv2, &hooks::layer("norm2", &self.norm2, &y)?)?;
            match &self.dropout {
                Some(drop) => hooks::layer("dropout", drop, &y),
                None => Ok(y),
            }
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("norm1", &self.norm1);
        v.child("conv1", &self.conv1);
        v.child("norm2", &self.norm2);
        v.child("conv2", &self.conv2);
        if let Some(drop) = &self.dropout {
            v.child("dropout", drop);
        }
    }
}

/// Block of DenseNet (Huang et al., 2017), torchvision's `_DenseBlock`: every [`DenseBlockLayer`] reads the input and the feature maps of all
/// layers before it, `[B, C, H, W] -> [B, C + num_layers*growth_rate, H, W]`. Also takes inputs without the batch axis.
///
/// State: that of the layers under `denselayer1.` and so on.
///
/// Errors of `forward`: rank; another number of channels than C.
#[derive(Debug)]
pub struct DenseBlock {
    channels: usize,
    layers: Vec<(String, DenseBlockLayer)>,
}

impl DenseBlock {
    const KIND: &'static str = "DenseBlock";

    /// `num_layers` layers that add `growth_rate` channels each to `in_channels`, without dropout. Errors: a size of 0.
    pub fn new(cx: &InitContext, num_layers: usize, in_channels: usize, growth_rate: usize) -> Result<Self> {
        Self::with_bn_size(cx, num_layers, in_channels, growth_rate, 4)
    }

    /// As [`new`](Self::new) with `bn_size` times `growth_rate` channels between the convolutions of a layer in place of four times. Errors:
    /// a size of 0.
    pub fn with_bn_size(
        cx: &InitContext,
        num_layers: usize,
        in_channels: usize,
        growth_rate: usize,
        bn_size: usize,
    ) -> Result<Self> {
        positive(Self::KIND, "num_layers", &[num_layers])?;
        let layer = |i: usize| {
            let channels = in_channels.saturating_add(growth_rate.saturating_mul(i));
            let layer = DenseBlockLayer::with_bn_size(cx, channels, growth_rate, bn_size)?;
            Ok((format!("denselayer{}", i + 1), layer))
        };
        let layers = named(Self::KIND, (0..num_layers).map(layer).collect())?;
        Ok(DenseBlock { channels: in_channels, layers })
    }

    /// Drops elements of new feature maps in training. Errors: a probability outside of [0, 1].
    pub fn drop_rate(mut self, p: f64) -> Result<Self> {
        let dropped = self.layers.into_iter().map(|(name, l)| Ok((name, l.drop_rate(p)?))).collect();
        self.layers = named(Self::KIND, dropped)?;
        Ok(self)
    }
}

impl Layer for DenseBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(Self::KIND, self.channels, x, |x| {
            self.layers.iter().try_fold(x.clone(), |all, (name, layer)| {
                Tensor::concat(1, &[&all, &hooks::layer(name, layer, &all)?])
            })
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (name, layer) in &self.layers {
            v.child(name, layer);
        }
    }
}

/// What stands between two blocks of DenseNet (Huang et al., 2017), torchvision's `_Transition`: the means of 2x2 cells of
/// conv(relu(norm(x))), `[B, C, H, W] -> [B, floor(C*compression), floor(H/2), floor(W/2)]`. Also takes inputs without the batch axis. The
/// convolution of 1x1 cells and the means commute; the means come first, which is a quarter of the products.
///
/// State: `norm` as in [`BatchNormalization`], `conv.weight [out, C, 1, 1]` from N(0, 2 / C).
///
/// Errors of `forward`: rank; another number of channels than C; images below 2x2.
#[derive(Debug)]
pub struct Transition {
    channels: usize,
    norm: BatchNormalization,
    conv: Convolutional,
}

impl Transition {
    const KIND: &'static str = "Transition";

    /// To half of `in_channels` channels. Errors: fewer than 2.
    pub fn new(cx: &InitContext, in_channels: usize) -> Result<Self> {
        Self::with_compression(cx, in_channels, 0.5)
    }

    /// To the share `compression` of `in_channels` channels. Errors: no channels; outside of (0, 1]; no channel that remains.
    pub fn with_compression(cx: &InitContext, in_channels: usize, compression: f64) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[in_channels])?;
        if !(compression > 0.0 && compression <= 1.0) {
            return Err(invalid(
                Self::KIND,
                "compression",
                "above 0 and at most 1",
                format!("{compression}"),
            ));
        }
        let outputs = (in_channels as f64 * compression) as usize;
        if outputs == 0 {
            let got = format!("{compression} of {in_channels}");
            return Err(invalid(Self::KIND, "compression", "at least 1 channel that remains", got));
        }
        let (norm, conv) = (norm(cx, in_channels)?, conv(cx, in_channels, outputs, 1)?);
        Ok(Transition { channels: in_channels, norm, conv })
    }
}

impl Layer for Transition {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(Self::KIND, self.channels, x, |x| {
            if x.shape()[2..].iter().any(|&n| n < 2) {
                let got = format!("shape {:?}", x.shape());
                return Err(invalid(Self::KIND, "x", "images of at least 2x2", got));
            }
            let means = hooks::layer("norm", &self.norm, x)?.avg_pool(&Window::new(&[2, 2]))?;
            hooks::layer("conv", &self.conv, &means)
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("norm", &self.norm);
        v.child("conv", &self.conv);
    }
}
