//! Activations, gated units, PReLU.

use trefoil::ops::activation::{Activation, ActivationBiasBwd, GatedGrad, GatedInput, Saved};
use trefoil::{BackendExt, DType, Result};

use crate::case::{Operation, both};
use crate::norm::images;
use crate::{BF16, Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// The activations that a case can name.
pub(crate) const ACTIVATIONS: &[(&str, Activation)] = &[
    ("none", Activation::Identity),
    ("identity", Activation::Identity),
    ("linear", Activation::Identity),
    ("relu", Activation::Relu),
    ("leaky_relu", Activation::LeakyRelu { slope: 0.01 }),
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
    ("gelu", Activation::Gelu),
    ("gelu_tanh", Activation::GeluTanh),
    ("silu", Activation::Swish { beta: 1.0 }),
    ("swish", Activation::Swish { beta: 1.0 }),
    ("elu", Activation::Elu { alpha: 1.0 }),
    ("mish", Activation::Mish),
    ("softplus", Activation::Softplus { beta: 1.0, threshold: 20.0 }),
    ("hardswish", Activation::Hardswish),
    ("hard_swish", Activation::Hardswish),
    ("selu", Activation::Selu),
    ("hardsigmoid", Activation::Hardsigmoid),
    ("hard_sigmoid", Activation::Hardsigmoid),
    ("hardtanh", Activation::Hardtanh { lo: -1.0, hi: 1.0 }),
    ("relu6", Activation::Relu6),
];

fn activation(cx: &Context<'_>, dt: DType, a: Activation, n: usize) -> Result<Prepared> {
    let moved = 2 * n * dt.size();
    let (x, mut y) = (cx.normal_sets(dt, n, cx.sets(moved))?, cx.empty(dt, n)?);
    prepared(moved, 0, move |g, i| g.activation(a, x.at(i).view(), y.view_mut()))
}

fn activation_bwd(cx: &Context<'_>, dt: DType, a: Activation, n: usize) -> Result<Prepared> {
    let k = cx.sets(2 * n * dt.size());
    let (x, dy, mut dx) = (cx.normal_sets(dt, n, k)?, cx.normal_sets(dt, n, k)?, cx.empty(dt, n)?);
    let output = matches!(a, Activation::Sigmoid | Activation::Tanh);
    prepared(3 * n * dt.size(), 0, move |g, i| {
        let x = x.at(i).view();
        let saved = if output { Saved::Output(x) } else { Saved::Input(x) };
        g.activation_bwd(a, dy.at(i).view(), saved, dx.view_mut().into())
    })
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("activation", "gelu", F32_BF16, |cx, dt| activation(cx, dt, Activation::Gelu, cx.n())),
    problem("activation_bwd", "gelu", F32_BF16, |cx, dt| activation_bwd(cx, dt, Activation::Gelu, cx.n())),
    problem("gated", "swiglu", F32_BF16, |cx, dt| {
        let n = cx.n();
        let (gate, up, mut y) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| {
            let input = GatedInput::Two { gate: gate.view(), up: up.view() };
            g.gated(Activation::Swish { beta: 1.0 }, input, y.view_mut())
        })
    }),
    problem("gated_bwd", "swiglu", F32_BF16, |cx, dt| {
        let n = cx.n();
        let (dy, gate, up) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.normal(dt, n)?);
        let (mut dgate, mut dup) = (cx.empty(dt, n)?, cx.empty(dt, n)?);
        bytes(5 * n * dt.size(), move |g| {
            let input = GatedInput::Two { gate: gate.view(), up: up.view() };
            let grads =
                GatedGrad::Two { gate: Some(dgate.view_mut().into()), up: Some(dup.view_mut().into()) };
            g.gated_bwd(Activation::Swish { beta: 1.0 }, dy.view(), input, grads)
        })
    }),
    problem("activation_bias_bwd", "gelu", F32_BF16, |cx, dt| bias_gradients(cx, dt, Activation::Gelu, 1)),
    problem("activation_bias_bwd", "relu", F32_BF16, |cx, dt| bias_gradients(cx, dt, Activation::Relu, 1)),
    problem("activation_bias_bwd", "gelu_of_eight_groups", BF16, |cx, dt| {
        bias_gradients(cx, dt, Activation::Gelu, 8)
    }),
    problem("prelu", "channels", F32, |cx, dt| {
        let [n, c, s] = images(cx);
        let (x, a, mut y) = (cx.normal(dt, n * c * s)?, cx.positive(dt, c)?, cx.empty(dt, n * c * s)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            g.prelu(x.shaped(&[n, c, s])?, a.view(), y.shaped_mut(&[n, c, s])?)
        })
    }),
    problem("prelu_bwd", "channels", F32, |cx, dt| {
        let [n, c, s] = images(cx);
        let (dy, x, a) = (cx.normal(dt, n * c * s)?, cx.normal(dt, n * c * s)?, cx.positive(dt, c)?);
        let (mut dx, mut da) = (cx.empty(dt, n * c * s)?, cx.empty(dt, c)?);
        bytes(3 * n * c * s * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[n, c, s])?, x.shaped(&[n, c, s])?);
            let (dx, da) = (dx.shaped_mut(&[n, c, s])?.into(), da.view_mut().into());
            g.prelu_bwd(dy, x, a.view(), Some(dx), Some(da))
        })
    }),
    problem("prelu_bwd", "features", F32, |cx, dt| {
        let [r, k] = cx.rows();
        let (dy, x, a) = (cx.normal(dt, r * k)?, cx.normal(dt, r * k)?, cx.positive(dt, k)?);
        let (mut dx, mut da) = (cx.empty(dt, r * k)?, cx.empty(dt, k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[r, k])?, x.shaped(&[r, k])?);
            let (dx, da) = (dx.shaped_mut(&[r, k])?.into(), da.view_mut().into());
            g.prelu_bwd(dy, x, a.view(), Some(dx), Some(da))
        })
    }),
];

/// Gradients of rows of 4,096 elements, in equal groups if in more than one.
fn bias_gradients(cx: &Context<'_>, dt: DType, act: Activation, groups: usize) -> Result<Prepared> {
    let (rows, n) = (cx.pick(64, 256, 8_192), cx.pick(64, 512, 4_096));
    let (dy, saved) = (cx.normal(dt, rows * n)?, cx.normal(dt, rows * n)?);
    let (mut dx, mut dbias) = (cx.empty(dt, rows * n)?, cx.empty(dt, groups * n)?);
    let bounds: Vec<i32> = (0..=groups).map(|g| (g * rows / groups) as i32).collect();
    let offsets = if groups > 1 { Some(cx.gpu.upload(&bounds)?) } else { None };
    bytes(3 * rows * n * dt.size(), move |g| {
        let (dy, saved) = (dy.shaped(&[rows, n])?, act.saved(saved.shaped(&[rows, n])?));
        let shape = [groups, n];
        let dbias = dbias.shaped_mut(if groups > 1 { &shape } else { &shape[1..] })?.grad(false);
        let io = ActivationBiasBwd::new(dy, saved, dx.shaped_mut(&[rows, n])?, dbias);
        g.activation_bias_bwd(act, io.offsets(offsets.as_ref().map(|o| o.view())))
    })
}

pub(super) const OPERATIONS: &[Operation] = &[both(
    "activation",
    |cx, c| Ok(activation(cx, c.dtype()?, c.named("kind", ACTIVATIONS)?, c.size("n")?)?),
    |cx, c| Ok(activation_bwd(cx, c.dtype()?, c.named("kind", ACTIVATIONS)?, c.size("n")?)?),
)];
