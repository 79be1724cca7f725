//! Gated units, parametric relu and masked softmax, in f64.

use crate::cpu::activation::{gradient, value};
use crate::cpu::scratch::*;
use crate::cpu::*;
use crate::ops::activation::*;

/// Elements of the gate and of the other factor for each element of the result.
fn pairs(p: &GatedPlan<'_>) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (cols, stride, at) = (p.cols, p.stride, p.at);
    (0..p.outer).flat_map(move |r| (0..cols).map(move |c| (r * stride + c + at[0], r * stride + c + at[1])))
}

impl GatedOps for Kernels {
    fn gated(&self, act: Activation, input: GatedInput<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "gated";
        let p = check_gated(act, &input, &y)?;
        let _timed = self.count("gated");
        let (gate, up) = (gather_f64(OP, p.gate)?, gather_f64(OP, p.up)?);
        let out: Vec<f64> = pairs(&p).map(|(g, u)| up[u] * value(act, gate[g])).try_vec()?;
        store_f64(OP, &y, &out)
    }

    fn gated_bwd(
        &self,
        act: Activation,
        dy: View<'_>,
        input: GatedInput<'_>,
        grads: GatedGrad<'_>,
    ) -> Result<()> {
        const OP: &str = "gated_bwd";
        let p = check_gated_bwd(act, &dy, &input, &grads)?;
        let _timed = self.count("gated_bwd");
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
}
