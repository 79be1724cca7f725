//! State-space models, linear attention and linear recurrences.

mod check;

pub(crate) use self::check::*;

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;

/// Columns of a state at most: keys of linear attention, states per channel of a state-space model.
pub const MAX_STATE_WIDTH: usize = 256;

io_struct! {
    /// Operands of [`StateSpaceOps::associative_scan_bwd`]; contiguous, [B, T, ..] of one dtype.
    #[derive(Debug)]
    pub struct AssociativeScanBwd<'a> {
        /// Upstream gradient.
        pub dy: View<'a>,
        /// Forward's factors.
        pub a: View<'a>,
        /// Forward's result; needed for `da` alone.
        pub y: Option<View<'a>>,
        /// Gradient of the factors.
        pub da: Option<GradMut<'a>>,
        /// Gradient of what is added.
        pub db: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`StateSpaceOps::gla_scan`]; contiguous, of one dtype but for the states.
    #[derive(Debug)]
    pub struct GlaScan<'a> {
        /// Queries [B, T, H, D], D at most [`MAX_STATE_WIDTH`].
        pub q: View<'a>,
        /// Keys [B, T, H, D].
        pub k: View<'a>,
        /// Values [B, T, H, V].
        pub v: View<'a>,
        /// Decay of the state: one per head [B, T, H], or one per key column [B, T, H, D].
        pub g: View<'a>,
        /// Result [B, T, H, V].
        pub y: ViewMut<'a>,
        /// State before the first step [B, H, V, D], f32 (f64 for f64 data); zeros where absent. A constant: it has no gradient.
        pub initial: Option<View<'a>>,
        /// State after the last step, as `initial`.
        pub state: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`StateSpaceOps::gla_scan_bwd`]; as in [`GlaScan`].
    #[derive(Debug)]
    pub struct GlaScanBwd<'a> {
        /// Upstream gradient [B, T, H, V].
        pub dy: View<'a>,
        /// Forward's queries.
        pub q: View<'a>,
        /// Forward's keys.
        pub k: View<'a>,
        /// Forward's values.
        pub v: View<'a>,
        /// Forward's decay.
        pub g: View<'a>,
        /// Forward's initial state.
        pub initial: Option<View<'a>>,
        /// Gradient of the queries.
        pub dq: Option<GradMut<'a>>,
        /// Gradient of the keys.
        pub dk: Option<GradMut<'a>>,
        /// Gradient of the values.
        pub dv: Option<GradMut<'a>>,
        /// Gradient of the decay.
        pub dg: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`StateSpaceOps::gated_delta_scan`]; contiguous, of one dtype but for the states.
    #[derive(Debug)]
    pub struct GatedDeltaScan<'a> {
        /// Queries [B, T, H, D], D at most [`MAX_STATE_WIDTH`].
        pub q: View<'a>,
        /// Keys [B, T, H, D], of length 1 as a rule.
        pub k: View<'a>,
        /// Values [B, T, H, V].
        pub v: View<'a>,
        /// Decay of the state [B, T, H].
        pub a: View<'a>,
        /// Writing strength [B, T, H].
        pub b: View<'a>,
        /// Result [B, T, H, V].
        pub y: ViewMut<'a>,
        /// State before the first step [B, H, V, D], f32 (f64 for f64 data); zeros where absent. A constant: it has no gradient.
        pub initial: Option<View<'a>>,
        /// State after the last step, as `initial`.
        pub state: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`StateSpaceOps::gated_delta_scan_bwd`]; as in [`GatedDeltaScan`].
    #[derive(Debug)]
    pub struct GatedDeltaScanBwd<'a> {
        /// Upstream gradient [B, T, H, V].
        pub dy: View<'a>,
        /// Forward's queries.
        pub q: View<'a>,
        /// Forward's keys.
        pub k: View<'a>,
        /// Forward's values.
        pub v: View<'a>,
        /// Forward's decay.
        pub a: View<'a>,
        /// Forward's writing strength.
        pub b: View<'a>,
        /// Forward's initial state.
        pub initial: Option<View<'a>>,
        /// Gradient of the queries.
        pub dq: Option<GradMut<'a>>,
        /// Gradient of the keys.
        pub dk: Option<GradMut<'a>>,
        /// Gradient of the values.
        pub dv: Option<GradMut<'a>>,
        /// Gradient of the decay.
        pub da: Option<GradMut<'a>>,
        /// Gradient of the writing strength.
        pub db: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`StateSpaceOps::selective_scan`]; contiguous, of one dtype but for the states.
    #[derive(Debug)]
    pub struct SelectiveScan<'a> {
        /// Inputs [B, T, E].
        pub x: View<'a>,
        /// Step sizes [B, T, E].
        pub dt: View<'a>,
        /// Rates [E, N], negative as a rule; N at most [`MAX_STATE_WIDTH`].
        pub a: View<'a>,
        /// How inputs enter the states [B, T, N].
        pub b: View<'a>,
        /// How results leave them [B, T, N].
        pub c: View<'a>,
        /// Result [B, T, E].
        pub y: ViewMut<'a>,
        /// Share of the input that is added to the result `[E]`.
        pub d: Option<View<'a>>,
        /// Gate [B, T, E]: results are multiplied by silu(z).
        pub z: Option<View<'a>>,
        /// State before the first step [B, E, N], f32 (f64 for f64 data); zeros where absent. A constant: it has no gradient.
        pub initial: Option<View<'a>>,
        /// State after the last step, as `initial`.
        pub state: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`StateSpaceOps::selective_scan_bwd`]; as in [`SelectiveScan`].
    #[derive(Debug)]
    pub struct SelectiveScanBwd<'a> {
        /// Upstream gradient [B, T, E].
        pub dy: View<'a>,
        /// Forward's inputs.
        pub x: View<'a>,
        /// Forward's step sizes.
        pub dt: View<'a>,
        /// Forward's rates.
        pub a: View<'a>,
        /// Forward's input coefficients.
        pub b: View<'a>,
        /// Forward's output coefficients.
        pub c: View<'a>,
        /// Forward's share of the input.
        pub d: Option<View<'a>>,
        /// Forward's gate.
        pub z: Option<View<'a>>,
        /// Forward's initial state.
        pub initial: Option<View<'a>>,
        /// Gradient of the inputs.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the step sizes.
        pub ddt: Option<GradMut<'a>>,
        /// Gradient of the rates.
        pub da: Option<GradMut<'a>>,
        /// Gradient of the input coefficients.
        pub db: Option<GradMut<'a>>,
        /// Gradient of the output coefficients.
        pub dc: Option<GradMut<'a>>,
        /// Gradient of `d`, where that is given.
        pub dd: Option<GradMut<'a>>,
        /// Gradient of the gate, where that is given.
        pub dz: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`StateSpaceOps::ssd_scan`]; contiguous, of one dtype but for the states.
    #[derive(Debug)]
    pub struct SsdScan<'a> {
        /// Inputs [B, T, H, P].
        pub x: View<'a>,
        /// Step sizes [B, T, H].
        pub dt: View<'a>,
        /// Rate of each head `[H]`, negative as a rule.
        pub a: View<'a>,
        /// How inputs enter the states [B, T, G, N]; G divides H, N at most [`MAX_STATE_WIDTH`].
        pub b: View<'a>,
        /// How results leave them [B, T, G, N].
        pub c: View<'a>,
        /// Result [B, T, H, P].
        pub y: ViewMut<'a>,
        /// Share of the input that is added to the result `[H]`.
        pub d: Option<View<'a>>,
        /// State before the first step [B, H, P, N], f32 (f64 for f64 data); zeros where absent. A constant: it has no gradient.
        pub initial: Option<View<'a>>,
        /// State after the last step, as `initial`.
        pub state: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`StateSpaceOps::ssd_scan_bwd`]; as in [`SsdScan`].
    #[derive(Debug)]
    pub struct SsdScanBwd<'a> {
        /// Upstream gradient [B, T, H, P].
        pub dy: View<'a>,
        /// Forward's inputs.
        pub x: View<'a>,
        /// Forward's step sizes.
        pub dt: View<'a>,
        /// Forward's rates.
        pub a: View<'a>,
        /// Forward's input coefficients.
        pub b: View<'a>,
        /// Forward's output coefficients.
        pub c: View<'a>,
        /// Forward's share of the input.
        pub d: Option<View<'a>>,
        /// Forward's initial state.
        pub initial: Option<View<'a>>,
        /// Gradient of the inputs.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the step sizes.
        pub ddt: Option<GradMut<'a>>,
        /// Gradient of the rates.
        pub da: Option<GradMut<'a>>,
        /// Gradient of the input coefficients.
        pub db: Option<GradMut<'a>>,
        /// Gradient of the output coefficients.
        pub dc: Option<GradMut<'a>>,
        /// Gradient of `d`, where that is given.
        pub dd: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Linear recurrences over time. f32, f16, bf16 and f64; states are f32 (f64 for f64 data) whatever the data is. Deterministic: long sequences are
    /// cut into parts by sizes alone. The backward passes save nothing but the forward's operands and compute states again from checkpoints;
    /// memory for those grows with T / 64 states. Errors: `Invalid` for shapes, dtypes, layout, overlap, a state wider than [`MAX_STATE_WIDTH`].
    pub trait StateSpaceOps : StateSpace => STATE_SPACE_OPS {
        /// `y[t] = a[t] y[t-1] + b[t]` along axis 1 of [B, T, ..], elementwise, from 0; `reverse` runs from the last step. The operator
        /// (a, b) o (a', b') = (a a', a' b + b') is associative, hence the name. Oracle: the loop. Blelloch (1990).
        fn associative_scan(&self, reverse: bool, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// `db[t] = dy[t] + a[t+1] db[t+1]`, `da[t] = db[t] y[t-1]`.
        fn associative_scan_bwd(&self, reverse: bool, io: AssociativeScanBwd<'_>) -> Result<()>;
        /// Gated linear attention: `S = S diag(g) + v k^T`, `y = S q` for each head. Yang et al. (2024); without gate (g = 1) linear attention,
        /// with a constant one RetNet.
        fn gla_scan(&self, io: GlaScan<'_>) -> Result<()>;
        /// Gradients of [`StateSpaceOps::gla_scan`].
        fn gla_scan_bwd(&self, io: GlaScanBwd<'_>) -> Result<()>;
        /// Gated delta rule: `S = a S (I - b k k^T) + b v k^T`, `y = S q` for each head. Yang et al. (2025, Gated DeltaNet); with a = 1 DeltaNet.
        fn gated_delta_scan(&self, io: GatedDeltaScan<'_>) -> Result<()>;
        /// Gradients of [`StateSpaceOps::gated_delta_scan`].
        fn gated_delta_scan_bwd(&self, io: GatedDeltaScanBwd<'_>) -> Result<()>;
        /// Selective state-space model: `h = exp(dt a) h + dt b x`, `y = (c . h + d x) silu(z)` for each channel; `softplus` takes softplus(dt)
        /// for dt. Gu and Dao (2023, Mamba).
        fn selective_scan(&self, softplus: bool, io: SelectiveScan<'_>) -> Result<()>;
        /// Gradients of [`StateSpaceOps::selective_scan`].
        fn selective_scan_bwd(&self, softplus: bool, io: SelectiveScanBwd<'_>) -> Result<()>;
        /// State-space duality: `h = exp(dt a) h + dt x b^T`, `y = h c + d x` for each head, one rate per head. Dao and Gu (2024, Mamba-2).
        fn ssd_scan(&self, io: SsdScan<'_>) -> Result<()>;
        /// Gradients of [`StateSpaceOps::ssd_scan`].
        fn ssd_scan_bwd(&self, io: SsdScanBwd<'_>) -> Result<()>;
    }
}
