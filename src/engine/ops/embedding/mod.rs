//! Embedding: validation and launch.

mod plan;

use self::plan::{EmbeddingBwdPlan, EmbeddingBwdProblem, EmbeddingPlan, EmbeddingProblem, RowsProblem};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, code_of_op, int, long};
use crate::engine::ops::index::scatter::{Into, Scatter, key_type, wide_index};
use crate::engine::ops::shape::strided::magic_of;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::embedding::*;
use crate::ops::index::ScatterReduce;
use crate::ops::shape::ShapeOps;
use crate::spec::BLOCK;
use crate::spec::kernels::embedding::*;
use crate::spec::kernels::index::{MARK_KEYS, MarkKeysArgs};

/// What decides how the rows of a table and of others like it are moved.
fn rows_problem(table: &View<'_>, others: &[&View<'_>]) -> RowsProblem {
    let bytes = |v: &View<'_>| v.numel() * v.dtype().size();
    RowsProblem {
        row: table.shape()[1] * table.dtype().size(),
        bytes: others.iter().map(|v| bytes(v)).fold(bytes(table), usize::max),
        aligned: aligned16(table) && others.iter().all(|v| aligned16(v)),
    }
}

impl Engine {
    /// What serves a table of 50 000 rows of 1024 elements in f32, or its gradient.
    pub(crate) fn explain_embedding(&self, op: &'static str) -> Result<Choice> {
        let table = RowsProblem { row: 4096, bytes: 4096 * 50_000, aligned: true };
        match op {
            "embedding_bwd" => {
                self.explain_problem(op, &EmbeddingBwdProblem { table, rows: 50_000, ids: 4096 })
            }
            _ => self.explain_problem(op, &EmbeddingProblem(table)),
        }
    }

    /// Zeros for the rows of a table that are none of the sorted keys.
    fn clear_others(&self, keys: View<'_>, table: &View<'_>, row: usize) -> Result<()> {
        let rows = table.shape()[0];
        let args = EmbeddingClearArgs {
            keys: self.arg_in(&keys),
            table: self.arg_in(table),
            n: long(keys.numel()),
            rows: long(rows),
            row: int(row),
            by: magic_of(row),
            wide_keys: wide_index(&keys),
        };
        // `GK_CLEARED` rows per block.
        self.launch(&EMBEDDING_CLEAR, DType::I32, "", Grid::Stride(rows.div_ceil(32) * BLOCK as usize), &args)
    }

    /// The gradient of a table whose rows look through all ids.
    fn embedding_of_few(
        &self,
        op: &'static str,
        p: &EmbeddingGrad,
        padding: Option<usize>,
        [dy, ids]: [View<'_>; 2],
        dtable: &GradMut<'_>,
    ) -> Result<()> {
        let table = dtable.out.as_view();
        let (rows, width) = (table.shape()[0], table.shape()[1]);
        let args = EmbeddingBwdFewArgs {
            dy: self.arg_in(&dy),
            ids: self.arg_in(&ids),
            dtable: self.arg_out(&dtable.out),
            err: self.arg_error(),
            n: int(ids.numel()),
            wide: wide_index(&ids),
            rows: int(rows),
            padding: padding.map_or(-1, int),
            width: long(width),
            mean: i32::from(p.scale_grad_by_freq),
            accumulate: i32::from(dtable.accumulate),
            code: code_of_op(op),
        };
        self.launch(&EMBEDDING_BWD_FEW, dy.dtype(), "", Grid::Blocks([rows, 1, 1]), &args)
    }

    /// The ids as keys of `rows` rows; `rows` itself for those that count for none.
    pub(in crate::engine::ops) fn embedding_keys(
        &self,
        op: &'static str,
        ids: &View<'_>,
        rows: usize,
        padding: Option<usize>,
    ) -> Result<Buffer> {
        let dtype = key_type(rows);
        let keys = self.scratch(dtype, ids.numel())?;
        let args = EmbeddingKeysArgs {
            ids: self.arg_in(ids),
            keys: self.arg_in(&keys.view()),
            err: self.arg_error(),
            n: ids.numel() as i64,
            wide: wide_index(ids),
            rows: rows as i64,
            padding: padding.map_or(-1, |p| p as i64),
            none: rows as i64,
            code: code_of_op(op),
        };
        self.launch(&EMBEDDING_KEYS, dtype, "", Grid::Stride(ids.numel()), &args)?;
        Ok(keys)
    }
}

impl EmbeddingOps for Engine {
    fn embedding(
        &self,
        padding_idx: Option<i64>,
        ids: View<'_>,
        table: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "embedding";
        check_embedding(padding_idx, &ids, &table, &y)?;
        let y = y.as_view();
        self.check_owner_all(OP, &[("ids", ids), ("table", table), ("y", y)])?;
        if let EmbeddingPlan::Items(row) = self.plan(OP, &EmbeddingProblem(rows_problem(&table, &[&y])))? {
            let items = y.numel() * y.dtype().size() / 16;
            let args = EmbeddingRowsArgs {
                table: self.arg_in(&table),
                ids: self.arg_in(&ids),
                y: self.arg_in(&y),
                err: self.arg_error(),
                items: long(items),
                rows: long(table.shape()[0]),
                row: int(row),
                by: magic_of(row),
                wide: wide_index(&ids),
                code: code_of_op(OP),
            };
            // Threads take several items each (`GK_DEPTH` in the text).
            return self.launch(&EMBEDDING_ROWS, DType::I32, "", Grid::Stride(items.div_ceil(2)), &args);
        }
        let flat = y.reshape(&[ids.numel(), table.shape()[1]])?;
        self.select_rows(OP, 0, &table, &ids.reshape(&[ids.numel()])?, &flat, false)
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
        let table = table.as_view();
        self.check_owner_all(OP, &[("ids", ids), ("table", table)])?;
        if ids.numel() == 0 {
            return Ok(());
        }
        let (rows, width, dt) = (table.shape()[0], table.shape()[1], table.dtype());
        let keys = self.embedding_keys(OP, &ids, rows, None)?;
        if rows == 0 {
            return Ok(());
        }
        let mark = self.scratch(DType::U8, rows)?;
        self.fill_pattern(&[0], &mark.view())?;
        let keys = keys.view();
        let args = MarkKeysArgs {
            keys: self.arg_in(&keys),
            mask: self.arg_in(&mark.view()),
            n: ids.numel() as i64,
            wide_keys: wide_index(&keys),
            limit: rows as i64,
        };
        self.launch(&MARK_KEYS, DType::U8, "", Grid::Stride(ids.numel()), &args)?;
        let lanes = width.div_ceil(4).next_power_of_two().clamp(1, BLOCK as usize);
        let kind = match norm_type {
            2.0 => 0,
            1.0 => 1,
            f64::INFINITY => 2,
            _ => 3,
        };
        let args = EmbeddingRenormArgs {
            table: self.arg_in(&table),
            mark: self.arg_in(&mark.view()),
            rows: rows as i64,
            width: width as i64,
            lanes: lanes as i32,
            most: max_norm,
            p: norm_type,
            kind,
        };
        let blocks = rows.div_ceil(BLOCK as usize / lanes);
        self.launch(&EMBEDDING_RENORM, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
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
        let table = dtable.out.as_view();
        self.check_owner_all(OP, &[("dy", dy), ("ids", ids), ("dtable", table)])?;
        let (rows, width) = (table.shape()[0], table.shape()[1]);
        let problem = EmbeddingBwdProblem { table: rows_problem(&table, &[]), rows, ids: ids.numel() };
        let how = self.plan(OP, &problem)?;
        if how == EmbeddingBwdPlan::FewIds {
            return self.embedding_of_few(OP, p, padding, [dy, ids], &dtable);
        }
        let clear = Some(how).filter(|_| !dtable.accumulate);
        if clear == Some(EmbeddingBwdPlan::All) {
            self.fill_pattern(&[0; 8], &table)?;
        }
        if ids.numel() == 0 {
            return Ok(());
        }
        let keys = self.embedding_keys(OP, &ids, rows, padding)?;
        if table.numel() == 0 {
            return Ok(());
        }
        let plan = self.sorted(OP, &keys, rows)?;
        if let Some(EmbeddingBwdPlan::Others(row)) = clear {
            self.clear_others(plan.sorted_views().0, &table, row)?;
        }
        let how = if p.scale_grad_by_freq { ScatterReduce::Mean } else { ScatterReduce::Sum };
        let sums = |to: View<'_>, include| {
            let to = Into::Tensor { y: to, include };
            self.scatter_reduction(&Scatter::new(&plan, [1, width], how, &dy), to)
        };
        if !(p.scale_grad_by_freq && dtable.accumulate) {
            return sums(table, dtable.accumulate);
        }
        // A mean that counts what is there already would be another one.
        let means = self.scratch(table.dtype(), table.numel())?;
        let means = means.shaped(table.shape())?;
        self.fill_pattern(&[0; 8], &means)?;
        sums(means, false)?;
        self.strided_copy(means, dtable)
    }
}
