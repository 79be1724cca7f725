//! Rotary position embedding.

use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, MAX_GRID_YZ, aligned16, dims, int};
use crate::engine::ops::graph::plan::lanes;
use crate::error::Result;
use crate::ops::attention::*;
use crate::spec::kernels::attention::*;

/// Heads that share sine and cosine.
const HEADS: usize = 8;

impl Engine {
    /// Rotation by `sign` times the angles.
    fn rotate(
        &self,
        p: &Rope,
        s: RopeSize,
        sign: f64,
        x: &View<'_>,
        positions: Option<&View<'_>>,
        y: &GradMut<'_>,
    ) -> Result<()> {
        let (dt, out) = (x.dtype(), y.out.as_view());
        if out.numel() == 0 {
            return Ok(());
        }
        // Frequencies are turns modulo 1 in units of 2^-64.
        let unit = |f: f64| ((f.fract() * 2f64.powi(64)) as u128 as u64) as i64;
        let words: Vec<i64> = p.frequencies(s.r).map(unit).collect();
        let table = if words.is_empty() { None } else { Some(self.table(&words)?) };
        let steps = |v: &View<'_>| -> [usize; 3] {
            let (n, s) = (v.shape(), v.layout().strides());
            std::array::from_fn(|i| if n[i] > 1 { s[i] } else { 0 })
        };
        let (sx, sy, w) = (steps(x), steps(&out), 16 / dt.size());
        let run = if p.layout == RopeLayout::Half { s.r / 2 } else { s.r };
        let wide = aligned16(x)
            && aligned16(&out)
            && [run, s.d - s.r].iter().chain(&sx).chain(&sy).all(|n| n.is_multiple_of(w));
        let items = if wide { (run + s.d - s.r) / w } else { s.d - s.r / 2 };
        let (lanes, tokens) = (lanes(items), s.b * s.l);
        let heads = HEADS.max(s.h.div_ceil(MAX_GRID_YZ));
        let args = RopeArgs {
            x: self.arg_in(x),
            positions: self.arg_opt(positions),
            table: table.as_ref().map_or(Ptr::NULL, |t| t.arg),
            y: self.arg_out(&y.out),
            size: dims([tokens, s.l, s.h, s.d, s.r, s.step, heads]),
            sx: dims(sx.into_iter().chain(sy)),
            offset: p.offset,
            pairs: i32::from(p.layout == RopeLayout::Interleaved),
            wide: i32::from(wide),
            lanes: int(lanes),
            sign,
            accumulate: i32::from(y.accumulate),
        };
        let blocks = [tokens.div_ceil(LANES / lanes).min(1 << 30), s.h.div_ceil(heads), 1];
        self.launch(&ROPE, dt, "", Grid::Blocks(blocks), &args)
    }
}

impl RopeOps for Engine {
    fn rope(&self, p: &Rope, x: View<'_>, positions: Option<View<'_>>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "rope";
        let s = check_rope(OP, p, ("x", &x), positions.as_ref(), ("y", &y))?;
        self.check_owner_all(OP, &[("x", Some(x)), ("positions", positions), ("y", Some(y.as_view()))])?;
        self.rotate(p, s, 1.0, &x, positions.as_ref(), &y.into())
    }

    fn rope_bwd(&self, p: &Rope, dy: View<'_>, positions: Option<View<'_>>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "rope_bwd";
        let s = check_rope(OP, p, ("dy", &dy), positions.as_ref(), ("dx", &dx.out))?;
        self.check_owner_all(
            OP,
            &[("dy", Some(dy)), ("positions", positions), ("dx", Some(dx.out.as_view()))],
        )?;
        self.rotate(p, s, -1.0, &dy, positions.as_ref(), &dx)
    }
}
