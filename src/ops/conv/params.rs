//! Parameters of a convolution, and the sizes of its outputs.

use crate::ops::conv::{dims, same_axes, windows};
use crate::error::{GpuError, Result};
use crate::layout::Dims;
use crate::ops::activation::Activation;
use crate::ops::gemm::Precision;

/// One value per spatial axis, first axis first; a single value counts for all axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AxisValues {
    len: usize,
    v: [usize; 3],
}

impl AxisValues {
    const fn all(v: usize) -> Self {
        AxisValues { len: 1, v: [v; 3] }
    }

    /// The values of `axes` axes; `None` if there are as many of another number.
    fn get(&self, axes: usize) -> Option<[usize; 3]> {
        match self.len {
            1 => Some([self.v[0]; 3]),
            n => (n == axes).then_some(self.v),
        }
    }
}

impl From<usize> for AxisValues {
    fn from(v: usize) -> Self {
        AxisValues::all(v)
    }
}

impl From<&[usize]> for AxisValues {
    /// More than three values are kept as a number of axes that no convolution has.
    fn from(v: &[usize]) -> Self {
        let mut all = [0; 3];
        all.iter_mut().zip(v).for_each(|(a, &x)| *a = x);
        AxisValues { len: v.len(), v: all }
    }
}

impl<const N: usize> From<[usize; N]> for AxisValues {
    fn from(v: [usize; N]) -> Self {
        v.as_slice().into()
    }
}

/// How windows lie on the input of a convolution of 1 to 3 spatial axes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Conv {
    /// Distance of windows.
    pub stride: AxisValues,
    /// Zeros before each axis, and behind it unless `pad_end` is set.
    pub pad: AxisValues,
    /// Zeros behind each axis, where they are not as many as before it.
    pub pad_end: Option<AxisValues>,
    /// Distance of a window's elements.
    pub dilation: AxisValues,
    /// Rows that a transposed convolution adds behind each axis of its output; below the larger of stride and dilation.
    pub out_pad: AxisValues,
    /// Groups of channels that are convolved apart from each other.
    pub groups: usize,
    /// Applied last by [`ConvOps::conv`](super::ConvOps::conv) and [`ConvOps::conv_transpose`](super::ConvOps::conv_transpose): one of the activations that [`Gemm`](crate::ops::gemm::Gemm) fuses.
    pub act: Activation,
    /// Arithmetic of f32 products.
    pub precision: Precision,
}

impl Conv {
    /// Stride 1, no padding, no dilation, one group, no activation.
    pub const fn new() -> Self {
        Conv {
            stride: AxisValues::all(1),
            pad: AxisValues::all(0),
            pad_end: None,
            dilation: AxisValues::all(1),
            out_pad: AxisValues::all(0),
            groups: 1,
            act: Activation::Identity,
            precision: Precision::Ieee,
        }
    }

    /// Sets the stride: one number, or one per axis.
    pub fn stride(mut self, v: impl Into<AxisValues>) -> Self {
        self.stride = v.into();
        self
    }

    /// Sets the padding of both sides.
    pub fn pad(mut self, v: impl Into<AxisValues>) -> Self {
        self.pad = v.into();
        self
    }

    /// Sets the padding behind each axis where it differs from that before it.
    pub fn pad_end(mut self, v: impl Into<AxisValues>) -> Self {
        self.pad_end = Some(v.into());
        self
    }

    /// Sets the dilation.
    pub fn dilation(mut self, v: impl Into<AxisValues>) -> Self {
        self.dilation = v.into();
        self
    }

    /// Sets the output padding of a transposed convolution.
    pub fn out_pad(mut self, v: impl Into<AxisValues>) -> Self {
        self.out_pad = v.into();
        self
    }

    /// Sets the number of groups.
    pub const fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Sets the activation.
    pub const fn act(mut self, act: Activation) -> Self {
        self.act = act;
        self
    }

    /// Sets the arithmetic.
    pub const fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Spatial sizes of the output: floor((i + pads - dilation*(k-1) - 1) / stride) + 1 on each axis. `Invalid` for parameters that do not
    /// fit `input` and `kernel`, one size per spatial axis each.
    pub fn output_size(&self, input: &[usize], kernel: &[usize]) -> Result<Dims> {
        let axes = same_axes("conv", input, kernel)?;
        Ok(dims(&windows("conv", self, axes)?.count("conv", "w", input, kernel)?))
    }

    /// Spatial sizes of the transposed convolution's output: (i-1)*stride - pads + dilation*(k-1) + out_pad + 1 on each axis. Errors as for
    /// [`Conv::output_size`].
    pub fn transpose_output_size(&self, input: &[usize], kernel: &[usize]) -> Result<Dims> {
        let axes = same_axes("conv_transpose", input, kernel)?;
        let win = windows("conv_transpose", self, axes)?;
        Ok(dims(&win.spread("conv_transpose", self, input, kernel)?))
    }
}

impl Default for Conv {
    fn default() -> Self {
        Conv::new()
    }
}

pub(super) fn per_axis(
    op: &'static str,
    arg: &'static str,
    v: AxisValues,
    axes: usize,
    least: usize,
) -> Result<[usize; 3]> {
    let all = v.get(axes).ok_or_else(|| {
        GpuError::invalid(op, arg, format!("one value or {axes}"), format!("{} values", v.len))
    })?;
    // A limit far above every use keeps all sums of these within 64 bits.
    if all[..axes].iter().any(|&x| x < least || x >= 1 << 31) {
        return Err(GpuError::invalid(
            op,
            arg,
            format!("at least {least} and below 2^31"),
            format!("{:?}", &all[..axes]),
        ));
    }
    Ok(all)
}
