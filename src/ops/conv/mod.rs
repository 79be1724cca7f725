//! Convolution: signatures and checks.

mod causal;
mod deformable;
mod params;
mod shape;

pub use self::causal::*;
pub use self::deformable::*;
pub use self::params::*;
pub(crate) use self::shape::*;

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;
use crate::ops::activation::Activation;
use crate::ops::gemm::fused_act;

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
