//! Activations.

use trefoil::DType;
use trefoil::ops::activation::Activation as A;
use trefoil::ops::activation::{ActivationBiasBwd, GatedGrad, GatedInput, Saved};

use super::Bound::{Derived, Exact, Stored};
use super::{Bound, Kernel, TRANS, ULP, gemm, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::{Any, Nonzero};
use crate::sampler::Sample;

fn forward(cx: &Cx<'_>, act: A) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.activation(act, x, y.m())?)
}

fn backward(cx: &Cx<'_>, act: A) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.like("dx", &dy)?;
    let saved = match (cx.opt("x"), cx.opt("y")) {
        (Some(x), None) => Saved::Input(x),
        (None, Some(y)) => Saved::Output(y),
        _ => return Err(Fail::Case("one saved tensor is needed".into())),
    };
    Ok(cx.gpu.activation_bwd(act, dy, saved, dx.g())?)
}

pub(super) fn gelu(cx: &Cx<'_>) -> R<A> {
    match cx.s("approx")?.as_str() {
        "none" => Ok(A::Gelu),
        "tanh" => Ok(A::GeluTanh),
        a => Err(Fail::Case(format!("approx {a} is unknown"))),
    }
}

fn draw(s: &mut Sample) {
    let shape = s.shape();
    s.put("x", &shape, Any);
}

/// The operands of a gated unit: halves of x, or gate and up; and the result's shape.
fn gated_input<'a>(cx: &'a Cx<'_>) -> R<(GatedInput<'a>, Vec<usize>)> {
    if let (Some(gate), Some(up)) = (cx.opt("gate"), cx.opt("up")) {
        return Ok((GatedInput::Two { gate, up }, gate.shape().to_vec()));
    }
    let x = cx.x("x")?;
    let axis = cx.axis("axis", x.shape().len())?;
    let mut shape = x.shape().to_vec();
    if let Some(n) = shape.get_mut(axis) {
        *n /= 2;
    }
    Ok((GatedInput::Halves { x, axis, gate_first: cx.b("gate_first")? }, shape))
}

fn gated(cx: &Cx<'_>, act: A) -> R {
    let (input, shape) = gated_input(cx)?;
    let y = cx.out("y", cx.dtype, &shape)?;
    Ok(cx.gpu.gated(act, input, y.m())?)
}

fn gated_backward(cx: &Cx<'_>, act: A) -> R {
    let (input, _) = gated_input(cx)?;
    let dy = cx.x("dy")?;
    if let GatedInput::Two { gate, up } = input {
        let (dgate, dup) = (cx.like("dgate", &gate)?, cx.like("dup", &up)?);
        let grads = GatedGrad::Two { gate: Some(dgate.g()), up: Some(dup.g()) };
        return Ok(cx.gpu.gated_bwd(act, dy, input, grads)?);
    }
    let dx = cx.like("dx", &cx.x("x")?)?;
    Ok(cx.gpu.gated_bwd(act, dy, input, GatedGrad::Halves(dx.g()))?)
}

fn prelu(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.prelu(x, cx.x("a")?, y.m())?)
}

fn prelu_backward(cx: &Cx<'_>) -> R {
    let (dy, x, a) = (cx.x("dy")?, cx.x("x")?, cx.x("a")?);
    let (dx, da) = (cx.like("dx", &x)?, cx.like("da", &a)?);
    Ok(cx.gpu.prelu_bwd(dy, x, a, Some(dx.g()), Some(da.g()))?)
}

fn bias_backward(cx: &Cx<'_>) -> R {
    let (dy, saved, act) = (cx.x("dy")?, cx.x("saved")?, gemm::act(cx)?);
    let (dx, n) = (cx.like("dx", &dy)?, dy.shape()[dy.shape().len() - 1]);
    let offsets = cx.opt("offsets");
    let dbias = match offsets {
        Some(offsets) => cx.out("dbias", cx.dtype, &[offsets.shape()[0] - 1, n])?,
        None => cx.out("dbias", cx.dtype, &[n])?,
    };
    let io = ActivationBiasBwd::new(dy, act.saved(saved), dx.m(), dbias.g());
    Ok(cx.gpu.activation_bias_bwd(act, io.offsets(offsets))?)
}

/// Rows, mostly of whole items of 16 bytes, all together or in groups, some of them in parts.
fn draw_bias_backward(s: &mut Sample) {
    let widths: &[usize] = if s.small { &[8, 5] } else { &[64, 200, 8, 136, 37] };
    let n = widths[s.below(widths.len())];
    let act = ["gelu", "relu", "tanh", "swish"][s.below(4)];
    s.arg("act", act);
    let mut shape = match (s.small, s.below(4)) {
        (true, _) => vec![3, n],
        (_, 0) => vec![2, 3, n],
        (_, 1) => vec![1 + s.below(2000), n],
        _ => vec![1 + s.below(60), n],
    };
    if shape.len() == 2 && s.coin() {
        // Rows of no group, before the groups and behind them, and a group without rows.
        let rows = shape[0];
        let groups = [s.below(3), rows, 0, 1 + s.below(9)];
        shape[0] = groups.iter().sum::<usize>() + s.below(3);
        let first = groups[0] as i64;
        let mut ends = vec![first];
        groups[1..].iter().for_each(|g| ends.push(ends[ends.len() - 1] + *g as i64));
        s.ints("offsets", DType::I32, &[ends.len()], &ends);
    }
    s.put("dy", &shape, Any);
    s.put("saved", &shape, Any);
}

fn draw_gated(s: &mut Sample) {
    let mut shape = s.solid();
    if s.coin() {
        s.put("gate", &shape, Nonzero);
        s.put("up", &shape, Any);
        return;
    }
    let axis = s.below(shape.len());
    shape[axis] = 2 * shape[axis].min(5000);
    s.put("x", &shape, Nonzero);
    s.arg("axis", axis);
    let first = s.coin();
    s.arg("gate_first", first);
}

fn draw_prelu(s: &mut Sample) {
    let shape: Vec<usize> = if s.small {
        vec![2, 3, 2]
    } else {
        let edges: [&[usize]; 6] = [&[5, 7], &[400, 64, 3], &[3, 5, 33], &[2, 4, 9000], &[100_003], &[0, 4]];
        edges[s.below(edges.len())].to_vec()
    };
    s.put("x", &shape, Nonzero);
    let n = if shape.len() > 1 && s.coin() { shape[1] } else { 1 };
    s.put("a", &[n], Any);
}

macro_rules! gated {
    ($name:literal, $act:expr) => {
        &[
            k($name, "B1.9", "[x], [gate], [up]", "axis=-1, gate_first=false", "y", &["gated"], |cx| {
                gated(cx, $act)
            })
            .bound(Derived)
            .sample(draw_gated),
            k(
                concat!($name, "_backward"),
                "B1.9",
                "dy, [x], [gate], [up]",
                "axis=-1, gate_first=false",
                "[dx], [dgate], [dup]",
                &["gated_bwd"],
                |cx| gated_backward(cx, $act),
            )
            .bound(Derived)
            .grad_of($name),
        ]
    };
}

const BWD: Bound = Derived;

macro_rules! act {
    ($name:literal, $row:literal, $back:literal, $saved:literal, $args:literal, $act:expr, $bound:expr, $grad:expr) => {
        &[
            k($name, $row, "x", $args, "y", &["activation"], |cx| forward(cx, $act(cx)?))
                .bound($bound)
                .sample(draw),
            k(
                concat!($name, "_backward"),
                $back,
                concat!("dy, ", $saved),
                $args,
                "dx",
                &["activation_bwd"],
                |cx| backward(cx, $act(cx)?),
            )
            .bound($grad)
            .grad_of($name),
        ]
    };
}

fn fixed(act: A) -> R<A> {
    Ok(act)
}

fn softplus(cx: &Cx<'_>) -> R<A> {
    Ok(A::Softplus { beta: cx.f("beta")?, threshold: cx.f("threshold")? })
}

fn leaky(cx: &Cx<'_>) -> R<A> {
    Ok(A::LeakyRelu { slope: cx.f("slope")? })
}

fn swish(cx: &Cx<'_>) -> R<A> {
    Ok(A::Swish { beta: cx.f("beta")? })
}

fn elu(cx: &Cx<'_>) -> R<A> {
    Ok(A::Elu { alpha: cx.f("alpha")? })
}

fn hardtanh(cx: &Cx<'_>) -> R<A> {
    Ok(A::Hardtanh { lo: cx.f("lo")?, hi: cx.f("hi")? })
}

pub(super) const ROWS: &[&[Kernel]] = &[
    act!("relu", "S1.1", "S2.1", "x", "-", |_: &Cx<'_>| fixed(A::Relu), Exact, Exact),
    act!("leaky_relu", "S1.2", "S2.2", "x", "slope=0.01", leaky, ULP, BWD),
    act!("sigmoid", "S1.3", "S2.3", "y", "-", |_: &Cx<'_>| fixed(A::Sigmoid), TRANS, BWD),
    act!("tanh", "S1.4", "S2.4", "y", "-", |_: &Cx<'_>| fixed(A::Tanh), TRANS, BWD),
    act!("gelu", "S1.5", "S2.5", "x", "approx=\"none\"", gelu, TRANS, BWD),
    act!("swish", "S1.6", "S2.8", "x", "beta=1.0", swish, TRANS, BWD),
    &[k("silu", "S1.6", "x", "beta=1.0", "y", &["activation"], |cx| forward(cx, swish(cx)?))
        .bound(TRANS)
        .sample(draw)],
    act!("elu", "S1.8", "S2.7", "[x], [y]", "alpha=1.0", elu, TRANS, BWD),
    act!("mish", "S1.9", "S2.9", "x", "-", |_: &Cx<'_>| fixed(A::Mish), TRANS, BWD),
    act!("softplus", "S1.10", "S2.10", "x", "beta=1.0, threshold=20.0", softplus, TRANS, BWD),
    act!("hardswish", "S1.11", "S2.11", "x", "-", |_: &Cx<'_>| fixed(A::Hardswish), TRANS, BWD),
    act!("selu", "B1.1", "B1.1", "x", "-", |_: &Cx<'_>| fixed(A::Selu), TRANS, BWD),
    act!("hardsigmoid", "B1.3", "B1.3", "x", "-", |_: &Cx<'_>| fixed(A::Hardsigmoid), TRANS, BWD),
    act!("hardtanh", "B1.4", "B1.4", "x", "lo=-1.0, hi=1.0", hardtanh, Exact, Exact),
    act!("relu6", "B1.4", "B1.4", "x", "-", |_: &Cx<'_>| fixed(A::Relu6), Exact, Exact),
    &[k(
        "activation_bias_backward",
        "B1",
        "dy, saved, [offsets:i32]",
        "act=\"gelu\"",
        "dx, dbias",
        &["activation_bias_bwd"],
        bias_backward,
    )
    .bound(Stored)
    .sample(draw_bias_backward)],
    gated!("glu", A::Sigmoid),
    gated!("geglu", A::Gelu),
    gated!("swiglu", A::Swish { beta: 1.0 }),
    gated!("reglu", A::Relu),
    &[
        k("prelu", "B1.5", "x, a", "-", "y", &["prelu"], prelu).bound(ULP).sample(draw_prelu),
        k("prelu_backward", "B1.5", "dy, x, a", "-", "dx, da", &["prelu_bwd"], prelu_backward)
            .bound(Derived)
            .grad_of("prelu"),
    ],
];
