//! Gated units, parametric relu and masked softmax, in f64.

use super::activation::{gradient, value};
use super::reduce::sum;
use super::scratch::*;
use super::*;
use crate::ops::*;

/// Elements of the gate and of the other factor for each element of the result.
fn pairs(p: &GatedPlan<'_>) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (cols, stride, at) = (p.cols, p.stride, p.at);
    (0..p.outer).flat_map(move |r| (0..cols).map(move |c| (r * stride + c + at[0], r * stride + c + at[1])))
}

impl CpuBackend {
    pub(super) fn gated_impl(&self, act: Activation, input: GatedInput<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "gated";
        let p = check_gated(act, &input, &y)?;
        self.count();
        let (gate, up) = (gather_f64(OP, p.gate)?, gather_f64(OP, p.up)?);
        let out: Vec<f64> = pairs(&p).map(|(g, u)| up[u] * value(act, gate[g])).try_vec()?;
        store_f64(OP, &y, &out)
    }

    pub(super) fn gated_bwd_impl(
        &self,
        act: Activation,
        dy: View<'_>,
        input: GatedInput<'_>,
        grads: GatedGrad<'_>,
    ) -> Result<()> {
        const OP: &str = "gated_bwd";
        let p = check_gated_bwd(act, &dy, &input, &grads)?;
        self.count();
        let (dy, gate, up) = (gather_f64(OP, dy)?, gather_f64(OP, p.gate)?, gather_f64(OP, p.up)?);
        let (mut dgate, mut dup) = (filled(gate.len(), 0.0)?, filled(up.len(), 0.0)?);
        for (d, (g, u)) in dy.iter().zip(pairs(&p)) {
            dgate[g] = gradient(act, d * up[u], gate[g]);
            dup[u] = d * value(act, gate[g]);
        }
        match grads {
            GatedGrad::Halves(dx) => {
                let both: Vec<f64> = dgate.iter().zip(&dup).map(|(a, b)| a + b).try_vec()?;
                store_grad(OP, &dx, &both)
            }
            GatedGrad::Two { gate, up } => {
                gate.iter().try_for_each(|g| store_grad(OP, g, &dgate))?;
                up.iter().try_for_each(|g| store_grad(OP, g, &dup))
            }
        }
    }

    pub(super) fn prelu_impl(&self, x: View<'_>, a: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "prelu";
        let [_, slopes, cols] = check_prelu(&x, &a, &y)?;
        self.count();
        let (mut v, a) = (gather_f64(OP, x)?, gather_f64(OP, a)?);
        for (i, x) in v.iter_mut().enumerate() {
            *x *= if *x > 0.0 { 1.0 } else { a[i / cols % slopes] };
        }
        store_f64(OP, &y, &v)
    }

    pub(super) fn prelu_bwd_impl(
        &self,
        dy: View<'_>,
        x: View<'_>,
        a: View<'_>,
        dx: Option<GradMut<'_>>,
        da: Option<GradMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "prelu_bwd";
        let [_, slopes, cols] = check_prelu_bwd(&dy, &x, &a, dx.as_ref(), da.as_ref())?;
        self.count();
        let (mut g, x, a) = (gather_f64(OP, dy)?, gather_f64(OP, x)?, gather_f64(OP, a)?);
        let mut sums = filled(slopes, 0.0)?;
        for (i, (g, &x)) in g.iter_mut().zip(&x).enumerate() {
            let c = i / cols % slopes;
            let on = x > 0.0;
            if !on {
                sums[c] += *g * x;
                *g *= a[c];
            }
        }
        dx.iter().try_for_each(|o| store_grad(OP, o, &g))?;
        da.iter().try_for_each(|o| store_grad(OP, o, &sums))
    }

    pub(super) fn masked_softmax_impl(
        &self,
        scale: f64,
        x: View<'_>,
        mask: Option<View<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "masked_softmax";
        let [_, cols] = check_masked_softmax(&x, mask.as_ref(), &y)?;
        self.count();
        let mut v = gather_f64(OP, x)?;
        v.iter_mut().for_each(|x| *x *= scale);
        if let Some(m) = mask {
            let m = gather_f64(OP, m.broadcast_to(x.shape())?)?;
            v.iter_mut().zip(m).for_each(|(x, m)| *x += m);
        }
        for row in v.chunks_mut(cols.max(1)) {
            let top = row.iter().fold(f64::NEG_INFINITY, |m, &x| if m.is_nan() || m > x { m } else { x });
            row.iter_mut().for_each(|x| *x = (*x - top).exp());
            let s = sum(row.iter().copied());
            row.iter_mut().for_each(|x| *x /= s);
        }
        store_f64(OP, &y, &v)
    }

    pub(super) fn masked_softmax_bwd_impl(
        &self,
        scale: f64,
        dy: View<'_>,
        y: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "masked_softmax_bwd";
        let [_, cols] = check_masked_softmax_bwd(&dy, &y, &dx)?;
        self.count();
        let (mut g, y) = (gather_f64(OP, dy)?, gather_f64(OP, y)?);
        for (g, y) in g.chunks_mut(cols.max(1)).zip(y.chunks(cols.max(1))) {
            let t = sum(g.iter().zip(y).map(|(g, y)| g * y));
            g.iter_mut().zip(y).for_each(|(g, y)| *g = scale * y * (*g - t));
        }
        store_grad(OP, &dx, &g)
    }
}
