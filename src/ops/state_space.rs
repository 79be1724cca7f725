//! State-space models, linear attention and linear recurrences: signatures and checks.

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

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

type Named<'a> = (&'static str, View<'a>);

/// What a step does to a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum StateRule {
    Gla,
    GlaPerKey,
    GatedDelta,
    Selective,
    Ssd,
}

/// Sizes of a scan: the state of each of `batch * heads` is [rows, width], and its rows do not depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StateSizes {
    pub(crate) batch: usize,
    pub(crate) steps: usize,
    pub(crate) heads: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// Heads of q and k; `heads` is a multiple.
    pub(crate) groups: usize,
}

/// Operands of any of the scans, under common names: `S = S diag(gate) + u k^T`, `y = S q`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateScan<'a> {
    pub(crate) op: &'static str,
    pub(crate) rule: StateRule,
    pub(crate) size: StateSizes,
    /// Names of q, k, v, gate and second in the public struct.
    pub(crate) names: [&'static str; 5],
    pub(crate) q: View<'a>,
    pub(crate) k: View<'a>,
    pub(crate) v: View<'a>,
    /// Decay, or step size.
    pub(crate) gate: View<'a>,
    /// Writing strength, or rates.
    pub(crate) second: Option<View<'a>>,
    pub(crate) skip: Option<View<'a>>,
    pub(crate) z: Option<View<'a>>,
    pub(crate) initial: Option<View<'a>>,
    pub(crate) softplus: bool,
}

/// Gradients under the names of [`StateScan`].
#[derive(Debug)]
pub(crate) struct StateGrads<'a> {
    pub(crate) dy: View<'a>,
    pub(crate) dq: Option<GradMut<'a>>,
    pub(crate) dk: Option<GradMut<'a>>,
    pub(crate) dv: Option<GradMut<'a>>,
    pub(crate) dgate: Option<GradMut<'a>>,
    pub(crate) dsecond: Option<GradMut<'a>>,
    pub(crate) dskip: Option<GradMut<'a>>,
    pub(crate) dz: Option<GradMut<'a>>,
}

impl<'a> GlaScanBwd<'a> {
    pub(crate) fn grads(self) -> StateGrads<'a> {
        let GlaScanBwd { dy, dq, dk, dv, dg, .. } = self;
        StateGrads { dy, dq, dk, dv, dgate: dg, dsecond: None, dskip: None, dz: None }
    }
}

impl<'a> GatedDeltaScanBwd<'a> {
    pub(crate) fn grads(self) -> StateGrads<'a> {
        let GatedDeltaScanBwd { dy, dq, dk, dv, da, db, .. } = self;
        StateGrads { dy, dq, dk, dv, dgate: da, dsecond: db, dskip: None, dz: None }
    }
}

impl<'a> SelectiveScanBwd<'a> {
    pub(crate) fn grads(self) -> StateGrads<'a> {
        let SelectiveScanBwd { dy, dx, ddt, da, db, dc, dd, dz, .. } = self;
        StateGrads { dy, dq: dc, dk: db, dv: dx, dgate: ddt, dsecond: da, dskip: dd, dz }
    }
}

impl<'a> SsdScanBwd<'a> {
    pub(crate) fn grads(self) -> StateGrads<'a> {
        let SsdScanBwd { dy, dx, ddt, da, db, dc, dd, .. } = self;
        StateGrads { dy, dq: dc, dk: db, dv: dx, dgate: ddt, dsecond: da, dskip: dd, dz: None }
    }
}

/// The shape as four axes.
fn four(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(v.shape())
        .map_err(|_| GpuError::invalid(op, arg, "four axes", format!("shape {:?}", v.shape())))
}

/// The shape as three axes.
fn three(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<[usize; 3]> {
    <[usize; 3]>::try_from(v.shape())
        .map_err(|_| GpuError::invalid(op, arg, "three axes", format!("shape {:?}", v.shape())))
}

impl<'a> StateScan<'a> {
    /// Operands of linear attention.
    fn attention(
        op: &'static str,
        [q, k, v, gate]: [View<'a>; 4],
        second: Option<View<'a>>,
        initial: Option<View<'a>>,
    ) -> Result<Self> {
        let [batch, steps, heads, width] = four(op, "q", &q)?;
        let [.., rows] = four(op, "v", &v)?;
        let rule = match (second.is_some(), gate.shape().len()) {
            (true, _) => StateRule::GatedDelta,
            (false, 4) => StateRule::GlaPerKey,
            (false, _) => StateRule::Gla,
        };
        let names = if second.is_some() { ["q", "k", "v", "a", "b"] } else { ["q", "k", "v", "g", ""] };
        let size = StateSizes { batch, steps, heads, rows, width, groups: heads };
        Ok(StateScan { op, rule, size, names, q, k, v, gate, second, skip: None, z: None, initial, softplus: false })
    }

    pub(crate) fn gla(io: &GlaScan<'a>) -> Result<Self> {
        Self::attention("gla_scan", [io.q, io.k, io.v, io.g], None, io.initial)
    }

    pub(crate) fn gla_bwd(io: &GlaScanBwd<'a>) -> Result<Self> {
        Self::attention("gla_scan_bwd", [io.q, io.k, io.v, io.g], None, io.initial)
    }

    pub(crate) fn gated_delta(io: &GatedDeltaScan<'a>) -> Result<Self> {
        Self::attention("gated_delta_scan", [io.q, io.k, io.v, io.a], Some(io.b), io.initial)
    }

    pub(crate) fn gated_delta_bwd(io: &GatedDeltaScanBwd<'a>) -> Result<Self> {
        Self::attention("gated_delta_scan_bwd", [io.q, io.k, io.v, io.a], Some(io.b), io.initial)
    }

    /// Operands of a state-space model: x, dt, a, b, c, and d, z, initial.
    fn model(
        op: &'static str,
        rule: StateRule,
        [x, dt, a, b, c]: [View<'a>; 5],
        [skip, z, initial]: [Option<View<'a>>; 3],
        softplus: bool,
    ) -> Result<Self> {
        let size = if rule == StateRule::Selective {
            let ([batch, steps, rows], [.., width]) = (three(op, "x", &x)?, three(op, "c", &c)?);
            StateSizes { batch, steps, heads: 1, rows, width, groups: 1 }
        } else {
            let ([batch, steps, heads, rows], [_, _, groups, width]) = (four(op, "x", &x)?, four(op, "c", &c)?);
            if groups == 0 || !heads.is_multiple_of(groups) {
                let want = format!("a number of groups that divides {heads} heads");
                return Err(GpuError::invalid(op, "c", want, format!("{groups}")));
            }
            StateSizes { batch, steps, heads, rows, width, groups }
        };
        let names = ["c", "b", "x", "dt", "a"];
        Ok(StateScan { op, rule, size, names, q: c, k: b, v: x, gate: dt, second: Some(a), skip, z, initial, softplus })
    }

    pub(crate) fn selective(softplus: bool, io: &SelectiveScan<'a>) -> Result<Self> {
        let (operands, more) = ([io.x, io.dt, io.a, io.b, io.c], [io.d, io.z, io.initial]);
        Self::model("selective_scan", StateRule::Selective, operands, more, softplus)
    }

    pub(crate) fn selective_bwd(softplus: bool, io: &SelectiveScanBwd<'a>) -> Result<Self> {
        let (operands, more) = ([io.x, io.dt, io.a, io.b, io.c], [io.d, io.z, io.initial]);
        Self::model("selective_scan_bwd", StateRule::Selective, operands, more, softplus)
    }

    pub(crate) fn ssd(io: &SsdScan<'a>) -> Result<Self> {
        let (operands, more) = ([io.x, io.dt, io.a, io.b, io.c], [io.d, None, io.initial]);
        Self::model("ssd_scan", StateRule::Ssd, operands, more, false)
    }

    pub(crate) fn ssd_bwd(io: &SsdScanBwd<'a>) -> Result<Self> {
        let (operands, more) = ([io.x, io.dt, io.a, io.b, io.c], [io.d, None, io.initial]);
        Self::model("ssd_scan_bwd", StateRule::Ssd, operands, more, false)
    }

    /// Whether there is no step to make.
    pub(crate) fn is_empty(&self) -> bool {
        self.v.numel() == 0
    }

    /// Shapes of q (and k), v, gate, second, skip (and z) and the state.
    fn shapes(&self) -> [Vec<usize>; 6] {
        let StateSizes { batch, steps, heads, rows, width, groups } = self.size;
        let q = vec![batch, steps, groups, width];
        match self.rule {
            StateRule::Selective => [
                vec![batch, steps, width],
                vec![batch, steps, rows],
                vec![batch, steps, rows],
                vec![rows, width],
                vec![rows],
                vec![batch, rows, width],
            ],
            rule => {
                let head = vec![batch, steps, heads];
                let gate = if rule == StateRule::GlaPerKey { q.clone() } else { head.clone() };
                let second = if rule == StateRule::Ssd { vec![heads] } else { head };
                let v = vec![batch, steps, heads, rows];
                [q, v, gate, second, vec![heads], vec![batch, heads, rows, width]]
            }
        }
    }

    /// Checks the operands; they are returned by name.
    fn check(&self) -> Result<Vec<Named<'a>>> {
        let (op, dt) = (self.op, self.v.dtype());
        check::float(op, self.names[2], &self.v)?;
        let [q, v, gate, second, skip, state] = self.shapes();
        let named = [
            (self.names[0], Some(self.q), &q, dt),
            (self.names[1], Some(self.k), &q, dt),
            (self.names[2], Some(self.v), &v, dt),
            (self.names[3], Some(self.gate), &gate, dt),
            (self.names[4], self.second, &second, dt),
            ("d", self.skip, &skip, dt),
            ("z", self.z, &v, dt),
            ("initial", self.initial, &state, dt.accumulator()),
        ];
        let mut seen = Vec::with_capacity(named.len());
        for (arg, operand, shape, dtype) in named {
            if let Some(x) = operand {
                check::exact(op, arg, &x, shape, dtype)?;
                seen.push((arg, x));
            }
        }
        if self.size.width > MAX_STATE_WIDTH {
            let want = format!("at most {MAX_STATE_WIDTH} columns of a state");
            return Err(GpuError::invalid(op, self.names[0], want, format!("{}", self.size.width)));
        }
        Ok(seen)
    }

    /// Checks of a forward pass.
    pub(crate) fn check_forward(&self, y: &ViewMut<'a>, state: Option<&ViewMut<'a>>) -> Result<()> {
        let mut seen = self.check()?;
        let dt: DType = self.v.dtype();
        let [_, v, .., shape] = self.shapes();
        check::exact_output(self.op, "y", y, &v, dt, &mut seen)?;
        if let Some(s) = state {
            check::exact_output(self.op, "state", s, &shape, dt.accumulator(), &mut seen)?;
        }
        Ok(())
    }

    /// Checks of a backward pass.
    pub(crate) fn check_backward(&self, g: &StateGrads<'a>) -> Result<()> {
        let mut seen = self.check()?;
        let (op, dt) = (self.op, self.v.dtype());
        check::exact(op, "dy", &g.dy, self.v.shape(), dt)?;
        seen.push(("dy", g.dy));
        let [dq, dk, dv, dgate, dsecond] = match self.rule {
            StateRule::Gla | StateRule::GlaPerKey => ["dq", "dk", "dv", "dg", ""],
            StateRule::GatedDelta => ["dq", "dk", "dv", "da", "db"],
            StateRule::Selective | StateRule::Ssd => ["dc", "db", "dx", "ddt", "da"],
        };
        let [q, v, gate, second, skip, _] = self.shapes();
        let outputs = [
            (dq, &g.dq, &q),
            (dk, &g.dk, &q),
            (dv, &g.dv, &v),
            (dgate, &g.dgate, &gate),
            (dsecond, &g.dsecond, &second),
            ("dd", &g.dskip, &skip),
            ("dz", &g.dz, &v),
        ];
        for (arg, out, shape) in outputs {
            if let Some(out) = out {
                check::exact_output(op, arg, &out.out, shape, dt, &mut seen)?;
            }
        }
        for (arg, out, given) in [("dd", &g.dskip, self.skip), ("dz", &g.dz, self.z)] {
            if out.is_some() && given.is_none() {
                return Err(GpuError::invalid(op, arg, "an operand that the forward had", "the gradient of none"));
            }
        }
        Ok(())
    }
}

/// [outer, steps, inner] of contiguous [B, T, ..].
fn recurrence_sizes(op: &'static str, a: &View<'_>) -> Result<[usize; 3]> {
    check::float(op, "a", a)?;
    check::contiguous(op, "a", a)?;
    match a.shape() {
        [outer, steps, inner @ ..] => Ok([*outer, *steps, inner.iter().product()]),
        s => Err(GpuError::invalid(op, "a", "shape [B, T, ..]", format!("{s:?}"))),
    }
}

/// Checks of [`StateSpaceOps::associative_scan`]; [outer, steps, inner].
pub(crate) fn check_associative_scan<'a>(a: &View<'a>, b: &View<'a>, y: &ViewMut<'a>) -> Result<[usize; 3]> {
    const OP: &str = "associative_scan";
    let size = recurrence_sizes(OP, a)?;
    check::exact(OP, "b", b, a.shape(), a.dtype())?;
    check::exact_output(OP, "y", y, a.shape(), a.dtype(), &mut vec![("a", *a), ("b", *b)])?;
    Ok(size)
}

/// Checks of [`StateSpaceOps::associative_scan_bwd`]; [outer, steps, inner].
pub(crate) fn check_associative_scan_bwd(io: &AssociativeScanBwd<'_>) -> Result<[usize; 3]> {
    const OP: &str = "associative_scan_bwd";
    let size = recurrence_sizes(OP, &io.a)?;
    let (shape, dt) = (io.a.shape(), io.a.dtype());
    check::exact(OP, "dy", &io.dy, shape, dt)?;
    let mut seen = vec![("dy", io.dy), ("a", io.a)];
    match &io.y {
        Some(y) => {
            check::exact(OP, "y", y, shape, dt)?;
            seen.push(("y", *y));
        }
        None if io.da.is_none() => {}
        None => return Err(GpuError::invalid(OP, "y", "the forward's result", "None")),
    }
    for (arg, g) in [("da", &io.da), ("db", &io.db)] {
        if let Some(g) = g {
            check::exact_output(OP, arg, &g.out, shape, dt, &mut seen)?;
        }
    }
    Ok(size)
}
