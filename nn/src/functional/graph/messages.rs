//! Sparse products, message passing, and functions of the two ends of edges.

use trefoil::ops::activation::Activation;
use trefoil::ops::graph::{EdgeOp, Message, MessageReduce, Messages, MessagesBwd, SddmmBwd, Spmm, SpmmBwd};

use super::structure::Graph;
use crate::core::autograd::{BackwardCtx, Saved, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};
use crate::functional::activation::through;
use crate::functional::gemm::fuses;
use crate::functional::operand::{Inputs, operand, save, saved, view, view_mut, whole};

/// What a message reads: x, and e.
fn reads(message: Message) -> (bool, bool) {
    let e = matches!(message, Message::CopyE | Message::UMulE | Message::UAddE);
    (message != Message::CopyE, e)
}

/// Whether the gradient of a message reads the features of nodes.
fn multiplies(message: Message) -> bool {
    matches!(message, Message::UMulE | Message::UMulV | Message::UDotV)
}

/// An operand that a message reads, or none where it does not.
fn wanted<'a>(arg: &'static str, on: bool, t: Option<&'a Tensor>) -> Result<Option<&'a Tensor>> {
    match (on, t) {
        (true, None) => Err(invalid("message_passing", arg, "a tensor that the message reads", "none")),
        (false, Some(_)) => {
            Err(invalid("message_passing", arg, "none: the message does not read it", "a tensor"))
        }
        _ => Ok(t),
    }
}

impl Graph {
    /// act(A x + bias) for the sparse matrix A `[num_dst, num_src]` of the graph, with the weight of an edge from j to i in `[i, j]`
    /// (repeated edges add up): each target's sum of the features of its sources times the edges' weights, x `[num_src, ..] ->
    /// [num_dst, ..]`. Floats; `edge_weight` `[E]`, or `[E, H]` for x `[num_src, H, F]`, 1 where absent; bias `[F]` along the last axis. A
    /// target without edges is act(bias). Gradients flow to x, weights and bias. Source `torch.sparse.mm`. Errors: `Invalid` for shapes and
    /// dtypes that do not fit.
    pub fn spmm(
        &self,
        x: &Tensor,
        edge_weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        act: Activation,
    ) -> Result<Tensor> {
        const OP: &str = "spmm";
        // A product keeps no value before the activation.
        if act != Activation::Identity && !(fuses(act) && act.reads_output()) {
            return self.spmm(x, edge_weight, bias, Activation::Identity)?.activation(act);
        }
        self.check_nodes(OP, "x", x, self.num_src())?;
        if let Some(w) = edge_weight {
            self.check_edges(OP, "edge_weight", w)?;
        }
        if let Some(b) = bias {
            same_device(OP, x, b)?;
        }
        let (x, bias) = (x.contiguous()?, whole(bias)?);
        // The matrix has its entries by row.
        let values = edge_weight.map(|w| w.index_select(0, self.by_dst().perm())).transpose()?;
        let mut inputs = Inputs::default();
        inputs.push(Some(&x));
        let [iv, ib] = [&values, &bias].map(|t| inputs.push(t.as_ref()));
        let y = x.like(&[&[self.num_dst()], &x.shape()[1..]].concat())?;
        let (xo, yo, rowptr) = (x.operand(), y.operand(), self.by_dst().rowptr().operand());
        let [vo, bo, col] = [values.as_ref(), bias.as_ref(), self.by_dst().col()].map(operand);
        let Some(col) = col else { return Err(invalid(OP, "graph", "edges by target", "none")) };
        let mut io = Spmm::new(rowptr.view()?, col.view()?, xo.view()?, yo.view_mut()?).act(act);
        (io.values, io.bias) = (view(&vo)?, view(&bo)?);
        x.device().spmm(io)?;
        let plain = y.clone();
        Ok(y.record(OP, &inputs.list, || {
            let (graph, x, values) = (self.clone(), Saved::new(&x), save(values.as_ref()));
            let y = (act != Activation::Identity).then(|| Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dv, db) = (cx.target(0)?, cx.target(iv)?, cx.target(ib)?);
                let mut dy = cx.dy()?.contiguous()?;
                if let Some(y) = &y {
                    dy = through(act, &dy, y.get(cx)?)?;
                }
                let (x, values, dyo) = (x.get(cx)?.operand(), saved(cx, &values)?, dy.operand());
                let (rowptr, transpose) = (graph.by_dst().rowptr().operand(), graph.transpose()?);
                let Some(col) = operand(graph.by_dst().col()) else { return Ok(()) };
                let mut io = SpmmBwd::new(dyo.view()?, rowptr.view()?, col.view()?, x.view()?)
                    .transpose(transpose.groups()?);
                io.values = view(&values)?;
                (io.dx, io.dvalues, io.dbias) = (out(&dx)?, out(&dv)?, out(&db)?);
                Ok(dy.device().spmm_bwd(io)?)
            }
        }))
    }

    /// The messages of the edges into each target, combined: x `[num_src, ..]`, e `[E]` followed by leading axes of x's rows (for `CopyE`
    /// any) `-> [num_dst, ..]`, floats. Messages are not stored. A target without edges is 0. `UDotV` gives `[E, ..]`, x's shape without its
    /// last axis, and combines nothing. Of equal maxima or minima the first edge gets the gradient. Source DGL's message passing,
    /// `torch_geometric.nn.MessagePassing`. Errors: `Invalid` for operands that are missing or that the message does not read, shapes and
    /// dtypes that do not fit, and messages of both ends on a bipartite graph.
    pub fn message_passing(
        &self,
        message: Message,
        reduce: MessageReduce,
        x: Option<&Tensor>,
        e: Option<&Tensor>,
    ) -> Result<Tensor> {
        const OP: &str = "message_passing";
        let (reads_x, reads_e) = reads(message);
        let (x, e) = (wanted("x", reads_x, x)?, wanted("e", reads_e, e)?);
        if let Some(x) = x {
            self.check_nodes(OP, "x", x, self.num_src())?;
        }
        if let Some(e) = e {
            self.check_edges(OP, "e", e)?;
        }
        let (x, e) = (whole(x)?, whole(e)?);
        let Some(rows) = x.as_ref().or(e.as_ref()) else { return Err(invalid(OP, "x", "a tensor", "none")) };
        let tail = &rows.shape()[1..];
        let per_edge = message == Message::UDotV;
        let shape = match (per_edge, tail.split_last()) {
            (false, _) => [&[self.num_dst()], tail].concat(),
            (true, Some((_, lead))) => [&[self.num_edges()], lead].concat(),
            (true, None) => return Err(invalid(OP, "x", "shape [N, .., F]", format!("{:?}", rows.shape()))),
        };
        let mut inputs = Inputs::default();
        let [ix, ie] = [&x, &e].map(|t| inputs.push(t.as_ref()));
        let tracked = inputs.tracked() && !per_edge;
        let index = self.edge_index();
        let list = |on: bool, shape: &[usize]| match tracked && on {
            true => Tensor::empty(index.device(), index.dtype(), shape).map(Some),
            false => Ok(None),
        };
        let y = rows.like(&shape)?;
        let arg = list(matches!(reduce, MessageReduce::Max | MessageReduce::Min), &shape)?;
        let degree = list(reduce == MessageReduce::Mean, &[self.num_dst()])?;
        let (src, dst, by_dst) = (self.src().operand(), self.dst().operand(), self.by_dst().operands());
        let [xo, eo, ao, go] = [&x, &e, &arg, &degree].map(|t| operand(t.as_ref()));
        let yo = y.operand();
        let mut io = Messages::new(src.view()?, dst.view()?, yo.view_mut()?).by_dst(by_dst.groups()?);
        (io.x, io.e) = (view(&xo)?, view(&eo)?);
        (io.arg, io.degree) = (view_mut(&ao)?, view_mut(&go)?);
        y.device().message_passing(message, reduce, io)?;
        Ok(y.record(OP, &inputs.list, || {
            let graph = self.clone();
            let x = save(x.as_ref().filter(|_| multiplies(message)));
            let e = save(e.as_ref().filter(|_| message == Message::UMulE));
            let (arg, degree) = (save(arg.as_ref()), save(degree.as_ref()));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, de) = (cx.target(ix)?, cx.target(ie)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, e) = (saved(cx, &x)?, saved(cx, &e)?);
                let (arg, degree) = (saved(cx, &arg)?, saved(cx, &degree)?);
                let (src, dst, dyo) = (graph.src().operand(), graph.dst().operand(), dy.operand());
                let [by_src, by_dst] = [graph.by_src(), graph.by_dst()].map(|g| g.operands());
                let mut io = MessagesBwd::new(dyo.view()?, src.view()?, dst.view()?).by_dst(by_dst.groups()?);
                // The sources' rows are known only where their features or their gradient are there.
                if dx.is_some() {
                    io.by_src = Some(by_src.groups()?);
                }
                (io.x, io.e) = (view(&x)?, view(&e)?);
                (io.arg, io.degree) = (view(&arg)?, view(&degree)?);
                (io.dx, io.de) = (out(&dx)?, out(&de)?);
                Ok(dy.device().message_passing_bwd(message, reduce, io)?)
            }
        }))
    }

    /// A function of the features of both ends of each edge: x `[num_src, ..]` at its source and y `[num_dst, ..]` at its target `->
    /// [E, ..]`, floats; `Dot` contracts the last axis. Source `torch.sparse.sampled_addmm`, DGL's `gsddmm`. Errors: `Invalid` for shapes
    /// and dtypes that do not fit.
    pub fn sddmm(&self, op: EdgeOp, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        const OP: &str = "sddmm";
        self.check_nodes(OP, "x", x, self.num_src())?;
        self.check_nodes(OP, "y", y, self.num_dst())?;
        let (x, y) = (x.contiguous()?, y.contiguous()?);
        let tail = match (op, x.shape()[1..].split_last()) {
            (EdgeOp::Dot, Some((_, lead))) => lead,
            (EdgeOp::Dot, None) => {
                return Err(invalid(OP, "x", "shape [num_src, .., F]", format!("{:?}", x.shape())));
            }
            _ => &x.shape()[1..],
        };
        let z = x.like(&[&[self.num_edges()], tail].concat())?;
        let (src, dst) = (self.src().operand(), self.dst().operand());
        let (xo, yo, zo) = (x.operand(), y.operand(), z.operand());
        z.device().sddmm(op, src.view()?, dst.view()?, xo.view()?, yo.view()?, zo.view_mut()?)?;
        Ok(z.record(OP, &[&x, &y], || {
            let (graph, x, y) = (self.clone(), Saved::new(&x), Saved::new(&y));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dy) = (cx.target(0)?, cx.target(1)?);
                let dz = cx.dy()?.contiguous()?;
                let (x, y, dzo) = (x.get(cx)?.operand(), y.get(cx)?.operand(), dz.operand());
                let (src, dst) = (graph.src().operand(), graph.dst().operand());
                let [by_src, by_dst] = [graph.by_src(), graph.by_dst()].map(|g| g.operands());
                let mut io = SddmmBwd::new(dzo.view()?, src.view()?, dst.view()?, x.view()?, y.view()?)
                    .by_src(by_src.groups()?)
                    .by_dst(by_dst.groups()?);
                (io.dx, io.dy) = (out(&dx)?, out(&dy)?);
                Ok(dz.device().sddmm_bwd(op, io)?)
            }
        }))
    }
}
