//! Edges grouped by node: taken from the caller, or sorted for one call.

use crate::buffer::{Buffer, View};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op};
use crate::engine::ops::graph::plan::NodePlan;
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::ops::graph::*;
use crate::spec::kernels::graph::*;

/// An index list of the caller's, or one made for this call.
pub(in crate::engine::ops) enum Held<'a> {
    Given(View<'a>),
    Own(Buffer),
}

impl Held<'_> {
    pub(in crate::engine::ops) fn view(&self) -> View<'_> {
        match self {
            Held::Given(v) => *v,
            Held::Own(b) => b.view(),
        }
    }
}

/// Edges by node, as the kernels take them: all lists of one dtype.
pub(in crate::engine::ops) struct Edges<'a> {
    pub(in crate::engine::ops) rowptr: Held<'a>,
    col: Option<Held<'a>>,
    perm: Option<Held<'a>>,
    pub(in crate::engine::ops) nodes: usize,
    pub(in crate::engine::ops) edges: usize,
    /// Whether rowptr has to cover all edges (one that was sorted here leaves out those that were out of range).
    strict: bool,
}

impl<'a> Edges<'a> {
    /// Groups of the caller.
    pub(in crate::engine::ops) fn given(
        g: &EdgeGroups<'a>,
        nodes: usize,
        edges: usize,
        strict: bool,
    ) -> Self {
        let (col, perm) = (g.col.map(Held::Given), g.perm.map(Held::Given));
        Edges { rowptr: Held::Given(g.rowptr), col, perm, nodes, edges, strict }
    }

    pub(in crate::engine::ops) fn col(&self) -> Option<View<'_>> {
        self.col.as_ref().map(Held::view)
    }

    pub(in crate::engine::ops) fn perm(&self) -> Option<View<'_>> {
        self.perm.as_ref().map(Held::view)
    }

    /// Flags of the kernels: 1 for 64-bit lists, 2 for a rowptr that has to cover all edges.
    pub(in crate::engine::ops) fn flags(&self) -> usize {
        (self.rowptr.view().dtype() == DType::I64) as usize | (self.strict as usize) << 1
    }
}

/// Bits of keys up to and including `limit`.
fn bits(limit: usize) -> u32 {
    usize::BITS - limit.leading_zeros()
}

impl Engine {
    /// Keys of a list of nodes, and the sorted pairs: one out of range is reported (unless it is -1 and `pad`) and sorts behind all.
    fn plan_sorted(
        &self,
        op: &'static str,
        nodes: usize,
        list: &View<'_>,
        pad: bool,
    ) -> Result<crate::engine::ops::sort::radix::SortedPairs> {
        let n = list.numel();
        let keys = self.scratch(DType::I32, n)?;
        let args = PlanKeysArgs {
            index: self.arg_in(list),
            keys: self.arg_in(&keys.view()),
            err: self.arg_error(),
            n: n as i64,
            limit: nodes as i64,
            wide: wide_index(list),
            pad: i32::from(pad),
            code: code_of_op(op),
        };
        self.launch(&PLAN_KEYS, DType::I32, "", Grid::Stride(n), &args)?;
        self.sort_pairs(op, &keys.view(), bits(nodes))
    }

    /// `rowptr[v]` = sorted keys below v.
    fn plan_offsets(&self, keys: &View<'_>, rowptr: &View<'_>) -> Result<()> {
        let nodes = rowptr.numel() - 1;
        let args = PlanOffsetsArgs {
            keys: self.arg_in(keys),
            rowptr: self.arg_in(rowptr),
            n: keys.numel() as i64,
            nodes: nodes as i64,
            wide: wide_index(rowptr),
        };
        self.launch(&PLAN_OFFSETS, DType::I32, "", Grid::Stride(nodes + 1), &args)
    }

    /// out[p] = x[at[p]], or at[p].
    fn plan_gather(
        &self,
        op: &'static str,
        x: Option<&View<'_>>,
        at: &View<'_>,
        out: &View<'_>,
    ) -> Result<()> {
        let n = out.numel();
        let args = PlanGatherArgs {
            x: self.arg_opt(x),
            at: self.arg_in(at),
            out: self.arg_in(out),
            err: self.arg_error(),
            n: n as i64,
            size: x.map_or(0, |x| x.numel()) as i64,
            wide_x: i32::from(x.is_some_and(|x| x.dtype() == DType::I64)),
            wide_at: wide_index(at),
            wide_out: wide_index(out),
            code: code_of_op(op),
        };
        self.launch(&PLAN_GATHER, DType::I32, "", Grid::Stride(n), &args)
    }

    /// Reports entries of a list that are negative, or not below `limit`.
    pub(in crate::engine::ops) fn check_list(
        &self,
        op: &'static str,
        list: &View<'_>,
        limit: Option<usize>,
    ) -> Result<()> {
        let keys = self.scratch(DType::I32, list.numel())?;
        let args = PlanKeysArgs {
            index: self.arg_in(list),
            keys: self.arg_in(&keys.view()),
            err: self.arg_error(),
            n: list.numel() as i64,
            limit: limit.unwrap_or(i32::MAX as usize) as i64,
            wide: wide_index(list),
            pad: 0,
            code: code_of_op(op),
        };
        self.launch(&PLAN_KEYS, DType::I32, "", Grid::Stride(list.numel()), &args)
    }

    /// A list of indices in 32 bits.
    pub(in crate::engine::ops) fn narrow_list<'a>(
        &self,
        op: &'static str,
        list: &View<'a>,
    ) -> Result<Held<'a>> {
        if list.dtype() == DType::I32 {
            return Ok(Held::Given(*list));
        }
        let out = self.scratch(DType::I32, list.numel())?;
        self.plan_gather(op, None, list, &out.view())?;
        Ok(Held::Own(out))
    }

    /// The edges by the nodes of `list`, with the other ends where they are given; `needs_perm` for the numbers of the edges. Uses the caller's
    /// groups where there are any.
    pub(in crate::engine::ops) fn grouped<'a>(
        &self,
        op: &'static str,
        nodes: usize,
        list: &View<'a>,
        other: Option<(&View<'a>, usize)>,
        groups: Option<&EdgeGroups<'a>>,
        needs_perm: bool,
    ) -> Result<Edges<'a>> {
        let n = list.numel();
        if let Some(g) = groups {
            let mut e = Edges::given(g, nodes, n, true);
            match (g.col, g.perm, other) {
                (_, _, None) => e.col = None,
                (None, None, Some((o, _))) => e.col = Some(Held::Given(*o)),
                (None, Some(p), Some((o, _))) => {
                    let out = self.scratch(o.dtype(), n)?;
                    self.plan_gather(op, Some(o), &p, &out.view())?;
                    e.col = Some(Held::Own(out));
                }
                (Some(_), ..) => {}
            }
            if !needs_perm {
                e.perm = None;
            }
            return Ok(e);
        }
        let pairs = self.plan_sorted(op, nodes, list, false)?;
        let rowptr = self.scratch(DType::I32, nodes + 1)?;
        self.plan_offsets(&pairs.keys.view(), &rowptr.view())?;
        let col = match other {
            Some((o, _)) => {
                let out = self.scratch(DType::I32, n)?;
                self.plan_gather(op, Some(o), &pairs.positions.view(), &out.view())?;
                Some(Held::Own(out))
            }
            None => None,
        };
        let perm = Some(Held::Own(pairs.positions)).filter(|_| needs_perm);
        Ok(Edges { rowptr: Held::Own(rowptr), col, perm, nodes, edges: n, strict: false })
    }

    /// The long nodes that the cuts of a plan meet (`graph/graph.h`); empty where no node is long.
    pub(in crate::engine::ops) fn long_nodes(&self, e: &Edges<'_>, w: &NodePlan) -> Result<Buffer> {
        let (rowptr, n) = (e.rowptr.view(), 2 * w.cuts);
        let met = self.scratch(DType::I32, n)?;
        let args = PlanCutsArgs {
            rowptr: self.arg_in(&rowptr),
            met: self.arg_in(&met.view()),
            rows: e.nodes as i64,
            entries: e.edges as i64,
            cut_bits: w.cut_bits() as i32,
            n: n as i64,
            wide: wide_index(&rowptr),
        };
        if n > 0 && e.nodes > 0 {
            self.launch(&PLAN_CUTS, DType::I32, "", Grid::Stride(n), &args)?;
        }
        Ok(met)
    }

    /// Where each of `nodes` occurs in a list whose entries may be -1; positions, in the dtypes of the outputs.
    pub(in crate::engine::ops) fn inverse_list(
        &self,
        op: &'static str,
        list: &View<'_>,
        rowptr: &View<'_>,
        perm: &View<'_>,
    ) -> Result<()> {
        let pairs = self.plan_sorted(op, rowptr.numel() - 1, list, true)?;
        self.plan_offsets(&pairs.keys.view(), rowptr)?;
        self.plan_gather(op, None, &pairs.positions.view(), perm)
    }

    /// Edges of each node.
    pub(in crate::engine::ops) fn counts(&self, e: &Edges<'_>, out: &View<'_>) -> Result<()> {
        let rowptr = e.rowptr.view();
        let args = PlanCountsArgs {
            rowptr: self.arg_in(&rowptr),
            out: self.arg_in(out),
            nodes: e.nodes as i64,
            wide: wide_index(&rowptr),
            wide_out: wide_index(out),
        };
        self.launch(&PLAN_COUNTS, DType::I32, "", Grid::Stride(e.nodes), &args)
    }

    /// Row of each entry of a CSR matrix (i32); reports a rowptr that does not rise from 0 to the number of entries.
    pub(in crate::engine::ops) fn entry_rows(
        &self,
        op: &'static str,
        rowptr: &View<'_>,
        entries: usize,
    ) -> Result<Buffer> {
        let out = self.scratch(DType::I32, entries)?;
        let rows = rowptr.numel() - 1;
        let args = PlanRowsArgs {
            rowptr: self.arg_in(rowptr),
            row: self.arg_in(&out.view()),
            err: self.arg_error(),
            entries: entries as i64,
            rows: rows as i64,
            wide: wide_index(rowptr),
            code: code_of_op(op),
        };
        self.launch(&PLAN_ROWS, DType::I32, "", Grid::Stride(entries.max(rows + 1)), &args)?;
        Ok(out)
    }
}

impl CsrOps for Engine {
    fn csr(&self, op: Csr, io: CsrIo<'_>) -> Result<()> {
        const OP: &str = "csr";
        let (n, rows) = check_csr(op, &io)?;
        let out = crate::engine::ops::graph::aggregate::out_view;
        let (rowptr, col, perm, values) =
            (out(&io.rowptr), out(&io.out_col), out(&io.perm), out(&io.out_values));
        let views = [
            ("rows", Some(io.rows)),
            ("col", io.col),
            ("values", io.values),
            ("rowptr", rowptr),
            ("out_col", col),
            ("perm", perm),
            ("out_values", values),
        ];
        self.check_owner_all(OP, &views)?;
        // The list to sort by, the order that its sort gives, and what becomes the columns.
        let (positions, columns) = match (op, io.col) {
            (Csr::Transpose, Some(c)) => {
                let entry_rows = self.entry_rows(OP, &io.rows, n)?;
                let pairs = self.plan_sorted(OP, rows, &c, false)?;
                if let Some(r) = &rowptr {
                    self.plan_offsets(&pairs.keys.view(), r)?;
                }
                (pairs.positions, Some(Held::Own(entry_rows)))
            }
            (Csr::Sort, Some(c)) => {
                // By column first, then, stably, by row.
                let entry_rows = self.entry_rows(OP, &io.rows, n)?;
                let by_col = self.plan_sorted(OP, i32::MAX as usize - 1, &c, false)?;
                let keys = self.scratch(DType::I32, n)?;
                self.plan_gather(OP, Some(&entry_rows.view()), &by_col.positions.view(), &keys.view())?;
                let by_row = self.sort_pairs(OP, &keys.view(), bits(rows))?;
                let order = self.scratch(DType::I32, n)?;
                self.plan_gather(
                    OP,
                    Some(&by_col.positions.view()),
                    &by_row.positions.view(),
                    &order.view(),
                )?;
                (order, Some(Held::Given(c)))
            }
            (_, c) => {
                let pairs = self.plan_sorted(OP, rows, &io.rows, false)?;
                if let Some(r) = &rowptr {
                    self.plan_offsets(&pairs.keys.view(), r)?;
                }
                (pairs.positions, c.map(Held::Given))
            }
        };
        let positions = positions.view();
        if let (Some(out), Some(from)) = (&col, &columns) {
            self.plan_gather(OP, Some(&from.view()), &positions, out)?;
        }
        if let Some(out) = &perm {
            self.plan_gather(OP, None, &positions, out)?;
        }
        match (&io.values, &values) {
            (Some(v), Some(out)) => self.select_rows(OP, 0, v, &positions, out, false),
            _ => Ok(()),
        }
    }
}
