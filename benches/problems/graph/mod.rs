//! Graphs with the sizes of a citation network. Their plans (edges by either end) are made once and are not part of the times.

mod attention;

use trefoil::ops::graph::{
    Csr, CsrIo, EdgeGroups, EdgeOp, GroupBwd, GroupIo, GroupReduce, Message, MessageReduce, Messages,
    MessagesBwd, SddmmBwd, Spmm, SpmmBwd,
};
use trefoil::{BackendExt, Buffer, DType, Result};

pub(super) use self::attention::ATTENTION;
use crate::case::{Case, CaseError, Operation, both, forward};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, problem};

/// Sources and destinations of random edges; the degrees of destinations follow a power law.
pub fn random_edges(nodes: usize, edges: usize) -> (Vec<i64>, Vec<i64>) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 * 2f64.powi(-53)
    };
    let mut node = |power: i32| ((unit().powi(power) * nodes as f64) as i64).min(nodes as i64 - 1);
    (0..edges).map(|_| (node(1), node(2))).unzip()
}

/// Nodes and edges of a graph.
type Size = [usize; 2];

/// The graph of the table.
fn size(cx: &Context<'_>) -> Size {
    [cx.pick(64, 2_000, 169_343), cx.pick(400, 20_000, 2_332_486)]
}

/// The graph of a case.
fn size_of(c: &Case) -> Result<Size, CaseError> {
    c.sizes(["nodes", "edges"])
}

/// Features of a node.
fn width(cx: &Context<'_>) -> usize {
    cx.pick(8, 32, 128)
}

/// Random edges, by destination and by source.
struct Graph {
    nodes: usize,
    edges: usize,
    src: Buffer,
    dst: Buffer,
    by_dst: [Buffer; 3],
    by_src: [Buffer; 3],
}

impl Graph {
    fn new(cx: &Context<'_>, [nodes, edges]: Size) -> Result<Self> {
        let (src, dst) = random_edges(nodes, edges);
        let (src, dst) = (cx.gpu.upload(&src)?, cx.gpu.upload(&dst)?);
        let (by_dst, by_src) = (Self::group(cx, nodes, &dst, &src)?, Self::group(cx, nodes, &src, &dst)?);
        Ok(Graph { nodes, edges, src, dst, by_dst, by_src })
    }

    /// The graph of the table.
    fn of_table(cx: &Context<'_>) -> Result<Self> {
        Self::new(cx, size(cx))
    }

    /// Edges in the order of `key`: row offsets, other ends, positions in the list of edges.
    fn group(cx: &Context<'_>, nodes: usize, key: &Buffer, other: &Buffer) -> Result<[Buffer; 3]> {
        let mut lists = index_lists(cx, nodes, key.len())?;
        let [rowptr, col, perm] = &mut lists;
        let io = CsrIo::new(key.view())
            .col(other.view())
            .rowptr(rowptr.view_mut())
            .out_col(col.view_mut())
            .perm(perm.view_mut());
        cx.gpu.csr(Csr::FromCoo, io)?;
        Ok(lists)
    }

    fn groups(lists: &[Buffer; 3]) -> EdgeGroups<'_> {
        EdgeGroups::new(lists[0].view()).col(lists[1].view()).perm(lists[2].view())
    }

    /// Bytes of messages of `width` bytes gathered per edge, of the results, and of two lists of indices.
    fn traffic(&self, width: usize) -> usize {
        (self.edges + self.nodes) * width + 16 * self.edges
    }
}

/// Room for row offsets, columns and positions.
fn index_lists(cx: &Context<'_>, nodes: usize, edges: usize) -> Result<[Buffer; 3]> {
    Ok([cx.empty(DType::I64, nodes + 1)?, cx.empty(DType::I64, edges)?, cx.empty(DType::I64, edges)?])
}

fn spmm(cx: &Context<'_>, dt: DType, size: Size, d: usize) -> Result<Prepared> {
    let g = Graph::new(cx, size)?;
    let (v, x, mut y) = (cx.normal(dt, g.edges)?, cx.normal(dt, g.nodes * d)?, cx.empty(dt, g.nodes * d)?);
    bytes(g.traffic(d * dt.size()), move |gpu| {
        let s = [g.nodes, d];
        gpu.spmm(
            Spmm::new(g.by_dst[0].view(), g.by_dst[1].view(), x.shaped(&s)?, y.shaped_mut(&s)?)
                .values(v.view()),
        )
    })
}

/// Mean of the sources' features, with the degrees that its gradient reads.
fn message_mean(cx: &Context<'_>, dt: DType, size: Size, d: usize) -> Result<Prepared> {
    let g = Graph::new(cx, size)?;
    let (x, mut y) = (cx.normal(dt, g.nodes * d)?, cx.empty(dt, g.nodes * d)?);
    let mut degree = cx.empty(DType::I64, g.nodes)?;
    bytes(g.traffic(d * dt.size()), move |gpu| {
        let s = [g.nodes, d];
        let io = Messages::new(g.src.view(), g.dst.view(), y.shaped_mut(&s)?)
            .x(x.shaped(&s)?)
            .by_dst(Graph::groups(&g.by_dst))
            .degree(degree.view_mut());
        gpu.message_passing(Message::CopyU, MessageReduce::Mean, io)
    })
}

/// The gradient of summed (or averaged) features of the sources.
fn message_bwd(cx: &Context<'_>, dt: DType, size: Size, d: usize, reduce: MessageReduce) -> Result<Prepared> {
    let g = Graph::new(cx, size)?;
    let (dy, mut dx) = (cx.normal(dt, g.nodes * d)?, cx.empty(dt, g.nodes * d)?);
    let mut degree = cx.empty(DType::I64, g.nodes)?;
    cx.gpu.degree(g.dst.view(), degree.view_mut())?;
    let mean = matches!(reduce, MessageReduce::Mean);
    bytes(g.traffic(d * dt.size()), move |gpu| {
        let s = [g.nodes, d];
        let io = MessagesBwd::new(dy.shaped(&s)?, g.src.view(), g.dst.view())
            .degree(if mean { Some(degree.view()) } else { None })
            .by_src(Graph::groups(&g.by_src))
            .dx(dx.shaped_mut(&s)?);
        gpu.message_passing_bwd(Message::CopyU, reduce, io)
    })
}

/// The largest element of each group; 0 for a group without elements.
const MAX: GroupReduce = GroupReduce::Max { empty: 0.0 };

/// Features of edges reduced at their destinations. A maximum also keeps which edge it is of.
fn group_reduce(cx: &Context<'_>, dt: DType, size: Size, d: usize, how: GroupReduce) -> Result<Prepared> {
    let g = Graph::new(cx, size)?;
    let (x, mut y) = (cx.normal(dt, g.edges * d)?, cx.empty(dt, g.nodes * d)?);
    let max = matches!(how, GroupReduce::Max { .. });
    let mut arg = cx.empty(DType::I64, if max { g.nodes * d } else { 0 })?;
    bytes(g.traffic(d * dt.size()) + 8 * arg.len(), move |gpu| {
        let s = [1, g.nodes, d];
        let io = GroupIo::new(x.shaped(&[1, g.edges, d])?, g.dst.view(), y.shaped_mut(&s)?.into())
            .groups(Graph::groups(&g.by_dst))
            .arg(if max { Some(arg.shaped_mut(&s)?) } else { None });
        gpu.group_reduce(how, io)
    })
}

/// The gradient of [`group_reduce`], edge by edge or (`by_node`) with the plan of the graph.
fn group_reduce_bwd(
    cx: &Context<'_>,
    dt: DType,
    size: Size,
    d: usize,
    how: GroupReduce,
    by_node: bool,
) -> Result<Prepared> {
    let g = Graph::new(cx, size)?;
    let (dy, mut dx) = (cx.normal(dt, g.nodes * d)?, cx.empty(dt, g.edges * d)?);
    let arg = match how {
        GroupReduce::Max { .. } => Some(largest(cx, dt, &g, d)?),
        _ => None,
    };
    let moved = g.traffic(d * dt.size()) + arg.as_ref().map_or(0, |a| 8 * a.len());
    bytes(moved, move |gpu| {
        let s = [1, g.nodes, d];
        let io = GroupBwd::new(dy.shaped(&s)?, dx.shaped_mut(&[1, g.edges, d])?.into())
            .index(g.dst.view())
            .arg(arg.as_ref().map(|a| a.shaped(&s)).transpose()?)
            .groups(if by_node { Some(Graph::groups(&g.by_dst)) } else { None });
        gpu.group_reduce_bwd(how, io)
    })
}

/// The edges of the largest of random features.
fn largest(cx: &Context<'_>, dt: DType, g: &Graph, d: usize) -> Result<Buffer> {
    let (x, mut y) = (cx.normal(dt, g.edges * d)?, cx.empty(dt, g.nodes * d)?);
    let (s, mut arg) = ([1, g.nodes, d], cx.empty(DType::I64, g.nodes * d)?);
    let io = GroupIo::new(x.shaped(&[1, g.edges, d])?, g.dst.view(), y.shaped_mut(&s)?.into())
        .groups(Graph::groups(&g.by_dst))
        .arg(arg.shaped_mut(&s)?);
    cx.gpu.group_reduce(MAX, io)?;
    Ok(arg)
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("csr", "from_coo", F32, |cx, dt| {
        let g = Graph::of_table(cx)?;
        let (v, mut w) = (cx.normal(dt, g.edges)?, cx.empty(dt, g.edges)?);
        let mut lists = [
            cx.empty(DType::I64, g.nodes + 1)?,
            cx.empty(DType::I64, g.edges)?,
            cx.empty(DType::I64, g.edges)?,
        ];
        bytes(g.edges * 48, move |gpu| {
            let [rowptr, col, perm] = &mut lists;
            gpu.csr(
                Csr::FromCoo,
                CsrIo::new(g.dst.view())
                    .col(g.src.view())
                    .values(v.view())
                    .rowptr(rowptr.view_mut())
                    .out_col(col.view_mut())
                    .perm(perm.view_mut())
                    .out_values(w.view_mut()),
            )
        })
    }),
    problem("degree", "nodes", F32, |cx, _| {
        let g = Graph::of_table(cx)?;
        let mut d = cx.empty(DType::I64, g.nodes)?;
        bytes(g.edges * 8, move |gpu| gpu.degree(g.dst.view(), d.view_mut()))
    }),
    problem("sym_normalize", "csr", F32, |cx, dt| {
        let g = Graph::of_table(cx)?;
        let (v, mut y) = (cx.positive(dt, g.edges)?, cx.empty(dt, g.edges)?);
        bytes(g.edges * (8 + 2 * dt.size()), move |gpu| {
            let [rowptr, col, _] = &g.by_dst;
            gpu.sym_normalize(rowptr.view(), col.view(), Some(v.view()), y.view_mut())
        })
    }),
    problem("spmm", "csr", F32_BF16, |cx, dt| spmm(cx, dt, size(cx), width(cx))),
    problem("spmm_bwd", "csr", F32, |cx, dt| {
        let (g, d) = (Graph::of_table(cx)?, width(cx));
        let (v, x, dy) = (cx.normal(dt, g.edges)?, cx.normal(dt, g.nodes * d)?, cx.normal(dt, g.nodes * d)?);
        let (mut dx, mut dv) = (cx.empty(dt, g.nodes * d)?, cx.empty(dt, g.edges)?);
        let mut t = [
            cx.empty(DType::I64, g.nodes + 1)?,
            cx.empty(DType::I64, g.edges)?,
            cx.empty(DType::I64, g.edges)?,
        ];
        let [rowptr, col, perm] = &mut t;
        cx.gpu.csr(
            Csr::Transpose,
            CsrIo::new(g.by_dst[0].view())
                .col(g.by_dst[1].view())
                .rowptr(rowptr.view_mut())
                .out_col(col.view_mut())
                .perm(perm.view_mut()),
        )?;
        bytes(2 * g.traffic(d * dt.size()), move |gpu| {
            let s = [g.nodes, d];
            gpu.spmm_bwd(
                SpmmBwd::new(dy.shaped(&s)?, g.by_dst[0].view(), g.by_dst[1].view(), x.shaped(&s)?)
                    .values(v.view())
                    .transpose(Graph::groups(&t))
                    .dx(dx.shaped_mut(&s)?)
                    .dvalues(dv.view_mut()),
            )
        })
    }),
    problem("message_passing", "mean", F32_BF16, |cx, dt| message_mean(cx, dt, size(cx), width(cx))),
    problem("message_passing", "max", F32, |cx, dt| {
        let (g, d) = (Graph::of_table(cx)?, width(cx));
        let (x, mut y) = (cx.normal(dt, g.nodes * d)?, cx.empty(dt, g.nodes * d)?);
        let mut arg = cx.empty(DType::I64, g.nodes * d)?;
        // A star beside it: all edges enter one node.
        let hub = cx.zeros(DType::I64, g.edges)?;
        bytes(2 * g.traffic(d * dt.size()), move |gpu| {
            let s = [g.nodes, d];
            for (dst, by_dst) in [(&g.dst, Some(Graph::groups(&g.by_dst))), (&hub, None)] {
                let io = Messages::new(g.src.view(), dst.view(), y.shaped_mut(&s)?)
                    .x(x.shaped(&s)?)
                    .by_dst(by_dst)
                    .arg(arg.shaped_mut(&s)?);
                gpu.message_passing(Message::CopyU, MessageReduce::Max, io)?;
            }
            Ok(())
        })
    }),
    problem("message_passing_bwd", "sum", F32, |cx, dt| {
        message_bwd(cx, dt, size(cx), width(cx), MessageReduce::Sum)
    }),
    problem("message_passing_bwd", "mean", F32, |cx, dt| {
        message_bwd(cx, dt, size(cx), width(cx), MessageReduce::Mean)
    }),
    problem("sddmm", "dot", F32, |cx, dt| {
        let (g, d) = (Graph::of_table(cx)?, width(cx));
        let (x, mut out) = (cx.normal(dt, g.nodes * d)?, cx.empty(dt, g.edges)?);
        bytes(2 * g.edges * d * dt.size(), move |gpu| {
            let x = x.shaped(&[g.nodes, d])?;
            gpu.sddmm(EdgeOp::Dot, g.src.view(), g.dst.view(), x, x, out.view_mut())
        })
    }),
    problem("sddmm_bwd", "dot", F32, |cx, dt| {
        let (g, d) = (Graph::of_table(cx)?, width(cx));
        let (x, dout) = (cx.normal(dt, g.nodes * d)?, cx.normal(dt, g.edges)?);
        let (mut dx, mut dy) = (cx.empty(dt, g.nodes * d)?, cx.empty(dt, g.nodes * d)?);
        bytes(2 * g.traffic(d * dt.size()), move |gpu| {
            let s = [g.nodes, d];
            let x = x.shaped(&s)?;
            let io = SddmmBwd::new(dout.view(), g.src.view(), g.dst.view(), x, x)
                .by_src(Graph::groups(&g.by_src))
                .by_dst(Graph::groups(&g.by_dst))
                .dx(dx.shaped_mut(&s)?)
                .dy(dy.shaped_mut(&s)?);
            gpu.sddmm_bwd(EdgeOp::Dot, io)
        })
    }),
    problem("group_reduce", "sum", F32_BF16, |cx, dt| {
        group_reduce(cx, dt, size(cx), width(cx), GroupReduce::Sum)
    }),
    problem("group_reduce", "max", F32, |cx, dt| group_reduce(cx, dt, size(cx), width(cx), MAX)),
    problem("group_reduce", "std", F32, |cx, dt| {
        let (g, d) = (Graph::of_table(cx)?, width(cx));
        let (x, mut y) = (cx.normal(dt, g.edges * d)?, cx.empty(dt, g.nodes * d)?);
        bytes(2 * g.traffic(d * dt.size()), move |gpu| {
            let io = GroupIo::new(
                x.shaped(&[1, g.edges, d])?,
                g.dst.view(),
                y.shaped_mut(&[1, g.nodes, d])?.into(),
            )
            .groups(Graph::groups(&g.by_dst));
            gpu.group_reduce(GroupReduce::Std { correction: 0, eps: 1e-5 }, io)
        })
    }),
    problem("group_reduce_bwd", "max", F32, |cx, dt| {
        let (g, d) = (Graph::of_table(cx)?, width(cx));
        let (dy, mut dx) = (cx.normal(dt, g.nodes * d)?, cx.empty(dt, g.edges * d)?);
        let mut arg = cx.empty(DType::I64, g.nodes * d)?;
        cx.gpu.fill(-1.0, arg.view_mut())?;
        bytes(g.traffic(d * dt.size()), move |gpu| {
            let io = GroupBwd::new(dy.shaped(&[1, g.nodes, d])?, dx.shaped_mut(&[1, g.edges, d])?.into())
                .arg(arg.shaped(&[1, g.nodes, d])?);
            gpu.group_reduce_bwd(GroupReduce::Max { empty: 0.0 }, io)
        })
    }),
    problem("group_reduce_bwd", "max_by_node", F32, |cx, dt| {
        group_reduce_bwd(cx, dt, size(cx), width(cx), MAX, true)
    }),
    problem("group_reduce_bwd", "sum", F32, |cx, dt| {
        group_reduce_bwd(cx, dt, size(cx), width(cx), GroupReduce::Sum, false)
    }),
    problem("group_reduce_bwd", "sum_by_node", F32, |cx, dt| {
        group_reduce_bwd(cx, dt, size(cx), width(cx), GroupReduce::Sum, true)
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[
    both(
        "scatter_add",
        |cx, c| Ok(group_reduce(cx, c.dtype()?, size_of(c)?, c.size("dim")?, GroupReduce::Sum)?),
        |cx, c| Ok(group_reduce_bwd(cx, c.dtype()?, size_of(c)?, c.size("dim")?, GroupReduce::Sum, true)?),
    ),
    both(
        "scatter_max",
        |cx, c| Ok(group_reduce(cx, c.dtype()?, size_of(c)?, c.size("dim")?, MAX)?),
        |cx, c| Ok(group_reduce_bwd(cx, c.dtype()?, size_of(c)?, c.size("dim")?, MAX, true)?),
    ),
    forward("spmm", |cx, c| Ok(spmm(cx, c.dtype()?, size_of(c)?, c.size("dim")?)?)),
    both(
        "gather_scatter",
        |cx, c| Ok(message_mean(cx, c.dtype()?, size_of(c)?, c.size("dim")?)?),
        |cx, c| Ok(message_bwd(cx, c.dtype()?, size_of(c)?, c.size("dim")?, MessageReduce::Mean)?),
    ),
    both(
        "edge_softmax",
        |cx, c| Ok(attention::edge_softmax(cx, c.dtype()?, size_of(c)?, c.size("heads")?)?),
        |cx, c| Ok(attention::edge_softmax_bwd(cx, c.dtype()?, size_of(c)?, c.size("heads")?)?),
    ),
    both("gat_layer", attention::gat_layer, attention::gat_layer_bwd),
];
