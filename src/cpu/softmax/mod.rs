//! Softmax and log-softmax along an axis. The reference is in f64.

mod vectorized;

use crate::cpu::reduce::sum;
use crate::cpu::scratch::*;
use crate::cpu::*;
use crate::ops::softmax::*;

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

impl SoftmaxOps for Kernels {
    fn softmax(&self, kind: Softmax, axis: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let shape = check_softmax(axis, &x, &y)?;
        let _timed = self.count("softmax");
        if self.in_f32("softmax", x.dtype(), None)? {
            return vectorized::softmax("softmax", kind, shape, x, &y.into());
        }
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

    fn softmax_bwd(
        &self,
        kind: Softmax,
        axis: usize,
        dy: View<'_>,
        y: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "softmax_bwd";
        let shape = check_softmax_bwd(axis, &dy, &y, &dx)?;
        let _timed = self.count("softmax_bwd");
        if self.in_f32(OP, y.dtype(), None)? {
            return vectorized::softmax_bwd(OP, (kind, 1.0), shape, [dy, y], &dx);
        }
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

    fn masked_softmax(&self, scale: f64, x: View<'_>, mask: Option<View<'_>>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "masked_softmax";
        let [_, cols] = check_masked_softmax(&x, mask.as_ref(), &y)?;
        let _timed = self.count("masked_softmax");
        if self.in_f32(OP, x.dtype(), None)? {
            return vectorized::masked_softmax(OP, scale, x, mask, &y.into());
        }
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

    fn masked_softmax_bwd(&self, scale: f64, dy: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "masked_softmax_bwd";
        let [rows, cols] = check_masked_softmax_bwd(&dy, &y, &dx)?;
        let _timed = self.count("masked_softmax_bwd");
        if self.in_f32(OP, y.dtype(), None)? {
            return vectorized::softmax_bwd(OP, (Softmax::Softmax, scale), [rows, cols, 1], [dy, y], &dx);
        }
        let (mut g, y) = (gather_f64(OP, dy)?, gather_f64(OP, y)?);
        for (g, y) in g.chunks_mut(cols.max(1)).zip(y.chunks(cols.max(1))) {
            let t = sum(g.iter().zip(y).map(|(g, y)| g * y));
            g.iter_mut().zip(y).for_each(|(g, y)| *g = scale * y * (*g - t));
        }
        store_grad(OP, &dx, &g)
    }
}
