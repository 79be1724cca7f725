//! Windows as columns of a matrix: `im2col`, its adjoint, and adjoints of convolutions by a matrix product and that.

use super::Gathered;
use super::plan::COLUMNS_LIMIT;
use crate::buffer::{Buffer, GradMut, View};
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims};
use crate::engine::ops::shape::strided::magic;
use crate::error::Result;
use crate::ops::conv::*;
use crate::ops::gemm::{Gemm, GemmIo, GemmOps};
use crate::spec::kernels::conv::*;

/// Elements of a row that a thread has: 16 bytes where rows are whole ones.
fn run_of(v: &View<'_>, [.., width]: [usize; 3]) -> usize {
    let vector = 16 / v.dtype().size();
    if aligned16(v) && width.is_multiple_of(vector) { vector } else { 1 }
}

impl Engine {
    /// The adjoint of a convolution in f32 or f64: columns = w^T x for some images at a time, which are added up to y.
    pub(super) fn adjoint_by_columns(&self, q: Gathered<'_>) -> Result<()> {
        let (s, (m, r)) = (q.p.s, q.p.channels());
        let (rows, from, to) = (m * s.taps(), s.out_plane(), s.in_plane());
        let images = (COLUMNS_LIMIT / (rows * from).max(1)).clamp(1, s.n);
        let columns = self.scratch(q.p.dtype, images * rows * from)?;
        // What is more than the sums is finished in a second pass.
        let room = (!q.plain()).then(|| self.scratch(q.p.dtype, q.y.numel())).transpose()?;
        let y = room.as_ref().map_or(q.y.as_view(), Buffer::view).reshape(&[s.n, m, to])?;
        let (x, w) = (q.x.reshape(&[s.n, r, from])?, q.w.reshape(&[r, rows])?);
        for first in (0..s.n).step_by(images) {
            let n = images.min(s.n - first);
            let (x, y) = (x.map("x", |l| l.narrow(0, first, n))?, y.map("y", |l| l.narrow(0, first, n))?);
            let product = columns.alias_mut().map("columns", |l| l.narrow(0, 0, n * rows * from))?;
            let p = Gemm::new().trans(true, false).precision(q.precision);
            self.gemm(&p, GemmIo::new(w, x, product.reshape(&[n, rows, from])?))?;
            self.add_columns(&s, &columns.view(), &y, q.accumulate)?;
        }
        room.map_or(Ok(()), |room| self.conv_finish(&q, &room.view()))
    }

    /// x = or += sums of the columns' elements.
    fn add_columns(&self, s: &ConvShape, columns: &View<'_>, x: &View<'_>, accumulate: bool) -> Result<()> {
        let run = run_of(x, s.input);
        let [d, h, w] = s.input;
        let items = x.numel() / run;
        let args = Col2imArgs {
            col: self.arg_in(columns),
            x: self.arg_in(x),
            n: items as i64,
            img: dims(s.input),
            out: dims(s.output),
            win: dims(s.kernel.into_iter().chain(s.stride)),
            geo: dims(s.pad.into_iter().chain(s.dilation)),
            magic: magic([d, h, w / run].into_iter().chain(s.stride)),
            wide: i32::from(run > 1),
            accumulate: i32::from(accumulate),
        };
        self.launch(&COL2IM, x.dtype(), "", Grid::Stride(items), &args)
    }

    /// im2col and col2im.
    pub(in crate::engine::ops) fn columns(
        &self,
        op: &'static str,
        p: &Conv,
        kernel: &[usize],
        from: View<'_>,
        to: GradMut<'_>,
    ) -> Result<()> {
        let (gather, out) = (op == "im2col", to.out.as_view());
        let (x, col) = if gather { (&from, &out) } else { (&out, &from) };
        let s = check_columns(op, p, kernel, x, col, &to.out)?;
        self.check_owner(op, if gather { "x" } else { "col" }, &from)?;
        self.check_owner(op, if gather { "col" } else { "x" }, &out)?;
        self.conv_extents(op, &s)?;
        if !gather {
            return self.add_columns(&s, &from, &out, to.accumulate);
        }
        let (run, [d, h, w], [kd, kh, kw]) = (run_of(&out, s.output), s.output, s.kernel);
        let items = out.numel() / kw.max(1) / run;
        let args = Im2colArgs {
            x: self.arg_in(&from),
            col: self.arg_in(&out),
            n: items as i64,
            img: dims(s.input),
            out: dims(s.output),
            win: dims(s.kernel.into_iter().chain(s.stride)),
            geo: dims(s.pad.into_iter().chain(s.dilation)),
            magic: magic([d, h, w / run, kd * kh, kh]),
            wide: i32::from(run > 1),
            accumulate: i32::from(to.accumulate),
        };
        self.launch(&IM2COL, out.dtype(), "", Grid::Stride(items), &args)
    }
}
