//! Linear recurrences on the CPU, in f64, from the definitions: one step after the other, all states kept for the gradients.

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::language_model::dot;
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::state_space::*;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Operands of a scan in f64.
struct Operands {
    rule: StateRule,
    size: StateSizes,
    softplus: bool,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    gate: Vec<f64>,
    second: Vec<f64>,
    skip: Option<Vec<f64>>,
    z: Option<Vec<f64>>,
    initial: Option<Vec<f64>>,
}

/// Where the elements of one row of a state lie at a step.
#[derive(Clone, Copy)]
struct At {
    /// Of q and k: the first of `width`.
    key: usize,
    /// Of v, y and z.
    value: usize,
    /// Of a quantity per head.
    head: usize,
    h: usize,
    row: usize,
}

impl Operands {
    fn new(s: &StateScan<'_>) -> Result<Self> {
        let get = |v: Option<View<'_>>| v.map(|v| gather_f64(s.op, v)).transpose();
        Ok(Operands {
            rule: s.rule,
            size: s.size,
            softplus: s.softplus,
            q: gather_f64(s.op, s.q)?,
            k: gather_f64(s.op, s.k)?,
            v: gather_f64(s.op, s.v)?,
            gate: gather_f64(s.op, s.gate)?,
            second: get(s.second)?.unwrap_or_default(),
            skip: get(s.skip)?,
            z: get(s.z)?,
            initial: get(s.initial)?,
        })
    }

    fn at(&self, b: usize, t: usize, h: usize, row: usize) -> At {
        let n = &self.size;
        let bt = b * n.steps + t;
        let head = bt * n.heads + h;
        let group = h / (n.heads / n.groups);
        At { key: (bt * n.groups + group) * n.width, value: head * n.rows + row, head, h, row }
    }

    /// dt after softplus.
    fn step_size(&self, raw: f64) -> f64 {
        if self.softplus { softplus(raw) } else { raw }
    }

    /// Index of the gate (or step size), and of the rate, of column `n`.
    fn gate_at(&self, at: At, n: usize) -> (usize, usize) {
        match self.rule {
            StateRule::Gla | StateRule::GatedDelta => (at.head, at.head),
            StateRule::GlaPerKey => (at.key + n, 0),
            StateRule::Selective => (at.value, at.row * self.size.width + n),
            StateRule::Ssd => (at.head, at.h),
        }
    }

    /// Factor of column `n` of the state.
    fn decay(&self, at: At, n: usize) -> f64 {
        let (gate, rate) = self.gate_at(at, n);
        match self.rule {
            StateRule::Selective | StateRule::Ssd => {
                (self.step_size(self.gate[gate]) * self.second[rate]).exp()
            }
            _ => self.gate[gate],
        }
    }

    /// The state after a step from the one before it.
    fn step(&self, at: At, s: &mut [f64]) {
        let k = &self.k[at.key..at.key + s.len()];
        let v = self.v[at.value];
        let u = match self.rule {
            StateRule::Gla | StateRule::GlaPerKey => v,
            StateRule::GatedDelta => {
                let (a, b) = (self.gate[at.head], self.second[at.head]);
                b * (v - a * dot(s, k))
            }
            StateRule::Selective | StateRule::Ssd => self.step_size(self.gate[self.gate_at(at, 0).0]) * v,
        };
        for (n, (s, k)) in s.iter_mut().zip(k).enumerate() {
            *s = self.decay(at, n) * *s + u * k;
        }
    }

    /// What is read from a state, before the gate z.
    fn read(&self, at: At, s: &[f64]) -> f64 {
        let of_head = if self.rule == StateRule::Selective { at.row } else { at.h };
        dot(s, &self.q[at.key..at.key + s.len()])
            + self.skip.as_ref().map_or(0.0, |d| d[of_head] * self.v[at.value])
    }

    /// Calls `f` with batch, head and row of each row of a state, and the row before the first step.
    fn rows(&self, mut f: impl FnMut([usize; 3], Vec<f64>) -> Result<()>) -> Result<()> {
        let n = self.size;
        for b in 0..n.batch {
            for h in 0..n.heads {
                for row in 0..n.rows {
                    let first = ((b * n.heads + h) * n.rows + row) * n.width;
                    let s = match &self.initial {
                        Some(s) => s[first..first + n.width].try_to_vec()?,
                        None => filled(n.width, 0.0)?,
                    };
                    f([b, h, row], s)?;
                }
            }
        }
        Ok(())
    }
}

/// Gradients in f64.
struct Sums {
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
    dgate: Vec<f64>,
    dsecond: Vec<f64>,
    dskip: Vec<f64>,
    dz: Vec<f64>,
}

impl Sums {
    fn new(o: &Operands) -> Result<Self> {
        let zeros = |n: usize| filled(n, 0.0);
        Ok(Sums {
            dq: zeros(o.q.len())?,
            dk: zeros(o.k.len())?,
            dv: zeros(o.v.len())?,
            dgate: zeros(o.gate.len())?,
            dsecond: zeros(o.second.len())?,
            dskip: zeros(o.skip.as_ref().map_or(0, Vec::len))?,
            dz: zeros(o.z.as_ref().map_or(0, Vec::len))?,
        })
    }

    /// One step of one row, from the last to the first: `before` and `after` are the states around it, `ds` is the gradient of the state after
    /// it from later steps, and becomes that of the state before it.
    fn step(&mut self, o: &Operands, at: At, [before, after]: [&[f64]; 2], dy: f64, ds: &mut [f64]) {
        let width = ds.len();
        let mut up = dy;
        if let Some(z) = &o.z {
            let (z, g) = (z[at.value], sigmoid(z[at.value]));
            self.dz[at.value] += dy * o.read(at, after) * g * (1.0 + z * (1.0 - g));
            up = dy * z * g;
        }
        let v = o.v[at.value];
        if let Some(d) = &o.skip {
            let i = if o.rule == StateRule::Selective { at.row } else { at.h };
            self.dskip[i] += up * v;
            self.dv[at.value] += up * d[i];
        }
        for n in 0..width {
            ds[n] += up * o.q[at.key + n];
            self.dq[at.key + n] += up * after[n];
        }
        let k = &o.k[at.key..at.key + width];
        let du = dot(ds, k);
        match o.rule {
            StateRule::Gla | StateRule::GlaPerKey => {
                self.dv[at.value] += du;
                for n in 0..width {
                    self.dk[at.key + n] += v * ds[n];
                    self.dgate[o.gate_at(at, n).0] += ds[n] * before[n];
                    ds[n] *= o.decay(at, n);
                }
            }
            StateRule::GatedDelta => {
                let (a, b, p) = (o.gate[at.head], o.second[at.head], dot(before, k));
                let (u, dp) = (b * (v - a * p), -a * b * du);
                self.dv[at.value] += b * du;
                self.dsecond[at.head] += du * (v - a * p);
                self.dgate[at.head] += dot(ds, before) - b * p * du;
                for n in 0..width {
                    self.dk[at.key + n] += u * ds[n] + dp * before[n];
                    ds[n] = a * ds[n] + dp * k[n];
                }
            }
            StateRule::Selective | StateRule::Ssd => {
                let (i, _) = o.gate_at(at, 0);
                let dt = o.step_size(o.gate[i]);
                self.dv[at.value] += dt * du;
                let mut ddt = v * du;
                for n in 0..width {
                    let (_, rate) = o.gate_at(at, n);
                    self.dk[at.key + n] += dt * v * ds[n];
                    ds[n] *= o.decay(at, n);
                    ddt += ds[n] * before[n] * o.second[rate];
                    self.dsecond[rate] += ds[n] * before[n] * dt;
                }
                self.dgate[i] += if o.softplus { ddt * sigmoid(o.gate[i]) } else { ddt };
            }
        }
    }
}

impl Kernels {
    fn state_scan(&self, s: &StateScan<'_>, y: &ViewMut<'_>, state: Option<&ViewMut<'_>>) -> Result<()> {
        s.check_forward(y, state)?;
        let _timed = self.count(s.op);
        if s.is_empty() {
            return match (state, s.initial) {
                (None, _) => Ok(()),
                (Some(to), Some(from)) => store_f64(s.op, to, &gather_f64(s.op, from)?),
                (Some(to), None) => store_f64(s.op, to, &filled(to.numel(), 0.0)?),
            };
        }
        let o = Operands::new(s)?;
        let mut out = filled(o.v.len(), 0.0)?;
        let mut last = Vec::new();
        o.rows(|[b, h, row], mut s| {
            for t in 0..o.size.steps {
                let at = o.at(b, t, h, row);
                o.step(at, &mut s);
                let gate = o.z.as_ref().map_or(1.0, |z| z[at.value] * sigmoid(z[at.value]));
                out[at.value] = o.read(at, &s) * gate;
            }
            last.try_extend(s)
        })?;
        store_f64(s.op, y, &out)?;
        state.map_or(Ok(()), |v| store_f64(s.op, v, &last))
    }

    fn state_scan_bwd(&self, s: &StateScan<'_>, g: StateGrads<'_>) -> Result<()> {
        s.check_backward(&g)?;
        let _timed = self.count(s.op);
        let (o, dy) = (Operands::new(s)?, gather_f64(s.op, g.dy)?);
        let (mut sums, width) = (Sums::new(&o)?, o.size.width);
        let rows = |f: &mut dyn FnMut([usize; 3], Vec<f64>) -> Result<()>| match s.is_empty() {
            true => Ok(()),
            false => o.rows(f),
        };
        rows(&mut |[b, h, row], mut s| {
            // States 0 ..= T, one after the other.
            let mut all = with_capacity((o.size.steps + 1) * width)?;
            all.try_extend(s.iter().copied())?;
            for t in 0..o.size.steps {
                o.step(o.at(b, t, h, row), &mut s);
                all.try_extend(s.iter().copied())?;
            }
            let mut ds = filled(width, 0.0)?;
            for t in (0..o.size.steps).rev() {
                let at = o.at(b, t, h, row);
                let around = [&all[t * width..(t + 1) * width], &all[(t + 1) * width..(t + 2) * width]];
                sums.step(&o, at, around, dy[at.value], &mut ds);
            }
            Ok(())
        })?;
        let pairs: [(Option<GradMut<'_>>, &[f64]); 7] = [
            (g.dq, &sums.dq),
            (g.dk, &sums.dk),
            (g.dv, &sums.dv),
            (g.dgate, &sums.dgate),
            (g.dsecond, &sums.dsecond),
            (g.dskip, &sums.dskip),
            (g.dz, &sums.dz),
        ];
        pairs.into_iter().try_for_each(|(g, v)| g.map_or(Ok(()), |g| store_grad(s.op, &g, v)))
    }
}

/// Calls `f` with the positions of each column of [outer, steps, inner] in the order of the scan.
fn columns(
    [outer, steps, inner]: [usize; 3],
    reverse: bool,
    mut f: impl FnMut(&mut dyn Iterator<Item = usize>),
) {
    let outer = if steps * inner == 0 { 0 } else { outer };
    for o in 0..outer {
        for i in 0..inner {
            let place = |t: usize| (o * steps + if reverse { steps - 1 - t } else { t }) * inner + i;
            f(&mut (0..steps).map(place));
        }
    }
}

impl StateSpaceOps for Kernels {
    fn associative_scan(&self, reverse: bool, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "associative_scan";
        let size = check_associative_scan(&a, &b, &y)?;
        let _timed = self.count("associative_scan");
        let (a, b) = (gather_f64(OP, a)?, gather_f64(OP, b)?);
        let mut out = filled(b.len(), 0.0)?;
        columns(size, reverse, |places| {
            let mut h = 0.0;
            for i in places {
                h = a[i] * h + b[i];
                out[i] = h;
            }
        });
        store_f64(OP, &y, &out)
    }

    fn associative_scan_bwd(&self, reverse: bool, io: AssociativeScanBwd<'_>) -> Result<()> {
        const OP: &str = "associative_scan_bwd";
        let size = check_associative_scan_bwd(&io)?;
        let _timed = self.count("associative_scan_bwd");
        let (dy, a) = (gather_f64(OP, io.dy)?, gather_f64(OP, io.a)?);
        let y = io.y.map(|y| gather_f64(OP, y)).transpose()?.unwrap_or_default();
        let (mut da, mut db) = (filled(y.len(), 0.0)?, filled(dy.len(), 0.0)?);
        columns(size, !reverse, |places| {
            // The step behind the one at hand, and its gradient times its factor.
            let (mut behind, mut carried): (Option<usize>, f64) = (None, 0.0);
            for i in places {
                if let (Some(j), false) = (behind, y.is_empty()) {
                    da[j] = db[j] * y[i];
                }
                db[i] = dy[i] + carried;
                carried = a[i] * db[i];
                behind = Some(i);
            }
        });
        if let Some(g) = &io.da {
            store_grad(OP, g, &da)?;
        }
        io.db.map_or(Ok(()), |g| store_grad(OP, &g, &db))
    }

    fn gla_scan(&self, io: GlaScan<'_>) -> Result<()> {
        self.state_scan(&StateScan::gla(&io)?, &io.y, io.state.as_ref())
    }

    fn gla_scan_bwd(&self, io: GlaScanBwd<'_>) -> Result<()> {
        let s = StateScan::gla_bwd(&io)?;
        self.state_scan_bwd(&s, io.grads())
    }

    fn gated_delta_scan(&self, io: GatedDeltaScan<'_>) -> Result<()> {
        self.state_scan(&StateScan::gated_delta(&io)?, &io.y, io.state.as_ref())
    }

    fn gated_delta_scan_bwd(&self, io: GatedDeltaScanBwd<'_>) -> Result<()> {
        let s = StateScan::gated_delta_bwd(&io)?;
        self.state_scan_bwd(&s, io.grads())
    }

    fn selective_scan(&self, softplus: bool, io: SelectiveScan<'_>) -> Result<()> {
        self.state_scan(&StateScan::selective(softplus, &io)?, &io.y, io.state.as_ref())
    }

    fn selective_scan_bwd(&self, softplus: bool, io: SelectiveScanBwd<'_>) -> Result<()> {
        let s = StateScan::selective_bwd(softplus, &io)?;
        self.state_scan_bwd(&s, io.grads())
    }

    fn ssd_scan(&self, io: SsdScan<'_>) -> Result<()> {
        self.state_scan(&StateScan::ssd(&io)?, &io.y, io.state.as_ref())
    }

    fn ssd_scan_bwd(&self, io: SsdScanBwd<'_>) -> Result<()> {
        let s = StateScan::ssd_bwd(&io)?;
        self.state_scan_bwd(&s, io.grads())
    }
}
