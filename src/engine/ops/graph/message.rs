//! Gradients of messages: of what lies on the edges, and of the nodes at their ends.

use super::edge::{How, Pair};
use crate::buffer::{GradMut, View};
use crate::engine::Engine;
use crate::engine::ops::graph::aggregate::*;
use crate::error::Result;
use crate::ops::graph::*;

impl Engine {
    pub(super) fn message_grad_e(
        &self,
        m: Message,
        s: &EdgeShape,
        io: &MessagesBwd<'_>,
        degree: Option<View<'_>>,
        de: &GradMut<'_>,
    ) -> Result<()> {
        let right = io.x.filter(|_| m == Message::UMulE).map(|x| (io.src, x, s.others));
        let p = Pair::new("message_passing_bwd", (io.dst, io.dy, s.nodes), right);
        let p = Pair { degree, mask: io.arg, ..p };
        let out = de.out.as_view();
        if s.parts == s.columns {
            let how = if right.is_some() { How::Mul } else { How::Left };
            return self.edge_map(&p, how, [1, s.columns], &out, de.accumulate);
        }
        self.edge_dot(&p, s.parts, s.columns, &out, de.accumulate)
    }

    /// Sums over the edges that leave a node, then, where x_v takes part, over those that enter it.
    pub(super) fn message_grad_x(
        &self,
        m: Message,
        r: MessageReduce,
        s: &EdgeShape,
        io: &MessagesBwd<'_>,
        degree: Option<View<'_>>,
        dx: &GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "message_passing_bwd";
        let (dt, out) = (io.dy.dtype(), dx.out.as_view());
        let parts = s.columns / io.x.and_then(|x| x.shape().last().copied()).unwrap_or(1).max(1);
        let needs_perm = matches!(m, Message::UMulE | Message::UDotV) || io.arg.is_some();
        let by_src =
            self.grouped(OP, s.others, &io.src, Some((&io.dst, s.nodes)), io.by_src.as_ref(), needs_perm)?;
        let leave = Aggregate::new(OP, dt, &by_src, s.nodes, s.columns);
        let leave = match (m, io.e, io.x) {
            (Message::UDotV, _, Some(x)) => leave.at_others(x).times(io.dy, parts, true),
            (Message::UMulE, Some(e), _) => leave.at_others(io.dy).times(e, s.parts, true),
            (Message::UMulV, _, Some(x)) => leave.at_others(io.dy).times(x, s.columns, false),
            _ => leave.at_others(io.dy),
        };
        let leave = Aggregate { degree, mask: io.arg.map(|a| (a, false)), ..leave };
        if !m.needs_v() {
            return self.aggregate(&leave, Red::Sum, To::Tensor(out, dx.accumulate));
        }
        let first = self.statistics(dt, out.numel())?;
        self.aggregate(&leave, Red::Sum, To::Stat(first.view()))?;
        let by_dst =
            self.grouped(OP, s.nodes, &io.dst, Some((&io.src, s.others)), io.by_dst.as_ref(), needs_perm)?;
        let enter = Aggregate::new(OP, dt, &by_dst, s.others, s.columns);
        let enter = match (m, io.x) {
            (Message::UDotV, Some(x)) => enter.at_others(x).times(io.dy, parts, true),
            (Message::UMulV, Some(x)) => {
                Aggregate { own: Some(io.dy), kind: Kind::TimesSelf, ..enter.at_others(x) }
            }
            _ => Aggregate { own: Some(io.dy), kind: Kind::TimesSelf, ..enter },
        };
        let alpha = if m == Message::USubV { -1.0 } else { 1.0 };
        let mask = io.arg.map(|a| (a, true));
        let enter = Aggregate { base: Some(first.view()), alpha, mask, ..enter };
        let red = if r == MessageReduce::Mean && m != Message::UDotV { Red::Mean } else { Red::Sum };
        self.aggregate(&enter, red, To::Tensor(out, dx.accumulate))
    }
}
