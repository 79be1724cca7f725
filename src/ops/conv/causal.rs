//! Causal convolution: operands and checks.

use crate::ops::conv::{operands, outputs};
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;
use crate::ops::activation::Activation;
use crate::ops::gemm::fused_act;

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

/// Batch, channels, length and window of a causal convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CausalShape {
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) len: usize,
    pub(crate) k: usize,
}

op_family! {
    /// Causal depthwise convolution of sequences.
    pub trait CausalConvOps : Conv => CAUSAL_CONV_OPS {
        /// Depthwise convolution of a sequence that reads the present and the K-1 elements before it: y\[l\] = act(bias + sum over j of
        /// w\[j\] * x[l - (K-1) + j]). Activations as for [`Gemm`](crate::ops::gemm::Gemm).
        fn causal_conv1d(&self, act: Activation, io: CausalConvIo<'_>) -> Result<()>;
        /// Gradients of [`CausalConvOps::causal_conv1d`]; the value before the activation is computed again. The state gets no gradient.
        fn causal_conv1d_bwd(&self, act: Activation, io: CausalConvBwd<'_>) -> Result<()>;
    }
}

fn shape(op: &'static str, x: &[usize], w: &[usize]) -> Result<CausalShape> {
    let &[n, c, len] = x else {
        return Err(GpuError::invalid(op, "x", "rank 3", format!("shape {x:?}")));
    };
    match w {
        &[channels, k] if channels == c && k > 0 && k < 1 << 31 => Ok(CausalShape { n, c, len, k }),
        _ => {
            Err(GpuError::invalid(op, "w", format!("shape [{c}, K] with K of at least 1"), format!("{w:?}")))
        }
    }
}

/// Arguments of [`CausalConvOps::causal_conv1d`].
pub(crate) fn check_causal_conv1d(act: Activation, io: &CausalConvIo<'_>) -> Result<CausalShape> {
    const OP: &str = "causal_conv1d";
    let dtype = io.x.dtype();
    let read =
        [("x", Some(&io.x)), ("w", Some(&io.w)), ("bias", io.bias.as_ref()), ("state", io.state.as_ref())];
    operands(OP, dtype, &read, check::contiguous)?;
    let s = shape(OP, io.x.shape(), io.w.shape())?;
    fused_act(OP, act)?;
    io.bias.as_ref().map_or(Ok(()), |v| check::shape(OP, "bias", v, &[s.c]))?;
    let before = [s.n, s.c, s.k - 1];
    io.state.as_ref().map_or(Ok(()), |v| check::shape(OP, "state", v, &before))?;
    check::shape(OP, "y", &io.y.as_view(), io.x.shape())?;
    outputs(OP, dtype, &[("y", Some(&io.y))], &read, check::contiguous)?;
    if let Some(out) = &io.new_state {
        let v = out.as_view();
        check::shape(OP, "new_state", &v, &before)?;
        // It may be the state itself, but nothing else.
        let same =
            io.state.as_ref().is_some_and(|s| s.layout() == v.layout() && s.block().id() == v.block().id());
        let y = io.y.as_view();
        let others =
            [read[0], read[1], read[2], ("state", io.state.as_ref().filter(|_| !same)), ("y", Some(&y))];
        outputs(OP, dtype, &[("new_state", Some(out))], &others, check::contiguous)?;
    }
    Ok(s)
}

/// Arguments of [`CausalConvOps::causal_conv1d_bwd`].
pub(crate) fn check_causal_conv1d_bwd(act: Activation, io: &CausalConvBwd<'_>) -> Result<CausalShape> {
    const OP: &str = "causal_conv1d_bwd";
    let dtype = io.dy.dtype();
    let read = [
        ("dy", Some(&io.dy)),
        ("x", Some(&io.x)),
        ("w", Some(&io.w)),
        ("bias", io.bias.as_ref()),
        ("state", io.state.as_ref()),
    ];
    operands(OP, dtype, &read, check::contiguous)?;
    let s = shape(OP, io.x.shape(), io.w.shape())?;
    fused_act(OP, act)?;
    check::shape(OP, "dy", &io.dy, io.x.shape())?;
    io.bias.as_ref().map_or(Ok(()), |v| check::shape(OP, "bias", v, &[s.c]))?;
    io.state.as_ref().map_or(Ok(()), |v| check::shape(OP, "state", v, &[s.n, s.c, s.k - 1]))?;
    let outs = [("dx", &io.dx), ("dw", &io.dw), ("dbias", &io.dbias)];
    let wants: [&[usize]; 3] = [io.x.shape(), io.w.shape(), &[s.c]];
    for ((arg, g), want) in outs.iter().zip(wants) {
        g.as_ref().map_or(Ok(()), |g| check::shape(OP, arg, &g.out.as_view(), want))?;
    }
    outputs(OP, dtype, &outs.map(|(a, g)| (a, g.as_ref().map(|g| &g.out))), &read, check::contiguous)?;
    Ok(s)
}
