//! Convolutional LSTM.

use once_cell::sync::OnceCell;

use trefoil::DType;
use trefoil::ops::conv::Conv;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::{ConvLstmParams, RnnState};
use crate::layers::spatial::{PerAxis, named};
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Convolutional LSTM (Shi et al., 2015), Keras' `ConvLSTM2D`: `[B, T, C, H, W] -> [B, T, F, H', W']`, where H' and W' are what the
/// convolution of the input makes of the image (by default its size). The convolution of the state has stride 1 and keeps the size.
///
/// State: `weight_ih [4 F, C, k, k]`, `weight_hh [4 F, F, k, k]`, `bias [4 F]`, rows in the order i, f, g, o, and with peepholes `w_ci`,
/// `w_cf`, `w_co [F, H', W']`. Weights are Glorot-uniform; biases are 0 but for those of f, which are 1; peepholes are 0.
#[derive(Debug)]
pub struct ConvLstm {
    cx: InitContext,
    filters: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    /// `None`: what keeps the size.
    padding: Option<[usize; 2]>,
    dilation: [usize; 2],
    with_bias: bool,
    with_peepholes: bool,
    sequences: bool,
    weights: OnceCell<Weights>,
    peepholes: OnceCell<[Param; 3]>,
}

#[derive(Debug)]
struct Weights {
    ih: Param,
    hh: Param,
    bias: Option<Param>,
}

const OP: &str = "ConvLstm";

impl ConvLstm {
    /// Images of `in_channels` channels, `filters` channels in the state, kernels of `kernel_size` (height, width). Errors: a size of 0, an even
    /// kernel.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        filters: usize,
        kernel_size: [usize; 2],
    ) -> Result<Self> {
        let l = Self::lazy(cx, filters, kernel_size)?;
        if in_channels == 0 {
            return Err(invalid(OP, "in_channels", "at least 1", "0"));
        }
        l.weights(in_channels)?;
        Ok(l)
    }

    /// The first forward fixes the number of channels and makes the parameters. Errors: a size of 0, an even kernel.
    pub fn lazy(cx: &InitContext, filters: usize, kernel_size: [usize; 2]) -> Result<Self> {
        if filters == 0 {
            return Err(invalid(OP, "filters", "at least 1", "0"));
        }
        if kernel_size.iter().any(|k| k % 2 == 0) {
            return Err(invalid(OP, "kernel_size", "odd sizes", format!("{kernel_size:?}")));
        }
        Ok(ConvLstm {
            cx: cx.clone(),
            filters,
            kernel: kernel_size,
            stride: [1; 2],
            padding: None,
            dilation: [1; 2],
            with_bias: true,
            with_peepholes: false,
            sequences: true,
            weights: OnceCell::new(),
            peepholes: OnceCell::new(),
        })
    }

    /// Sets the stride of the input's convolution. A stride above 1 needs a padding. Errors: 0.
    pub fn stride(mut self, stride: impl PerAxis<usize, 2>) -> Result<Self> {
        self.stride = stride.per_axis();
        crate::layers::spatial::positive(OP, "stride", &self.stride)?;
        Ok(self)
    }

    /// Sets the cells added on both sides of each axis of the input, in place of what keeps the size.
    pub fn padding(mut self, padding: impl PerAxis<usize, 2>) -> Self {
        self.padding = Some(padding.per_axis());
        self
    }

    /// Sets the dilation of the input's convolution. Errors: 0.
    pub fn dilation(mut self, dilation: impl PerAxis<usize, 2>) -> Result<Self> {
        self.dilation = dilation.per_axis();
        crate::layers::spatial::positive(OP, "dilation", &self.dilation)?;
        Ok(self)
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.with_bias = false;
        if let Some(w) = self.weights.get_mut() {
            w.bias = None;
        }
        self
    }

    /// Lets the gates see the cell state. The first forward fixes the size of the images and makes these parameters.
    pub fn peepholes(mut self) -> Self {
        self.with_peepholes = true;
        self
    }

    /// Gives only the final hidden state `[B, F, H', W']` instead of all.
    pub fn return_last(mut self) -> Self {
        self.sequences = false;
        self
    }

    fn weights(&self, channels: usize) -> Result<&Weights> {
        self.weights.get_or_try_init(|| {
            let (f, [kh, kw]) = (self.filters, self.kernel);
            let draw = |inputs: usize| {
                Init::Glorot.param(&self.cx, &[4 * f, inputs, kh, kw], inputs * kh * kw, 4 * f * kh * kw)
            };
            let bias = match self.with_bias {
                true => {
                    let b = Init::Zeros.tensor(&self.cx, &[4 * f], f, f)?;
                    b.narrow(0, f, f)?.fill(1.0)?;
                    Some(Param::new(b))
                }
                false => None,
            };
            let w = Weights { ih: draw(channels)?, hh: draw(f)?, bias };
            Ok(w)
        })
    }

    fn peephole(&self, size: [usize; 2]) -> Result<Option<Tensor>> {
        if !self.with_peepholes {
            return Ok(None);
        }
        let shape = [self.filters, size[0], size[1]];
        let zero = || Init::Zeros.param(&self.cx, &shape, 1, 1);
        let all = self.peepholes.get_or_try_init(|| Ok::<_, NnError>([zero()?, zero()?, zero()?]))?;
        let [i, f, o] = all.each_ref().map(Param::get);
        if i.shape() != shape {
            let want = format!("images of {:?} like the first ones", &i.shape()[1..]);
            return Err(invalid(OP, "x", want, format!("{size:?}")));
        }
        Ok(Some(Tensor::stack(0, &[&i, &f, &o])?))
    }

    /// What the recurrence reads for `[T, B, C, H, W]`, and the weights that it reads it with. The recurrence itself keeps the size of the
    /// image; any other convolution of the input is made before it, and then read as it is.
    fn gates_of_input(&self, x: Tensor, w_ih: Tensor) -> Result<(Tensor, Tensor)> {
        let full = [0, 1].map(|i| self.dilation[i] * (self.kernel[i] - 1));
        let same = full.map(|n| n / 2);
        let padding = match self.padding {
            Some(p) => p,
            None if self.stride == [1; 2] => same,
            None => return Err(invalid(OP, "padding", "a padding for strides above 1", "none")),
        };
        if self.stride == [1; 2] && self.dilation == [1; 2] && padding == same {
            return Ok((x, w_ih));
        }
        let &[t, b, c, h, w] = x.shape() else {
            return Err(invalid(OP, "x", "rank 5", format!("{:?}", x.shape())));
        };
        let p = Conv::new().stride(self.stride).pad(padding).dilation(self.dilation);
        let z = named(OP, x.reshape(&[t * b, c, h, w])?.conv2d(&w_ih, None, &p))?;
        let rows = 4 * self.filters;
        let z = z.reshape(&[t, b, rows, z.shape()[2], z.shape()[3]])?;
        let each = Tensor::arange(z.device(), DType::I64, 0.0, 1.0, rows)?;
        let identity = each.one_hot(rows, z.dtype())?.reshape(&[rows, rows, 1, 1])?;
        Ok((z, identity))
    }

    /// Runs over `[B, T, C, H, W]` from an initial state `[B, F, H', W']` (none: zeros), which gets gradients: the output and the final
    /// state. Errors: `Invalid` for shapes that do not fit, and no steps.
    pub fn run(&self, x: &Tensor, initial: Option<&RnnState>) -> Result<(Tensor, RnnState)> {
        let &[b, t, c, h, w] = x.shape() else {
            return Err(invalid(OP, "x", "shape [B, T, C, H, W]", format!("{:?}", x.shape())));
        };
        if t == 0 || c * h * w == 0 {
            return Err(invalid(OP, "x", "steps, channels and pixels", format!("{:?}", x.shape())));
        }
        let p = self.weights(c)?;
        let w_ih = p.ih.get();
        if w_ih.shape()[1] != c {
            return Err(invalid(OP, "x", format!("{} channels", w_ih.shape()[1]), format!("{c}")));
        }
        let (x, w_ih) = self.gates_of_input(x.transpose(0, 1)?, w_ih)?;
        let size = [x.shape()[3], x.shape()[4]];
        let state = [b, self.filters, size[0], size[1]];
        if let Some(s) = initial
            && (s.h.shape() != state || s.c.as_ref().is_none_or(|c| c.shape() != state))
        {
            let got = format!("{:?} and {:?}", s.h.shape(), s.c.as_ref().map(|c| c.shape().to_vec()));
            return Err(invalid(OP, "initial", format!("hidden and cell state {state:?}"), got));
        }
        let weights = ConvLstmParams {
            w_ih,
            w_hh: p.hh.get(),
            bias: p.bias.as_ref().map(Param::get),
            peephole: self.peephole(size)?,
        };
        let (y, state) = x.conv_lstm(&weights, initial)?;
        let y = if self.sequences { y.transpose(0, 1)? } else { state.h.clone() };
        Ok((y, state))
    }
}

impl Layer for ConvLstm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.run(x, None)?.0)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if let Some(w) = self.weights.get() {
            v.param("weight_ih", &w.ih);
            v.param("weight_hh", &w.hh);
            if let Some(b) = &w.bias {
                v.param("bias", b);
            }
        }
        if let Some([i, f, o]) = self.peepholes.get() {
            v.param("w_ci", i);
            v.param("w_cf", f);
            v.param("w_co", o);
        }
    }
}
