//! Self-loops, and weights of edges normalised by degrees.

use trefoil::ops::graph::GroupReduce;

use super::structure::{Graph, Looped};
use crate::core::autograd::{BackwardCtx, Saved};
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;

impl Graph {
    /// Edges of each node to itself, `[2, N]`.
    fn loops(&self, nodes: usize) -> Result<Tensor> {
        let index = self.edge_index();
        let ids = Tensor::arange(index.device(), index.dtype(), 0.0, 1.0, nodes)?;
        Tensor::stack(0, &[&ids, &ids])
    }

    /// The numbers of the edges that are self-loops, or of all others. Waits for the device, which alone knows how many they are.
    fn edges_that_loop(&self, loops: bool) -> Result<Tensor> {
        let mask = if loops { self.src().eq(self.dst())? } else { self.src().ne(self.dst())? };
        let at = mask.nonzero()?;
        at.reshape(&[at.numel()])
    }

    fn rebuilt(&self, edge_index: Tensor, op: &'static str) -> Result<Graph> {
        let n = self.check_square(op)?;
        let batch = match self.num_graphs() {
            1 => None,
            _ => Some(self.batch()?.clone()),
        };
        Graph::build(edge_index, [n, n], batch)
    }

    /// The graph with an edge of each node to itself behind its edges, and the rows `[E, ..]` of `edge_attr` (weights, features) with
    /// `fill` for these. Source `torch_geometric.utils.add_self_loops`. Errors: `Invalid` for a bipartite graph, another number of rows.
    pub fn add_self_loops(&self, edge_attr: Option<&Tensor>, fill: f64) -> Result<(Graph, Option<Tensor>)> {
        const OP: &str = "add_self_loops";
        let n = self.check_square(OP)?;
        let attr = match edge_attr {
            None => None,
            Some(a) => {
                self.check_edges(OP, "edge_attr", a)?;
                let more = Tensor::full(a.device(), a.dtype(), &[&[n], &a.shape()[1..]].concat(), fill)?;
                Some(Tensor::concat(0, &[a, &more])?)
            }
        };
        let edges = Tensor::concat(1, &[self.edge_index(), &self.loops(n)?])?;
        Ok((self.rebuilt(edges, OP)?, attr))
    }

    /// The graph without edges of a node to itself, and the rows of `edge_attr` that remain. Waits for the device, which alone knows how
    /// many they are. Source `torch_geometric.utils.remove_self_loops`. Errors: `Invalid` for a bipartite graph, another number of rows.
    pub fn remove_self_loops(&self, edge_attr: Option<&Tensor>) -> Result<(Graph, Option<Tensor>)> {
        const OP: &str = "remove_self_loops";
        self.check_square(OP)?;
        if let Some(a) = edge_attr {
            self.check_edges(OP, "edge_attr", a)?;
        }
        let kept = self.edges_that_loop(false)?;
        let attr = edge_attr.map(|a| a.index_select(0, &kept)).transpose()?;
        Ok((self.rebuilt(self.edge_index().index_select(1, &kept)?, OP)?, attr))
    }

    /// The graph in which each node has one edge to itself, behind the other edges: where there was one its weight (the last of several),
    /// else `fill`. The first call of a graph waits for the device, which alone knows how many self-loops there are; the graph is kept. Source
    /// `torch_geometric.utils.add_remaining_self_loops`. Errors: `Invalid` for a bipartite graph, weights that are not `[E]`.
    pub fn add_remaining_self_loops(&self, edge_weight: &Tensor, fill: f64) -> Result<(Graph, Tensor)> {
        const OP: &str = "add_remaining_self_loops";
        let n = self.check_square(OP)?;
        self.check_weight(OP, edge_weight)?;
        let Looped { graph, others, loops } = self.looped().get_or_try_init(|| {
            let (others, loops) = (self.edges_that_loop(false)?, self.edges_that_loop(true)?);
            let edges = Tensor::concat(1, &[&self.edge_index().index_select(1, &others)?, &self.loops(n)?])?;
            Ok::<_, NnError>(Looped { graph: self.rebuilt(edges, OP)?, others, loops })
        })?;
        let filled = Tensor::full(edge_weight.device(), edge_weight.dtype(), &[n], fill)?;
        let ends = self.src().index_select(0, loops)?;
        let own = filled.index_copy(0, &ends, &edge_weight.index_select(0, loops)?)?;
        Ok((graph.clone(), Tensor::concat(0, &[&edge_weight.index_select(0, others)?, &own])?))
    }

    fn check_weight(&self, op: &'static str, edge_weight: &Tensor) -> Result<()> {
        self.check_edges(op, "edge_weight", edge_weight)?;
        if edge_weight.rank() != 1 || !edge_weight.dtype().is_float() {
            let got = format!("{} {:?}", edge_weight.dtype().name(), edge_weight.shape());
            return Err(invalid(op, "edge_weight", "floats of shape [E]", got));
        }
        Ok(())
    }

    /// The weights of D^-1/2 A D^-1/2, floats `[E] -> [E]`: each weight divided by the roots of the sums of weights into both of its ends;
    /// 0 where such a sum is not above 0. Differentiable in the weights, also through the sums. Source Kipf and Welling (2017). Errors:
    /// `Invalid` for a bipartite graph, other shapes and dtypes.
    pub fn sym_norm(&self, edge_weight: &Tensor) -> Result<Tensor> {
        const OP: &str = "sym_norm";
        self.check_square(OP)?;
        self.check_weight(OP, edge_weight)?;
        // The kernel takes the entries by row.
        let (by, weight) = (self.by_dst(), edge_weight.contiguous()?);
        let w = weight.detach().index_select(0, by.perm())?;
        let y = w.like(w.shape())?;
        let (rowptr, wo, yo) = (by.rowptr().operand(), w.operand(), y.operand());
        let Some(col) = by.col().map(Tensor::operand) else {
            return Err(invalid(OP, "graph", "edges by target", "none"));
        };
        y.device().sym_normalize(rowptr.view()?, col.view()?, Some(wo.view()?), yo.view_mut()?)?;
        let y = y.zeros_like()?.index_copy(0, by.perm(), &y)?;
        Ok(y.record(OP, &[&weight], || {
            let (graph, weight) = (self.clone(), Saved::new(&weight));
            move |cx: &mut BackwardCtx<'_>| {
                let dw = graph.sym_norm_bwd(weight.get(cx)?, &cx.dy()?)?;
                cx.give(0, dw)
            }
        }))
    }

    /// The gradient of the weights w of y = w s_src s_dst with s = d^-1/2, d the sums of weights into the nodes.
    fn sym_norm_bwd(&self, w: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let s = self.inverse_degree(w, -0.5)?;
        let (at_src, at_dst) = (s.index_select(0, self.src())?, s.index_select(0, self.dst())?);
        let p = w.mul(dy)?;
        let into = p.mul(&at_src)?.group_reduce(GroupReduce::Sum, 0, self.by_dst())?;
        let out = p.mul(&at_dst)?.group_reduce(GroupReduce::Sum, 0, self.by_src())?;
        // ds/dd = -1/2 d^-3/2
        let dd = into.add(&out)?.mul(&self.inverse_degree(w, -1.5)?)?.mul_scalar(-0.5)?;
        dy.mul(&at_src)?.mul(&at_dst)?.add(&dd.index_select(0, self.dst())?)
    }

    /// The weights of D^-1 A, floats `[E] -> [E]`: each weight divided by the sum of the weights into its target; 0 where that is not above
    /// 0. Differentiable in the weights, also through the sums. Errors: `Invalid` for other shapes and dtypes.
    pub fn row_norm(&self, edge_weight: &Tensor) -> Result<Tensor> {
        self.check_weight("row_norm", edge_weight)?;
        let scale = self.inverse_degree(edge_weight, -1.0)?;
        edge_weight.mul(&scale.index_select(0, self.dst())?)
    }

    /// A power of the sums of the weights into each target, 0 where a sum is not above 0.
    fn inverse_degree(&self, edge_weight: &Tensor, power: f64) -> Result<Tensor> {
        let degree = edge_weight.group_reduce(GroupReduce::Sum, 0, self.by_dst())?;
        let empty = degree.detach().le_scalar(0.0)?;
        degree.masked_fill(&empty, 1.0)?.pow_scalar(power)?.masked_fill(&empty, 0.0)
    }

    /// Graph and weights of a graph convolution: a self-loop of weight 1 (2 where `improved`) for each node that has none, if wanted, and
    /// weights normalised by [`sym_norm`](Graph::sym_norm). Without self-loops to add nothing waits for the device. Source
    /// `torch_geometric.nn.conv.gcn_conv.gcn_norm`. Errors: `Invalid` for a bipartite graph, weights that are not floats `[E]`.
    pub fn gcn_norm(
        &self,
        edge_weight: &Tensor,
        improved: bool,
        add_self_loops: bool,
    ) -> Result<(Graph, Tensor)> {
        let fill = if improved { 2.0 } else { 1.0 };
        let (graph, weight) = match add_self_loops {
            true => self.add_remaining_self_loops(edge_weight, fill)?,
            false => (self.clone(), edge_weight.clone()),
        };
        let weight = graph.sym_norm(&weight)?;
        Ok((graph, weight))
    }
}
