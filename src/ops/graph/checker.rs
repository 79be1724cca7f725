//! What the checks of all operations of graphs have in common: lists of nodes, rows, groups, outputs.

use crate::ops::graph::*;
use crate::ops::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// Operands that outputs must keep apart from.
pub(crate) struct Inputs<'a>(Vec<(&'static str, View<'a>)>);

impl<'a> Inputs<'a> {
    pub(crate) fn new(views: &[(&'static str, View<'a>)]) -> Self {
        Inputs(views.to_vec())
    }

    pub(crate) fn add(&mut self, arg: &'static str, v: View<'a>) {
        self.0.push((arg, v));
    }

    pub(crate) fn opt(mut self, arg: &'static str, v: &Option<View<'a>>) -> Self {
        self.0.extend(v.map(|v| (arg, v)));
        self
    }
}

/// Checks of the operands of one operation.
pub(crate) struct Checker {
    pub(crate) op: &'static str,
}

impl Checker {
    pub(crate) fn new(op: &'static str) -> Self {
        Checker { op }
    }

    pub(crate) fn float(&self, arg: &'static str, v: &View<'_>) -> Result<()> {
        check::float(self.op, arg, v)?;
        check::contiguous(self.op, arg, v)
    }

    pub(crate) fn like(&self, arg: &'static str, v: &View<'_>, x: &View<'_>) -> Result<()> {
        check::dtype(self.op, arg, v, x.dtype())?;
        check::contiguous(self.op, arg, v)
    }

    pub(crate) fn index(&self, arg: &'static str, v: &View<'_>) -> Result<()> {
        check::one_of(self.op, arg, v, &[DType::I32, DType::I64])?;
        check::contiguous(self.op, arg, v)
    }

    pub(crate) fn same_index(&self, arg: &'static str, v: &View<'_>, dtype: DType) -> Result<()> {
        self.index(arg, v)?;
        check::dtype(self.op, arg, v, dtype)
    }

    pub(crate) fn shape(&self, arg: &'static str, v: &View<'_>, want: &[usize]) -> Result<()> {
        check::shape(self.op, arg, v, want)
    }

    pub(crate) fn wrong<T>(
        &self,
        arg: &'static str,
        expected: impl Into<String>,
        got: impl std::fmt::Debug,
    ) -> Result<T> {
        Err(GpuError::invalid(self.op, arg, expected.into(), format!("{got:?}")))
    }

    /// Counts of nodes, edges or columns.
    pub(crate) fn small(&self, sizes: &[usize]) -> Result<()> {
        match sizes.iter().find(|&&n| n >= i32::MAX as usize) {
            Some(n) => self.wrong("shape", "fewer than 2^31 nodes, edges and columns", n),
            None => Ok(()),
        }
    }

    /// Length of an index vector.
    pub(crate) fn list(&self, arg: &'static str, v: &View<'_>) -> Result<usize> {
        self.index(arg, v)?;
        if v.shape().len() != 1 {
            return self.wrong(arg, "a vector", v.shape());
        }
        Ok(v.numel())
    }

    /// Both ends of the edges; their number.
    pub(crate) fn ends(&self, src: &View<'_>, dst: &View<'_>) -> Result<usize> {
        let n = self.list("src", src)?;
        self.same_index("dst", dst, src.dtype())?;
        self.shape("dst", dst, &[n])?;
        Ok(n)
    }

    /// Rows of a CSR list.
    pub(super) fn rowptr(&self, v: &View<'_>) -> Result<usize> {
        match self.list("rowptr", v)? {
            0 => self.wrong("rowptr", "rows + 1 offsets", v.shape()),
            n => Ok(n - 1),
        }
    }

    /// At least one axis, the first of which counts nodes or edges.
    pub(crate) fn rows(&self, arg: &'static str, v: &View<'_>) -> Result<usize> {
        match v.shape().first() {
            Some(&n) => Ok(n),
            None => self.wrong(arg, "rank 1 or more", v.shape()),
        }
    }

    pub(crate) fn groups<'a>(
        &self,
        arg: &'static str,
        g: &EdgeGroups<'a>,
        nodes: usize,
        edges: usize,
        dtype: DType,
        inputs: &mut Inputs<'a>,
    ) -> Result<()> {
        self.same_index(arg, &g.rowptr, dtype)?;
        self.shape(arg, &g.rowptr, &[nodes + 1])?;
        inputs.add("rowptr", g.rowptr);
        for v in [g.col, g.perm].into_iter().flatten() {
            self.same_index(arg, &v, dtype)?;
            self.shape(arg, &v, &[edges])?;
            inputs.add(arg, v);
        }
        Ok(())
    }

    pub(crate) fn opt_groups<'a>(
        &self,
        arg: &'static str,
        g: &Option<EdgeGroups<'a>>,
        nodes: usize,
        list: &View<'a>,
        inputs: &mut Inputs<'a>,
    ) -> Result<()> {
        g.as_ref().map_or(Ok(()), |g| self.groups(arg, g, nodes, list.numel(), list.dtype(), inputs))
    }

    pub(crate) fn output(&self, arg: &'static str, v: &ViewMut<'_>, inputs: &Inputs<'_>) -> Result<()> {
        check::contiguous(self.op, arg, &v.as_view())?;
        check::separate_output(self.op, arg, v, &inputs.0)
    }

    /// An output of this type and shape, if it is wanted; later outputs keep apart from it.
    pub(crate) fn out<'a>(
        &self,
        arg: &'static str,
        v: Option<&ViewMut<'a>>,
        dtype: DType,
        shape: &[usize],
        inputs: &mut Inputs<'a>,
    ) -> Result<()> {
        let Some(v) = v else { return Ok(()) };
        check::dtype(self.op, arg, &v.as_view(), dtype)?;
        self.shape(arg, &v.as_view(), shape)?;
        self.output(arg, v, inputs)?;
        inputs.add(arg, v.as_view());
        Ok(())
    }

    pub(crate) fn grad<'a>(
        &self,
        arg: &'static str,
        g: Option<&GradMut<'a>>,
        like: &View<'_>,
        shape: &[usize],
        inputs: &mut Inputs<'a>,
    ) -> Result<()> {
        self.out(arg, g.map(|g| &g.out), like.dtype(), shape, inputs)
    }

    /// Edge features `[E]` followed by the first axes of `tail`: elements per edge.
    pub(super) fn parts(&self, arg: &'static str, v: &View<'_>, edges: usize, tail: &[usize]) -> Result<usize> {
        let s = v.shape();
        if s.first() != Some(&edges) || s.len() > tail.len() + 1 || s[1..] != tail[..s.len() - 1] {
            return self.wrong(arg, format!("[{edges}] followed by leading axes of {tail:?}"), s);
        }
        Ok(s[1..].iter().product())
    }
}

pub(crate) fn product(s: &[usize]) -> usize {
    s.iter().product()
}

pub(super) fn joined(first: usize, tail: &[usize]) -> Vec<usize> {
    [&[first], tail].concat()
}

/// Type of statistics.
pub(crate) fn stat_dtype(d: DType) -> DType {
    d.accumulator()
}
