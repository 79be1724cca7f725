//! Normalization, alone and fused with residuals and activations.

mod calls;
mod sample;

use trefoil::ops::activation::Activation;
use trefoil::ops::norm::{GroupNorm, RowNorm};

use super::Bound::Derived;
use super::activation::gelu;
use super::{Bound, Kernel, k};

use calls::*;
use sample::*;

const FWD: Bound = Derived;
const BWD: Bound = Derived;

const BATCH_ARGS: &str = "eps=1e-05, momentum=0.1, training=true";
const BATCH_IN: &str = "x, [gamma], [beta], [running_mean:f32], [running_var:f32]";
const BATCH_OUT: &str = "y, [save_mean:f32], [save_rstd:f32], [running_mean:f32], [running_var:f32]";

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "batchnorm_forward",
            "S4.1",
            "x, [gamma], [beta], [running_mean:f32], [running_var:f32], [counter:i64]",
            BATCH_ARGS,
            "y, [save_mean:f32], [save_rstd:f32], [running_mean:f32], [running_var:f32], [counter:i64]",
            &["batch_norm"],
            |cx| batch_norm(cx, Activation::Identity),
        )
        .bound(FWD)
        .sample(draw_batch),
        k(
            "batchnorm_backward",
            "S4.6",
            "dy, x, [gamma], save_mean:f32, save_rstd:f32",
            "training=true",
            "dx, dgamma, dbeta",
            &["batch_norm_bwd"],
            |cx| batch_norm_backward(cx, Activation::Identity),
        )
        .bound(BWD)
        .grad_of("batchnorm_forward"),
        k(
            "batchnorm_act",
            "B3.2",
            BATCH_IN,
            "act=\"relu\", eps=1e-05, momentum=0.1, training=true",
            BATCH_OUT,
            &["batch_norm"],
            |cx| batch_norm(cx, named(cx)?),
        )
        .bound(FWD)
        .sample(draw_batch_act),
        k(
            "batchnorm_act_backward",
            "B3.2",
            "dy, x, [gamma], [beta], save_mean:f32, save_rstd:f32",
            "act=\"relu\", training=true",
            "dx, dgamma, dbeta",
            &["batch_norm_bwd"],
            |cx| batch_norm_backward(cx, named(cx)?),
        )
        .bound(BWD)
        .units(8.0, "1 - tanh^2 cancels where the activation saturates")
        .grad_of("batchnorm_act"),
        k(
            "residual_batchnorm_relu",
            "B3.3",
            "x, r, [gamma], [beta], [running_mean:f32], [running_var:f32]",
            BATCH_ARGS,
            BATCH_OUT,
            &["batch_norm"],
            |cx| batch_norm(cx, Activation::Relu),
        )
        .bound(FWD)
        .sample(draw_batch_residual),
        k(
            "residual_batchnorm_relu_backward",
            "B3.3",
            "dy, x, r, [gamma], [beta], save_mean:f32, save_rstd:f32",
            "training=true",
            "dx, dr, dgamma, dbeta",
            &["batch_norm_bwd"],
            |cx| batch_norm_backward(cx, Activation::Relu),
        )
        .bound(BWD)
        .grad_of("residual_batchnorm_relu"),
    ],
    &[
        k(
            "layernorm_forward",
            "S4.2",
            "x, [gamma], [beta]",
            "eps=1e-05",
            "y, [mean:f32], [rstd:f32]",
            &["row_norm"],
            |cx| layer_norm(cx, layer(cx, Activation::Identity)?, "y"),
        )
        .bound(FWD)
        .sample(draw_layer),
        k(
            "layernorm_backward",
            "S4.7",
            "dy, x, [gamma], mean:f32, rstd:f32",
            "-",
            "dx",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer(), ["dy", "x", "dx"]),
        )
        .bound(BWD)
        .grad_of("layernorm_forward"),
        k(
            "layernorm_grad_params",
            "S4.8",
            "dy, x, mean:f32, rstd:f32",
            "-",
            "dgamma, dbeta",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer(), ["dy", "x", "dx"]),
        )
        .bound(BWD)
        .grad_of("layernorm_forward"),
        k(
            "layernorm_relu",
            "S12.7",
            "x, gamma, beta",
            "eps=1e-05",
            "Y, mean:f32, rstd:f32",
            &["row_norm"],
            |cx| layer_norm(cx, layer(cx, Activation::Relu)?, "Y"),
        )
        .bound(FWD)
        .sample(draw_fused_layer),
        k(
            "layernorm_relu_backward",
            "S12.7",
            "dY, x, gamma, mean:f32, rstd:f32, Y",
            "-",
            "dx, dgamma, dbeta",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer().act(Activation::Relu), ["dY", "x", "dx"]),
        )
        .bound(BWD)
        .grad_of("layernorm_relu"),
        k(
            "layernorm_gelu",
            "S12.8",
            "x, gamma, beta",
            "eps=1e-05, approx=\"none\"",
            "Y, mean:f32, rstd:f32",
            &["row_norm"],
            |cx| layer_norm(cx, layer(cx, gelu(cx)?)?, "Y"),
        )
        .bound(FWD)
        .sample(|s| {
            draw_fused_layer(s);
            let approx = ["none", "tanh"][s.below(2)];
            s.arg("approx", approx);
        }),
        k(
            "layernorm_gelu_backward",
            "S12.8",
            "dY, x, gamma, beta, mean:f32, rstd:f32",
            "approx=\"none\"",
            "dx, dgamma, dbeta",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer().act(gelu(cx)?), ["dY", "x", "dx"]),
        )
        .bound(BWD)
        .grad_of("layernorm_gelu"),
        k(
            "residual_layernorm",
            "S12.9",
            "x, r, gamma, beta",
            "eps=1e-05",
            "Y, s, mean:f32, rstd:f32",
            &["row_norm"],
            |cx| layer_norm(cx, layer(cx, Activation::Identity)?, "Y"),
        )
        .bound(FWD)
        .sample(draw_residual),
        k(
            "residual_layernorm_backward",
            "S12.9",
            "dY, [ds_in], s, gamma, mean:f32, rstd:f32",
            "-",
            "ds, dgamma, dbeta",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer(), ["dY", "s", "ds"]),
        )
        .bound(BWD)
        .grad_of("residual_layernorm"),
    ],
    &[
        k(
            "rmsnorm_forward",
            "S4.5",
            "x, [gamma]",
            "eps=1e-06, gamma_offset=0.0",
            "y, [r:f32]",
            &["row_norm"],
            rms_norm,
        )
        .bound(FWD)
        .sample(draw_rms),
        k(
            "rmsnorm_backward",
            "S4.11",
            "dy, x, [gamma], r:f32",
            "gamma_offset=0.0",
            "dx",
            &["row_norm_bwd"],
            |cx| rms_norm_backward(cx, "x", "dx"),
        )
        .bound(BWD)
        .grad_of("rmsnorm_forward"),
        k("rmsnorm_grad_gamma", "S4.12", "dy, x, r:f32", "-", "dgamma", &["row_norm_bwd"], |cx| {
            rms_norm_backward(cx, "x", "dx")
        })
        .bound(BWD)
        .grad_of("rmsnorm_forward"),
        k(
            "residual_rmsnorm",
            "B3.5",
            "x, r, [gamma]",
            "eps=1e-06, gamma_offset=0.0",
            "y, s",
            &["row_norm"],
            rms_norm,
        )
        .bound(FWD)
        .sample(draw_residual_rms),
        k(
            "residual_rmsnorm_backward",
            "B3.5",
            "dy, [ds_in], s, [gamma], r:f32",
            "gamma_offset=0.0",
            "ds, [dgamma]",
            &["row_norm_bwd"],
            |cx| rms_norm_backward(cx, "s", "ds"),
        )
        .bound(BWD)
        .grad_of("residual_rmsnorm"),
    ],
    &[
        k(
            "groupnorm_forward",
            "S4.3",
            "x, [gamma], [beta]",
            "G, eps=1e-05",
            "y, [mean:f32], [rstd:f32]",
            &["group_norm"],
            |cx| group_norm(cx, groups(cx, Activation::Identity)?),
        )
        .bound(FWD)
        .sample(|s| draw_groups(s, false)),
        k(
            "groupnorm_backward",
            "S4.9",
            "dy, x, [gamma], mean:f32, rstd:f32",
            "G",
            "dx, dgamma, dbeta",
            &["group_norm_bwd"],
            |cx| group_norm_backward(cx, groups(cx, Activation::Identity)?),
        )
        .bound(BWD)
        .grad_of("groupnorm_forward"),
        k(
            "instancenorm_forward",
            "S4.4",
            "x, [gamma], [beta], [running_mean:f32], [running_var:f32]",
            "eps=1e-05, momentum=0.1, use_input_stats=true",
            "y, [mean:f32], [rstd:f32], [running_mean:f32], [running_var:f32]",
            &["instance_norm", "batch_norm"],
            instance_norm,
        )
        .bound(FWD)
        .sample(draw_instances),
        k(
            "instancenorm_backward",
            "S4.10",
            "dy, x, [gamma], mean:f32, rstd:f32",
            "-",
            "dx, dgamma, dbeta",
            &["group_norm_bwd"],
            |cx| group_norm_backward(cx, GroupNorm::new(size(&cx.x("x")?, 1))),
        )
        .bound(BWD)
        .grad_of("instancenorm_forward"),
        k(
            "groupnorm_swish",
            "B3.4",
            "x, [gamma], [beta]",
            "G, eps=1e-05",
            "y, [mean:f32], [rstd:f32]",
            &["group_norm"],
            |cx| group_norm(cx, groups(cx, Activation::Swish { beta: 1.0 })?),
        )
        .bound(FWD)
        .sample(draw_group_swish),
        k(
            "groupnorm_swish_backward",
            "B3.4",
            "dy, x, gamma, beta, mean:f32, rstd:f32",
            "G",
            "dx, dgamma, dbeta",
            &["group_norm_bwd"],
            |cx| group_norm_backward(cx, groups(cx, Activation::Swish { beta: 1.0 })?),
        )
        .bound(BWD)
        .grad_of("groupnorm_swish"),
        k(
            "add_groupnorm",
            "B3.4",
            "x, r, [gamma], [beta]",
            "G, eps=1e-05",
            "y, s, [mean:f32], [rstd:f32]",
            &["group_norm"],
            |cx| group_norm(cx, groups(cx, Activation::Identity)?),
        )
        .bound(FWD)
        .sample(|s| draw_groups(s, true)),
    ],
    &[
        k("l2_normalize", "B3.1", "x", "axis=-1, eps=1e-12", "y", &["l2_normalize"], l2_normalize)
            .bound(Derived)
            .sample(draw_l2),
        k(
            "l2_normalize_backward",
            "B3.1",
            "dy, x",
            "axis=-1, eps=1e-12",
            "dx",
            &["l2_normalize_bwd"],
            l2_normalize_backward,
        )
        .bound(Derived)
        .grad_of("l2_normalize"),
    ],
];
