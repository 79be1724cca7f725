//! Embedding on the CPU. The reference of its gradient is in f64.

use crate::cpu::scratch::*;
use crate::cpu::shape::put;
use crate::cpu::values::{Share, Values, each_chunk};
use crate::cpu::vector::{self, fill};
use crate::cpu::*;
use crate::ops::embedding::*;

impl Kernels {
    /// Rows of a table that ids name; `None`, which is reported, for one out of range.
    pub(in crate::cpu) fn lookup(
        &self,
        op: &'static str,
        ids: View<'_>,
        rows: usize,
    ) -> Result<Vec<Option<usize>>> {
        let found: Vec<_> = gather_index(op, ids)?.into_iter().map(|i| i.filter(|&i| i < rows)).try_vec()?;
        if found.contains(&None) {
            self.flag_index_error(op);
        }
        Ok(found)
    }
}

/// Parts of a table whose rows are summed at a time; each looks at all ids.
const PARTS: usize = 16;

/// The gradient of a table in f32: rows of dy added in the order of their ids.
fn add_rows(
    op: &'static str,
    p: &EmbeddingGrad,
    padding: Option<usize>,
    found: &[Option<usize>],
    dy: View<'_>,
    dtable: &GradMut<'_>,
) -> Result<()> {
    let (rows, width) = (dtable.out.shape()[0], dtable.out.shape()[1]);
    if rows * width == 0 {
        return Ok(());
    }
    let dy = vector::values(op, dy, &[dtable.out.block().id()])?;
    let mut counts = filled(rows, 0usize)?;
    found.iter().flatten().for_each(|r| counts[*r] += 1);
    let part = rows.div_ceil(PARTS);
    fill(op, dtable, |all| {
        each_chunk(all, part * width, Share::ANY, &|i, table| {
            let here = i * part..(i + 1) * part;
            table.fill(0.0);
            for (dy, row) in dy.chunks_exact(width).zip(found) {
                let Some(row) = row.filter(|r| here.contains(r) && Some(*r) != padding) else { continue };
                vector::add(&mut table[(row - here.start) * width..][..width], dy);
            }
            if p.scale_grad_by_freq {
                for (row, n) in
                    table.chunks_exact_mut(width).zip(&counts[here.start..]).filter(|(_, n)| **n > 1)
                {
                    row.iter_mut().for_each(|s| *s /= *n as f32);
                }
            }
        });
        Ok(())
    })
}

impl EmbeddingOps for Kernels {
    fn embedding(
        &self,
        padding_idx: Option<i64>,
        ids: View<'_>,
        table: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "embedding";
        check_embedding(padding_idx, &ids, &table, &y)?;
        let _timed = self.count("embedding");
        let (rows, width) = (table.shape()[0], table.shape()[1]);
        let found = self.lookup(OP, ids, rows)?;
        with_dtype!(table.dtype(), T => {
            let from = Values::<T>::new(OP, table, &[y.block().id()])?;
            let mut to = filled(found.len() * width, T::default())?;
            for (row, id) in to.chunks_mut(width.max(1)).zip(&found) {
                if let Some(id) = id {
                    row.copy_from_slice(&from[id * width..(id + 1) * width]);
                }
            }
            put(OP, &y.into(), &to)
        })
    }

    fn embedding_renorm(
        &self,
        max_norm: f64,
        norm_type: f64,
        ids: View<'_>,
        table: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "embedding_renorm";
        check_embedding_renorm(max_norm, norm_type, &ids, &table)?;
        let _timed = self.count("embedding_renorm");
        let (rows, width) = (table.shape()[0], table.shape()[1]);
        let mut used = filled(rows, false)?;
        self.lookup(OP, ids, rows)?.into_iter().flatten().for_each(|r| used[r] = true);
        let mut v = gather_f64(OP, table.as_view())?;
        for (row, _) in v.chunks_mut(width.max(1)).zip(&used).filter(|(_, used)| **used) {
            let norm = if norm_type.is_infinite() {
                row.iter().fold(0.0, |m: f64, x| if m.is_nan() || x.abs() <= m { m } else { x.abs() })
            } else {
                row.iter().map(|x| x.abs().powf(norm_type)).sum::<f64>().powf(1.0 / norm_type)
            };
            if norm > max_norm {
                row.iter_mut().for_each(|x| *x *= max_norm / (norm + 1e-7));
            }
        }
        store_f64(OP, &table, &v)
    }

    fn embedding_bwd(
        &self,
        p: &EmbeddingGrad,
        dy: View<'_>,
        ids: View<'_>,
        dtable: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "embedding_bwd";
        let padding = check_embedding_bwd(p, &dy, &ids, &dtable)?;
        let _timed = self.count("embedding_bwd");
        let (rows, width) = (dtable.out.shape()[0], dtable.out.shape()[1]);
        let found = self.lookup(OP, ids, rows)?;
        if self.in_f32(OP, dy.dtype(), None)? {
            return add_rows(OP, p, padding, &found, dy, &dtable);
        }
        let g = gather_f64(OP, dy)?;
        let (mut sums, mut counts) = (filled(rows * width, 0.0)?, filled(rows, 0usize)?);
        for (i, row) in found.iter().enumerate() {
            let Some(row) = row.filter(|r| Some(*r) != padding) else { continue };
            counts[row] += 1;
            for (s, g) in sums[row * width..(row + 1) * width].iter_mut().zip(&g[i * width..]) {
                *s += g;
            }
        }
        if p.scale_grad_by_freq {
            for (row, &n) in sums.chunks_mut(width.max(1)).zip(&counts).filter(|(_, n)| **n > 0) {
                row.iter_mut().for_each(|s| *s /= n as f64);
            }
        }
        store_grad(OP, &dtable, &sums)
    }
}
