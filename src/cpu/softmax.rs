//! Softmax and log-softmax along an axis, in f64.

use super::reduce::sum;
use super::scratch::*;
use super::*;
use crate::ops::*;

/// Calls `f` with the positions of each slice along the axis of a row-major [outer, cols, inner].
fn for_slices([outer, cols, inner]: [usize; 3], mut f: impl FnMut(&[usize])) -> Result<()> {
    // Of a tensor without elements any other size may be huge.
    let outer = if cols * inner == 0 { 0 } else { outer };
    let mut at = filled(if outer == 0 { 0 } else { cols }, 0)?;
    for o in 0..outer {
        for i in 0..inner {
            at.iter_mut().enumerate().for_each(|(k, a)| *a = (o * cols + k) * inner + i);
            f(&at);
        }
    }
    Ok(())
}

impl CpuBackend {
    pub(super) fn softmax_impl(&self, kind: Softmax, axis: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let shape = check_softmax(axis, &x, &y)?;
        self.count();
        let mut v = gather_f64("softmax", x)?;
        for_slices(shape, |at| {
            let m = at.iter().fold(f64::NEG_INFINITY, |m, &i| if m.is_nan() || m > v[i] { m } else { v[i] });
            let s = sum(at.iter().map(|&i| (v[i] - m).exp()));
            for &i in at {
                v[i] = match kind {
                    Softmax::Softmax => (v[i] - m).exp() / s,
                    Softmax::LogSoftmax => v[i] - m - s.ln(),
                };
            }
        })?;
        store_f64("softmax", &y, &v)
    }

    pub(super) fn softmax_bwd_impl(
        &self,
        kind: Softmax,
        axis: usize,
        dy: View<'_>,
        y: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "softmax_bwd";
        let shape = check_softmax_bwd(axis, &dy, &y, &dx)?;
        self.count();
        let (mut g, y) = (gather_f64(OP, dy)?, gather_f64(OP, y)?);
        for_slices(shape, |at| match kind {
            Softmax::Softmax => {
                let t = sum(at.iter().map(|&i| g[i] * y[i]));
                at.iter().for_each(|&i| g[i] = y[i] * (g[i] - t));
            }
            Softmax::LogSoftmax => {
                let t = sum(at.iter().map(|&i| g[i]));
                at.iter().for_each(|&i| g[i] -= y[i].exp() * t);
            }
        })?;
        store_grad(OP, &dx, &g)
    }
}
