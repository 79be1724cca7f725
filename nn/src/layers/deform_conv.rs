//! Deformable convolution.

use trefoil::ops::{Activation, Conv};

use super::image::{PerAxis, Weights, batched, fans, positive};
use crate::error::{Result, invalid};
use crate::init::Init;
use crate::layer::{Build, Layer, Param, Visitor};
use crate::tensor::Tensor;

/// Convolution of images that learns where its taps read: Dai et al. (2017), with a learned factor per tap Zhu et al. (2019).
/// `[B, C, H, W] -> [B, O, H', W']` with offsets and factors from two convolutions of the same input, `torchvision.ops.deform_conv2d`.
/// Also takes inputs without the batch axis. Stride 1, padding 1, dilation 1 unless set otherwise.
///
/// State: `weight [O, C/groups, kH, kW]`, `bias [O]` from U(-a, a) with a = 1/sqrt(C/groups * kH * kW); `offset_conv.weight
/// [2*D*kH*kW, C, kH, kW]`, `mask_conv.weight [D*kH*kW, C, kH, kW]` and their biases, which start at 0 (no displacement, factors 1/2).
///
/// Errors of `forward`: rank; another number of channels than at first; groups that do not divide the channels; strides or dilations of 0;
/// windows larger than the padded input.
#[derive(Debug)]
pub struct DeformableConvolutional {
    main: Weights,
    offset: Weights,
    mask: Weights,
    out: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
    deform_groups: usize,
    modulation: bool,
}

/// Weight and bias.
type Pair = (Tensor, Option<Tensor>);

impl DeformableConvolutional {
    const KIND: &'static str = "DeformableConvolutional";

    /// `inputs -> outputs` channels with bias and factors. Errors: a size of 0.
    pub fn new(cx: &Build, inputs: usize, outputs: usize, kernel: impl PerAxis<usize, 2>) -> Result<Self> {
        Self::lazy(cx, outputs, kernel)?.inputs(inputs)
    }

    /// The first forward fixes the number of input channels and makes the parameters. Errors: a size of 0.
    pub fn lazy(cx: &Build, outputs: usize, kernel: impl PerAxis<usize, 2>) -> Result<Self> {
        let kernel = kernel.per_axis();
        positive(Self::KIND, "outputs", &[outputs])?;
        positive(Self::KIND, "kernel", &kernel)?;
        Ok(DeformableConvolutional {
            main: Weights::new(cx, Init::Lin),
            offset: Weights::new(cx, Init::Zeros),
            mask: Weights::new(cx, Init::Zeros),
            out: outputs,
            kernel,
            stride: [1; 2],
            padding: [1; 2],
            dilation: [1; 2],
            groups: 1,
            deform_groups: 1,
            modulation: true,
        })
    }

    fn inputs(self, inputs: usize) -> Result<Self> {
        positive(Self::KIND, "inputs", &[inputs])?;
        self.params(inputs)?;
        Ok(self)
    }

    /// Without bias of the main convolution.
    pub fn no_bias(mut self) -> Self {
        self.main.no_bias();
        self
    }

    /// Sets the distance of windows.
    pub fn stride(mut self, stride: impl PerAxis<usize, 2>) -> Self {
        self.stride = stride.per_axis();
        self
    }

    /// Sets the zeros around the image.
    pub fn padding(mut self, padding: impl PerAxis<usize, 2>) -> Self {
        self.padding = padding.per_axis();
        self
    }

    /// Sets the distance of a window's undisplaced cells.
    pub fn dilation(mut self, dilation: impl PerAxis<usize, 2>) -> Self {
        self.dilation = dilation.per_axis();
        self
    }

    /// Sets the groups of the main convolution and makes the parameters anew. Errors: no divisor of both numbers of channels.
    pub fn groups(mut self, groups: usize) -> Result<Self> {
        self.groups = groups;
        self.anew()
    }

    /// Sets the number D of groups of input channels that share offsets and makes the parameters anew. Errors: no divisor of the channels.
    pub fn deform_groups(mut self, groups: usize) -> Result<Self> {
        self.deform_groups = groups;
        self.anew()
    }

    /// Whether taps have learned factors (default true). Makes the parameters anew.
    pub fn modulation(mut self, on: bool) -> Result<Self> {
        self.modulation = on;
        self.anew()
    }

    /// Sets how weight and bias of the main convolution are filled and makes the parameters anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        (self.main.weight_init, self.main.bias_init) = (weight, bias);
        self.anew()
    }

    fn anew(mut self) -> Result<Self> {
        self.offset.reset();
        self.mask.reset();
        match self.main.reset() {
            Some(inputs) => self.inputs(inputs),
            None => Ok(self),
        }
    }

    /// Parameters of the main, the offset and the mask convolution.
    fn params(&self, inputs: usize) -> Result<(Pair, Pair, Option<Pair>)> {
        let (o, g, d) = (self.out, self.groups, self.deform_groups);
        if g == 0 || !inputs.is_multiple_of(g) || !o.is_multiple_of(g) {
            let expected = format!("a divisor of {inputs} input and {o} output channels");
            return Err(invalid(Self::KIND, "groups", expected, format!("{g}")));
        }
        if d == 0 || !inputs.is_multiple_of(d) {
            let expected = format!("a divisor of {inputs} input channels");
            return Err(invalid(Self::KIND, "deform_groups", expected, format!("{d}")));
        }
        let [kh, kw] = self.kernel;
        let taps = d.saturating_mul(kh).saturating_mul(kw);
        let fan = fans(inputs / g, o / g, &self.kernel);
        let map = |w: &Weights, n: usize| w.get(inputs, &[n, inputs, kh, kw], &[n], fan);
        Ok((
            self.main.get(inputs, &[o, inputs / g, kh, kw], &[o], fan)?,
            map(&self.offset, taps.saturating_mul(2))?,
            if self.modulation { Some(map(&self.mask, taps)?) } else { None },
        ))
    }

    /// The weight `[O, C/groups, kH, kW]`, once the number of input channels is known.
    pub fn weight(&self) -> Option<&Param> {
        self.main.weight()
    }

    /// The bias `[O]`, if there is one and the number of input channels is known.
    pub fn bias(&self) -> Option<&Param> {
        self.main.bias()
    }
}

impl Layer for DeformableConvolutional {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, 2, x, |x| {
            let ((w, b), (ow, ob), mask) = self.params(self.main.channels(Self::KIND, x)?)?;
            let p = Conv::new().stride(self.stride).pad(self.padding).dilation(self.dilation);
            let offset = x.conv2d(&ow, ob.as_ref(), &p)?;
            let mask = match mask {
                Some((mw, mb)) => {
                    let p = p.act(Activation::Sigmoid);
                    Some(x.conv2d(&mw, mb.as_ref(), &p)?)
                }
                None => None,
            };
            x.deform_conv(&w, &offset, mask.as_ref(), b.as_ref(), &p.groups(self.groups))
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.main.visit("", v);
        self.offset.visit("offset_conv.", v);
        self.mask.visit("mask_conv.", v);
    }
}
