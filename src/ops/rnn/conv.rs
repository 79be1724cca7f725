//! Convolutional LSTM: operands and checks.

use crate::ops::gemm::Precision;
use crate::ops::check;
use crate::ops::rnn::{inputs, outputs};
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};

io_struct! {
    /// Operands of [`ConvLstmOps::conv_lstm`]: T steps of N images.
    #[derive(Debug)]
    pub struct ConvLstmFwd<'a> {
        /// [T, N, Ci, H, W].
        pub x: View<'a>,
        /// First hidden state [N, Hc, H, W].
        pub h_0: View<'a>,
        /// First cell state [N, Hc, H, W].
        pub c_0: View<'a>,
        /// [4 Hc, Ci, kh, kw], both sizes odd.
        pub wx: View<'a>,
        /// [4 Hc, Hc, kh, kw], both sizes odd.
        pub wh: View<'a>,
        /// [4 Hc].
        pub b: Option<View<'a>>,
        /// Peepholes of i, f and o: [3, Hc, H, W] or [3, Hc, 1, 1].
        pub p: Option<View<'a>>,
        /// [T, N, Hc, H, W].
        pub y: ViewMut<'a>,
        /// Last hidden state.
        pub h_t: Option<ViewMut<'a>>,
        /// Last cell state.
        pub c_t: Option<ViewMut<'a>>,
        /// Saved: all hidden states [T+1, N, Hc, H, W].
        pub h: Option<ViewMut<'a>>,
        /// Saved: all cell states [T+1, N, Hc, H, W].
        pub c: Option<ViewMut<'a>>,
        /// Saved: gates after their activation [T, N, 4 Hc, H, W].
        pub gates: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`ConvLstmOps::conv_lstm_bwd`].
    #[derive(Debug)]
    pub struct ConvLstmBwd<'a> {
        /// Gradient of y; 0 without.
        pub dy: Option<View<'a>>,
        /// Gradient of the last hidden state; 0 without.
        pub dh_t: Option<View<'a>>,
        /// Gradient of the last cell state; 0 without.
        pub dc_t: Option<View<'a>>,
        /// Forward's x.
        pub x: View<'a>,
        /// Forward's input weights.
        pub wx: View<'a>,
        /// Forward's recurrent weights.
        pub wh: View<'a>,
        /// Forward's peepholes.
        pub p: Option<View<'a>>,
        /// Saved gates.
        pub gates: View<'a>,
        /// Saved cell states.
        pub c: View<'a>,
        /// Saved hidden states.
        pub h: View<'a>,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the first hidden state.
        pub dh_0: Option<GradMut<'a>>,
        /// Gradient of the first cell state.
        pub dc_0: Option<GradMut<'a>>,
        /// Gradient of the input weights.
        pub dwx: Option<GradMut<'a>>,
        /// Gradient of the recurrent weights.
        pub dwh: Option<GradMut<'a>>,
        /// Gradient of the bias.
        pub db: Option<GradMut<'a>>,
        /// Gradient of the peepholes.
        pub dp: Option<GradMut<'a>>,
    }
}

/// Sizes of a checked convolutional LSTM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConvLstmSizes {
    pub(crate) steps: usize,
    pub(crate) batch: usize,
    pub(crate) input: usize,
    pub(crate) hidden: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Kernel sizes of the input's and of the state's convolution.
    pub(crate) kx: [usize; 2],
    pub(crate) kh: [usize; 2],
    /// Whether one peephole weight serves all pixels of a channel.
    pub(crate) shared_p: bool,
}

impl ConvLstmSizes {
    /// Pixels of a channel.
    pub(crate) fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Elements of a state.
    pub(crate) fn state(&self) -> usize {
        self.batch * self.hidden * self.pixels()
    }
}

op_family! {
    /// Convolutional LSTM.
    pub trait ConvLstmOps : Rnn => CONV_LSTM_OPS {
        /// Convolutional LSTM with optional peepholes (Shi et al., 2015): z = conv(x, Wx) + conv(h, Wh) + b, both convolutions with stride 1 and
        /// a padding that keeps the size; i = s(z_i + P_i c), f = s(z_f + P_f c), g = tanh(z_g), c' = f c + i g, o = s(z_o + P_o c'),
        /// h' = o tanh(c'). Errors: `Invalid` for even kernel sizes and shapes that do not fit.
        fn conv_lstm(&self, precision: Precision, io: ConvLstmFwd<'_>) -> Result<()>;
        /// Gradients of [`ConvLstmOps::conv_lstm`].
        fn conv_lstm_bwd(&self, precision: Precision, io: ConvLstmBwd<'_>) -> Result<()>;
    }
}

/// Kernel sizes, which must be odd.
fn odd(op: &'static str, arg: &'static str, w: &View<'_>) -> Result<[usize; 2]> {
    match w.shape() {
        &[_, _, kh, kw] if kh % 2 == 1 && kw % 2 == 1 => Ok([kh, kw]),
        &[_, _, kh, kw] => Err(GpuError::invalid(op, arg, "odd kernel sizes", format!("{kh} x {kw}"))),
        s => Err(GpuError::invalid(op, arg, "rank 4", format!("shape {s:?}"))),
    }
}

fn sizes(
    op: &'static str,
    x: &View<'_>,
    wx: &View<'_>,
    wh: &View<'_>,
    p: Option<&View<'_>>,
) -> Result<ConvLstmSizes> {
    check::float(op, "x", x)?;
    let &[steps, batch, input, height, width] = x.shape() else {
        return Err(GpuError::invalid(op, "x", "rank 5", format!("shape {:?}", x.shape())));
    };
    let (kx, kh) = (odd(op, "wx", wx)?, odd(op, "wh", wh)?);
    let hidden = wh.shape()[1];
    let shared_p = p.is_some_and(|p| p.shape() == [3, hidden, 1, 1]);
    Ok(ConvLstmSizes { steps, batch, input, hidden, height, width, kx, kh, shared_p })
}

impl ConvLstmSizes {
    fn shapes(&self) -> Shapes {
        let (h, w) = (self.height, self.width);
        Shapes {
            state: [self.batch, self.hidden, h, w],
            each: [self.steps, self.batch, self.hidden, h, w],
            states: [self.steps + 1, self.batch, self.hidden, h, w],
            gates: [self.steps, self.batch, self.hidden.saturating_mul(4), h, w],
            wx: [self.hidden.saturating_mul(4), self.input, self.kx[0], self.kx[1]],
            wh: [self.hidden.saturating_mul(4), self.hidden, self.kh[0], self.kh[1]],
            p: if self.shared_p { [3, self.hidden, 1, 1] } else { [3, self.hidden, h, w] },
        }
    }
}

struct Shapes {
    state: [usize; 4],
    each: [usize; 5],
    states: [usize; 5],
    gates: [usize; 5],
    wx: [usize; 4],
    wh: [usize; 4],
    p: [usize; 4],
}

/// Checks of [`ConvLstmOps::conv_lstm`].
pub(crate) fn check_conv_lstm(io: &ConvLstmFwd<'_>) -> Result<ConvLstmSizes> {
    const OP: &str = "conv_lstm";
    let s = sizes(OP, &io.x, &io.wx, &io.wh, io.p.as_ref())?;
    let (dt, w) = (io.x.dtype(), s.shapes());
    let read = inputs(
        OP,
        dt,
        &[
            ("x", Some(io.x), io.x.shape()),
            ("wx", Some(io.wx), &w.wx),
            ("wh", Some(io.wh), &w.wh),
            ("h_0", Some(io.h_0), &w.state),
            ("c_0", Some(io.c_0), &w.state),
            ("b", io.b, &[s.hidden.saturating_mul(4)]),
            ("p", io.p, &w.p),
        ],
    )?;
    let outs = [
        ("y", Some(&io.y), &w.each[..]),
        ("h_t", io.h_t.as_ref(), &w.state),
        ("c_t", io.c_t.as_ref(), &w.state),
        ("h", io.h.as_ref(), &w.states),
        ("c", io.c.as_ref(), &w.states),
        ("gates", io.gates.as_ref(), &w.gates),
    ];
    outputs(OP, dt, read, &outs)?;
    Ok(s)
}

/// Checks of [`ConvLstmOps::conv_lstm_bwd`].
pub(crate) fn check_conv_lstm_bwd(io: &ConvLstmBwd<'_>) -> Result<ConvLstmSizes> {
    const OP: &str = "conv_lstm_bwd";
    let s = sizes(OP, &io.x, &io.wx, &io.wh, io.p.as_ref())?;
    let (dt, w) = (io.x.dtype(), s.shapes());
    if io.dp.is_some() && io.p.is_none() {
        return Err(GpuError::invalid(OP, "p", "the peepholes whose gradient is asked for", "none"));
    }
    let read = inputs(
        OP,
        dt,
        &[
            ("x", Some(io.x), io.x.shape()),
            ("wx", Some(io.wx), &w.wx),
            ("wh", Some(io.wh), &w.wh),
            ("p", io.p, &w.p),
            ("dy", io.dy, &w.each),
            ("dh_t", io.dh_t, &w.state),
            ("dc_t", io.dc_t, &w.state),
            ("gates", Some(io.gates), &w.gates),
            ("c", Some(io.c), &w.states),
            ("h", Some(io.h), &w.states),
        ],
    )?;
    let outs = [
        ("dx", io.dx.as_ref().map(|g| &g.out), io.x.shape()),
        ("dh_0", io.dh_0.as_ref().map(|g| &g.out), &w.state),
        ("dc_0", io.dc_0.as_ref().map(|g| &g.out), &w.state),
        ("dwx", io.dwx.as_ref().map(|g| &g.out), &w.wx),
        ("dwh", io.dwh.as_ref().map(|g| &g.out), &w.wh),
        ("db", io.db.as_ref().map(|g| &g.out), &[s.hidden.saturating_mul(4)]),
        ("dp", io.dp.as_ref().map(|g| &g.out), &w.p),
    ];
    outputs(OP, dt, read, &outs)?;
    Ok(s)
}
