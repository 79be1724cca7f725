//! Rotary position embedding.

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::{Kernels, gather, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::attention::{Rope, RopeLayout, RopeOps, RopeSize, check_rope};

/// x with its pairs rotated by `sign` times the angles.
fn rotate(
    op: &'static str,
    p: &Rope,
    s: RopeSize,
    sign: f64,
    x: View<'_>,
    positions: Option<View<'_>>,
) -> Result<Vec<f64>> {
    let mut y = gather_f64(op, x)?;
    let at = positions.map(|v| gather::<i32>(op, v)).transpose()?;
    let half = s.r / 2;
    for (n, head) in y.chunks_mut(s.d).enumerate() {
        let (b, l) = (n / s.h / s.l, n / s.h % s.l);
        let position = at.as_ref().map_or(p.offset + l as i64, |a| i64::from(a[b * s.step + l])) as f64;
        for i in 0..half {
            let angle = sign * position * p.base.powf(-2.0 * i as f64 / s.r as f64);
            let (j, k) = match p.layout {
                RopeLayout::Half => (i, i + half),
                RopeLayout::Interleaved => (2 * i, 2 * i + 1),
            };
            let (a, b) = (head[j], head[k]);
            head[j] = a * angle.cos() - b * angle.sin();
            head[k] = a * angle.sin() + b * angle.cos();
        }
    }
    Ok(y)
}

impl RopeOps for Kernels {
    fn rope(&self, p: &Rope, x: View<'_>, positions: Option<View<'_>>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "rope";
        let s = check_rope(OP, p, ("x", &x), positions.as_ref(), ("y", &y))?;
        let _timed = self.count("rope");
        if y.numel() == 0 {
            return Ok(());
        }
        store_f64(OP, &y, &rotate(OP, p, s, 1.0, x, positions)?)
    }

    fn rope_bwd(&self, p: &Rope, dy: View<'_>, positions: Option<View<'_>>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "rope_bwd";
        let s = check_rope(OP, p, ("dy", &dy), positions.as_ref(), ("dx", &dx.out))?;
        let _timed = self.count("rope_bwd");
        if dy.numel() == 0 {
            return Ok(());
        }
        store_grad(OP, &dx, &rotate(OP, p, s, -1.0, dy, positions)?)
    }
}
