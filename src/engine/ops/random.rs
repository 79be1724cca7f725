//! Random numbers and dropout.

use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, code_of_op};
use crate::error::Result;
use crate::ops::elementwise::ElementwiseOps;
use crate::ops::random::*;
use crate::ops::reduce::ReduceOps;
use crate::spec::kernels::random::*;

/// Where a kernel reads its random numbers: key, counter, and the device's part of the counter.
pub(in crate::engine::ops) struct RngArgs {
    pub(in crate::engine::ops) seed: i64,
    pub(in crate::engine::ops) stream: i64,
    pub(in crate::engine::ops) offset: i64,
    /// One i64 that is added to `offset`; null without.
    pub(in crate::engine::ops) more: Ptr,
}

impl Engine {
    /// The arguments of a generator whose device's part is checked here.
    pub(in crate::engine::ops) fn rng_args(&self, op: &'static str, rng: &Rng<'_>) -> Result<RngArgs> {
        if let Some(v) = &rng.device_offset {
            self.check_owner(op, "rng.device_offset", v)?;
        }
        Ok(RngArgs {
            seed: rng.seed as i64,
            stream: rng.stream as i64,
            offset: rng.offset as i64,
            more: self.arg_opt(rng.device_offset.as_ref()),
        })
    }
}

impl RandomOps for Engine {
    fn random(&self, dist: Distribution, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "random";
        check_random(dist, &rng, &y)?;
        self.check_owner(OP, "y", &y.as_view())?;
        let RngArgs { seed, stream, offset, more } = self.rng_args(OP, &rng)?;
        let (n, dt, aligned) = (y.numel(), y.dtype(), aligned16(&y.as_view()));
        if n == 0 {
            return Ok(());
        }
        let (grid, wide) = (Grid::Stride(n.div_ceil(4)), i32::from(aligned));
        let (y, y_len, n) = (self.arg_out(&y), n, n as i64);
        let (name, p, q) = match dist {
            Distribution::Uniform { lo, hi } => ("gk_rand_uniform", lo, hi),
            Distribution::Normal { mean, std } => ("gk_rand_normal", mean, std),
            Distribution::Exponential { rate } => ("gk_rand_exponential", rate, 0.0),
            Distribution::Gumbel => ("gk_rand_gumbel", 0.0, 0.0),
            Distribution::Bernoulli { p } => {
                let prob = p as f32;
                let args = RandomBernoulliArgs { p: Ptr::NULL, y, n, seed, stream, offset, more, prob };
                return self.launch(&RANDOM_BERNOULLI, DType::F32, "", grid, &args);
            }
            Distribution::Bits => {
                let args = RandomIntArgs { y, n, wide, seed, stream, offset, more, lo: 0, range: 0 };
                return self.launch(&RANDOM_INT, dt, "", grid, &args);
            }
            Distribution::Int { lo, hi } => {
                // A range of 2^32 wraps to 0, which the kernel takes as such.
                let range = hi.wrapping_sub(lo) as u32;
                let args = RandomIntArgs { y, n, wide, seed, stream, offset, more, lo, range };
                return self.launch(&RANDOM_INT, dt, "", grid, &args);
            }
        };
        // Elements of a block of the generator, or of 16 bytes.
        let each = if aligned {
            16 / dt.size()
        } else if dt == DType::F64 {
            2
        } else {
            4
        };
        let args = RandomFloatArgs { y, n, wide, seed, stream, offset, more, p, q };
        // Blocks that loop: 152 us where one for every 256 items took 201 (2^26 normal numbers in f32, H200).
        let blocks = y_len.div_ceil(each * LANES).min(2 * self.target_blocks());
        self.launch(&RANDOM_FLOAT, dt, name, Grid::Blocks([blocks, 1, 1]), &args)
    }

    fn bernoulli(&self, p: View<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "bernoulli";
        check_bernoulli(&p, &rng, &y)?;
        self.check_owner(OP, "p", &p)?;
        self.check_owner(OP, "y", &y.as_view())?;
        let RngArgs { seed, stream, offset, more } = self.rng_args(OP, &rng)?;
        let n = y.numel();
        let args = RandomBernoulliArgs {
            p: self.arg_in(&p),
            y: self.arg_out(&y),
            n: n as i64,
            seed,
            stream,
            offset,
            more,
            prob: 0.0,
        };
        self.launch(&RANDOM_BERNOULLI, p.dtype(), "", Grid::Stride(n.div_ceil(4)), &args)
    }

    fn permutation(&self, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "permutation";
        check_permutation(&rng, &y)?;
        self.check_owner(OP, "y", &y.as_view())?;
        let RngArgs { seed, stream, offset, more } = self.rng_args(OP, &rng)?;
        let n = y.numel();
        if n == 0 {
            return Ok(());
        }
        let keys = self.scratch(DType::I64, n)?;
        let args =
            RandomKeysArgs { keys: self.arg_in(&keys.view()), n: n as i64, seed, stream, offset, more };
        self.launch(&RANDOM_KEYS, DType::I64, "", Grid::Stride(n.div_ceil(2)), &args)?;
        let order = self.sort_pairs(OP, &keys.view(), 64)?;
        self.cast(order.positions.view(), y)
    }

    fn categorical(&self, weights: Weights<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "categorical";
        let [rows, k, count] = check_categorical(&weights, &rng, &y)?;
        let (Weights::Probs(p) | Weights::Logits(p)) = weights;
        self.check_owner(OP, "weights", &p)?;
        self.check_owner(OP, "y", &y.as_view())?;
        let RngArgs { seed, stream, offset, more } = self.rng_args(OP, &rng)?;
        if rows * count == 0 {
            return Ok(());
        }
        let (dt, wide) = (p.dtype(), i32::from(y.dtype() == DType::I64));
        let (y, len) = (self.arg_out(&y), k as i64);
        if let Weights::Logits(_) = weights {
            let args = CategoricalGumbelArgs {
                logits: self.arg_in(&p),
                y,
                wide,
                rows: rows as i64,
                len,
                seed,
                stream,
                offset,
                more,
            };
            let grid = Grid::Blocks([rows.min(1 << 20), 1, 1]);
            return self.launch(&CATEGORICAL_GUMBEL, dt, "", grid, &args);
        }
        // Sums after runs of GK_SUM_RUN elements: those of the run that a sample falls into are added again.
        const RUN: usize = 32;
        let sums = self.scratch(DType::F32, rows * k.div_ceil(RUN))?;
        let cum = self.arg_in(&sums.view());
        let args = CategoricalSumsArgs {
            p: self.arg_in(&p),
            cum,
            rows: rows as i64,
            len,
            err: self.arg_error(),
            code: code_of_op(OP),
        };
        // Blocks take tiles of 32 rows.
        let blocks = rows.div_ceil(32).min(1 << 20);
        self.launch(&CATEGORICAL_SUMS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        let args = CategoricalSearchArgs {
            p: self.arg_in(&p),
            cum,
            y,
            wide,
            rows: rows as i64,
            len,
            count: count as i64,
            seed,
            stream,
            offset,
            more,
        };
        self.launch(&CATEGORICAL_SEARCH, dt, "", Grid::Stride(rows * count), &args)
    }

    fn dropout(
        &self,
        p: f64,
        rng: Rng<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        mask: Option<ViewMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "dropout";
        check_dropout(p, &rng, &x, &y, mask.as_ref())?;
        if let Some(m) = &mask {
            self.check_owner(OP, "mask", &m.as_view())?;
        }
        self.dropout_map(OP, p, &rng, x, &y.into(), mask.as_ref())
    }

    fn dropout_bwd(&self, p: f64, mask: DropoutMask<'_>, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "dropout_bwd";
        check_dropout_bwd(p, &mask, &dy, &dx)?;
        let m = match mask {
            DropoutMask::Regenerate(rng) => return self.dropout_map(OP, p, &rng, dy, &dx, None),
            DropoutMask::Saved(m) => m,
        };
        for (arg, v) in [("dy", &dy), ("mask", &m), ("dx", &dx.out.as_view())] {
            self.check_owner(OP, arg, v)?;
        }
        let (n, dt) = (dy.numel(), dy.dtype());
        let wide = [&dy, &m, &dx.out.as_view()].into_iter().all(aligned16);
        let args = DropoutMaskedArgs {
            x: self.arg_in(&dy),
            mask: self.arg_in(&m),
            y: self.arg_out(&dx.out),
            n: n as i64,
            wide: i32::from(wide),
            scale: keep_scale(p),
            accumulate: i32::from(dx.accumulate),
        };
        // Threads take two items of 16 bytes.
        let grid = Grid::Stride(if wide { n.div_ceil(2 * 16 / dt.size()) } else { n });
        self.launch(&DROPOUT_MASKED, dt, "", grid, &args)
    }

    fn bias_dropout(&self, p: f64, rng: Rng<'_>, io: BiasDropout<'_>) -> Result<()> {
        const OP: &str = "bias_dropout";
        check_bias_dropout(p, &rng, &io)?;
        let (out, mask) = (io.y.as_view(), io.mask.as_ref().map(ViewMut::as_view));
        self.check_owner_all(OP, &[("x", io.x), ("bias", io.bias), ("y", out)])?;
        self.check_owner_all(OP, &[("residual", io.residual), ("mask", mask)])?;
        let RngArgs { seed, stream, offset, more } = self.rng_args(OP, &rng)?;
        let (n, dt) = (io.x.numel(), io.x.dtype());
        let cols = io.bias.numel();
        let wide =
            eights(cols, [Some(&io.x), Some(&io.bias), io.residual.as_ref(), Some(&out), mask.as_ref()]);
        let args = BiasDropoutArgs {
            x: self.arg_in(&io.x),
            bias: self.arg_in(&io.bias),
            r: self.arg_opt(io.residual.as_ref()),
            y: self.arg_in(&out),
            mask: self.arg_opt(mask.as_ref()),
            n: n as i64,
            cols: cols as i64,
            wide: i32::from(wide),
            seed,
            stream,
            offset,
            more,
            keep: (1.0 - p) as f32,
            scale: keep_scale(p),
        };
        self.launch(&BIAS_DROPOUT, dt, "", drop_grid(n, dt, wide), &args)
    }

    fn bias_dropout_bwd(
        &self,
        p: f64,
        mask: DropoutMask<'_>,
        dy: View<'_>,
        dx: Option<GradMut<'_>>,
        dbias: Option<GradMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "bias_dropout_bwd";
        check_bias_dropout_bwd(p, &mask, &dy, dx.as_ref(), dbias.as_ref())?;
        let views = [dx.as_ref().map(|g| g.out.as_view()), dbias.as_ref().map(|g| g.out.as_view())];
        self.check_owner_all(OP, &[("dx", views[0]), ("dbias", views[1])])?;
        // The bias sums what dx holds; where dx is absent or adds to earlier values, a copy of its own.
        let fresh = match (&dx, &dbias) {
            (Some(g), _) if !g.accumulate => None,
            (_, None) => None,
            _ => Some(self.scratch(dy.dtype(), dy.numel())?),
        };
        let sums = match (&fresh, views[0]) {
            (Some(b), _) => {
                self.dropout_bwd(p, mask, dy, b.alias_mut().reshape(dy.shape())?.into())?;
                b.view().reshape(dy.shape())?
            }
            (None, Some(v)) => v,
            (None, None) => return Ok(()),
        };
        if let Some(g) = dx {
            self.dropout_bwd(p, mask, dy, g)?;
        }
        match dbias {
            Some(g) => self.sum_to_shape(sums, g),
            None => Ok(()),
        }
    }
}

/// Whether dropout takes eight neighbours at a time: rows of `cols` elements consist of them, and all operands, the mask of bytes too, begin at
/// multiples of 16 bytes.
fn eights(cols: usize, operands: [Option<&View<'_>>; 5]) -> bool {
    cols.is_multiple_of(8) && operands.into_iter().flatten().all(aligned16)
}

/// Threads of dropout over `n` elements: each takes eight, of 16 bits twice, or without `wide` a block of the generator.
fn drop_grid(n: usize, dtype: DType, wide: bool) -> Grid {
    let each = match (wide, dtype.size()) {
        (false, _) => 4,
        (true, 2) => 16,
        (true, _) => 8,
    };
    Grid::Stride(n.div_ceil(each))
}

/// 1 / (1 - p), and 0 for p = 1, where nothing is kept.
pub(in crate::engine::ops) fn keep_scale(p: f64) -> f64 {
    if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 }
}

impl Engine {
    fn dropout_map(
        &self,
        op: &'static str,
        p: f64,
        rng: &Rng<'_>,
        x: View<'_>,
        y: &GradMut<'_>,
        mask: Option<&ViewMut<'_>>,
    ) -> Result<()> {
        let out = y.out.as_view();
        self.check_owner(op, "x", &x)?;
        self.check_owner(op, "y", &out)?;
        let RngArgs { seed, stream, offset, more } = self.rng_args(op, rng)?;
        let (n, dt) = (x.numel(), x.dtype());
        let bytes = mask.map(ViewMut::as_view);
        let wide = eights(8, [Some(&x), Some(&out), bytes.as_ref(), None, None]);
        let args = DropoutArgs {
            x: self.arg_in(&x),
            y: self.arg_in(&out),
            mask: self.arg_opt_out(mask),
            n: n as i64,
            wide: i32::from(wide),
            seed,
            stream,
            offset,
            more,
            keep: (1.0 - p) as f32,
            scale: keep_scale(p),
            accumulate: i32::from(y.accumulate),
        };
        self.launch(&DROPOUT, dt, "", drop_grid(n, dt, wide), &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuBackend;
    use crate::ops::core::CoreOps;

    #[test]
    fn eights_are_taken_where_all_operands_are_aligned() {
        let cpu = CpuBackend::new();
        let (x, mask) = (cpu.alloc(DType::F32, 32).unwrap(), cpu.alloc(DType::U8, 32).unwrap());
        let (x, bytes, odd) = (x.view(), mask.view(), mask.view().range(1, 16).unwrap());
        assert!(eights(16, [Some(&x), None, Some(&bytes), None, None]));
        assert!(!eights(12, [Some(&x), None, None, None, None]));
        assert!(!eights(16, [Some(&x), None, Some(&odd), None, None]));
    }
}
