//! Graphs with the sizes of a citation network.

use trefoil::ops::*;
use trefoil::{Buffer, DType, Result, View};

use super::{Bed, F32, F32_BF16, Row, bytes, row};

/// Edges with random ends, by destination and by source.
struct Graph {
    nodes: usize,
    edges: usize,
    src: Buffer,
    dst: Buffer,
    by_dst: [Buffer; 3],
    by_src: [Buffer; 3],
}

impl Graph {
    fn new(b: &Bed<'_>) -> Result<Self> {
        let (nodes, edges) = (b.pick(64, 2_000, 169_343), b.pick(400, 20_000, 2_332_486));
        let (src, dst) = (b.ids(edges, nodes)?, b.ids(edges + 1, nodes)?);
        let dst = {
            let mut own = b.empty(DType::I64, edges)?;
            b.gpu.copy(dst.view().range(0, edges)?, own.view_mut())?;
            own
        };
        let group = |key: &Buffer, other: &Buffer| {
            let mut lists =
                [b.empty(DType::I64, nodes + 1)?, b.empty(DType::I64, edges)?, b.empty(DType::I64, edges)?];
            let [rowptr, col, perm] = &mut lists;
            b.gpu.csr(
                Csr::FromCoo,
                CsrIo {
                    col: Some(other.view()),
                    rowptr: Some(rowptr.view_mut()),
                    out_col: Some(col.view_mut()),
                    perm: Some(perm.view_mut()),
                    ..CsrIo::new(key.view())
                },
            )?;
            Ok::<_, trefoil::GpuError>(lists)
        };
        let (by_dst, by_src) = (group(&dst, &src)?, group(&src, &dst)?);
        Ok(Graph { nodes, edges, src, dst, by_dst, by_src })
    }

    fn groups(lists: &[Buffer; 3]) -> EdgeGroups<'_> {
        EdgeGroups::new(lists[0].view()).col(lists[1].view()).perm(lists[2].view())
    }

    /// Bytes of messages gathered per edge and of the results.
    fn traffic(&self, width: usize) -> usize {
        (self.edges + self.nodes) * width + 16 * self.edges
    }
}

fn width(b: &Bed<'_>) -> usize {
    b.pick(8, 32, 128)
}

fn view<'a>(b: &'a Buffer, shape: &[usize]) -> Result<View<'a>> {
    b.shaped(shape)
}

pub(super) const ROWS: &[Row] = &[
    row("csr", "from_coo", F32, |b, dt| {
        let g = Graph::new(b)?;
        let (v, mut w) = (b.normal(dt, g.edges)?, b.empty(dt, g.edges)?);
        let mut lists =
            [b.empty(DType::I64, g.nodes + 1)?, b.empty(DType::I64, g.edges)?, b.empty(DType::I64, g.edges)?];
        bytes(g.edges * 48, move |gpu| {
            let [rowptr, col, perm] = &mut lists;
            gpu.csr(
                Csr::FromCoo,
                CsrIo {
                    rows: g.dst.view(),
                    col: Some(g.src.view()),
                    values: Some(v.view()),
                    rowptr: Some(rowptr.view_mut()),
                    out_col: Some(col.view_mut()),
                    perm: Some(perm.view_mut()),
                    out_values: Some(w.view_mut()),
                },
            )
        })
    }),
    row("degree", "nodes", F32, |b, _| {
        let g = Graph::new(b)?;
        let mut d = b.empty(DType::I64, g.nodes)?;
        bytes(g.edges * 8, move |gpu| gpu.degree(g.dst.view(), d.view_mut()))
    }),
    row("sym_normalize", "csr", F32, |b, dt| {
        let g = Graph::new(b)?;
        let (v, mut y) = (b.positive(dt, g.edges)?, b.empty(dt, g.edges)?);
        bytes(g.edges * (8 + 2 * dt.size()), move |gpu| {
            let [rowptr, col, _] = &g.by_dst;
            gpu.sym_normalize(rowptr.view(), col.view(), Some(v.view()), y.view_mut())
        })
    }),
    row("spmm", "csr", F32_BF16, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (v, x, mut y) = (b.normal(dt, g.edges)?, b.normal(dt, g.nodes * d)?, b.empty(dt, g.nodes * d)?);
        bytes(g.traffic(d * dt.size()), move |gpu| {
            let s = [g.nodes, d];
            gpu.spmm(Spmm {
                rowptr: g.by_dst[0].view(),
                col: g.by_dst[1].view(),
                values: Some(v.view()),
                x: view(&x, &s)?,
                bias: None,
                act: Activation::Identity,
                y: y.shaped_mut(&s)?,
            })
        })
    }),
    row("spmm_bwd", "csr", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (v, x, dy) = (b.normal(dt, g.edges)?, b.normal(dt, g.nodes * d)?, b.normal(dt, g.nodes * d)?);
        let (mut dx, mut dv) = (b.empty(dt, g.nodes * d)?, b.empty(dt, g.edges)?);
        let mut t =
            [b.empty(DType::I64, g.nodes + 1)?, b.empty(DType::I64, g.edges)?, b.empty(DType::I64, g.edges)?];
        let [rowptr, col, perm] = &mut t;
        b.gpu.csr(
            Csr::Transpose,
            CsrIo {
                col: Some(g.by_dst[1].view()),
                rowptr: Some(rowptr.view_mut()),
                out_col: Some(col.view_mut()),
                perm: Some(perm.view_mut()),
                ..CsrIo::new(g.by_dst[0].view())
            },
        )?;
        bytes(2 * g.traffic(d * dt.size()), move |gpu| {
            let s = [g.nodes, d];
            gpu.spmm_bwd(SpmmBwd {
                dy: view(&dy, &s)?,
                rowptr: g.by_dst[0].view(),
                col: g.by_dst[1].view(),
                values: Some(v.view()),
                x: view(&x, &s)?,
                transpose: Some(Graph::groups(&t)),
                dx: Some(dx.shaped_mut(&s)?.into()),
                dvalues: Some(dv.view_mut().into()),
                dbias: None,
            })
        })
    }),
    row("message_passing", "mean", F32_BF16, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (x, mut y) = (b.normal(dt, g.nodes * d)?, b.empty(dt, g.nodes * d)?);
        bytes(g.traffic(d * dt.size()), move |gpu| {
            let s = [g.nodes, d];
            let io = Messages {
                src: g.src.view(),
                dst: g.dst.view(),
                x: Some(view(&x, &s)?),
                e: None,
                by_dst: Some(Graph::groups(&g.by_dst)),
                y: y.shaped_mut(&s)?,
                arg: None,
                degree: None,
            };
            gpu.message_passing(Message::CopyU, MessageReduce::Mean, io)
        })
    }),
    row("message_passing", "max", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (x, mut y) = (b.normal(dt, g.nodes * d)?, b.empty(dt, g.nodes * d)?);
        let mut arg = b.empty(DType::I64, g.nodes * d)?;
        // A star beside it: all edges enter one node.
        let hub = b.zeros(DType::I64, g.edges)?;
        bytes(2 * g.traffic(d * dt.size()), move |gpu| {
            let s = [g.nodes, d];
            for (dst, by_dst) in [(&g.dst, Some(Graph::groups(&g.by_dst))), (&hub, None)] {
                let io = Messages {
                    src: g.src.view(),
                    dst: dst.view(),
                    x: Some(view(&x, &s)?),
                    e: None,
                    by_dst,
                    y: y.shaped_mut(&s)?,
                    arg: Some(arg.shaped_mut(&s)?),
                    degree: None,
                };
                gpu.message_passing(Message::CopyU, MessageReduce::Max, io)?;
            }
            Ok(())
        })
    }),
    row("message_passing_bwd", "sum", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (dy, mut dx) = (b.normal(dt, g.nodes * d)?, b.empty(dt, g.nodes * d)?);
        bytes(g.traffic(d * dt.size()), move |gpu| {
            let s = [g.nodes, d];
            let io = MessagesBwd {
                dy: view(&dy, &s)?,
                src: g.src.view(),
                dst: g.dst.view(),
                x: None,
                e: None,
                arg: None,
                degree: None,
                by_src: Some(Graph::groups(&g.by_src)),
                by_dst: None,
                dx: Some(dx.shaped_mut(&s)?.into()),
                de: None,
            };
            gpu.message_passing_bwd(Message::CopyU, MessageReduce::Sum, io)
        })
    }),
    row("sddmm", "dot", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (x, mut out) = (b.normal(dt, g.nodes * d)?, b.empty(dt, g.edges)?);
        bytes(2 * g.edges * d * dt.size(), move |gpu| {
            let x = view(&x, &[g.nodes, d])?;
            gpu.sddmm(EdgeOp::Dot, g.src.view(), g.dst.view(), x, x, out.view_mut())
        })
    }),
    row("sddmm_bwd", "dot", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (x, dout) = (b.normal(dt, g.nodes * d)?, b.normal(dt, g.edges)?);
        let (mut dx, mut dy) = (b.empty(dt, g.nodes * d)?, b.empty(dt, g.nodes * d)?);
        bytes(2 * g.traffic(d * dt.size()), move |gpu| {
            let s = [g.nodes, d];
            let x = view(&x, &s)?;
            let io = SddmmBwd {
                dout: dout.view(),
                src: g.src.view(),
                dst: g.dst.view(),
                x,
                y: x,
                by_src: Some(Graph::groups(&g.by_src)),
                by_dst: Some(Graph::groups(&g.by_dst)),
                dx: Some(dx.shaped_mut(&s)?.into()),
                dy: Some(dy.shaped_mut(&s)?.into()),
            };
            gpu.sddmm_bwd(EdgeOp::Dot, io)
        })
    }),
    row("group_reduce", "sum", F32_BF16, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (x, mut y) = (b.normal(dt, g.edges * d)?, b.empty(dt, g.nodes * d)?);
        bytes(g.traffic(d * dt.size()), move |gpu| {
            let io = GroupIo {
                src: view(&x, &[1, g.edges, d])?,
                index: g.dst.view(),
                groups: Some(Graph::groups(&g.by_dst)),
                y: y.shaped_mut(&[1, g.nodes, d])?.into(),
                arg: None,
                counts: None,
            };
            gpu.group_reduce(GroupReduce::Sum, io)
        })
    }),
    row("group_reduce", "std", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (x, mut y) = (b.normal(dt, g.edges * d)?, b.empty(dt, g.nodes * d)?);
        bytes(2 * g.traffic(d * dt.size()), move |gpu| {
            let io = GroupIo {
                src: view(&x, &[1, g.edges, d])?,
                index: g.dst.view(),
                groups: Some(Graph::groups(&g.by_dst)),
                y: y.shaped_mut(&[1, g.nodes, d])?.into(),
                arg: None,
                counts: None,
            };
            gpu.group_reduce(GroupReduce::Std { correction: 0, eps: 1e-5 }, io)
        })
    }),
    row("group_reduce_bwd", "max", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (dy, mut dx) = (b.normal(dt, g.nodes * d)?, b.empty(dt, g.edges * d)?);
        let mut arg = b.empty(DType::I64, g.nodes * d)?;
        b.gpu.fill(-1.0, arg.view_mut())?;
        bytes(g.traffic(d * dt.size()), move |gpu| {
            let io = GroupBwd {
                dy: view(&dy, &[1, g.nodes, d])?,
                index: None,
                src: None,
                y: None,
                arg: Some(view(&arg, &[1, g.nodes, d])?),
                counts: None,
                groups: None,
                dsrc: dx.shaped_mut(&[1, g.edges, d])?.into(),
            };
            gpu.group_reduce_bwd(GroupReduce::Max { empty: 0.0 }, io)
        })
    }),
    row("group_reduce_bwd", "sum", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (dy, mut dx) = (b.normal(dt, g.nodes * d)?, b.empty(dt, g.edges * d)?);
        bytes(g.traffic(d * dt.size()), move |gpu| {
            let io = GroupBwd {
                dy: view(&dy, &[1, g.nodes, d])?,
                index: Some(g.dst.view()),
                src: None,
                y: None,
                arg: None,
                counts: None,
                groups: None,
                dsrc: dx.shaped_mut(&[1, g.edges, d])?.into(),
            };
            gpu.group_reduce_bwd(GroupReduce::Sum, io)
        })
    }),
    row("group_reduce_bwd", "sum_by_node", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (dy, mut dx) = (b.normal(dt, g.nodes * d)?, b.empty(dt, g.edges * d)?);
        bytes(g.traffic(d * dt.size()), move |gpu| {
            let io = GroupBwd {
                dy: view(&dy, &[1, g.nodes, d])?,
                index: Some(g.dst.view()),
                src: None,
                y: None,
                arg: None,
                counts: None,
                groups: Some(Graph::groups(&g.by_dst)),
                dsrc: dx.shaped_mut(&[1, g.edges, d])?.into(),
            };
            gpu.group_reduce_bwd(GroupReduce::Sum, io)
        })
    }),
    row("edge_softmax", "heads", F32, |b, dt| {
        let g = Graph::new(b)?;
        let (x, mut y) = (b.normal(dt, g.edges * 8)?, b.empty(dt, g.edges * 8)?);
        bytes(2 * g.edges * (8 * dt.size() + 8), move |gpu| {
            let s = [g.edges, 8];
            let groups = Some(Graph::groups(&g.by_dst));
            gpu.edge_softmax(g.nodes, g.dst.view(), groups, view(&x, &s)?, y.shaped_mut(&s)?)
        })
    }),
    row("edge_softmax_bwd", "heads", F32, |b, dt| {
        let g = Graph::new(b)?;
        let (dy, y, mut dx) =
            (b.normal(dt, g.edges * 8)?, b.positive(dt, g.edges * 8)?, b.empty(dt, g.edges * 8)?);
        bytes(g.edges * (24 * dt.size() + 16), move |gpu| {
            let s = [g.edges, 8];
            let groups = Some(Graph::groups(&g.by_dst));
            let (dy, y) = (view(&dy, &s)?, view(&y, &s)?);
            gpu.edge_softmax_bwd(g.nodes, g.dst.view(), groups, dy, y, dx.shaped_mut(&s)?.into())
        })
    }),
    row("gat", "heads", F32_BF16, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (x, s, mut y) =
            (b.normal(dt, g.nodes * d)?, b.normal(dt, g.nodes * 8)?, b.empty(dt, g.nodes * d)?);
        let mut lse = b.empty(DType::F32, g.nodes * 8)?;
        bytes(g.traffic((d + 8) * dt.size()), move |gpu| {
            let (rows, heads) = ([g.nodes, 8, d / 8], [g.nodes, 8]);
            let io = Gat {
                src: g.src.view(),
                dst: g.dst.view(),
                by_dst: Some(Graph::groups(&g.by_dst)),
                x: view(&x, &rows)?,
                score_src: view(&s, &heads)?,
                score_dst: view(&s, &heads)?,
                y: y.shaped_mut(&rows)?,
                lse: Some(lse.shaped_mut(&heads)?),
            };
            gpu.gat(0.2, io)
        })
    }),
    row("gat_bwd", "heads", F32, |b, dt| {
        let (g, d) = (Graph::new(b)?, width(b));
        let (x, dy, s) = (b.normal(dt, g.nodes * d)?, b.normal(dt, g.nodes * d)?, b.normal(dt, g.nodes * 8)?);
        let lse = b.normal(DType::F32, g.nodes * 8)?;
        let (mut dx, mut du, mut dv) =
            (b.empty(dt, g.nodes * d)?, b.empty(dt, g.nodes * 8)?, b.empty(dt, g.nodes * 8)?);
        bytes(2 * g.traffic((d + 8) * dt.size()), move |gpu| {
            let (rows, heads) = ([g.nodes, 8, d / 8], [g.nodes, 8]);
            let io = GatBwd {
                dy: view(&dy, &rows)?,
                src: g.src.view(),
                dst: g.dst.view(),
                by_src: Some(Graph::groups(&g.by_src)),
                by_dst: Some(Graph::groups(&g.by_dst)),
                x: view(&x, &rows)?,
                score_src: view(&s, &heads)?,
                score_dst: view(&s, &heads)?,
                lse: view(&lse, &heads)?,
                dx: Some(dx.shaped_mut(&rows)?.into()),
                dscore_src: Some(du.shaped_mut(&heads)?.into()),
                dscore_dst: Some(dv.shaped_mut(&heads)?.into()),
            };
            gpu.gat_bwd(0.2, io)
        })
    }),
    row("diffusion_conv", "eigen", F32, |b, dt| {
        let (v, k, c) = (b.pick(50, 500, 100_000), b.pick(8, 32, 128), b.pick(8, 32, 128));
        let (x, phi, lam) = (b.normal(dt, v * c)?, b.normal(dt, v * k)?, b.positive(dt, k)?);
        let (m, t, w, mut y) =
            (b.positive(dt, v)?, b.positive(dt, 1)?, b.normal(dt, c * c)?, b.empty(dt, v * c)?);
        bytes((2 * v * c + 2 * v * k) * dt.size(), move |gpu| {
            let heat = Heat::Eigen { phi: view(&phi, &[v, k])?, lam: lam.view(), mass: Some(m.view()) };
            let (x, w) = (view(&x, &[v, c])?, view(&w, &[c, c])?);
            let y = y.shaped_mut(&[v, c])?;
            gpu.diffusion_conv(Diffusion { x, heat, t: t.view(), w, b: None, y, s_hat: None })
        })
    }),
    row("diffusion_conv_bwd", "eigen", F32, |b, dt| {
        let (v, k, c) = (b.pick(50, 500, 100_000), b.pick(8, 32, 128), b.pick(8, 32, 128));
        let (x, phi, lam) = (b.normal(dt, v * c)?, b.normal(dt, v * k)?, b.positive(dt, k)?);
        let (m, t, w, dy) =
            (b.positive(dt, v)?, b.positive(dt, 1)?, b.normal(dt, c * c)?, b.normal(dt, v * c)?);
        let (mut dx, mut dw, mut times) = (b.empty(dt, v * c)?, b.empty(dt, c * c)?, b.empty(dt, 1)?);
        bytes((3 * v * c + 3 * v * k) * dt.size(), move |gpu| {
            let heat = Heat::Eigen { phi: view(&phi, &[v, k])?, lam: lam.view(), mass: Some(m.view()) };
            let (dx, dw) = (Some(dx.shaped_mut(&[v, c])?.into()), Some(dw.shaped_mut(&[c, c])?.into()));
            gpu.diffusion_conv_bwd(DiffusionBwd {
                dy: view(&dy, &[v, c])?,
                x: view(&x, &[v, c])?,
                heat,
                t: t.view(),
                w: view(&w, &[c, c])?,
                s_hat: None,
                dx,
                dt: Some(times.view_mut().into()),
                dw,
                db: None,
            })
        })
    }),
    row("diffusion_conv", "direct", F32, |b, dt| {
        let (v, c) = (b.pick(30, 100, 1_000), b.pick(4, 8, 64));
        let (x, l, t) = (b.normal(dt, v * c)?, b.zeros(dt, v * v)?, b.positive(dt, 1)?);
        let (w, mut y) = (b.normal(dt, c * c)?, b.empty(dt, v * c)?);
        bytes((v * v + 2 * v * c) * dt.size(), move |gpu| {
            let heat = Heat::Direct { laplacian: view(&l, &[v, v])? };
            let (x, w, y) = (view(&x, &[v, c])?, view(&w, &[c, c])?, y.shaped_mut(&[v, c])?);
            gpu.diffusion_conv(Diffusion { x, heat, t: t.view(), w, b: None, y, s_hat: None })
        })
    }),
];
