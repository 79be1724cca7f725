//! Gather and scatter along an axis.

use super::scatter::*;
use super::shape::element_bytes;
use super::strided::{magic, mover, pattern_words, steps};
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, dims};
use crate::error::Result;
use crate::ops::*;
use crate::spec::index::*;

impl IndexOps for Engine {
    fn index_select(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()> {
        const OP: &str = "index_select";
        check_index_select(axis, &x, &index, &y)?;
        let v = y.out.as_view();
        self.own_all(OP, &[("x", x), ("index", index), ("y", v)])?;
        let (outer, size, inner) = around(x.shape(), axis);
        let items = Items::new(inner, y.accumulate, &[&x, &v]);
        let shape = [outer, index.numel(), items.row];
        let n = shape.iter().product();
        let args = [
            self.arg_in(&x),
            self.arg_in(&index),
            self.arg_in(&v),
            self.arg_error(),
            Arg::I64(n as i64),
            Arg::I32(items.wide as i32),
            wide_index(&index),
            Arg::I64(size as i64),
            dims(shape),
            magic(shape),
            Arg::I32(y.accumulate as i32),
            Arg::I32(code_of_op(OP)),
        ];
        self.launch(&INDEX_SELECT, items.dtype, "", Grid::Stride(n), &args)
    }

    fn index_add(
        &self,
        axis: usize,
        alpha: f64,
        index: View<'_>,
        src: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "index_add";
        check_index_add(axis, alpha, &index, &src, &y)?;
        let y = y.as_view();
        self.own_all(OP, &[("index", index), ("src", src), ("y", y)])?;
        if src.numel() == 0 {
            return Ok(());
        }
        let (outer, size, inner) = around(y.shape(), axis);
        let plan = self.scatter_plan(OP, 0, &[size], &index)?;
        let to = Into::Tensor { y, include: true };
        self.reduce_rows(&plan, outer, inner, ScatterReduce::Sum, Value::Own, alpha, &src, None, to)
    }

    fn index_copy(&self, axis: usize, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "index_copy";
        check_index_copy(axis, &index, &src, &y)?;
        let y = y.as_view();
        self.own_all(OP, &[("index", index), ("src", src), ("y", y)])?;
        if src.numel() == 0 {
            return Ok(());
        }
        let (outer, size, inner) = around(y.shape(), axis);
        let plan = self.scatter_plan(OP, 0, &[size], &index)?;
        self.scatter_rows(&plan, outer, inner, &src, &y)
    }

    fn index_fill(&self, axis: usize, value: f64, index: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "index_fill";
        check_index_fill(axis, &index, &y)?;
        let y = y.as_view();
        self.own_all(OP, &[("index", index), ("y", y)])?;
        let (outer, size, inner) = around(y.shape(), axis);
        let items = Items::new(inner, false, &[&y]);
        let shape = [outer, index.numel(), items.row];
        let n = shape.iter().product();
        let (lo, hi) = pattern_words(&element_bytes(y.dtype(), value));
        let args = [
            self.arg_in(&index),
            self.arg_in(&y),
            self.arg_error(),
            Arg::I64(n as i64),
            Arg::I32(items.wide as i32),
            wide_index(&index),
            Arg::I64(size as i64),
            dims(shape),
            magic(shape),
            lo,
            hi,
            Arg::I32(code_of_op(OP)),
        ];
        self.launch(&INDEX_FILL, items.dtype, "", Grid::Stride(n), &args)
    }

    fn gather(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        check_gather(axis, &x, &index, &y)?;
        let v = y.out.as_view();
        self.own_all(OP, &[("x", x), ("index", index), ("y", v)])?;
        let (n, strides) = (index.numel(), row_major(x.shape()));
        let args = [
            self.arg_in(&x),
            self.arg_in(&index),
            self.arg_in(&v),
            self.arg_error(),
            Arg::I64(n as i64),
            wide_index(&index),
            Arg::I64(x.shape()[axis] as i64),
            Arg::I64(strides[axis]),
            Arg::I32(strides.len() as i32),
            dims(index.shape().iter().copied()),
            magic(index.shape().iter().copied()),
            steps(strides.iter().enumerate().map(|(a, &s)| if a == axis { 0 } else { s })),
            Arg::I32(y.accumulate as i32),
            Arg::I32(code_of_op(OP)),
        ];
        self.launch(&GATHER_AXIS, mover(x.dtype(), y.accumulate), "", Grid::Stride(n), &args)
    }

    fn scatter(&self, axis: usize, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "scatter";
        check_scatter(axis, &index, &src, &y)?;
        let y = y.as_view();
        self.own_all(OP, &[("index", index), ("src", src), ("y", y)])?;
        if src.numel() == 0 {
            return Ok(());
        }
        let plan = self.scatter_plan(OP, axis, y.shape(), &index)?;
        self.scatter_rows(&plan, 1, 1, &src, &y)
    }

    fn scatter_bwd(
        &self,
        axis: usize,
        dy: View<'_>,
        index: View<'_>,
        dx: Option<GradMut<'_>>,
        dsrc: Option<GradMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "scatter_bwd";
        check_scatter_bwd(axis, &dy, &index, dx.as_ref(), dsrc.as_ref())?;
        self.own_all(OP, &[("dy", dy), ("index", index)])?;
        let (n, k) = (dy.numel(), index.numel());
        if let Some(g) = &dx {
            let v = g.out.as_view();
            self.own(OP, "dx", &v)?;
            let mask = self.scratch(DType::U8, n)?;
            let mask = mask.view();
            self.fill_pattern(&[0], &mask)?;
            if k > 0 {
                let keys = self.scatter_keys(OP, axis, dy.shape(), &index)?;
                let keys = keys.view();
                let (count, limit) = (Arg::I64(k as i64), Arg::I64(n as i64));
                let args = [self.arg_in(&keys), self.arg_in(&mask), count, wide_index(&keys), limit];
                self.launch(&MARK_KEYS, DType::U8, "", Grid::Stride(k), &args)?;
            }
            let accumulate = Arg::I32(g.accumulate as i32);
            let args =
                [self.arg_in(&dy), self.arg_in(&mask), self.arg_in(&v), Arg::I64(n as i64), accumulate];
            self.launch(&COPY_UNMARKED, mover(dy.dtype(), g.accumulate), "", Grid::Stride(n), &args)?;
        }
        if let Some(g) = dsrc.as_ref().filter(|_| k > 0) {
            let v = g.out.as_view();
            self.own(OP, "dsrc", &v)?;
            let plan = self.scatter_plan(OP, axis, dy.shape(), &index)?;
            self.scatter_last_bwd(&plan, &dy, &v, g.accumulate)?;
        }
        Ok(())
    }

    fn scatter_reduce(
        &self,
        how: ScatterReduce,
        axis: usize,
        include_self: bool,
        index: View<'_>,
        src: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "scatter_reduce";
        check_scatter_reduce(axis, &index, &src, &y)?;
        let y = y.as_view();
        self.own_all(OP, &[("index", index), ("src", src), ("y", y)])?;
        if src.numel() == 0 {
            return Ok(());
        }
        let plan = self.scatter_plan(OP, axis, y.shape(), &index)?;
        let to = Into::Tensor { y, include: include_self };
        self.reduce_rows(&plan, 1, 1, how, Value::Own, 1.0, &src, None, to)
    }

    fn scatter_reduce_bwd(
        &self,
        how: ScatterReduce,
        axis: usize,
        include_self: bool,
        io: ScatterReduceBwd<'_>,
    ) -> Result<()> {
        todo!()
    }

    fn index_put(&self, accumulate: bool, index: &[View<'_>], v: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "index_put";
        let common = check_index_put(accumulate, index, &v, &y)?;
        let y = y.as_view();
        self.own_all(OP, &[("v", v), ("y", y)])?;
        index.iter().try_for_each(|i| self.own(OP, "index", i))?;
        if v.numel() == 0 {
            return Ok(());
        }
        let (lead, rest) = y.shape().split_at(index.len());
        let plan = self.put_plan(OP, &common, index, lead)?;
        let width = rest.iter().product();
        if !accumulate {
            return self.scatter_rows(&plan, 1, width, &v, &y);
        }
        let to = Into::Tensor { y, include: true };
        self.reduce_rows(&plan, 1, width, ScatterReduce::Sum, Value::Own, 1.0, &v, None, to)
    }

    fn masked_scatter(&self, mask: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn masked_select(&self, mask: View<'_>, x: View<'_>, y: ViewMut<'_>, count: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn masked_select_bwd(&self, mask: View<'_>, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn nonzero(&self, x: View<'_>, index: ViewMut<'_>, count: ViewMut<'_>) -> Result<()> {
        todo!()
    }

    fn one_hot(&self, ids: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "one_hot";
        check_one_hot(&ids, &y)?;
        let y = y.as_view();
        self.own_all(OP, &[("ids", ids), ("y", y)])?;
        let (n, classes) = (y.numel(), y.shape()[ids.shape().len()]);
        let args = [
            self.arg_in(&ids),
            self.arg_in(&y),
            self.arg_error(),
            Arg::I64(n as i64),
            wide_index(&ids),
            Arg::I64(classes as i64),
            Arg::I32(code_of_op(OP)),
        ];
        self.launch(&ONE_HOT, y.dtype(), "", Grid::Stride(n), &args)
    }
}
