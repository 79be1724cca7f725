//! Edges by node on the CPU: stable sorts of their positions.

use crate::buffer::View;
use crate::cpu::graph::{permuted, store_ids};
use crate::cpu::scratch::*;
use crate::cpu::values::sort_positions;
use crate::cpu::{Kernels, gather};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::graph::*;

/// A list of indices as they are, -1 included.
pub(in crate::cpu) fn signed_ids(op: &'static str, v: View<'_>) -> Result<Vec<i64>> {
    if v.dtype() == DType::I64 {
        return gather::<i64>(op, v);
    }
    gather::<i32>(op, v)?.into_iter().map(i64::from).try_vec()
}

/// Offsets of groups and the members in the order of their groups; `None` comes last and belongs to no group.
pub(in crate::cpu) fn counting_sort(keys: &[Option<usize>], groups: usize) -> Result<(Vec<i64>, Vec<usize>)> {
    let mut offsets = filled(groups + 1, 0i64)?;
    keys.iter().flatten().for_each(|&k| offsets[k + 1] += 1);
    (0..groups).for_each(|g| offsets[g + 1] += offsets[g]);
    let mut order: Vec<usize> = (0..keys.len()).try_vec()?;
    // The position makes equal keys keep their order; a stable sort would need memory.
    let key = |i: usize| (keys[i].unwrap_or(usize::MAX), i);
    sort_positions(&mut order, &|i, j| key(i).cmp(&key(j)));
    Ok((offsets, order))
}

impl CsrOps for Kernels {
    fn csr(&self, op: Csr, io: CsrIo<'_>) -> Result<()> {
        const OP: &str = "csr";
        let (n, rows) = check_csr(op, &io)?;
        let _timed = self.count("csr");
        let given = io.col.map_or(Ok(Vec::new()), |c| signed_ids(OP, c))?;
        let (offsets, order, columns) = match (op, io.col) {
            (Csr::Transpose, Some(c)) => {
                let by_row = self.entry_rows(OP, io.rows, n)?;
                let (offsets, order) = counting_sort(&self.nodes(OP, c, rows)?, rows)?;
                (offsets, order, by_row.iter().map(|r| r.map_or(-1, |r| r as i64)).try_vec()?)
            }
            (Csr::Sort, Some(c)) => {
                let by_row = self.entry_rows(OP, io.rows, n)?;
                self.nodes(OP, c, i32::MAX as usize - 1)?;
                let mut order: Vec<usize> = (0..n).try_vec()?;
                let key = |i: usize| (by_row[i].unwrap_or(usize::MAX), given[i], i);
                sort_positions(&mut order, &|i, j| key(i).cmp(&key(j)));
                (Vec::new(), order, given)
            }
            _ => {
                let (offsets, order) = counting_sort(&self.nodes(OP, io.rows, rows)?, rows)?;
                (offsets, order, given)
            }
        };
        if io.rowptr.is_some() {
            store_ids(OP, &io.rowptr, &offsets)?;
        }
        if io.out_col.is_some() {
            store_ids(OP, &io.out_col, &order.iter().map(|&i| columns[i]).try_vec()?)?;
        }
        store_ids(OP, &io.perm, &order.iter().map(|&i| i as i64).try_vec()?)?;
        match (io.values, &io.out_values) {
            (Some(v), Some(out)) => permuted(OP, v, &order, out),
            _ => Ok(()),
        }
    }
}
