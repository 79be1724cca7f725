//! Cross entropy of a linear layer over a vocabulary: validation and launch.

mod plan;
mod sampling;

use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, args_from, code_of_op, dims, int, long};
use crate::engine::ops::loss::{Finish, lanes_for};
use crate::error::Result;
use crate::ops::elementwise::ElementwiseOps;
use crate::ops::gemm::{Gemm, GemmIo, GemmOps};
use crate::ops::language_model::*;
use crate::ops::loss::Reduction;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::language_model::*;

/// Elements of a chunk of logits (256 MB in f32), where the caller does not choose.
const CHUNK: usize = 1 << 26;

/// y = h w^T + b.
const LINEAR: Gemm = Gemm::new().trans(false, true);

/// Blocks for `rows`, each served by `lanes` threads.
pub(in crate::engine::ops) fn row_blocks(rows: usize, lanes: usize) -> Grid {
    Grid::Blocks([rows.div_ceil(LANES / lanes).min(1 << 20), 1, 1])
}

/// Threads for `items` things side by side: a power of two.
pub(in crate::engine::ops) fn lanes(items: usize) -> usize {
    items.clamp(1, LANES).next_power_of_two()
}

/// A cross entropy that is computed by chunks of rows: what its forward and its backward pass share.
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

    /// Arguments of the forward pass over the rows of a chunk, its outputs null, and the grid of both passes.
    fn args(&self, first: usize, rows: usize, z: &Buffer) -> (LmItemsArgs, Grid) {
        let (e, p) = (self.engine, self.p);
        let lanes = lanes_for(self.v);
        let args = LmItemsArgs {
            z: e.arg_in(&z.view()),
            ids: e.arg_opt(self.ids()),
            probs: e.arg_opt(Some(&self.target).filter(|_| self.ids().is_none())),
            err: e.arg_error(),
            size: dims([rows, self.v, first, self.n]),
            wide: i32::from(self.target.dtype() == DType::I64),
            lanes: int(lanes),
            ignore: p.ignore_index,
            smooth: p.label_smoothing,
            zloss: p.z_loss,
            cap: p.softcap,
            code: code_of_op(self.op),
            items: Ptr::NULL,
            loss: Ptr::NULL,
            lse: Ptr::NULL,
        };
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

impl LanguageModelOps for Engine {
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
        self.check_owner_all(OP, &operands)?;
        let r = Rows { engine: self, op: OP, p, n, v, h: io.h, w: io.w, b: io.b, target: io.target };
        let (dt, acc) = (r.dtype(), r.dtype().accumulator());
        let each = p.reduction == Reduction::None;
        let items = if each { None } else { Some(self.scratch(acc, 2 * n)?) };
        let z = self.scratch(acc, r.rows_per_chunk() * v)?;
        r.each(|first, rows| {
            r.logits(first, rows, &z)?;
            let (base, grid) = r.args(first, rows, &z);
            let args = LmItemsArgs {
                items: self.arg_opt(items.as_ref().map(Buffer::view).as_ref()),
                loss: self.arg_opt(each.then_some(&loss)),
                lse: self.arg_opt(lse.as_ref()),
                ..base
            };
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
        self.check_owner_all(OP, &operands)?;
        for (arg, g) in [("dh", &io.dh), ("dw", &io.dw), ("db", &io.db)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
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
            let args = LmCountedArgs {
                ids: self.arg_in(ids),
                err: self.arg_error(),
                n: long(n),
                classes: long(v),
                wide: i32::from(ids.dtype() == DType::I64),
                ignore: p.ignore_index,
                code: code_of_op(OP),
                items: self.arg_in(&items.view()),
            };
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
            let (base, grid) = r.args(first, rows, &z);
            let args = args_from! { base => LmGradArgs
                [z ids probs err size wide lanes ignore smooth zloss cap code]
                {
                    gy: self.arg_in(&io.gy),
                    per_row: i32::from(p.reduction == Reduction::None),
                    is_f32: i32::from(io.gy.dtype() == DType::F32),
                    den: self.arg_opt(den.as_ref().map(Buffer::view).as_ref()),
                    factor,
                    dz: self.arg_in(&dz.view()),
                }
            };
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
}
