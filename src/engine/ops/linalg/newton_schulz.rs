//! The Newton-Schulz iteration of Muon.

use super::matrix::Mat;
use crate::buffer::{View, ViewMut};
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, long};
use crate::engine::ops::gemm::product::Product;
use crate::error::Result;
use crate::ops::gemm::{Extents, Gemm};
use crate::ops::linalg::*;
use crate::spec::kernels::linalg::*;

/// Most chunks of a matrix, and elements per thread of one.
const CHUNKS: usize = 256;
const EACH: usize = 16;

impl Engine {
    pub(super) fn run_newton_schulz(&self, steps: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "newton_schulz";
        let m = check_newton_schulz(steps, &x, &y)?;
        let v = y.as_view();
        self.check_owner_all(OP, &[("x", x), ("y", v)])?;
        if m.is_empty() {
            return Ok(());
        }
        let (dt, short, long_side) = (x.dtype(), m.least(), m.rows.max(m.cols));
        let squares =
            [self.scratch(dt, m.batch * short * short)?, self.scratch(dt, m.batch * short * short)?];
        let other = self.scratch(dt, x.numel())?;
        // The last of the steps writes y.
        let swapped = steps % 2 == 1;
        self.over_norm(m, &x, &if swapped { other.view() } else { v })?;
        let flat = |v: &View<'_>| {
            let whole = Mat::by_rows(v, m.rows, m.cols);
            if m.rows > m.cols { whole.t() } else { whole }
        };
        let [gram, p] = squares.each_ref().map(|b| Mat::by_rows(&b.view(), short, short));
        let product = |k: usize, n: usize, (alpha, beta): (f64, f64), [a, b, c, y]: [Mat; 4]| {
            let e = Extents { batch: m.batch, m: short, n, k };
            let [a, b, c, y] = [a, b, c, y].map(|t| t.operand(dt));
            let q = Product::plain(&Gemm::new().scaled(alpha, beta), e, dt, a, b, (y, dt), beta);
            self.product("gemm", &Product { c: (beta != 0.0).then_some(c), ..q })
        };
        let [a, b, c] = NEWTON_SCHULZ;
        for step in 0..steps {
            let to_y = (steps - step) % 2 == 1;
            let (from, to) =
                if to_y { (flat(&other.view()), flat(&v)) } else { (flat(&v), flat(&other.view())) };
            product(long_side, short, (1.0, 0.0), [from, from.t(), gram, gram])?;
            product(short, short, (c, b), [gram, gram, gram, p])?;
            product(short, long_side, (1.0, a), [p, from, from, to])?;
        }
        Ok(())
    }

    /// y = x over the norms of its matrices.
    fn over_norm(&self, m: Matrices, x: &View<'_>, y: &View<'_>) -> Result<()> {
        let (dt, n) = (x.dtype(), m.rows * m.cols);
        let splits = n.div_ceil(LANES * EACH).clamp(1, CHUNKS);
        let (chunk, work) = (n.div_ceil(splits), m.batch * splits);
        let sums = self.scratch(dt.accumulator(), work)?;
        let part = self.arg_in(&sums.view());
        let [n, chunk, splits, blocks] = [n, chunk, splits, work].map(long);
        let grid = Grid::Blocks([work, 1, 1]);
        let args = SquareSumsArgs { x: self.arg_in(x), part, n, chunk, splits, work: blocks };
        self.launch(&SQUARE_SUMS, dt, "", grid, &args)?;
        let (x, y) = (self.arg_in(x), self.arg_in(y));
        let args = OverNormArgs { x, part, y, n, chunk, splits, work: blocks, eps: NEWTON_SCHULZ_EPS };
        self.launch(&OVER_NORM, dt, "", grid, &args)
    }
}
