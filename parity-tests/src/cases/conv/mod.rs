//! Convolution.

mod calls;
mod sample;

use trefoil::ops::conv::{ConvBwd, ConvIo};
use trefoil::{DType, View};

use super::Bound::{Exact, Product, Stored, Sum};
use super::{Bound, Kernel, k};
use crate::sampler::Dom::{Any, Range};

use calls::*;
use sample::*;

/// Sums of up to some thousand products near 1, then an activation; in 16 bits the gradient before it is stored in between.
const FUSED: Bound = Stored;
/// Sums of up to a few hundred products whose factors are themselves short sums.
const DEFORM: Bound = Stored;

const CONV: &str = "s=1, p=0, d=1, g=1";
const SIZED: &str = "input_size, s=1, p=0, d=1, g=1";
const KERNEL: &str = "k, s=1, p=0, d=1, g=1";
const TRANSPOSE: &str = "s=1, p=0, op=0, d=1, g=1";
const TRANSPOSE_KERNEL: &str = "k, s=1, p=0, op=0, d=1, g=1";

macro_rules! conv {
    ($name:literal, $row:literal, $axes:literal) => {
        k($name, $row, "x, w, [b]", CONV, "y", &["conv"], forward)
            .bound(Product)
            .sample(|s| draw_biased(s, $axes))
    };
}

macro_rules! conv_grads {
    ($axes:literal, $of:literal, $input:literal, $ri:literal, $weights:literal, $rw:literal) => {
        &[
            k($input, $ri, "dy, w", SIZED, "dx", &["conv_bwd"], input_gradient).bound(Product).grad_of($of),
            k($weights, $rw, "x, dy", KERNEL, "dw, [db]", &["conv_bwd"], weight_gradient)
                .bound(Product)
                .grad_of($of),
        ]
    };
}

macro_rules! transposed {
    ($axes:literal, $name:literal, $row:literal, $input:literal, $ri:literal, $weights:literal, $rw:literal) => {
        &[
            k($name, $row, "x, w, [b]", TRANSPOSE, "y", &["conv_transpose"], transpose)
                .bound(Product)
                .sample(|s| draw_transpose(s, $axes)),
            k($input, $ri, "dy, w", TRANSPOSE, "dx", &["conv_transpose_bwd"], transpose_input)
                .bound(Product)
                .grad_of($name),
            k(
                $weights,
                $rw,
                "x, dy",
                TRANSPOSE_KERNEL,
                "dw, [db]",
                &["conv_transpose_bwd"],
                transpose_weight,
            )
            .bound(Product)
            .grad_of($name),
        ]
    };
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        conv!("conv1d", "B4.1", 1),
        conv!("conv2d_direct", "S3.2", 2),
        conv!("conv3d_direct", "S3.5", 3),
        conv!("conv2d_half", "B4.7", 2).dtypes(&[DType::F16, DType::Bf16]),
        k("depthwise_conv2d", "S3.3", "x, w, [b]", "s=1, p=0, d=1", "y", &["conv"], |cx| {
            forward_with(cx, depthwise(cx)?)
        })
        .bound(Product)
        .sample(draw_depthwise),
        k(
            "depthwise_conv2d_backward",
            "S3.13",
            "dy, x, w",
            "s=1, p=0, d=1",
            "dx, dw, [db]",
            &["conv_bwd"],
            |cx| gradients(cx, depthwise(cx)?),
        )
        .bound(Product)
        .grad_of("depthwise_conv2d"),
        k("dilated_conv2d_backward", "S3.14", "dy, x, w", CONV, "dx, dw, [db]", &["conv_bwd"], |cx| {
            gradients(cx, plan(cx)?)
        })
        .bound(Product)
        .grad_of("conv2d_direct"),
    ],
    conv_grads!(1, "conv1d", "conv1d_backward_input", "B4.1", "conv1d_backward_weights", "B4.1"),
    conv_grads!(2, "conv2d_direct", "conv2d_backward_input", "S3.7", "conv2d_backward_weights", "S3.8"),
    conv_grads!(3, "conv3d_direct", "conv3d_backward_input", "S3.9", "conv3d_backward_weights", "S3.10"),
    transposed!(
        1,
        "conv_transpose1d",
        "B4.2",
        "conv_transpose1d_backward_input",
        "B4.2",
        "conv_transpose1d_backward_weights",
        "B4.2"
    ),
    transposed!(
        2,
        "conv_transpose2d",
        "S3.4",
        "deconv_backward_input",
        "S3.11",
        "deconv_backward_weights",
        "S3.12"
    ),
    transposed!(
        3,
        "conv_transpose3d",
        "B4.2",
        "conv_transpose3d_backward_input",
        "B4.2",
        "conv_transpose3d_backward_weights",
        "B4.2"
    ),
    &[
        k("im2col", "S3.1", "x", "k, s=1, p=0, d=1", "col", &["im2col"], im2col)
            .bound(Exact)
            .sample(draw_columns),
        k("col2im", "S3.6", "col", "output_size, k, s=1, p=0, d=1", "x", &["col2im"], col2im)
            .bound(Sum)
            .sample(draw_folded),
        k(
            "causal_conv1d",
            "B4.3",
            "x, w, [b], [state]",
            "act=\"none\"",
            "y, [state]",
            &["causal_conv1d"],
            causal,
        )
        .bound(Stored)
        .sample(draw_causal),
        k(
            "causal_conv1d_backward",
            "B4.3",
            "dy, x, w, [b]",
            "act=\"none\"",
            "dx, dw, [db]",
            &["causal_conv1d_bwd"],
            causal_backward,
        )
        .bound(Stored)
        .grad_of("causal_conv1d"),
        k(
            "causal_conv1d_step",
            "B4.3",
            "x, w, [b], state",
            "act=\"none\"",
            "y, state",
            &["causal_conv1d"],
            causal_in_place,
        )
        .bound(Stored)
        .sample(draw_state),
        k(
            "conv_bias_act",
            "B4.6",
            "x, w, [b], [residual]",
            "s=1, p=0, d=1, g=1, act=\"relu\"",
            "y",
            &["conv"],
            |cx| forward_with(cx, plan(cx)?.act(act(cx)?)),
        )
        .bound(FUSED)
        .sample(draw_fused),
        k(
            "conv_scale_act",
            "B4.6",
            "x, w, [b], [scale], [residual]",
            "s=1, p=0, d=1, g=1, act=\"relu\"",
            "y, z",
            &["conv"],
            fused,
        )
        .bound(FUSED)
        .sample(|s| {
            draw_fused(s);
            let c = s.shape_of("b");
            if !s.small {
                s.put("scale", &c, Range(0.5, 1.5));
            }
        }),
        k(
            "conv_scale_act_backward",
            "B4.6",
            "dy, x, w, y, z",
            "s=1, p=0, d=1, g=1, act=\"relu\"",
            "dx, dw, db, dresidual",
            &["conv_bwd"],
            fused_backward,
        )
        .bound(Stored)
        .grad_of("conv_scale_act"),
        k("conv1d_asymmetric", "B4.1", "x, w", "s=1, p=0, pe=0, d=1, g=1", "y", &["conv"], |cx| {
            let (p, x, w) = (asymmetric(cx)?, cx.x("x")?, cx.x("w")?);
            let (before, behind, d, s) = (cx.n("p")?, cx.n("pe")?, cx.n("d")?, cx.n("s")?);
            let span = d * (w.shape()[2] - 1) + 1;
            let len = (x.shape()[2] + before + behind - span) / s + 1;
            let y = cx.out("y", x.dtype(), &[x.shape()[0], w.shape()[0], len])?;
            Ok(cx.gpu.conv(&p, ConvIo::new(x, w, y.m()))?)
        })
        .bound(Product)
        .sample(|s| {
            let (kk, d, len) = (1 + s.below(4), 1 + s.below(3), 12 + s.below(9));
            s.put("x", &[2, 3, len], Any);
            weight(s, &[4, 3, kk]);
            for (name, v) in [("s", 1 + s.below(3)), ("p", s.below(5)), ("pe", s.below(5)), ("d", d)] {
                s.arg(name, v);
            }
        }),
        k(
            "conv1d_asymmetric_backward",
            "B4.1",
            "dy, x, w",
            "s=1, p=0, pe=0, d=1, g=1",
            "dx, dw",
            &["conv_bwd"],
            |cx| {
                let (x, w): (View<'_>, View<'_>) = (cx.x("x")?, cx.x("w")?);
                let (dx, dw) = (cx.like("dx", &x)?, cx.like("dw", &w)?);
                let mut io = ConvBwd::new(cx.x("dy")?);
                (io.x, io.w, io.dx, io.dw) = (Some(x), Some(w), Some(dx.g()), Some(dw.g()));
                Ok(cx.gpu.conv_bwd(&asymmetric(cx)?, io)?)
            },
        )
        .bound(Product)
        .grad_of("conv1d_asymmetric"),
        k("deform_conv2d", "B4.5", "x, w, offset, [mask], [b]", CONV, "y", &["deform_conv"], deform)
            .bound(DEFORM)
            .sample(draw_deform),
        k(
            "deform_conv2d_backward",
            "B4.5",
            "dy, x, w, offset, [mask]",
            CONV,
            "dx, dw, doffset, [dmask], db",
            &["deform_conv_bwd"],
            deform_backward,
        )
        .bound(Stored)
        .grad_of("deform_conv2d"),
    ],
];
