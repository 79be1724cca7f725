//! Convolution: signatures and checks. Causal and deformable convolution are checked in `conv_causal.rs` and `conv_deform.rs`.

mod causal;
mod deformable;

pub use self::causal::*;
pub use self::deformable::*;

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::layout::Dims;
use crate::ops::check;
use crate::ops::activation::Activation;
use crate::ops::gemm::{Precision, fused_act};

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
    /// Applied last by [`ConvOps::conv`] and [`ConvOps::conv_transpose`]: one of the activations that [`Gemm`](crate::ops::gemm::Gemm) fuses.
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

io_struct! {
    /// Operands of [`ConvOps::conv`] and [`ConvOps::conv_transpose`]. All of one floating dtype; S stands for 1 to 3 axes. Each is contiguous
    /// or [channels last](crate::Layout::channels_last); matrix cores are at their fastest where all are channels last.
    #[derive(Debug)]
    pub struct ConvIo<'a> {
        /// [N, Ci, S].
        pub x: View<'a>,
        /// [Co, Ci/groups, K]; transposed [Ci, Co/groups, K].
        pub w: View<'a>,
        /// Added per output channel, `[Co]`.
        pub bias: Option<View<'a>>,
        /// Factor of the convolution per output channel, `[Co]`: with `bias` an inference batch norm folded into it.
        pub scale: Option<View<'a>>,
        /// Added before the activation, y's shape.
        pub residual: Option<View<'a>>,
        /// [N, Co, S'].
        pub y: ViewMut<'a>,
        /// Second output: the value before the activation, y's shape.
        pub z: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`ConvOps::conv_bwd`] and [`ConvOps::conv_transpose_bwd`]. Layouts as for [`ConvIo`].
    #[derive(Debug)]
    pub struct ConvBwd<'a> {
        /// Upstream gradient, the forward output's shape.
        pub dy: View<'a>,
        /// The forward's input; needed for `dw`.
        pub x: Option<View<'a>>,
        /// The forward's weight; needed for `dx`.
        pub w: Option<View<'a>>,
        /// What the activation's backward reads: Y for Relu, Sigmoid and Tanh, Z for the others; `None` for Identity.
        pub saved: Option<View<'a>>,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of w.
        pub dw: Option<GradMut<'a>>,
        /// Gradient of the bias.
        pub dbias: Option<GradMut<'a>>,
        /// Gradient of the residual.
        pub dresidual: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`CausalConvOps::causal_conv1d`]. All contiguous and of one floating dtype.
    #[derive(Debug)]
    pub struct CausalConvIo<'a> {
        /// [N, C, L].
        pub x: View<'a>,
        /// [C, K].
        pub w: View<'a>,
        /// `[C]`.
        pub bias: Option<View<'a>>,
        /// The K-1 inputs before x, [N, C, K-1]; zeros without.
        pub state: Option<View<'a>>,
        /// [N, C, L].
        pub y: ViewMut<'a>,
        /// The last K-1 inputs, for the next call; may be `state` itself.
        pub new_state: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`CausalConvOps::causal_conv1d_bwd`].
    #[derive(Debug)]
    pub struct CausalConvBwd<'a> {
        /// Upstream gradient [N, C, L].
        pub dy: View<'a>,
        /// The forward's input.
        pub x: View<'a>,
        /// The forward's weight.
        pub w: View<'a>,
        /// The forward's bias (read where the activation needs it).
        pub bias: Option<View<'a>>,
        /// The forward's state.
        pub state: Option<View<'a>>,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of w.
        pub dw: Option<GradMut<'a>>,
        /// Gradient of the bias.
        pub dbias: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`DeformableConvOps::deform_conv`]. All contiguous and of one floating dtype. D deformation groups: channels of x that share offsets.
    #[derive(Debug)]
    pub struct DeformConvIo<'a> {
        /// [N, Ci, H, W].
        pub x: View<'a>,
        /// [Co, Ci/groups, kH, kW].
        pub w: View<'a>,
        /// [N, D * kH * kW * 2, Ho, Wo]: for each tap the displacement along H, then along W, in elements of x.
        pub offset: View<'a>,
        /// [N, D * kH * kW, Ho, Wo]: factor of each tap; 1 without (version 1).
        pub mask: Option<View<'a>>,
        /// `[Co]`.
        pub bias: Option<View<'a>>,
        /// [N, Co, Ho, Wo].
        pub y: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`DeformableConvOps::deform_conv_bwd`].
    #[derive(Debug)]
    pub struct DeformConvBwd<'a> {
        /// Upstream gradient [N, Co, Ho, Wo].
        pub dy: View<'a>,
        /// The forward's input.
        pub x: View<'a>,
        /// The forward's weight.
        pub w: View<'a>,
        /// The forward's offsets.
        pub offset: View<'a>,
        /// The forward's mask.
        pub mask: Option<View<'a>>,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of w.
        pub dw: Option<GradMut<'a>>,
        /// Gradient of the offsets.
        pub doffset: Option<GradMut<'a>>,
        /// Gradient of the mask, which has to be given.
        pub dmask: Option<GradMut<'a>>,
        /// Gradient of the bias.
        pub dbias: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Convolution of one to three axes, its transpose, and their unfolded form. Channels first; kernels are not flipped. A window's element
    /// at `o*stride - pad + k*dilation` that lies outside the input counts as 0 and is not read. Sums in f32 (f64 for f64 data).
    /// Deterministic. `Invalid`: ranks, dtypes, shapes that do not fit, groups that do not divide the channels, windows larger than the
    /// padded input, zero strides or dilations, output padding that is too large, overlap.
    pub trait ConvOps : Conv => CONV_OPS {
        /// `y[n, o] = act(scale[o] * sum over c, k of w[o, c, k] * x[n, g(o)*Ci/groups + c, window k] + bias[o] + residual)`. A depthwise
        /// convolution has `groups` = Ci and Co = Ci times the multiplier. Oracle `F.conv1d`, `F.conv2d`, `F.conv3d`.
        fn conv(&self, p: &Conv, io: ConvIo<'_>) -> Result<()>;
        /// With dz = act'(saved) * dy: dx = adjoint of the convolution on dz, dw = sums of dz * x over images and windows, dbias = sums of dz,
        /// dresidual = dz. `scale` is not part of it. Oracle `torch.nn.grad.conv2d_input`, `conv2d_weight`.
        fn conv_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()>;
        /// The adjoint of a convolution with the same weight as a forward operation: output axes of (i-1)*stride - pads + dilation*(k-1) +
        /// out_pad + 1 elements. Epilogue as for [`ConvOps::conv`]. Oracle `F.conv_transpose1d`, `2d`, `3d`.
        fn conv_transpose(&self, p: &Conv, io: ConvIo<'_>) -> Result<()>;
        /// Gradients of [`ConvOps::conv_transpose`]: dx is a convolution of dz, dw has the roles of input and output exchanged.
        fn conv_transpose_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()>;
        /// Windows as columns: x [N, C, S] into col [N, C*K, P], K the elements of `kernel` and P the number of windows; outside x is 0. The
        /// backward of [`ConvOps::col2im`]. `groups`, `out_pad` and `act` are not used. Oracle `F.unfold`.
        fn im2col(&self, p: &Conv, kernel: &[usize], x: View<'_>, col: GradMut<'_>) -> Result<()>;
        /// Sums of the columns' elements at the places in x that they came from; the adjoint and backward of [`ConvOps::im2col`]. Oracle `F.fold`.
        fn col2im(&self, p: &Conv, kernel: &[usize], col: View<'_>, x: GradMut<'_>) -> Result<()>;
    }
}

/// A checked convolution. Spatial axes are depth, height, width; missing leading ones have size 1. For a transposed convolution it describes
/// the convolution whose adjoint it is: `input` is then the larger map, the transposed convolution's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConvShape {
    pub(crate) n: usize,
    pub(crate) groups: usize,
    /// Channels of the convolution's input and output.
    pub(crate) ci: usize,
    pub(crate) co: usize,
    pub(crate) input: [usize; 3],
    pub(crate) output: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) pad: [usize; 3],
    pub(crate) dilation: [usize; 3],
}

impl ConvShape {
    /// Input channels per group.
    pub(crate) fn cig(&self) -> usize {
        self.ci / self.groups
    }
    /// Output channels per group.
    pub(crate) fn cog(&self) -> usize {
        self.co / self.groups
    }
    /// Elements of a window, of an input plane, of an output plane.
    pub(crate) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }
    pub(crate) fn in_plane(&self) -> usize {
        self.input.iter().product()
    }
    pub(crate) fn out_plane(&self) -> usize {
        self.output.iter().product()
    }
}

/// The number of spatial axes, 1 to 3, of an input and a kernel.
fn same_axes(op: &'static str, input: &[usize], kernel: &[usize]) -> Result<usize> {
    if (1..=3).contains(&input.len()) && input.len() == kernel.len() {
        return Ok(input.len());
    }
    let got = format!("sizes {input:?} and kernel {kernel:?}");
    Err(GpuError::invalid(op, "w", "one to three spatial axes in both operands", got))
}

fn dims(v: &[usize]) -> Dims {
    Dims::new(v).unwrap_or_else(|| unreachable!("at most three axes"))
}

/// Spatial axes as depth, height, width.
fn volume(v: &[usize], fill: usize) -> [usize; 3] {
    let mut all = [fill; 3];
    let first = 3usize.saturating_sub(v.len());
    all[first..].iter_mut().zip(v).for_each(|(a, &x)| *a = x);
    all
}

fn per_axis(
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

/// Windows of a convolution over `input` (spatial axes only), and the number of them on each axis.
pub(crate) struct Windows {
    pub(crate) stride: [usize; 3],
    pub(crate) pad: [usize; 3],
    pub(crate) dilation: [usize; 3],
    pad_end: [usize; 3],
}

/// Parameters for `axes` spatial axes, checked; entries are in the order of the axes.
fn windows(op: &'static str, p: &Conv, axes: usize) -> Result<Windows> {
    let pad = per_axis(op, "pad", p.pad, axes, 0)?;
    Ok(Windows {
        stride: per_axis(op, "stride", p.stride, axes, 1)?,
        pad,
        dilation: per_axis(op, "dilation", p.dilation, axes, 1)?,
        pad_end: p.pad_end.map_or(Ok(pad), |e| per_axis(op, "pad_end", e, axes, 0))?,
    })
}

impl Windows {
    /// Extent of a window of `k` elements on an axis.
    fn span(&self, axis: usize, k: usize) -> usize {
        self.dilation[axis].saturating_mul(k.saturating_sub(1)).saturating_add(1)
    }

    /// Number of windows on each axis.
    fn count(
        &self,
        op: &'static str,
        arg: &'static str,
        input: &[usize],
        kernel: &[usize],
    ) -> Result<Vec<usize>> {
        let one = |(a, (&i, &k)): (usize, (&usize, &usize))| {
            let (padded, span) = (i.saturating_add(self.pad[a] + self.pad_end[a]), self.span(a, k));
            if k == 0 || span > padded {
                let want = format!("windows of 1 to {padded} elements on axis {a}");
                return Err(GpuError::invalid(op, arg, want, format!("{k} elements that span {span}")));
            }
            Ok((padded - span) / self.stride[a] + 1)
        };
        input.iter().zip(kernel).enumerate().map(one).collect()
    }

    /// Elements on each axis of the output of the transposed convolution.
    fn spread(&self, op: &'static str, p: &Conv, input: &[usize], kernel: &[usize]) -> Result<Vec<usize>> {
        let extra = per_axis(op, "out_pad", p.out_pad, input.len(), 0)?;
        let one = |(a, (&i, &k)): (usize, (&usize, &usize))| {
            if extra[a] >= self.stride[a].max(self.dilation[a]) {
                let want = format!("less than stride or dilation on axis {a}");
                return Err(GpuError::invalid(op, "out_pad", want, format!("{}", extra[a])));
            }
            let full = i
                .saturating_sub(1)
                .saturating_mul(self.stride[a])
                .saturating_add(self.span(a, k))
                .saturating_add(extra[a]);
            let pads = self.pad[a] + self.pad_end[a];
            if i == 0 || k == 0 || full <= pads {
                let got = format!("{full} elements less {pads} of padding on axis {a}");
                return Err(GpuError::invalid(op, "pad", "an output of at least one element", got));
            }
            Ok(full - pads)
        };
        input.iter().zip(kernel).enumerate().map(one).collect()
    }
}

fn rank(op: &'static str, arg: &'static str, shape: &[usize]) -> Result<usize> {
    if (3..=5).contains(&shape.len()) {
        return Ok(shape.len() - 2);
    }
    Err(GpuError::invalid(op, arg, "rank 3 to 5", format!("shape {shape:?}")))
}

fn divide(op: &'static str, what: &'static str, channels: usize, groups: usize) -> Result<usize> {
    if groups > 0 && channels.is_multiple_of(groups) {
        return Ok(channels / groups);
    }
    Err(GpuError::invalid(op, "groups", format!("a divisor of the {channels} {what}"), format!("{groups}")))
}

/// What does not fit is named as `expected`.
fn same(op: &'static str, arg: &'static str, got: &[usize], want: &[usize]) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, format!("shape {want:?}"), format!("{got:?}")))
}

/// A convolution of `x` (named `xs`) with `w` into `y`, by their shapes.
pub(crate) fn conv_shape(
    op: &'static str,
    p: &Conv,
    (xs, x): (&'static str, &[usize]),
    w: &[usize],
    (ys, y): (&'static str, &[usize]),
) -> Result<ConvShape> {
    let axes = rank(op, xs, x)?;
    if w.len() != x.len() {
        return Err(GpuError::invalid(op, "w", format!("rank {}", x.len()), format!("shape {w:?}")));
    }
    let (n, ci, co) = (x[0], x[1], w[0]);
    let cig = divide(op, "input channels", ci, p.groups)?;
    divide(op, "output channels", co, p.groups)?;
    if w[1] != cig {
        return Err(GpuError::invalid(
            op,
            "w",
            format!("{cig} channels per group on axis 1"),
            format!("shape {w:?}"),
        ));
    }
    let win = windows(op, p, axes)?;
    let out = win.count(op, "w", &x[2..], &w[2..])?;
    same(op, ys, y, &[&[n, co], out.as_slice()].concat())?;
    Ok(shape_of(n, p.groups, ci, co, axes, &win, [&x[2..], &out, &w[2..]]))
}

/// The convolution whose adjoint the transposed convolution of `x` with `w` into `y` is.
pub(crate) fn transpose_shape(
    op: &'static str,
    p: &Conv,
    (xs, x): (&'static str, &[usize]),
    w: &[usize],
    (ys, y): (&'static str, &[usize]),
) -> Result<ConvShape> {
    let axes = rank(op, xs, x)?;
    if w.len() != x.len() {
        return Err(GpuError::invalid(op, "w", format!("rank {}", x.len()), format!("shape {w:?}")));
    }
    let (n, ci) = (x[0], x[1]);
    divide(op, "input channels", ci, p.groups)?;
    if w[0] != ci {
        return Err(GpuError::invalid(op, "w", format!("{ci} channels on axis 0"), format!("shape {w:?}")));
    }
    let co = w[1].saturating_mul(p.groups);
    let win = windows(op, p, axes)?;
    let out = win.spread(op, p, &x[2..], &w[2..])?;
    same(op, ys, y, &[&[n, co], out.as_slice()].concat())?;
    Ok(shape_of(n, p.groups, co, ci, axes, &win, [&out, &x[2..], &w[2..]]))
}

fn shape_of(
    n: usize,
    groups: usize,
    ci: usize,
    co: usize,
    axes: usize,
    win: &Windows,
    [input, output, kernel]: [&[usize]; 3],
) -> ConvShape {
    ConvShape {
        n,
        groups,
        ci,
        co,
        input: volume(input, 1),
        output: volume(output, 1),
        kernel: volume(kernel, 1),
        stride: volume(&win.stride[..axes], 1),
        pad: volume(&win.pad[..axes], 0),
        dilation: volume(&win.dilation[..axes], 1),
    }
}

/// A check of a view's layout.
type LayoutCheck = fn(&'static str, &'static str, &View<'_>) -> Result<()>;

/// Inputs, named: of one floating dtype and of a layout that passes a check.
pub(crate) fn operands(
    op: &'static str,
    dtype: DType,
    all: &[(&'static str, Option<&View<'_>>)],
    layout: LayoutCheck,
) -> Result<()> {
    for (arg, v) in all.iter().filter_map(|(a, v)| v.map(|v| (a, v))) {
        check::float(op, arg, v)?;
        check::dtype(op, arg, v, dtype)?;
        layout(op, arg, v)?;
    }
    Ok(())
}

/// Outputs, named: of this dtype and of a layout that passes a check, apart from the inputs and from each other.
pub(crate) fn outputs(
    op: &'static str,
    dtype: DType,
    outs: &[(&'static str, Option<&ViewMut<'_>>)],
    read: &[(&'static str, Option<&View<'_>>)],
    layout: LayoutCheck,
) -> Result<()> {
    let outs: Vec<_> = outs.iter().filter_map(|(a, v)| v.map(|v| (*a, v))).collect();
    let mut taken: Vec<_> = read.iter().filter_map(|(a, v)| v.map(|v| (*a, *v))).collect();
    for (arg, out) in outs {
        let v = out.as_view();
        check::dtype(op, arg, &v, dtype)?;
        layout(op, arg, &v)?;
        check::separate_output(op, arg, out, &taken)?;
        taken.push((arg, v));
    }
    Ok(())
}

/// Whether an operation is the transposed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Conv,
    Transpose,
}

impl Direction {
    fn shape(
        self,
        op: &'static str,
        p: &Conv,
        x: (&'static str, &[usize]),
        w: &[usize],
        y: (&'static str, &[usize]),
    ) -> Result<ConvShape> {
        match self {
            Direction::Conv => conv_shape(op, p, x, w, y),
            Direction::Transpose => transpose_shape(op, p, x, w, y),
        }
    }
}

/// Arguments of [`ConvOps::conv`] and [`ConvOps::conv_transpose`].
pub(crate) fn check_conv(op: &'static str, way: Direction, p: &Conv, io: &ConvIo<'_>) -> Result<ConvShape> {
    let (dtype, y) = (io.x.dtype(), io.y.as_view());
    let read = [
        ("x", Some(&io.x)),
        ("w", Some(&io.w)),
        ("bias", io.bias.as_ref()),
        ("scale", io.scale.as_ref()),
        ("residual", io.residual.as_ref()),
    ];
    operands(op, dtype, &read, check::dense_channels)?;
    let shape = way.shape(op, p, ("x", io.x.shape()), io.w.shape(), ("y", y.shape()))?;
    fused_act(op, p.act)?;
    for (arg, v) in [("bias", &io.bias), ("scale", &io.scale)] {
        v.as_ref().map_or(Ok(()), |v| check::shape(op, arg, v, &[y.shape()[1]]))?;
    }
    io.residual.as_ref().map_or(Ok(()), |v| check::shape(op, "residual", v, y.shape()))?;
    io.z.as_ref().map_or(Ok(()), |z| check::shape(op, "z", &z.as_view(), y.shape()))?;
    outputs(op, dtype, &[("y", Some(&io.y)), ("z", io.z.as_ref())], &read, check::dense_channels)?;
    Ok(shape)
}

/// Arguments of [`ConvOps::conv_bwd`] and [`ConvOps::conv_transpose_bwd`]. There is no shape where neither dx nor dw is asked for.
pub(crate) fn check_conv_bwd(
    op: &'static str,
    way: Direction,
    p: &Conv,
    io: &ConvBwd<'_>,
) -> Result<Option<ConvShape>> {
    let dtype = io.dy.dtype();
    let read =
        [("dy", Some(&io.dy)), ("x", io.x.as_ref()), ("w", io.w.as_ref()), ("saved", io.saved.as_ref())];
    operands(op, dtype, &read, check::dense_channels)?;
    rank(op, "dy", io.dy.shape())?;
    let missing = |arg, of| Err(GpuError::invalid(op, arg, format!("what {of} is made from"), "none"));
    if io.dx.is_some() && io.w.is_none() {
        return missing("w", "dx");
    }
    if io.dw.is_some() && io.x.is_none() {
        return missing("x", "dw");
    }
    fused_act(op, p.act)?;
    if p.act != Activation::Identity {
        match &io.saved {
            Some(s) => check::shape(op, "saved", s, io.dy.shape())?,
            None => return Err(GpuError::invalid(op, "saved", format!("what {:?} reads", p.act), "none")),
        }
    }
    let dx = io.dx.as_ref().map(|g| g.out.as_view());
    let dw = io.dw.as_ref().map(|g| g.out.as_view());
    let x = io.x.map(|v| ("x", v)).or(dx.map(|v| ("dx", v)));
    let mut shape = None;
    if let (Some((name, x)), Some(w)) = (x, io.w.or(dw)) {
        shape = Some(way.shape(op, p, (name, x.shape()), w.shape(), ("dy", io.dy.shape()))?);
        dx.map_or(Ok(()), |v| check::shape(op, "dx", &v, x.shape()))?;
        dw.map_or(Ok(()), |v| check::shape(op, "dw", &v, w.shape()))?;
    }
    if let Some(g) = &io.dbias {
        check::shape(op, "dbias", &g.out.as_view(), &[io.dy.shape()[1]])?;
    }
    if let Some(g) = &io.dresidual {
        check::shape(op, "dresidual", &g.out.as_view(), io.dy.shape())?;
    }
    let outs = [("dx", &io.dx), ("dw", &io.dw), ("dbias", &io.dbias), ("dresidual", &io.dresidual)];
    outputs(op, dtype, &outs.map(|(a, g)| (a, g.as_ref().map(|g| &g.out))), &read, check::dense_channels)?;
    // Nothing to compute from them.
    Ok(shape.filter(|_| io.dx.is_some() || io.dw.is_some()))
}

/// Arguments of [`ConvOps::im2col`] and [`ConvOps::col2im`]; `out` is the view that is written.
pub(crate) fn check_columns(
    op: &'static str,
    p: &Conv,
    kernel: &[usize],
    x: &View<'_>,
    col: &View<'_>,
    out: &ViewMut<'_>,
) -> Result<ConvShape> {
    let axes = rank(op, "x", x.shape())?;
    let to_x = op == "col2im";
    let (read, written) = if to_x { (("col", col), "x") } else { (("x", x), "col") };
    operands(op, read.1.dtype(), &[(read.0, Some(read.1))], check::contiguous)?;
    if kernel.len() != axes {
        return Err(GpuError::invalid(op, "kernel", format!("{axes} sizes"), format!("{kernel:?}")));
    }
    let (n, c) = (x.shape()[0], x.shape()[1]);
    let win = windows(op, p, axes)?;
    let count = win.count(op, "kernel", &x.shape()[2..], kernel)?;
    let product = |sizes: &[usize], of| sizes.iter().try_fold(of, |a: usize, &b| a.checked_mul(b));
    let (Some(rows), Some(windows)) = (product(kernel, c), product(&count, 1)) else {
        let got = format!("windows of {kernel:?}");
        return Err(GpuError::invalid(op, "kernel", "columns of less than 2^64 elements", got));
    };
    let want = [n, rows, windows];
    check::shape(op, "col", col, &want)?;
    outputs(op, read.1.dtype(), &[(written, Some(out))], &[(read.0, Some(read.1))], check::contiguous)?;
    Ok(shape_of(n, 1, c, c, axes, &win, [&x.shape()[2..], &count, kernel]))
}
