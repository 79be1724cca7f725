//! Optimizer steps with sparse gradients, on the rows that a batch touched.

use crate::cpu::optimizer::{bias, update};
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64};
use crate::error::Result;
use crate::ops::optimizer::*;

impl SparseOptimizerOps for Kernels {
    fn optimizer_step_rows(&self, rule: &OptimRule, step: &Step<'_>, param: RowSlot<'_>) -> Result<()> {
        const OP: &str = "optimizer_step_rows";
        let [n, width] = check_rows(rule, step, &param)?;
        let _timed = self.count("optimizer_step_rows");
        let ids = self.lookup(OP, param.ids, n)?;
        let Some(now) = self.now(OP, step, Some(param.w.dtype()))? else { return Ok(()) };
        let factors = (1.0, bias(rule, now.t));
        let rows = gather_f64(OP, param.rows)?;
        // The rows of one id side by side, in the order in which they came.
        let mut order =
            ids.iter().enumerate().filter_map(|(k, id)| Some((id.as_ref().copied()?, k))).try_vec()?;
        order.sort_unstable();
        let count = rule.states().len();
        let states: Vec<_> = param.state.iter().flatten().take(count).try_vec()?;
        let mut w = gather_f64(OP, param.w.as_view())?;
        let mut copy = param.copy.as_ref().map(|c| gather_f64(OP, c.as_view())).transpose()?;
        let mut s: Vec<Vec<f64>> = states.iter().map(|v| gather_f64(OP, v.as_view())).try_vec_ok()?;
        let mut sum = filled(width, 0.0)?;
        for list in order.chunk_by(|a, b| a.0 == b.0) {
            sum.fill(0.0);
            for (_, k) in list {
                sum.iter_mut().zip(&rows[k * width..]).for_each(|(s, g)| *s += g);
            }
            for (i, g) in (list[0].0 * width..).zip(&sum) {
                let mut one = [0, 1, 2, 3].map(|k: usize| s.get(k).map_or(0.0, |s| s[i]));
                w[i] = update(rule, w[i], g * now.unscale, &mut one, now.lr, now.t, factors);
                s.iter_mut().zip(one).for_each(|(s, new)| s[i] = new);
                if let Some(c) = &mut copy {
                    c[i] = w[i];
                }
            }
        }
        store_f64(OP, &param.w, &w)?;
        if let (Some(to), Some(values)) = (&param.copy, &copy) {
            store_f64(OP, to, values)?;
        }
        states.iter().zip(&s).try_for_each(|(v, s)| store_f64(OP, v, s))
    }
}
