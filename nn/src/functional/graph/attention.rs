//! Attention along the edges of a graph.

use trefoil::ops::graph::{Gat, GatBwd};

use super::structure::Graph;
use crate::core::autograd::{BackwardCtx, Saved, grad_enabled, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::operand::{operand, save, saved, view_mut};

impl Graph {
    /// Softmax over the edges into each target: floats `[E, ..] -> [E, ..]`, each trailing position (a head) by itself. Source
    /// `torch_geometric.utils.softmax(logits, dst)`. Errors: `Invalid` for another number of edges, dtypes other than floats.
    pub fn edge_softmax(&self, logits: &Tensor) -> Result<Tensor> {
        self.check_edges("edge_softmax", "logits", logits)?;
        logits.group_softmax(self.by_dst())
    }

    /// Graph attention in one pass: y_i = sum of a_e x_j over the edges e from j to i, a the softmax over the edges into i of
    /// leaky_relu(score_src_j + score_dst_i) with this slope. x `[num_src, H, F]`, `score_src` `[num_src, H]`, `score_dst` `[num_dst, H]`
    /// `-> [num_dst, H, F]`, floats. A target without edges is 0. Attention is not stored; the backward computes it again. Source
    /// Velickovic et al. (2018), `torch_geometric.nn.GATConv` without its linear maps. Errors: `Invalid` for shapes and dtypes that do not
    /// fit, a slope that is not finite.
    pub fn gat(&self, x: &Tensor, score_src: &Tensor, score_dst: &Tensor, slope: f64) -> Result<Tensor> {
        const OP: &str = "gat";
        self.check_nodes(OP, "x", x, self.num_src())?;
        self.check_nodes(OP, "score_src", score_src, self.num_src())?;
        self.check_nodes(OP, "score_dst", score_dst, self.num_dst())?;
        let &[_, heads, features] = x.shape() else {
            return Err(invalid(OP, "x", "shape [num_src, H, F]", format!("{:?}", x.shape())));
        };
        let [x, a, b] = [x, score_src, score_dst].map(Tensor::contiguous);
        let (x, a, b) = (x?, a?, b?);
        let tracked = grad_enabled() && [&x, &a, &b].iter().any(|t| t.requires_grad());
        let y = x.like(&[self.num_dst(), heads, features])?;
        let lse = match tracked {
            true => Some(Tensor::empty(x.device(), x.dtype().accumulator(), &[self.num_dst(), heads])?),
            false => None,
        };
        let (src, dst, by_dst) = (self.src().operand(), self.dst().operand(), self.by_dst().operands());
        let [xo, ao, bo, yo] = [&x, &a, &b, &y].map(Tensor::operand);
        let lo = operand(lse.as_ref());
        let mut io = Gat::new(src.view()?, dst.view()?, xo.view()?, ao.view()?, bo.view()?, yo.view_mut()?)
            .by_dst(by_dst.groups()?);
        io.lse = view_mut(&lo)?;
        x.device().gat(slope, io)?;
        Ok(y.record(OP, &[&x, &a, &b], || {
            let (graph, lse) = (self.clone(), save(lse.as_ref()));
            let [x, a, b] = [&x, &a, &b].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, da, db) = (cx.target(0)?, cx.target(1)?, cx.target(2)?);
                let Some(lse) = saved(cx, &lse)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                let (x, a, b) = (x.get(cx)?.operand(), a.get(cx)?.operand(), b.get(cx)?.operand());
                let (src, dst, dyo) = (graph.src().operand(), graph.dst().operand(), dy.operand());
                let [by_src, by_dst] = [graph.by_src(), graph.by_dst()].map(|g| g.operands());
                let ends = (src.view()?, dst.view()?);
                let mut io =
                    GatBwd::new(dyo.view()?, ends.0, ends.1, x.view()?, a.view()?, b.view()?, lse.view()?)
                        .by_src(by_src.groups()?)
                        .by_dst(by_dst.groups()?);
                (io.dx, io.dscore_src, io.dscore_dst) = (out(&dx)?, out(&da)?, out(&db)?);
                Ok(dy.device().gat_bwd(slope, io)?)
            }
        }))
    }
}
