//! Rotary embedding, vocabulary loss and mixture of experts: validation and launch.

use super::loss::{Finish, lanes_for};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, MAX_GRID_YZ, aligned16, code_of_op, dims, int, long, real};
use crate::error::Result;
use crate::ops::*;
use crate::spec::lm::*;

/// Elements of a chunk of logits (256 MB in f32), where the caller does not choose.
const CHUNK: usize = 1 << 26;
/// Heads that share sine and cosine.
const HEADS: usize = 8;

/// y = h w^T + b.
const LINEAR: Gemm = Gemm::new().trans(false, true);

/// Blocks for `rows`, each served by `lanes` work-items.
fn row_blocks(rows: usize, lanes: usize) -> Grid {
    Grid::Blocks([rows.div_ceil(LANES / lanes).min(1 << 20), 1, 1])
}

/// Work-items for `items` things side by side: a power of two.
fn lanes(items: usize) -> usize {
    items.clamp(1, LANES).next_power_of_two()
}

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
        let args = [
            self.arg_in(x),
            self.arg_opt(positions),
            table.as_ref().map_or(Arg::Mem(None), |t| t.arg),
            self.arg_out(&y.out),
            dims([tokens, s.l, s.h, s.d, s.r, s.step, heads]),
            dims(sx.into_iter().chain(sy)),
            Arg::I64(p.offset),
            int((p.layout == RopeLayout::Interleaved) as usize),
            int(wide as usize),
            int(lanes),
            real(dt, sign),
            int(y.accumulate as usize),
        ];
        let blocks = [tokens.div_ceil(LANES / lanes).min(1 << 30), s.h.div_ceil(heads), 1];
        self.launch(&ROPE, dt, "", Grid::Blocks(blocks), &args)
    }

    /// `inverse[perm[i]] = i`.
    fn moe_inverse(&self, op: &'static str, perm: &View<'_>) -> Result<Buffer> {
        let n = perm.numel();
        let mut inverse = self.scratch(DType::I32, n)?;
        if n > 0 {
            ShapeOps::fill(self, -1.0, inverse.view_mut())?;
        }
        let args = [
            self.arg_in(perm),
            self.arg_in(&inverse.view()),
            self.arg_error(),
            long(n),
            Arg::I32(code_of_op(op)),
        ];
        self.launch(&MOE_INVERSE, DType::I32, "", Grid::Stride(n), &args)?;
        Ok(inverse)
    }

    /// `y[i] = f * x[perm[i] div k]`.
    fn moe_gather(
        &self,
        op: &'static str,
        [_, k, d]: [usize; 3],
        x: &View<'_>,
        perm: &View<'_>,
        weights: Option<&View<'_>>,
        y: &GradMut<'_>,
    ) -> Result<()> {
        let v = y.out.as_view();
        let (wide, lanes) = moe_walk(d, &[x, &v]);
        let rows = perm.numel();
        let args = [
            self.arg_in(x),
            self.arg_in(perm),
            self.arg_opt(weights),
            self.arg_in(&v),
            self.arg_error(),
            long(rows),
            long(d),
            int(k),
            int(wide as usize),
            int(lanes),
            int(y.accumulate as usize),
            Arg::I32(code_of_op(op)),
        ];
        self.launch(&MOE_GATHER, x.dtype(), "", row_blocks(if d > 0 { rows } else { 0 }, lanes), &args)
    }

    /// `y[t]` = sum over j of `f * x[inverse[t * k + j]]`.
    fn moe_combine(
        &self,
        op: &'static str,
        [t, k, d]: [usize; 3],
        x: &View<'_>,
        perm: &View<'_>,
        weights: Option<&View<'_>>,
        y: &GradMut<'_>,
    ) -> Result<()> {
        let inverse = self.moe_inverse(op, perm)?;
        let v = y.out.as_view();
        let (wide, lanes) = moe_walk(d, &[x, &v]);
        let args = [
            self.arg_in(x),
            self.arg_in(&inverse.view()),
            self.arg_opt(weights),
            self.arg_in(&v),
            long(t),
            long(d),
            int(k),
            int(wide as usize),
            int(lanes),
            int(y.accumulate as usize),
        ];
        self.launch(&MOE_COMBINE, x.dtype(), "", row_blocks(if d > 0 { t } else { 0 }, lanes), &args)
    }
}

/// Whether rows of `d` elements are moved by 16 bytes, and the work-items per row.
fn moe_walk(d: usize, operands: &[&View<'_>]) -> (bool, usize) {
    let w = operands.first().map_or(1, |v| 16 / v.dtype().size());
    let wide = d.is_multiple_of(w) && operands.iter().all(|v| aligned16(v));
    (wide, lanes(if wide { d / w } else { d }))
}

/// A cross entropy of chunks: what both passes over its rows share.
struct Rows<'a> {
    engine: &'a Engine,
    op: &'static str,
    p: &'a LinearCrossEntropy,
    n: usize,
    v: usize,
    h: View<'a>,
    w: View<'a>,
    b: Option<View<'a>>,
    target: View<'a>,
}

impl Rows<'_> {
    fn dtype(&self) -> DType {
        self.h.dtype()
    }

    fn rows_per_chunk(&self) -> usize {
        let fit = (CHUNK / self.v).max(1);
        let fit = if fit > 128 { fit / 128 * 128 } else { fit };
        self.p.chunk.unwrap_or(fit).min(self.n.max(1))
    }

    fn ids(&self) -> Option<&View<'_>> {
        Some(&self.target).filter(|t| t.dtype().is_index())
    }

    /// Logits of rows `first .. first + rows` into the front of `z`.
    fn logits(&self, first: usize, rows: usize, z: &Buffer) -> Result<()> {
        let y = z.alias_mut().range(0, rows * self.v)?.reshape(&[rows, self.v])?;
        let mut io = GemmIo::new(self.h.map("rows", |l| l.narrow(0, first, rows))?, self.w, y);
        io.bias = self.b;
        self.engine.gemm(&LINEAR, io)
    }

    /// Arguments of a pass over the rows of a chunk.
    fn args(&self, first: usize, rows: usize, z: &Buffer) -> (Vec<Arg>, Grid) {
        let (e, p, dt) = (self.engine, self.p, self.dtype());
        let lanes = lanes_for(self.v);
        let args = vec![
            e.arg_in(&z.view()),
            e.arg_opt(self.ids()),
            e.arg_opt(Some(&self.target).filter(|_| self.ids().is_none())),
            e.arg_error(),
            dims([rows, self.v, first, self.n]),
            int((self.target.dtype() == DType::I64) as usize),
            int(lanes),
            Arg::I64(p.ignore_index),
            real(dt, p.label_smoothing),
            real(dt, p.z_loss),
            real(dt, p.softcap),
            Arg::I32(code_of_op(self.op)),
        ];
        (args, row_blocks(rows, lanes))
    }

    /// Calls `f` with the first row and the number of rows of each chunk.
    fn each(&self, mut f: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
        let step = self.rows_per_chunk();
        (0..self.n).step_by(step).try_for_each(|first| f(first, step.min(self.n - first)))
    }
}

/// A gradient that is summed over chunks: in place, or in f32 for 16-bit storage and several chunks.
struct Sum<'a> {
    out: GradMut<'a>,
    wide: Option<Buffer>,
}

impl<'a> Sum<'a> {
    fn new(e: &Engine, out: GradMut<'a>, chunks: usize) -> Result<Self> {
        let (v, dt) = (out.out.as_view(), out.out.dtype());
        let mut wide = None;
        if dt.accumulator() != dt && chunks > 1 {
            let b = e.scratch(dt.accumulator(), v.numel())?;
            if out.accumulate {
                e.cast(v, b.alias_mut().reshape(v.shape())?)?;
            }
            wide = Some(b);
        }
        Ok(Sum { out, wide })
    }

    /// Adds the product of a chunk.
    fn add(
        &mut self,
        e: &Engine,
        p: Gemm,
        first: bool,
        [a, b]: [View<'_>; 2],
        shape: [usize; 2],
    ) -> Result<()> {
        let keep = !first || self.out.accumulate;
        let y = match &self.wide {
            Some(w) => w.alias_mut(),
            None => self.out.out.reborrow(),
        };
        add_product(e, p, a, b, y.reshape(&shape)?, keep)
    }

    fn finish(mut self, e: &Engine) -> Result<()> {
        match &self.wide {
            Some(w) => e.cast(w.shaped(self.out.out.shape())?, self.out.out.reborrow()),
            None => Ok(()),
        }
    }
}

/// y = op(a) op(b), added to what is there with `keep`.
fn add_product(e: &Engine, p: Gemm, a: View<'_>, b: View<'_>, y: ViewMut<'_>, keep: bool) -> Result<()> {
    let c = y.as_view();
    let mut io = GemmIo::new(a, b, y);
    io.c = keep.then_some(c);
    e.gemm(&p.scaled(1.0, if keep { 1.0 } else { 0.0 }), io)
}

impl LmOps for Engine {
    fn rope(&self, p: &Rope, x: View<'_>, positions: Option<View<'_>>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "rope";
        let s = check_rope(OP, p, ("x", &x), positions.as_ref(), ("y", &y))?;
        self.own_all(OP, &[("x", Some(x)), ("positions", positions), ("y", Some(y.as_view()))])?;
        self.rotate(p, s, 1.0, &x, positions.as_ref(), &y.into())
    }

    fn rope_bwd(&self, p: &Rope, dy: View<'_>, positions: Option<View<'_>>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "rope_bwd";
        let s = check_rope(OP, p, ("dy", &dy), positions.as_ref(), ("dx", &dx.out))?;
        self.own_all(OP, &[("dy", Some(dy)), ("positions", positions), ("dx", Some(dx.out.as_view()))])?;
        self.rotate(p, s, -1.0, &dy, positions.as_ref(), &dx)
    }

    fn fused_linear_cross_entropy(
        &self,
        p: &LinearCrossEntropy,
        io: LinearCrossEntropyFwd<'_>,
    ) -> Result<()> {
        const OP: &str = "fused_linear_cross_entropy";
        let [n, _, v] = check_linear_cross_entropy(p, &io)?;
        let (loss, lse) = (io.loss.as_view(), io.lse.as_ref().map(|l| l.as_view()));
        let operands = [
            ("h", Some(io.h)),
            ("w", Some(io.w)),
            ("b", io.b),
            ("target", Some(io.target)),
            ("loss", Some(loss)),
            ("lse", lse),
        ];
        self.own_all(OP, &operands)?;
        let r = Rows { engine: self, op: OP, p, n, v, h: io.h, w: io.w, b: io.b, target: io.target };
        let (dt, acc) = (r.dtype(), r.dtype().accumulator());
        let each = p.reduction == Reduction::None;
        let items = if each { None } else { Some(self.scratch(acc, 2 * n)?) };
        let z = self.scratch(acc, r.rows_per_chunk() * v)?;
        r.each(|first, rows| {
            r.logits(first, rows, &z)?;
            let (mut args, grid) = r.args(first, rows, &z);
            args.extend([
                self.arg_opt(items.as_ref().map(Buffer::view).as_ref()),
                self.arg_opt(each.then_some(&loss)),
                self.arg_opt(lse.as_ref()),
            ]);
            self.launch(&LM_ITEMS, dt, "", grid, &args)
        })?;
        let Some(items) = items else { return Ok(()) };
        self.finish_items(
            dt,
            &items,
            n,
            Finish::new(p.reduction == Reduction::Mean, -1.0),
            Some(&io.loss),
            None,
        )
    }

    fn fused_linear_cross_entropy_bwd(
        &self,
        p: &LinearCrossEntropy,
        io: LinearCrossEntropyBwd<'_>,
    ) -> Result<()> {
        const OP: &str = "fused_linear_cross_entropy_bwd";
        let [n, d, v] = check_linear_cross_entropy_bwd(p, &io)?;
        let operands = [
            ("gy", Some(io.gy)),
            ("h", Some(io.h)),
            ("w", Some(io.w)),
            ("b", io.b),
            ("target", Some(io.target)),
        ];
        self.own_all(OP, &operands)?;
        for (arg, g) in [("dh", &io.dh), ("dw", &io.dw), ("db", &io.db)] {
            g.as_ref().map_or(Ok(()), |g| self.own(OP, arg, &g.out.as_view()))?;
        }
        let r = Rows { engine: self, op: OP, p, n, v, h: io.h, w: io.w, b: io.b, target: io.target };
        let (dt, acc) = (r.dtype(), r.dtype().accumulator());
        if n == 0 {
            // Nothing contributes to the gradients of the parameters.
            let mut sums =
                [io.dw, io.db].into_iter().flatten().filter(|g| !g.accumulate && g.out.numel() > 0);
            return sums.try_for_each(|g| ShapeOps::fill(self, 0.0, g.out));
        }
        let mean = p.reduction == Reduction::Mean;
        let mut den = None;
        if let (true, Some(ids)) = (mean, r.ids()) {
            let items = self.scratch(acc, 2 * n)?;
            let args = [
                self.arg_in(ids),
                self.arg_error(),
                long(n),
                long(v),
                int((ids.dtype() == DType::I64) as usize),
                Arg::I64(p.ignore_index),
                Arg::I32(code_of_op(OP)),
                self.arg_in(&items.view()),
            ];
            self.launch(&LM_COUNTED, dt, "", Grid::Stride(n), &args)?;
            let mut b = self.scratch(acc, 1)?;
            self.finish_items(dt, &items, n, Finish::new(true, -1.0), None, Some(&b.view_mut()))?;
            den = Some(b);
        }
        let factor = if mean && den.is_none() { 1.0 / n as f64 } else { 1.0 };
        let step = r.rows_per_chunk();
        let (z, dz) = (self.scratch(acc, step * v)?, self.scratch(dt, step * v)?);
        let mut ones = None;
        if io.db.is_some() {
            let mut b = self.scratch(dt, step)?;
            ShapeOps::fill(self, 1.0, b.view_mut())?;
            ones = Some(b);
        }
        let chunks = n.div_ceil(step);
        let mut dh = io.dh;
        let mut dw = io.dw.map(|g| Sum::new(self, g, chunks)).transpose()?;
        let mut db = io.db.map(|g| Sum::new(self, g, chunks)).transpose()?;
        r.each(|first, rows| {
            r.logits(first, rows, &z)?;
            let (mut args, grid) = r.args(first, rows, &z);
            args.extend([
                self.arg_in(&io.gy),
                int((p.reduction == Reduction::None) as usize),
                int((io.gy.dtype() == DType::F32) as usize),
                self.arg_opt(den.as_ref().map(Buffer::view).as_ref()),
                real(dt, factor),
                self.arg_in(&dz.view()),
            ]);
            self.launch(&LM_GRAD, dt, "", grid, &args)?;
            let dz = dz.view().range(0, rows * v)?.reshape(&[rows, v])?;
            if let Some(g) = &mut dh {
                let y = g.out.reborrow().map("rows", |l| l.narrow(0, first, rows))?;
                add_product(self, Gemm::new(), dz, r.w, y, g.accumulate)?;
            }
            if let Some(s) = &mut dw {
                let h = r.h.map("rows", |l| l.narrow(0, first, rows))?;
                s.add(self, Gemm::new().trans(true, false), first == 0, [dz, h], [v, d])?;
            }
            if let (Some(s), Some(ones)) = (&mut db, &ones) {
                let ones = ones.view().range(0, rows)?.reshape(&[1, rows])?;
                s.add(self, Gemm::new(), first == 0, [ones, dz], [1, v])?;
            }
            Ok(())
        })?;
        [dw, db].into_iter().flatten().try_for_each(|s| s.finish(self))
    }

    fn moe_router(&self, p: &MoeRouter, io: MoeRouterIo<'_>) -> Result<()> {
        const OP: &str = "moe_router";
        let [t, e, k] = check_moe_router(&io)?;
        let (w, ids) = (io.weights.as_view(), io.ids.as_view());
        let (counts, offsets, perm) = (io.counts.as_view(), io.offsets.as_view(), io.perm.as_view());
        let operands = [
            ("logits", io.logits),
            ("weights", w),
            ("ids", ids),
            ("counts", counts),
            ("offsets", offsets),
            ("perm", perm),
        ];
        self.own_all(OP, &operands)?;
        // Each choice walks along the row once more: few long steps are slower than a few lanes more.
        let lanes = lanes(e).min(32);
        let args = [
            self.arg_in(&io.logits),
            self.arg_in(&w),
            self.arg_in(&ids),
            long(t),
            int(e),
            int(k),
            int(lanes),
            int((p.score == RouterScore::Sigmoid) as usize),
            int(p.renormalize as usize),
        ];
        self.launch(&MOE_ROUTER, io.logits.dtype(), "", row_blocks(t, lanes), &args)?;
        let (n, all) = (long(t * k), Grid::Blocks([e.min(1 << 16), 1, 1]));
        let (ids, offsets) = (self.arg_in(&ids), self.arg_in(&offsets));
        let (counts, perm) = (self.arg_in(&counts), self.arg_in(&perm));
        self.launch(&MOE_COUNT, DType::I32, "", all, &[ids, counts, n, int(e)])?;
        self.launch(&MOE_OFFSETS, DType::I32, "", Grid::Blocks([1; 3]), &[counts, offsets, int(e)])?;
        self.launch(&MOE_ORDER, DType::I32, "", all, &[ids, offsets, perm, n, int(e)])
    }

    fn moe_router_bwd(
        &self,
        p: &MoeRouter,
        dweights: View<'_>,
        logits: View<'_>,
        ids: View<'_>,
        dlogits: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "moe_router_bwd";
        let [t, e, k] = check_moe_router_bwd(&dweights, &logits, &ids, &dlogits)?;
        let out = dlogits.out.as_view();
        self.own_all(OP, &[("dweights", dweights), ("logits", logits), ("ids", ids), ("dlogits", out)])?;
        let lanes = lanes(e).min(32);
        let args = [
            self.arg_in(&dweights),
            self.arg_in(&logits),
            self.arg_in(&ids),
            self.arg_in(&out),
            self.arg_error(),
            long(t),
            int(e),
            int(k),
            int(lanes),
            int((p.score == RouterScore::Sigmoid) as usize),
            int(p.renormalize as usize),
            int(dlogits.accumulate as usize),
            Arg::I32(code_of_op(OP)),
        ];
        self.launch(&MOE_ROUTER_BWD, logits.dtype(), "", row_blocks(t, lanes), &args)
    }

    fn moe_permute(&self, x: View<'_>, perm: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "moe_permute";
        let size = check_moe_permute(&x, &perm, &y)?;
        self.own_all(OP, &[("x", x), ("perm", perm), ("y", y.as_view())])?;
        self.moe_gather(OP, size, &x, &perm, None, &y.into())
    }

    fn moe_permute_bwd(&self, dy: View<'_>, perm: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "moe_permute_bwd";
        let size = check_moe_permute_bwd(&dy, &perm, &dx)?;
        self.own_all(OP, &[("dy", dy), ("perm", perm), ("dx", dx.out.as_view())])?;
        self.moe_combine(OP, size, &dy, &perm, None, &dx)
    }

    fn moe_unpermute(&self, x: View<'_>, perm: View<'_>, weights: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute";
        let size = check_moe_unpermute(&x, &perm, &weights, &y)?;
        self.own_all(OP, &[("x", x), ("perm", perm), ("weights", weights), ("y", y.as_view())])?;
        self.moe_combine(OP, size, &x, &perm, Some(&weights), &y.into())
    }

    fn moe_unpermute_bwd(&self, io: MoeUnpermuteBwd<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute_bwd";
        let size = check_moe_unpermute_bwd(&io)?;
        self.own_all(OP, &[("dy", io.dy), ("x", io.x), ("perm", io.perm), ("weights", io.weights)])?;
        for (arg, g) in [("dx", &io.dx), ("dweights", &io.dweights)] {
            g.as_ref().map_or(Ok(()), |g| self.own(OP, arg, &g.out.as_view()))?;
        }
        if let Some(g) = &io.dx {
            self.moe_gather(OP, size, &io.dy, &io.perm, Some(&io.weights), g)?;
        }
        let Some(g) = &io.dweights else { return Ok(()) };
        let ([_, k, d], rows) = (size, io.perm.numel());
        let inverse = self.moe_inverse(OP, &io.perm)?;
        let (wide, lanes) = moe_walk(d, &[&io.dy, &io.x]);
        let args = [
            self.arg_in(&io.dy),
            self.arg_in(&io.x),
            self.arg_in(&inverse.view()),
            self.arg_out(&g.out),
            long(rows),
            long(d),
            int(k),
            int(wide as usize),
            int(lanes),
            int(g.accumulate as usize),
        ];
        self.launch(&MOE_DOT, io.x.dtype(), "", row_blocks(rows, lanes), &args)
    }
}
