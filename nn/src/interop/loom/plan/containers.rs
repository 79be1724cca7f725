//! Layers of layers: sequences and parallel branches.

use super::{Combine, Node, Op, Place, Planner, fail, need};
use crate::core::error::Result;
use crate::interop::loom::definition::{LayerDefinition, canonical};
use crate::interop::loom::flags::Flag;

impl Planner<'_> {
    pub(super) fn sequential(
        &mut self,
        path: &str,
        d: &LayerDefinition,
        size: Option<usize>,
        at: Place,
        batch: usize,
    ) -> Result<Op> {
        let (mut children, mut size) = (vec![], size);
        for (i, b) in d.branches.iter().flatten().enumerate() {
            let path = format!("{path}.branches[{i}]");
            if !matches!(canonical(&b.kind), "dense" | "softmax")
                && self.ask(Flag::SequentialSkips, &path, self.flags.sequential_skips)
            {
                children.push(Node { path, op: Op::Pass, outputs: size });
                continue;
            }
            let node = self.node(path, b, size, Place { branch: true, ..at }, batch)?;
            size = node.outputs;
            children.push(node);
        }
        let untouched = self.ask(Flag::SequentialUninitialised, path, self.flags.sequential_uninitialised);
        Ok(Op::Sequential { children, untouched })
    }

    pub(super) fn parallel(
        &mut self,
        path: &str,
        d: &LayerDefinition,
        size: Option<usize>,
        at: Place,
        batch: usize,
    ) -> Result<Op> {
        let mode = d.combine_mode.as_deref().unwrap_or("");
        let key = format!("{path}.combine_mode");
        let known = ["", "concat", "add", "avg", "average", "grid_scatter", "filter"];
        if !known.contains(&mode) {
            if self.ask(Flag::UnknownCombineMode, &key, self.flags.unknown_combine_mode) {
                return Ok(Op::Pass);
            }
            return fail(key, format!("unknown mode `{mode}`, expected one of {}", known[1..].join(", ")));
        }
        let definitions = d.branches.as_deref().unwrap_or(&[]);
        if definitions.is_empty() {
            return fail(format!("{path}.branches"), "at least one branch is needed");
        }
        let mut branches = vec![];
        for (i, b) in definitions.iter().enumerate() {
            let at = Place { branch: true, ..at };
            branches.push(self.node(format!("{path}.branches[{i}]"), b, size, at, batch)?);
        }
        let combine = match mode {
            "" | "concat" => {
                let flag = self.flags.parallel_concat_batch_major;
                Combine::Concat { batch_major: self.ask(Flag::ParallelConcatBatchMajor, path, flag) }
            }
            "add" => Combine::Add,
            "avg" | "average" => Combine::Mean,
            "filter" => Combine::Filter,
            _ => Combine::Grid(self.cells(path, d, branches.len())?),
        };
        Ok(Op::Parallel { combine, branches })
    }

    /// Branches in the order of their cells.
    fn cells(&mut self, path: &str, d: &LayerDefinition, n: usize) -> Result<Vec<usize>> {
        let [rows, cols, layers] = [
            need(path, "grid_output_rows", d.grid_output_rows)?,
            need(path, "grid_output_cols", d.grid_output_cols)?,
            need(path, "grid_output_layers", d.grid_output_layers)?,
        ];
        let positions = d.grid_positions.as_deref().unwrap_or(&[]);
        let key = format!("{path}.grid_positions");
        if positions.len() != n {
            return fail(key, format!("{n} branches need {n} positions, found {}", positions.len()));
        }
        let mut cells: Vec<([usize; 3], usize)> = vec![];
        for (i, p) in positions.iter().enumerate() {
            let key = format!("{key}[{i}]");
            if p.branch_index >= n {
                return fail(format!("{key}.branch_index"), format!("there are {n} branches"));
            }
            if p.target_row >= rows || p.target_col >= cols || p.target_layer >= layers {
                return fail(key, format!("outside of the grid of {rows} x {cols} x {layers}"));
            }
            let cell = [p.target_row, p.target_col, p.target_layer];
            match cells.iter_mut().find(|(c, _)| *c == cell) {
                None => cells.push((cell, p.branch_index)),
                Some(taken) => {
                    match self.ask(Flag::GridCellOverwrite, &key, self.flags.grid_cell_overwrite) {
                        true => taken.1 = p.branch_index,
                        false => return fail(key, "another branch has this cell"),
                    }
                }
            }
        }
        cells.sort_unstable();
        Ok(cells.into_iter().map(|(_, branch)| branch).collect())
    }
}
