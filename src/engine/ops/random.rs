//! Random numbers and dropout.

use crate::spec::kernels::random::*;
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, code_of_op, real};
use crate::error::Result;
use crate::ops::elementwise::ElementwiseOps;
use crate::ops::random::*;
use crate::ops::reduce::ReduceOps;

impl Engine {
    /// seed, stream, offset and the device's part of the offset.
    pub(in crate::engine::ops) fn rng_args(&self, op: &'static str, rng: &Rng<'_>) -> Result<[Arg; 4]> {
        if let Some(v) = &rng.device_offset {
            self.own(op, "rng.device_offset", v)?;
        }
        Ok([
            Arg::I64(rng.seed as i64),
            Arg::I64(rng.stream as i64),
            Arg::I64(rng.offset as i64),
            self.arg_opt(rng.device_offset.as_ref()),
        ])
    }
}

impl RandomOps for Engine {
    fn random(&self, dist: Distribution, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "random";
        check_random(dist, &rng, &y)?;
        self.own(OP, "y", &y.as_view())?;
        let rng = self.rng_args(OP, &rng)?;
        let (n, dt) = (y.numel(), y.dtype());
        if n == 0 {
            return Ok(());
        }
        let mut args = vec![self.arg_out(&y), Arg::I64(n as i64)];
        args.extend(rng);
        let grid = Grid::Stride(n.div_ceil(if dt == DType::F64 { 2 } else { 4 }));
        let (name, p, q) = match dist {
            Distribution::Uniform { lo, hi } => ("gk_rand_uniform", lo, hi),
            Distribution::Normal { mean, std } => ("gk_rand_normal", mean, std),
            Distribution::Exponential { rate } => ("gk_rand_exponential", rate, 0.0),
            Distribution::Gumbel => ("gk_rand_gumbel", 0.0, 0.0),
            Distribution::Bernoulli { p } => {
                args.insert(0, Arg::Mem(None));
                args.push(Arg::F32(p as f32));
                return self.launch_list(&RANDOM_BERNOULLI.spec, DType::F32, "", grid, &args);
            }
            Distribution::Bits => {
                args.extend([Arg::I64(0), Arg::U32(0)]);
                return self.launch_list(&RANDOM_INT.spec, dt, "", grid, &args);
            }
            Distribution::Int { lo, hi } => {
                // A range of 2^32 wraps to 0, which the kernel takes as such.
                args.extend([Arg::I64(lo), Arg::U32(hi.wrapping_sub(lo) as u32)]);
                return self.launch_list(&RANDOM_INT.spec, dt, "", grid, &args);
            }
        };
        args.extend([real(dt, p), real(dt, q)]);
        self.launch_list(&RANDOM_FLOAT.spec, dt, name, grid, &args)
    }

    fn bernoulli(&self, p: View<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "bernoulli";
        check_bernoulli(&p, &rng, &y)?;
        self.own(OP, "p", &p)?;
        self.own(OP, "y", &y.as_view())?;
        let rng = self.rng_args(OP, &rng)?;
        let mut args = vec![self.arg_in(&p), self.arg_out(&y), Arg::I64(y.numel() as i64)];
        args.extend(rng);
        args.push(Arg::F32(0.0));
        self.launch_list(&RANDOM_BERNOULLI.spec, p.dtype(), "", Grid::Stride(y.numel().div_ceil(4)), &args)
    }

    fn permutation(&self, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "permutation";
        check_permutation(&rng, &y)?;
        self.own(OP, "y", &y.as_view())?;
        let rng = self.rng_args(OP, &rng)?;
        let n = y.numel();
        if n == 0 {
            return Ok(());
        }
        let keys = self.scratch(DType::I64, n)?;
        let mut args = vec![self.arg_in(&keys.view()), Arg::I64(n as i64)];
        args.extend(rng);
        self.launch_list(&RANDOM_KEYS.spec, DType::I64, "", Grid::Stride(n.div_ceil(2)), &args)?;
        let order = self.sort_pairs(OP, &keys.view(), 64)?;
        self.cast(order.positions.view(), y)
    }

    fn categorical(&self, weights: Weights<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "categorical";
        let [rows, k, count] = check_categorical(&weights, &rng, &y)?;
        let (Weights::Probs(p) | Weights::Logits(p)) = weights;
        self.own(OP, "weights", &p)?;
        self.own(OP, "y", &y.as_view())?;
        let rng = self.rng_args(OP, &rng)?;
        if rows * count == 0 {
            return Ok(());
        }
        let (dt, wide) = (p.dtype(), Arg::I32((y.dtype() == DType::I64) as i32));
        let size = [Arg::I64(rows as i64), Arg::I64(k as i64)];
        if let Weights::Logits(_) = weights {
            let mut args = vec![self.arg_in(&p), self.arg_out(&y), wide];
            args.extend(size);
            args.extend(rng);
            return self.launch_list(&CATEGORICAL_GUMBEL.spec, dt, "", Grid::Blocks([rows.min(1 << 20), 1, 1]), &args);
        }
        let cum = self.scratch(DType::F32, rows * k)?;
        let cum = cum.view();
        let mut args = vec![self.arg_in(&p), self.arg_in(&cum)];
        args.extend(size);
        args.extend([self.arg_error(), Arg::I32(code_of_op(OP))]);
        self.launch_list(&CATEGORICAL_SUMS.spec, dt, "", Grid::Stride(rows), &args)?;
        let mut args = vec![self.arg_in(&cum), self.arg_out(&y), wide];
        args.extend(size);
        args.push(Arg::I64(count as i64));
        args.extend(rng);
        self.launch_list(&CATEGORICAL_SEARCH.spec, dt, "", Grid::Stride(rows * count), &args)
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
            self.own(OP, "mask", &m.as_view())?;
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
            self.own(OP, arg, v)?;
        }
        let (n, dt) = (dy.numel(), dy.dtype());
        let args = [
            self.arg_in(&dy),
            self.arg_in(&m),
            self.arg_out(&dx.out),
            Arg::I64(n as i64),
            real(dt, keep_scale(p)),
            Arg::I32(dx.accumulate as i32),
        ];
        self.launch_list(&DROPOUT_MASKED.spec, dt, "", Grid::Stride(n), &args)
    }

    fn bias_dropout(&self, p: f64, rng: Rng<'_>, io: BiasDropout<'_>) -> Result<()> {
        const OP: &str = "bias_dropout";
        check_bias_dropout(p, &rng, &io)?;
        let (out, mask) = (io.y.as_view(), io.mask.as_ref().map(ViewMut::as_view));
        self.own_all(OP, &[("x", io.x), ("bias", io.bias), ("y", out)])?;
        self.own_all(OP, &[("residual", io.residual), ("mask", mask)])?;
        let rng = self.rng_args(OP, &rng)?;
        let (n, dt) = (io.x.numel(), io.x.dtype());
        let cols = io.bias.numel();
        let all = [Some(&io.x), Some(&io.bias), io.residual.as_ref(), Some(&out)];
        let wide = cols.is_multiple_of(8) && all.into_iter().flatten().all(aligned16);
        let mut args = vec![
            self.arg_in(&io.x),
            self.arg_in(&io.bias),
            self.arg_opt(io.residual.as_ref()),
            self.arg_in(&out),
            self.arg_opt(mask.as_ref()),
            Arg::I64(n as i64),
            Arg::I64(cols as i64),
            Arg::I32(wide as i32),
        ];
        args.extend(rng);
        args.extend([Arg::F32((1.0 - p) as f32), real(dt, keep_scale(p))]);
        self.launch_list(&BIAS_DROPOUT.spec, dt, "", Grid::Stride(n.div_ceil(if wide { 8 } else { 4 })), &args)
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
        self.own_all(OP, &[("dx", views[0]), ("dbias", views[1])])?;
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
        self.own(op, "x", &x)?;
        self.own(op, "y", &out)?;
        let rng = self.rng_args(op, rng)?;
        let (n, dt) = (x.numel(), x.dtype());
        let wide = aligned16(&x) && aligned16(&out);
        let mut args = vec![
            self.arg_in(&x),
            self.arg_in(&out),
            self.arg_opt_out(mask),
            Arg::I64(n as i64),
            Arg::I32(wide as i32),
        ];
        args.extend(rng);
        args.extend([Arg::F32((1.0 - p) as f32), real(dt, keep_scale(p)), Arg::I32(y.accumulate as i32)]);
        self.launch_list(&DROPOUT.spec, dt, "", Grid::Stride(n.div_ceil(if wide { 8 } else { 4 })), &args)
    }
}
