//! Compressed sparse rows: signatures and checks.

use crate::ops::graph::checker::{Checker, Inputs};
use crate::buffer::{View, ViewMut};
use crate::error::Result;

/// What [`CsrOps::csr`] makes of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Csr {
    /// Edges by row: a stable counting sort, so columns keep their order within a row.
    FromCoo,
    /// The transpose of a CSR matrix: entries of an output row in the order of the input rows.
    Transpose,
    /// The same matrix with ascending columns in each row, equal ones in their order.
    Sort,
}

io_struct! {
    /// Operands of [`CsrOps::csr`]. All index lists share a dtype.
    #[derive(Debug)]
    pub struct CsrIo<'a> {
        /// `FromCoo`: the row of each edge `[E]`. Otherwise rowptr `[rows + 1]`.
        pub rows: View<'a>,
        /// Column of each edge `[E]`; `FromCoo` can do without.
        pub col: Option<View<'a>>,
        /// Value of each edge `[E]`.
        pub values: Option<View<'a>>,
        /// `[output rows + 1]`: its length says how many rows there are. Not for `Sort`.
        pub rowptr: Option<ViewMut<'a>>,
        /// `[E]`.
        pub out_col: Option<ViewMut<'a>>,
        /// `[E]`: input position of each output entry.
        pub perm: Option<ViewMut<'a>>,
        /// `[E]`.
        pub out_values: Option<ViewMut<'a>>,
    }
}

op_family! {
    /// Compressed rows of graphs: conversion, transposition, sorting.
    pub trait CsrOps : Graph => CSR_OPS {
        /// Groups edges: sorts them by row, transposes or sorts a CSR matrix. Exact. Oracle `scipy.sparse`.
        fn csr(&self, op: Csr, io: CsrIo<'_>) -> Result<()>;
    }
}

/// Checks of [`CsrOps::csr`]: edges and output rows.
pub(crate) fn check_csr(op: Csr, io: &CsrIo<'_>) -> Result<(usize, usize)> {
    let c = Checker::new("csr");
    let first = c.list("rows", &io.rows)?;
    let edges = match (op, &io.col) {
        (Csr::FromCoo, _) => first,
        (_, Some(col)) if first > 0 => c.list("col", col)?,
        (_, Some(_)) => return c.wrong("rows", "rows + 1 offsets", first),
        (_, None) => return c.wrong("col", "columns", "none"),
    };
    let mut inputs = Inputs::new(&[("rows", io.rows)]).opt("col", &io.col).opt("values", &io.values);
    if let Some(col) = &io.col {
        c.same_index("col", col, io.rows.dtype())?;
        c.shape("col", col, &[edges])?;
    }
    if let Some(v) = &io.values {
        c.float("values", v)?;
        c.shape("values", v, &[edges])?;
    }
    let rows = match (op, &io.rowptr) {
        (Csr::Sort, None) => first - 1,
        (Csr::Sort, Some(_)) => return c.wrong("rowptr", "none: sorting keeps the rows", "one"),
        (_, Some(r)) if r.numel() > 0 => r.numel() - 1,
        (_, r) => return c.wrong("rowptr", "rows + 1 offsets", r.as_ref().map(|r| r.shape().to_vec())),
    };
    c.small(&[edges, rows, first])?;
    let dtype = io.rows.dtype();
    c.out("rowptr", io.rowptr.as_ref(), dtype, &[rows + 1], &mut inputs)?;
    if io.out_col.is_some() && io.col.is_none() {
        return c.wrong("out_col", "none without `col`", "one");
    }
    c.out("out_col", io.out_col.as_ref(), dtype, &[edges], &mut inputs)?;
    c.out("perm", io.perm.as_ref(), dtype, &[edges], &mut inputs)?;
    match (&io.values, &io.out_values) {
        (Some(v), out) => c.out("out_values", out.as_ref(), v.dtype(), &[edges], &mut inputs)?,
        (None, Some(_)) => return c.wrong("out_values", "none without `values`", "one"),
        (None, None) => {}
    }
    Ok((edges, rows))
}
