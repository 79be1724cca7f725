//! Checks of scans, which engine and CPU backend call first, and the operands of all of them under common names.

use super::*;
use crate::dtype::DType;
use crate::error::GpuError;
use crate::ops::check;

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
