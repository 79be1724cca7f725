//! Deformable convolution: operands and checks.

use crate::ops::conv::{Conv, ConvShape, conv_shape, operands, outputs};
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;

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

/// A deformable convolution and its number of deformation groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeformShape {
    pub(crate) conv: ConvShape,
    pub(crate) deform: usize,
}

op_family! {
    /// Deformable convolution.
    pub trait DeformableConvOps : Conv => DEFORMABLE_CONV_OPS {
        /// Convolution whose taps are displaced by learned offsets, with bilinear reads (0 outside x) and an optional factor per tap: Dai et
        /// al. (2017), Zhu et al. (2019). `act` and `out_pad` are not used. Oracle `torchvision.ops.deform_conv2d`.
        fn deform_conv(&self, p: &Conv, io: DeformConvIo<'_>) -> Result<()>;
        /// Gradients of [`DeformableConvOps::deform_conv`]. At an offset that puts a tap onto a row or column of x, the derivative is the one from
        /// above.
        fn deform_conv_bwd(&self, p: &Conv, io: DeformConvBwd<'_>) -> Result<()>;
    }
}

/// Checks offsets and mask of a convolution of x with w into y.
fn shape(
    op: &'static str,
    p: &Conv,
    x: &View<'_>,
    w: &View<'_>,
    y: (&'static str, &[usize]),
    offset: &View<'_>,
    mask: Option<&View<'_>>,
) -> Result<DeformShape> {
    if x.shape().len() != 4 {
        return Err(GpuError::invalid(op, "x", "rank 4", format!("shape {:?}", x.shape())));
    }
    let conv = conv_shape(op, p, ("x", x.shape()), w.shape(), y)?;
    let (taps, got) = (conv.taps(), offset.shape());
    let deform = if got.len() == 4 { got[1] / (2 * taps) } else { 0 };
    let [_, ho, wo] = conv.output;
    if deform == 0 || !conv.ci.is_multiple_of(deform) || got != [conv.n, 2 * taps * deform, ho, wo] {
        let want = format!(
            "shape [{}, {} per deformation group, {ho}, {wo}], groups dividing {} channels",
            conv.n,
            2 * taps,
            conv.ci
        );
        return Err(GpuError::invalid(op, "offset", want, format!("{got:?}")));
    }
    mask.map_or(Ok(()), |m| check::shape(op, "mask", m, &[conv.n, taps * deform, ho, wo]))?;
    Ok(DeformShape { conv, deform })
}

/// Arguments of [`DeformableConvOps::deform_conv`].
pub(crate) fn check_deform_conv(p: &Conv, io: &DeformConvIo<'_>) -> Result<DeformShape> {
    const OP: &str = "deform_conv";
    let dtype = io.x.dtype();
    let read = [
        ("x", Some(&io.x)),
        ("w", Some(&io.w)),
        ("offset", Some(&io.offset)),
        ("mask", io.mask.as_ref()),
        ("bias", io.bias.as_ref()),
    ];
    operands(OP, dtype, &read, check::contiguous)?;
    let s = shape(OP, p, &io.x, &io.w, ("y", io.y.shape()), &io.offset, io.mask.as_ref())?;
    io.bias.as_ref().map_or(Ok(()), |v| check::shape(OP, "bias", v, &[s.conv.co]))?;
    outputs(OP, dtype, &[("y", Some(&io.y))], &read, check::contiguous)?;
    Ok(s)
}

/// Arguments of [`DeformableConvOps::deform_conv_bwd`].
pub(crate) fn check_deform_conv_bwd(p: &Conv, io: &DeformConvBwd<'_>) -> Result<DeformShape> {
    const OP: &str = "deform_conv_bwd";
    let dtype = io.dy.dtype();
    let read = [
        ("dy", Some(&io.dy)),
        ("x", Some(&io.x)),
        ("w", Some(&io.w)),
        ("offset", Some(&io.offset)),
        ("mask", io.mask.as_ref()),
    ];
    operands(OP, dtype, &read, check::contiguous)?;
    let s = shape(OP, p, &io.x, &io.w, ("dy", io.dy.shape()), &io.offset, io.mask.as_ref())?;
    if io.dmask.is_some() && io.mask.is_none() {
        return Err(GpuError::invalid(OP, "mask", "the mask whose gradient is asked for", "none"));
    }
    let outs = [
        ("dx", &io.dx, Some(io.x)),
        ("dw", &io.dw, Some(io.w)),
        ("doffset", &io.doffset, Some(io.offset)),
        ("dmask", &io.dmask, io.mask),
    ];
    for (arg, g, of) in &outs {
        if let (Some(g), Some(of)) = (g, of) {
            check::shape(OP, arg, &g.out.as_view(), of.shape())?;
        }
    }
    io.dbias.as_ref().map_or(Ok(()), |g| check::shape(OP, "dbias", &g.out.as_view(), &[s.conv.co]))?;
    let [dx, dw, doffset, dmask] = outs.map(|(a, g, _)| (a, g.as_ref().map(|g| &g.out)));
    outputs(OP, dtype, &[dx, dw, doffset, dmask, ("dbias", io.dbias.as_ref().map(|g| &g.out))], &read, check::contiguous)?;
    Ok(s)
}
