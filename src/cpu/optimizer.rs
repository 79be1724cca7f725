//! Optimizer steps and gradient clipping.

use super::{CpuBackend, gather, gather_f64, store_f64};
use crate::buffer::ViewMut;
use crate::error::Result;
use crate::ops::*;

impl CpuBackend {
    fn scalar(&self, op: &'static str, s: &Scalar<'_>) -> Result<f64> {
        match s {
            Scalar::Host(x) => Ok(*x),
            Scalar::Device(v) => Ok(gather_f64(op, *v)?[0]),
        }
    }
}

impl OptimizerOps for CpuBackend {
    fn optimizer_step(&self, rule: &OptimRule, step: &Step<'_>, params: &mut [ParamSlot<'_>]) -> Result<()> {
        const OP: &str = "optimizer_step";
        check_step(rule, step, params)?;
        self.count();
        if let Some(f) = step.found_inf
            && gather::<f32>(OP, f)?[0] != 0.0
        {
            return Ok(());
        }
        let (lr, t) = (self.scalar(OP, &step.lr)?, self.scalar(OP, &step.step)?);
        let mut unscale = step.inv_scale.map_or(Ok(1.0), |v| Ok(gather_f64(OP, v)?[0]))?;
        if step.maximize {
            unscale = -unscale;
        }
        for p in params.iter_mut() {
            let mut w = gather_f64(OP, p.w.as_view())?;
            let mut g = gather_f64(OP, p.g)?;
            g.iter_mut().for_each(|g| *g *= unscale);
            let mut state = [vec![], vec![]];
            for (s, view) in state.iter_mut().zip(&p.state).take(rule.states().len()) {
                if let Some(v) = view {
                    *s = gather_f64(OP, v.as_view())?;
                }
            }
            let [s0, s1] = &mut state;
            for i in 0..w.len() {
                match *rule {
                    OptimRule::Sgd { wd } => w[i] -= lr * (g[i] + wd * w[i]),
                    OptimRule::Momentum { mu, damp, wd, nesterov } => {
                        let g = g[i] + wd * w[i];
                        s0[i] = if t == 1.0 { g } else { mu * s0[i] + (1.0 - damp) * g };
                        w[i] -= lr * if nesterov { g + mu * s0[i] } else { s0[i] };
                    }
                    OptimRule::Adam { b1, b2, eps, wd } => {
                        let g = g[i] + wd * w[i];
                        w[i] -= lr * adam(&mut s0[i], &mut s1[i], g, t, b1, b2, eps);
                    }
                    OptimRule::AdamW { b1, b2, eps, wd } => {
                        w[i] *= 1.0 - lr * wd;
                        w[i] -= lr * adam(&mut s0[i], &mut s1[i], g[i], t, b1, b2, eps);
                    }
                }
            }
            store_f64(OP, &p.w, &w)?;
            for (s, view) in state.iter().zip(&p.state).take(rule.states().len()) {
                if let Some(v) = view {
                    store_f64(OP, v, s)?;
                }
            }
            if let Some(c) = &p.copy {
                store_f64(OP, c, &w)?;
            }
        }
        Ok(())
    }

    fn clip_grad_norm(&self, p: &ClipNorm, grads: &mut [ViewMut<'_>], total: ViewMut<'_>) -> Result<()> {
        const OP: &str = "clip_grad_norm";
        check_clip_norm(p, grads, &total)?;
        self.count();
        let values: Vec<Vec<f64>> =
            grads.iter().map(|g| gather_f64(OP, g.as_view())).collect::<Result<_>>()?;
        let all = values.iter().flatten().map(|x| x.abs());
        let norm = if p.p.is_infinite() {
            all.fold(0.0, |m, x| if x > m || x.is_nan() { x } else { m })
        } else {
            all.map(|x| x.powf(p.p)).sum::<f64>().powf(1.0 / p.p)
        };
        store_f64(OP, &total, &[norm])?;
        let c = p.max_norm / (norm + 1e-6);
        if c >= 1.0 {
            return Ok(());
        }
        for (g, v) in grads.iter().zip(&values) {
            store_f64(OP, g, &v.iter().map(|x| x * c).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn clip_grad_value(&self, c: f64, grads: &mut [ViewMut<'_>]) -> Result<()> {
        const OP: &str = "clip_grad_value";
        check_clip_value(c, grads)?;
        self.count();
        for g in grads.iter() {
            let clamp = |x: f64| if x.is_nan() { x } else { x.clamp(-c, c) };
            let v: Vec<f64> = gather_f64(OP, g.as_view())?.into_iter().map(clamp).collect();
            store_f64(OP, g, &v)?;
        }
        Ok(())
    }
}

/// Updates the moments and returns the step direction.
fn adam(m: &mut f64, v: &mut f64, g: f64, t: f64, b1: f64, b2: f64, eps: f64) -> f64 {
    *m = b1 * *m + (1.0 - b1) * g;
    *v = b2 * *v + (1.0 - b2) * g * g;
    let (c1, c2) = (1.0 - b1.powf(t), 1.0 - b2.powf(t));
    *m / c1 / (v.sqrt() / c2.sqrt() + eps)
}
