//! How threads are spread over the edges of nodes.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::{Grid, LANES, MAX_GRID_YZ};
use crate::engine::plan::{Problem, Reason, Variant};

/// Cuts per block of a combining kernel (`GK_GRAPH_WINDOW`).
const WINDOW: usize = 8;

/// About so many cuts are made through all edges, within the bounds of a part: threads walk a part four edges at a time, one step after another, so that
/// one of a thousand edges takes as long as millions of edges do that all threads share.
const CUTS: usize = 8192;
/// Edges of a part of a long node, at least: as many as are added in one run (`GK_GRAPH_RUN`).
const SHORTEST_CUT: usize = 32;

/// Threads for a row of `vecs` vectors: the power of two up to 32 that leaves the fewest idle, the larger of equals.
pub(crate) fn lanes(vecs: usize) -> usize {
    if vecs > 32 * MAX_GRID_YZ {
        return LANES;
    }
    let idle = |l: usize| vecs.max(1).next_multiple_of(l);
    if vecs <= 32 {
        vecs.max(1).next_power_of_two()
    } else {
        [8, 16, 32].into_iter().min_by_key(|&l| (idle(l), 32 / l)).unwrap_or(32)
    }
}

/// Aggregation over the edges of each node, with rows of `columns` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeProblem {
    pub(crate) dtype: DType,
    pub(crate) columns: usize,
    /// Edges of all nodes.
    pub(crate) edges: usize,
    /// Whether rows can be moved by 16 bytes.
    pub(crate) wide: bool,
}

/// Launch geometry of a pass over nodes or edges: vector width, threads per row, and the cuts of long nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodePlan {
    pub(crate) wide: bool,
    /// Vectors of a row.
    pub(crate) vecs: usize,
    pub(crate) lanes: usize,
    /// Edges from one cut to the next: the parts of a long node between them are reduced side by side, then combined.
    pub(crate) cut: usize,
    /// 0: a node is aggregated by one group of threads.
    pub(crate) cuts: usize,
}

impl NodeProblem {
    /// The plan without cuts, which also serves passes over single edges.
    pub(crate) fn whole(&self) -> NodePlan {
        let vecs = if self.wide { self.columns * self.dtype.size() / 16 } else { self.columns };
        let lanes = lanes(vecs);
        // Long nodes are worth more threads where a row has few, and where all edges together take less time than the longest part of a node.
        let most = if lanes >= 4 { 256 } else { 128 };
        let cut = (self.edges / CUTS).next_power_of_two().clamp(SHORTEST_CUT, most);
        NodePlan { wide: self.wide, vecs, lanes, cut, cuts: 0 }
    }
}

impl Problem for NodeProblem {
    type Plan = NodePlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "split_nodes", source: "kernels/common/graph/aggregate.c, attention.c" },
        Variant { name: "whole_nodes", source: "kernels/common/graph/aggregate.c, attention.c" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<NodePlan, Reason> {
        let whole = self.whole();
        match variant {
            0 if self.edges <= 2 * whole.cut => Err(format!("{} edges make no long node", self.edges).into()),
            0 => Ok(NodePlan { cuts: self.edges.div_ceil(whole.cut), ..whole }),
            _ => Ok(whole),
        }
    }
}

impl NodePlan {
    /// Logarithms of `cut` and `lanes`, which are powers of two.
    pub(crate) fn cut_bits(&self) -> usize {
        self.cut.trailing_zeros() as usize
    }

    pub(crate) fn lane_bits(&self) -> usize {
        self.lanes.trailing_zeros() as usize
    }

    /// Blocks for `items` rows.
    pub(crate) fn grid(&self, items: usize) -> Grid {
        Grid::Blocks([items.div_ceil(LANES / self.lanes), self.vecs.div_ceil(self.lanes), 1])
    }

    /// Blocks for the nodes and the cuts.
    pub(crate) fn nodes(&self, nodes: usize) -> Grid {
        self.shared(nodes, 1)
    }

    /// The same where `ways` threads take turns with the edges of a node.
    pub(crate) fn shared(&self, nodes: usize, ways: usize) -> Grid {
        if nodes == 0 {
            return Grid::Blocks([0; 3]);
        }
        let per = LANES / (self.lanes * ways);
        Grid::Blocks([(nodes + self.cuts).div_ceil(per), self.vecs.div_ceil(self.lanes), 1])
    }

    /// Blocks that combine the parts of long nodes.
    pub(crate) fn combine_grid(&self) -> Grid {
        Grid::Blocks([self.cuts.div_ceil(WINDOW), 1, 1])
    }
}

/// The gradient of a sum, mean or extreme of groups, with rows of `inner` elements, `outer` times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GroupBwdProblem {
    /// Aggregation of the members of each group.
    pub(crate) nodes: NodeProblem,
    /// Bytes of a row.
    pub(crate) row: usize,
    /// Whether the members of each group are given.
    pub(crate) grouped: bool,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupBwdPlan {
    /// Group by group: a row of the gradient is read once and written to all members.
    ByNode(NodePlan),
    /// Member by member.
    ByEdge,
}

impl Problem for GroupBwdProblem {
    type Plan = GroupBwdPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "by_node", source: "kernels/common/graph/edges.c" },
        Variant { name: "by_edge", source: "kernels/common/graph/edges.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<GroupBwdPlan, Reason> {
        match variant {
            0 if !self.grouped => Err("the members of the groups are not given".into()),
            0 if !self.nodes.wide || self.row < 64 => Err("its rows are not whole sectors of memory".into()),
            0 => self.nodes.plan(0, caps).or_else(|_| self.nodes.plan(1, caps)).map(GroupBwdPlan::ByNode),
            _ => Ok(GroupBwdPlan::ByEdge),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::gpu;

    #[test]
    fn lanes_leave_few_work_items_idle() {
        for (vecs, want) in [(0, 1), (3, 4), (32, 32), (33, 8), (40, 8), (48, 16), (96, 32), (1 << 22, 256)] {
            assert_eq!(lanes(vecs), want, "{vecs}");
        }
    }

    #[test]
    fn long_nodes_are_cut_where_there_can_be_any() {
        let caps = gpu();
        let p = NodeProblem { dtype: DType::F32, columns: 64, edges: 10_000, wide: true };
        let whole = NodePlan { wide: true, vecs: 16, lanes: 16, cut: 32, cuts: 0 };
        assert_eq!(p.plan(0, &caps), Ok(NodePlan { cuts: 313, ..whole }));
        assert_eq!(p.plan(1, &caps), Ok(whole));
        let few = NodeProblem { edges: 64, ..p };
        assert!(few.plan(0, &caps).is_err_and(|e| e.contains("64 edges")));
        let cut = |edges, columns| NodeProblem { edges, columns, ..p }.whole().cut;
        assert_eq!([0, 200_000, 600_000, 2_000_000, 1 << 30].map(|n| cut(n, 64)), [32, 32, 128, 256, 256]);
        assert_eq!(cut(1 << 30, 4), 128);
    }

    #[test]
    fn rows_of_gradients_are_read_once_where_groups_are_given() {
        let caps = gpu();
        let nodes = NodeProblem { dtype: DType::F32, columns: 64, edges: 60, wide: true };
        let p = GroupBwdProblem { nodes, row: 256, grouped: true };
        assert_eq!(p.plan(0, &caps), Ok(GroupBwdPlan::ByNode(nodes.whole())));
        assert_eq!(p.plan(1, &caps), Ok(GroupBwdPlan::ByEdge));
        assert!(GroupBwdProblem { grouped: false, ..p }.plan(0, &caps).is_err());
        assert!(GroupBwdProblem { row: 48, ..p }.plan(0, &caps).is_err_and(|e| e.contains("sectors")));
    }
}
