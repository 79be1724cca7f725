//! Positions in groups: reductions and softmax within each.

use std::sync::Arc;

use once_cell::sync::OnceCell;
use trefoil::DType;
use trefoil::ops::graph::{Csr, CsrIo, EdgeGroups, GroupBwd, GroupIo, GroupReduce};

use crate::core::autograd::{BackwardCtx, Saved, grad_enabled};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Operand, Tensor, axis, same_device};
use crate::functional::index::range::{check_index, check_range};
use crate::functional::operand::{operand, save, saved, view, view_mut};

#[derive(Debug)]
struct Lists {
    index: Tensor,
    size: usize,
    rowptr: Tensor,
    perm: Tensor,
    /// Where `perm` has each position; made when it is first asked for.
    inverse: OnceCell<Tensor>,
    col: Option<Tensor>,
}

/// Which of `size` groups each of n positions belongs to, with the positions sorted by group, once, on the device: the graphs of a batch of
/// nodes, the targets of edges. Clones share it.
#[derive(Debug, Clone)]
pub struct Groups {
    lists: Arc<Lists>,
}

/// The memory of the sorted lists, for a backend call.
pub(super) struct GroupOperands {
    rowptr: Operand,
    perm: Operand,
    col: Option<Operand>,
}

impl GroupOperands {
    pub(super) fn groups(&self) -> Result<EdgeGroups<'_>> {
        Ok(EdgeGroups::new(self.rowptr.view()?).perm(self.perm.view()?).col(view(&self.col)?))
    }
}

/// Refuses what is not an index `[n]`.
fn check_list(op: &'static str, index: &Tensor) -> Result<()> {
    check_index(op, "index", index)?;
    match index.rank() {
        1 => Ok(()),
        _ => Err(invalid(op, "index", "shape [n]", format!("{:?}", index.shape()))),
    }
}

impl Groups {
    /// From the group of each position, i32 or i64 `[n]`, below `size`. Waits for the device once, to examine the groups. Errors: `Invalid`
    /// for other dtypes and shapes, and for 2^31 groups or positions and more;
    /// [`NnError::OutOfRange`](crate::NnError::OutOfRange) with the position of the first group out of range.
    pub fn new(index: &Tensor, size: usize) -> Result<Groups> {
        const OP: &str = "Groups";
        check_list(OP, index)?;
        check_range(OP, index, size, None, |at| format!("position {at}"))?;
        Self::build(index.copy()?.detach(), size, None)
    }

    /// Sorts positions whose groups have been examined; `others` (the other ends of edges) are sorted with them.
    pub(super) fn build(index: Tensor, size: usize, others: Option<&Tensor>) -> Result<Groups> {
        let (device, n) = (index.device(), index.numel());
        if size >= i32::MAX as usize {
            return Err(invalid("Groups", "size", "fewer than 2^31 - 1 groups", format!("{size}")));
        }
        let list = |n: usize| Tensor::empty(device, index.dtype(), &[n]);
        let (rowptr, perm) = (list(size + 1)?, list(n)?);
        let col = others.map(|_| list(n)).transpose()?;
        let (io, oo) = (index.operand(), operand(others));
        let (ro, po, co) = (rowptr.operand(), perm.operand(), operand(col.as_ref()));
        let mut csr = CsrIo::new(io.view()?);
        (csr.col, csr.out_col) = (view(&oo)?, view_mut(&co)?);
        (csr.rowptr, csr.perm) = (Some(ro.view_mut()?), Some(po.view_mut()?));
        device.csr(Csr::FromCoo, csr)?;
        let inverse = OnceCell::new();
        Ok(Groups { lists: Arc::new(Lists { index, size, rowptr, perm, inverse, col }) })
    }

    /// Of lists that are sorted already.
    pub(super) fn sorted(index: &Tensor, size: usize, rowptr: &Tensor, perm: &Tensor) -> Groups {
        let [index, rowptr, perm] = [index, rowptr, perm].map(Tensor::clone);
        let inverse = OnceCell::new();
        Groups { lists: Arc::new(Lists { index, size, rowptr, perm, inverse, col: None }) }
    }

    /// The group of each position, `[n]`.
    pub fn index(&self) -> &Tensor {
        &self.lists.index
    }

    /// Number of groups.
    pub fn size(&self) -> usize {
        self.lists.size
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.lists.index.numel()
    }

    /// Whether there are no positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the positions of each group begin in [`perm`](Groups::perm), `[size + 1]`; PyTorch Geometric's `ptr` where positions are in
    /// the order of their groups.
    pub fn rowptr(&self) -> &Tensor {
        &self.lists.rowptr
    }

    /// The positions by group, `[n]`; those of one group keep their order.
    pub fn perm(&self) -> &Tensor {
        &self.lists.perm
    }

    /// Where [`perm`](Groups::perm) has each position, `[n]`.
    fn inverse(&self) -> Result<&Tensor> {
        self.lists.inverse.get_or_try_init(|| {
            let perm = self.perm();
            let places = Tensor::arange(perm.device(), perm.dtype(), 0.0, 1.0, perm.numel())?;
            perm.index_copy(0, perm, &places)
        })
    }

    /// The other ends of edges by group.
    pub(super) fn col(&self) -> Option<&Tensor> {
        self.lists.col.as_ref()
    }

    /// What each position has of its group: x `[size, ..] -> [n, ..]`. The gradient is the sum of each group's, by the sorted lists, in an order that
    /// does not change. Source `x[index]`, DGL's `copy_u`. Errors: `Invalid` for another number of rows.
    pub fn spread(&self, x: &Tensor) -> Result<Tensor> {
        const OP: &str = "spread";
        same_device(OP, x, self.index())?;
        if x.shape().first() != Some(&self.size()) {
            return Err(invalid(
                OP,
                "x",
                format!("shape [{}, ..]", self.size()),
                format!("shape {:?}", x.shape()),
            ));
        }
        let y = x.detach().index_select(0, self.index())?;
        Ok(y.record(OP, &[x], || {
            let groups = self.clone();
            move |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                if cx.needs(0) { cx.give(0, dy.group_reduce(GroupReduce::Sum, 0, &groups)?) } else { Ok(()) }
            }
        }))
    }

    /// The rows of x `[n, ..]` in the order of the groups ([`perm`](Groups::perm)). Source `x[perm]`. Errors: `Invalid` for another number of rows.
    pub fn ordered(&self, x: &Tensor) -> Result<Tensor> {
        const OP: &str = "ordered";
        axis(OP, 0, x.rank())?;
        self.check_positions(OP, x, 0)?;
        let y = x.detach().index_select(0, self.perm())?;
        Ok(y.record(OP, &[x], || {
            let groups = self.clone();
            move |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                // Each row goes back to where it came from.
                if cx.needs(0) { cx.give(0, dy.index_select(0, groups.inverse()?)?) } else { Ok(()) }
            }
        }))
    }

    /// Number of positions of each group, i64 `[size]`. `torch.bincount`.
    pub fn counts(&self) -> Result<Tensor> {
        let begins = self.rowptr().to_dtype(DType::I64)?;
        begins.narrow(0, 1, self.size())?.sub(&begins.narrow(0, 0, self.size())?)
    }

    pub(super) fn operands(&self) -> GroupOperands {
        let l = &*self.lists;
        let [rowptr, perm] = [&l.rowptr, &l.perm].map(Tensor::operand);
        GroupOperands { rowptr, perm, col: operand(l.col.as_ref()) }
    }

    fn check_positions(&self, op: &'static str, x: &Tensor, at: usize) -> Result<()> {
        same_device(op, x, self.index())?;
        if x.shape()[at] != self.len() {
            let expected = format!("{} positions in axis {at}", self.len());
            return Err(invalid(op, "x", expected, format!("shape {:?}", x.shape())));
        }
        Ok(())
    }
}

fn chooses(how: GroupReduce) -> bool {
    matches!(how, GroupReduce::Max { .. } | GroupReduce::Min { .. })
}

impl Tensor {
    /// The positions of an axis combined by group: floats `[.., n, ..] -> [.., size, ..]`. A group without positions is 0 (1 for a product;
    /// what the rule says for maxima and minima). The gradient of a maximum or minimum goes to the first of equals. Source
    /// `torch.scatter_reduce`, `torch_geometric.utils.scatter`. Errors: `Invalid` for an axis of another size, dtypes other than floats, a
    /// negative eps of `Std`.
    pub fn group_reduce(&self, how: GroupReduce, along: isize, groups: &Groups) -> Result<Tensor> {
        const OP: &str = "group_reduce";
        let at = axis(OP, along, self.rank())?;
        groups.check_positions(OP, self, at)?;
        let (lead, tail) = (&self.shape()[..at], &self.shape()[at + 1..]);
        let (outer, inner) = (lead.iter().product(), tail.iter().product());
        let x = self.contiguous()?.reshape(&[outer, groups.len(), inner])?;
        let y = x.reduce_groups(how, groups)?;
        y.reshape(&[lead, &[groups.size()], tail].concat())
    }

    /// [outer, n, inner] -> [outer, size, inner].
    fn reduce_groups(&self, how: GroupReduce, groups: &Groups) -> Result<Tensor> {
        let (outer, inner) = (self.shape()[0], self.shape()[2]);
        let shape = [outer, groups.size(), inner];
        let tracked = grad_enabled() && self.requires_grad();
        let wanted = |on: bool, dtype: DType, shape: &[usize]| match tracked && on {
            true => Tensor::empty(self.device(), dtype, shape).map(Some),
            false => Ok(None),
        };
        let y = self.like(&shape)?;
        let arg = wanted(chooses(how), groups.index().dtype(), &shape)?;
        let counts = wanted(how == GroupReduce::Mean, DType::I32, &[groups.size()])?;
        let (xo, io, yo, lists) = (self.operand(), groups.index().operand(), y.operand(), groups.operands());
        let [ao, co] = [&arg, &counts].map(|t| operand(t.as_ref()));
        let mut call = GroupIo::new(xo.view()?, io.view()?, yo.grad(false)?).groups(lists.groups()?);
        (call.arg, call.counts) = (view_mut(&ao)?, view_mut(&co)?);
        self.device().group_reduce(how, call)?;
        let plain = y.clone();
        Ok(y.record("group_reduce", &[self], || {
            let reads_x = matches!(how, GroupReduce::Prod | GroupReduce::Std { .. });
            let x = reads_x.then(|| Saved::new(self));
            let y = matches!(how, GroupReduce::Std { .. }).then(|| Saved::new(&plain));
            let (arg, counts, groups) = (save(arg.as_ref()), save(counts.as_ref()), groups.clone());
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                let (x, y, arg) = (saved(cx, &x)?, saved(cx, &y)?, saved(cx, &arg)?);
                let (counts, io, lists) = (saved(cx, &counts)?, groups.index().operand(), groups.operands());
                let dyo = dy.operand();
                let mut call =
                    GroupBwd::new(dyo.view()?, dx.out()?).index(io.view()?).groups(lists.groups()?);
                (call.src, call.y) = (view(&x)?, view(&y)?);
                (call.arg, call.counts) = (view(&arg)?, view(&counts)?);
                Ok(dy.device().group_reduce_bwd(how, call)?)
            }
        }))
    }

    /// How often each of the numbers below `size` occurs in an index (i32 or i64 `[n]`), i64 `[size]`; where the positions are needed by group, too,
    /// [`Groups::counts`] has them without counting. No gradient. Source `torch_geometric.utils.degree`. Errors: `Invalid` for other dtypes and ranks;
    /// a number out of range is reported at the next synchronisation.
    pub fn degree(&self, size: usize) -> Result<Tensor> {
        const OP: &str = "degree";
        check_list(OP, self)?;
        let index = self.detach().contiguous()?;
        let y = Tensor::empty(self.device(), DType::I64, &[size])?;
        self.device().degree(index.operand().view()?, y.operand().view_mut()?)?;
        Ok(y)
    }

    /// Softmax over the positions of each group: floats `[n, ..] -> [n, ..]`, each trailing position by itself. A slice of only -inf, or
    /// with +inf or NaN, is NaN. Source `torch_geometric.utils.softmax`. Errors: `Invalid` for another number of positions, dtypes other
    /// than floats.
    pub fn group_softmax(&self, groups: &Groups) -> Result<Tensor> {
        const OP: &str = "group_softmax";
        if self.rank() == 0 {
            return Err(invalid(OP, "x", "shape [n, ..]", "a scalar"));
        }
        groups.check_positions(OP, self, 0)?;
        let (x, y) = (self.contiguous()?, self.like(self.shape())?);
        let (xo, io, yo, lists) = (x.operand(), groups.index().operand(), y.operand(), groups.operands());
        let size = groups.size();
        self.device().edge_softmax(size, io.view()?, Some(lists.groups()?), xo.view()?, yo.view_mut()?)?;
        let plain = y.clone();
        Ok(y.record(OP, &[self], || {
            let (y, groups) = (Saved::new(&plain), groups.clone());
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, y) = (cx.dy()?.contiguous()?, y.get(cx)?.operand());
                let (io, lists, dyo) = (groups.index().operand(), groups.operands(), dy.operand());
                let lists = Some(lists.groups()?);
                Ok(dy.device().edge_softmax_bwd(
                    size,
                    io.view()?,
                    lists,
                    dyo.view()?,
                    y.view()?,
                    dx.out()?,
                )?)
            }
        }))
    }
}
