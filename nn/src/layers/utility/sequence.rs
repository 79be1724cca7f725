//! Layers without parameters for sequences and graphs: input, masking, last step, split, one layer for all steps.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::reduce::Reduce;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis};
use crate::functional::check_lengths;
use crate::module::hooks;
use crate::module::{Layer, Visitor};

/// Where a graph begins: checks the shape of an item and passes the tensor on; Keras' `Input`.
#[derive(Debug, Clone)]
pub struct Input {
    shape: Vec<isize>,
    dtype: Option<DType>,
}

impl Input {
    /// Items of this shape, behind the batch axis; -1 is any size. Errors: an empty shape, a size of 0 or below -1.
    pub fn new(shape: &[isize]) -> Result<Self> {
        if shape.is_empty() || shape.iter().any(|&n| n == 0 || n < -1) {
            return Err(invalid("Input", "shape", "sizes above 0 or -1", format!("{shape:?}")));
        }
        Ok(Input { shape: shape.to_vec(), dtype: None })
    }

    /// Also checks the dtype.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }
}

impl Layer for Input {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let fits = |item: &[usize]| {
            item.len() == self.shape.len()
                && item.iter().zip(&self.shape).all(|(&n, &want)| want < 0 || n == want as usize)
        };
        if !x.shape().split_first().is_some_and(|(_, item)| fits(item)) {
            let want = format!("a batch of items of shape {:?}", self.shape);
            return Err(invalid("Input", "x", want, format!("shape {:?}", x.shape())));
        }
        match self.dtype {
            Some(d) if d != x.dtype() => Err(invalid("Input", "x", d.name(), x.dtype().name())),
            _ => Ok(x.clone()),
        }
    }
}

/// Sets the steps of `[B, T, ..]` all of whose elements equal a value to 0, and says which steps remain; Keras' `Masking`.
#[derive(Debug, Clone, Copy)]
pub struct Masking {
    value: f64,
}

impl Masking {
    /// Steps of only `value` are masked. Errors: NaN, which equals nothing.
    pub fn new(value: f64) -> Result<Self> {
        if value.is_nan() {
            return Err(invalid("Masking", "mask_value", "a number", "NaN"));
        }
        Ok(Masking { value })
    }

    /// The steps that remain, u8 `[B, T]`. Errors: a rank below 3.
    pub fn mask(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() < 3 {
            return Err(invalid("Masking", "x", "shape [B, T, ..]", format!("{:?}", x.shape())));
        }
        let value = Tensor::full(x.device(), x.dtype(), &[], self.value)?;
        let features: Vec<isize> = (2..x.rank() as isize).collect();
        x.detach().ne(&value)?.reduce(Reduce::Any, &features, false)
    }
}

impl Default for Masking {
    fn default() -> Self {
        Masking { value: 0.0 }
    }
}

impl Layer for Masking {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let keep = self.mask(x)?;
        let wide = [x.shape()[0], x.shape()[1]].into_iter().chain(vec![1; x.rank() - 2]).collect::<Vec<_>>();
        let zero = Tensor::zeros(x.device(), x.dtype(), &[])?;
        x.where_(&keep.reshape(&wide)?, &zero)
    }

    /// `[x]` to the masked sequence and the mask.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => Ok(vec![self.forward(x)?, self.mask(x)?]),
            _ => Err(invalid("Masking", "inputs", "1 tensor", format!("{} tensors", inputs.len()))),
        }
    }
}

/// The last step of `[B, T, ..]` (or `[T, C]`).
#[derive(Debug, Clone, Copy, Default)]
pub struct SequenceLast;

impl SequenceLast {
    /// Step `lengths[b] - 1` of each row of `[B, T, ..]`; lengths are integers `[B]` on the device, from 1 to T. Errors: a rank below 3, no
    /// steps.
    pub fn at_lengths(&self, x: &Tensor, lengths: &Tensor) -> Result<Tensor> {
        const OP: &str = "SequenceLast";
        let (&[b, t, ..], true) = (x.shape(), x.rank() > 2) else {
            return Err(invalid(OP, "x", "shape [B, T, ..]", format!("{:?}", x.shape())));
        };
        if t == 0 {
            return Err(invalid(OP, "x", "at least one step", "none"));
        }
        let one = Tensor::ones(x.device(), DType::I32, &[])?;
        let last = check_lengths(OP, lengths, b)?.sub(&one)?;
        let wide: Vec<usize> = std::iter::once(b).chain(vec![1; x.rank() - 1]).collect();
        let item = [&[b, 1], &x.shape()[2..]].concat();
        x.gather(1, &last.reshape(&wide)?.expand(&item)?.contiguous()?)?.squeeze(1)
    }
}

impl Layer for SequenceLast {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let at = match x.rank() {
            0 | 1 => {
                return Err(invalid("SequenceLast", "x", "shape [B, T, ..]", format!("{:?}", x.shape())));
            }
            2 => 0,
            _ => 1,
        };
        let Some(last) = x.shape()[at].checked_sub(1) else {
            return Err(invalid("SequenceLast", "x", "at least one step", "none"));
        };
        x.select(at as isize, last)
    }

    /// `[x]` or `[x, lengths]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => Ok(vec![self.forward(x)?]),
            [x, l] => Ok(vec![self.at_lengths(x, l)?]),
            _ => {
                Err(invalid("SequenceLast", "inputs", "1 or 2 tensors", format!("{} tensors", inputs.len())))
            }
        }
    }
}

/// Cuts a tensor along an axis, `torch.split`; the parts are views.
#[derive(Debug, Clone)]
pub struct Split {
    parts: Parts,
    dim: isize,
}

#[derive(Debug, Clone)]
enum Parts {
    Equal(usize),
    Sizes(Vec<usize>),
}

impl Split {
    /// `num_splits` equal parts along axis `dim`. Errors: no parts.
    pub fn new(num_splits: usize, dim: isize) -> Result<Self> {
        if num_splits == 0 {
            return Err(invalid("Split", "num_splits", "at least 1 part", "0"));
        }
        Ok(Split { parts: Parts::Equal(num_splits), dim })
    }

    /// Parts of these sizes along axis `dim`. Errors: no sizes.
    pub fn sizes(sizes: &[usize], dim: isize) -> Result<Self> {
        if sizes.is_empty() {
            return Err(invalid("Split", "sizes", "at least 1 part", "none"));
        }
        Ok(Split { parts: Parts::Sizes(sizes.to_vec()), dim })
    }

    /// The parts in order. Errors: an axis that does not exist or divide, sizes that do not add up to it.
    pub fn split(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        let at = axis("Split", self.dim, x.rank())?;
        let size = x.shape()[at];
        let sizes = match &self.parts {
            Parts::Equal(n) if size.is_multiple_of(*n) => vec![size / n; *n],
            Parts::Equal(n) => {
                return Err(invalid(
                    "Split",
                    "x",
                    format!("an axis {at} that {n} divides"),
                    format!("{size}"),
                ));
            }
            Parts::Sizes(s) => s.clone(),
        };
        if sizes.iter().sum::<usize>() != size {
            return Err(invalid(
                "Split",
                "sizes",
                format!("sizes that add up to {size}"),
                format!("{sizes:?}"),
            ));
        }
        x.split(self.dim, &sizes)
    }
}

impl Layer for Split {
    /// The stacked form `[.., F] -> [.., n, F / n]`, for equal parts of the last axis only.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (&Parts::Equal(n), Some((&f, lead))) = (&self.parts, x.shape().split_last()) else {
            return Err(invalid(
                "Split",
                "sizes",
                "equal parts, or forward_all",
                format!("{:?}", self.parts),
            ));
        };
        if axis("Split", self.dim, x.rank())? != x.rank() - 1 {
            return Err(invalid("Split", "dim", "the last axis, or forward_all", format!("{}", self.dim)));
        }
        if !f.is_multiple_of(n) {
            return Err(invalid("Split", "x", format!("a last axis that {n} divides"), format!("{f}")));
        }
        x.reshape(&[lead, &[n, f / n]].concat())
    }

    /// `[x]` to its parts.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => self.split(x),
            _ => Err(invalid("Split", "inputs", "1 tensor", format!("{} tensors", inputs.len()))),
        }
    }
}

/// One layer for every step: `[B, T, ..]` is run as `[B T, ..]`; Keras' `TimeDistributed`. State: that of the layer under `inner.`.
#[derive(Debug)]
pub struct TimeDistributed {
    inner: Box<dyn Layer>,
    act: Activation,
}

impl TimeDistributed {
    /// Runs `inner` on every step, without activation.
    pub fn new(inner: impl Layer + 'static) -> Self {
        TimeDistributed { inner: Box::new(inner), act: Activation::Identity }
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }
}

impl Layer for TimeDistributed {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        const OP: &str = "TimeDistributed";
        let (&[b, t, ref item @ ..], true) = (x.shape(), x.rank() > 2) else {
            return Err(invalid(OP, "x", "shape [B, T, ..]", format!("{:?}", x.shape())));
        };
        if t == 0 {
            return Err(invalid(OP, "x", "at least one step", "none"));
        }
        let y = hooks::layer("inner", &*self.inner, &x.reshape(&[&[b * t], item].concat())?)?;
        match y.shape() {
            &[n, ref rest @ ..] if n == b * t => y.reshape(&[&[b, t], rest].concat())?.activation(self.act),
            s => Err(invalid(OP, "inner", format!("an output of {} items", b * t), format!("shape {s:?}"))),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("inner", &*self.inner);
    }
}
