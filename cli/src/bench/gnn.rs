//! Graphs. Plans are made once per graph and are not part of the times, as in a training loop.

use std::rc::Rc;

use trefoil::ops::{
    Activation, Csr, CsrIo, Distribution, EdgeGroups, Gat, GatBwd, Gemm, GemmBwd, GemmIo, GroupBwd, GroupIo,
    GroupReduce, Message, MessageReduce, Messages, MessagesBwd, Rng, Spmm,
};
use trefoil::{BackendExt, Buffer, DType, View, ViewMut};
use trefoil_nn::Device;

use super::case::Case;
use super::ops::work;
use super::timing::Prepared;
use crate::error::Result;

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    Ok(Some(match c.op() {
        "scatter_add" => scatter(c, d, false)?,
        "scatter_max" => scatter(c, d, true)?,
        "spmm" => spmm(c, d)?,
        "gather_scatter" => mean(c, d)?,
        "edge_softmax" => softmax(c, d)?,
        "gat_layer" => gat(c, d)?,
        _ => return Ok(None),
    }))
}

/// Edges with random sources and destinations whose degrees follow a power law, and the edges by either end.
struct Graph {
    nodes: usize,
    edges: usize,
    src: Buffer,
    dst: Buffer,
    by_dst: [Buffer; 3],
    by_src: [Buffer; 3],
}

fn groups(lists: &[Buffer; 3]) -> EdgeGroups<'_> {
    EdgeGroups::new(lists[0].view()).col(lists[1].view()).perm(lists[2].view())
}

fn grouped(d: &Device, nodes: usize, key: &Buffer, other: &Buffer) -> Result<[Buffer; 3]> {
    let n = key.len();
    let lists = [d.alloc(DType::I64, nodes + 1)?, d.alloc(DType::I64, n)?, d.alloc(DType::I64, n)?];
    let io = CsrIo {
        col: Some(other.view()),
        rowptr: Some(lists[0].alias_mut()),
        out_col: Some(lists[1].alias_mut()),
        perm: Some(lists[2].alias_mut()),
        ..CsrIo::new(key.view())
    };
    d.csr(Csr::FromCoo, io)?;
    Ok(lists)
}

/// Sources and destinations of random edges; the degrees of destinations follow a power law.
pub(super) fn random_edges(nodes: usize, edges: usize) -> (Vec<i64>, Vec<i64>) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 * 2f64.powi(-53)
    };
    let mut node = |power: i32| ((unit().powi(power) * nodes as f64) as i64).min(nodes as i64 - 1);
    (0..edges).map(|_| (node(1), node(2))).unzip()
}

impl Graph {
    fn new(c: &Case, d: &Device) -> Result<Rc<Self>> {
        let (nodes, edges) = (c.size("nodes")?, c.size("edges")?);
        let (src, dst) = random_edges(nodes, edges);
        let (src, dst) = (d.upload(&src)?, d.upload(&dst)?);
        let (by_dst, by_src) = (grouped(d, nodes, &dst, &src)?, grouped(d, nodes, &src, &dst)?);
        Ok(Rc::new(Graph { nodes, edges, src, dst, by_dst, by_src }))
    }

    /// Bytes of a row per edge and per node, and of the two lists that are read.
    fn traffic(&self, row: usize) -> usize {
        (self.edges + self.nodes) * row + 16 * self.edges
    }
}

fn normal(d: &Device, dtype: DType, n: usize, seed: u64) -> Result<Buffer> {
    let mut b = d.alloc(dtype, n)?;
    d.random(Distribution::Normal { mean: 0.0, std: 1.0 }, Rng::new(seed), b.view_mut())?;
    Ok(b)
}

fn at<'a>(b: &'a Buffer, shape: &[usize]) -> Result<View<'a>> {
    Ok(b.shaped(shape)?)
}

fn to<'a>(b: &'a Buffer, shape: &[usize]) -> Result<ViewMut<'a>> {
    Ok(b.alias_mut().reshape(shape)?)
}

fn scatter(c: &Case, d: &Device, max: bool) -> Result<Prepared> {
    let (g, w, t) = (Graph::new(c, d)?, c.size("dim")?, c.dtype()?);
    let how = if max { GroupReduce::Max { empty: 0.0 } } else { GroupReduce::Sum };
    let (x, dy) = (normal(d, t, g.edges * w, 1)?, normal(d, t, g.nodes * w, 2)?);
    let (y, dx) = (d.alloc(t, g.nodes * w)?, d.alloc(t, g.edges * w)?);
    let arg = Rc::new(d.alloc(DType::I64, if max { g.nodes * w } else { 0 })?);
    // An extreme also writes, or reads, which edge each of its values is of.
    let bytes = g.traffic(w * t.size()) + 8 * arg.len();
    let (d1, g1, arg1) = (d.clone(), g.clone(), arg.clone());
    let fwd = work(bytes, 0.0, move |_| {
        let s = [1, g1.nodes, w];
        let io = GroupIo {
            src: at(&x, &[1, g1.edges, w])?,
            index: g1.dst.view(),
            groups: Some(groups(&g1.by_dst)),
            y: to(&y, &s)?.into(),
            arg: if max { Some(to(&arg1, &s)?) } else { None },
            counts: None,
        };
        Ok(d1.group_reduce(how, io)?)
    });
    (fwd.queue)(0)?;
    let d2 = d.clone();
    let bwd = work(bytes, 0.0, move |_| {
        let s = [1, g.nodes, w];
        let io = GroupBwd {
            dy: at(&dy, &s)?,
            index: Some(g.dst.view()),
            src: None,
            y: None,
            arg: if max { Some(at(&arg, &s)?) } else { None },
            counts: None,
            groups: Some(groups(&g.by_dst)),
            dsrc: to(&dx, &[1, g.edges, w])?.into(),
        };
        Ok(d2.group_reduce_bwd(how, io)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

fn spmm(c: &Case, d: &Device) -> Result<Prepared> {
    let (g, w, t) = (Graph::new(c, d)?, c.size("dim")?, c.dtype()?);
    let (v, x, y) = (normal(d, t, g.edges, 1)?, normal(d, t, g.nodes * w, 2)?, d.alloc(t, g.nodes * w)?);
    let (bytes, d) = (g.traffic(w * t.size()), d.clone());
    let fwd = work(bytes, 0.0, move |_| {
        let s = [g.nodes, w];
        let io = Spmm {
            rowptr: g.by_dst[0].view(),
            col: g.by_dst[1].view(),
            values: Some(v.view()),
            x: at(&x, &s)?,
            bias: None,
            act: Activation::Identity,
            y: to(&y, &s)?,
        };
        Ok(d.spmm(io)?)
    });
    Ok(Prepared { fwd, bwd: None })
}

fn mean(c: &Case, d: &Device) -> Result<Prepared> {
    let (g, w, t) = (Graph::new(c, d)?, c.size("dim")?, c.dtype()?);
    let (x, dy) = (normal(d, t, g.nodes * w, 1)?, normal(d, t, g.nodes * w, 2)?);
    let (y, dx) = (d.alloc(t, g.nodes * w)?, d.alloc(t, g.nodes * w)?);
    let degree = Rc::new(d.alloc(DType::I64, g.nodes)?);
    let bytes = g.traffic(w * t.size());
    let (d1, g1, n1) = (d.clone(), g.clone(), degree.clone());
    let fwd = work(bytes, 0.0, move |_| {
        let s = [g1.nodes, w];
        let io = Messages {
            src: g1.src.view(),
            dst: g1.dst.view(),
            x: Some(at(&x, &s)?),
            e: None,
            by_dst: Some(groups(&g1.by_dst)),
            y: to(&y, &s)?,
            arg: None,
            degree: Some(n1.alias_mut()),
        };
        Ok(d1.message_passing(Message::CopyU, MessageReduce::Mean, io)?)
    });
    (fwd.queue)(0)?;
    let d2 = d.clone();
    let bwd = work(bytes, 0.0, move |_| {
        let s = [g.nodes, w];
        let io = MessagesBwd {
            dy: at(&dy, &s)?,
            src: g.src.view(),
            dst: g.dst.view(),
            x: None,
            e: None,
            arg: None,
            degree: Some(degree.view()),
            by_src: Some(groups(&g.by_src)),
            by_dst: None,
            dx: Some(to(&dx, &s)?.into()),
            de: None,
        };
        Ok(d2.message_passing_bwd(Message::CopyU, MessageReduce::Mean, io)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

fn softmax(c: &Case, d: &Device) -> Result<Prepared> {
    let (g, h, t) = (Graph::new(c, d)?, c.size("heads")?, c.dtype()?);
    let (x, dy) = (normal(d, t, g.edges * h, 1)?, normal(d, t, g.edges * h, 2)?);
    let (y, dx) = (Rc::new(d.alloc(t, g.edges * h)?), d.alloc(t, g.edges * h)?);
    let row = g.edges * h * t.size();
    let lists = 16 * g.edges;
    let (d1, g1, y1) = (d.clone(), g.clone(), y.clone());
    let fwd = work(2 * row + lists, 0.0, move |_| {
        let s = [g1.edges, h];
        let by = Some(groups(&g1.by_dst));
        Ok(d1.edge_softmax(g1.nodes, g1.dst.view(), by, at(&x, &s)?, to(&y1, &s)?)?)
    });
    (fwd.queue)(0)?;
    let d2 = d.clone();
    let bwd = work(3 * row + lists, 0.0, move |_| {
        let s = [g.edges, h];
        let by = Some(groups(&g.by_dst));
        let (dy, y) = (at(&dy, &s)?, at(&y, &s)?);
        Ok(d2.edge_softmax_bwd(g.nodes, g.dst.view(), by, dy, y, to(&dx, &s)?.into())?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

/// A layer: linear map, scores of both ends (products with block-diagonal matrices), attention.
struct Layer {
    g: Rc<Graph>,
    width: usize,
    heads: usize,
    /// Input, weight, score matrices, upstream gradient.
    x: Buffer,
    w: Buffer,
    a: [Buffer; 2],
    dy: Buffer,
    /// What forward makes: features, scores, result, lse.
    h: Buffer,
    s: [Buffer; 2],
    y: Buffer,
    lse: Buffer,
    /// Gradients of the same.
    dh: Buffer,
    ds: [Buffer; 2],
    dx: Buffer,
    dw: Buffer,
    da: [Buffer; 2],
}

impl Layer {
    fn new(c: &Case, d: &Device) -> Result<Self> {
        let (g, width, heads, t) = (Graph::new(c, d)?, c.size("dim")?, c.size("heads")?, c.dtype()?);
        let (rows, scores) = (g.nodes * width, g.nodes * heads);
        let pair = |n| Ok::<_, crate::error::CliError>([d.alloc(t, n)?, d.alloc(t, n)?]);
        Ok(Layer {
            x: normal(d, t, rows, 1)?,
            w: normal(d, t, width * width, 2)?,
            a: [normal(d, t, width * heads, 3)?, normal(d, t, width * heads, 4)?],
            dy: normal(d, t, rows, 5)?,
            h: d.alloc(t, rows)?,
            s: pair(scores)?,
            y: d.alloc(t, rows)?,
            lse: d.alloc(t.accumulator(), scores)?,
            dh: d.alloc(t, rows)?,
            ds: pair(scores)?,
            dx: d.alloc(t, rows)?,
            dw: d.alloc(t, width * width)?,
            da: pair(width * heads)?,
            g,
            width,
            heads,
        })
    }

    fn shapes(&self) -> ([usize; 2], [usize; 3], [usize; 2], [usize; 2]) {
        let (n, w, h) = (self.g.nodes, self.width, self.heads);
        ([n, w], [n, h, w / h], [n, h], [w, h])
    }

    fn forward(&self, d: &Device) -> Result<()> {
        let (rows, split, scores, a) = self.shapes();
        let w = at(&self.w, &[self.width, self.width])?;
        let linear = Gemm::new().trans(false, true);
        d.gemm(&linear, GemmIo::new(at(&self.x, &rows)?, w, to(&self.h, &rows)?))?;
        for (m, s) in self.a.iter().zip(&self.s) {
            d.gemm(&Gemm::new(), GemmIo::new(at(&self.h, &rows)?, at(m, &a)?, to(s, &scores)?))?;
        }
        let io = Gat {
            src: self.g.src.view(),
            dst: self.g.dst.view(),
            by_dst: Some(groups(&self.g.by_dst)),
            x: at(&self.h, &split)?,
            score_src: at(&self.s[0], &scores)?,
            score_dst: at(&self.s[1], &scores)?,
            y: to(&self.y, &split)?,
            lse: Some(to(&self.lse, &scores)?),
        };
        Ok(d.gat(0.2, io)?)
    }

    fn backward(&self, d: &Device) -> Result<()> {
        let (rows, split, scores, a) = self.shapes();
        let io = GatBwd {
            dy: at(&self.dy, &split)?,
            src: self.g.src.view(),
            dst: self.g.dst.view(),
            by_src: Some(groups(&self.g.by_src)),
            by_dst: Some(groups(&self.g.by_dst)),
            x: at(&self.h, &split)?,
            score_src: at(&self.s[0], &scores)?,
            score_dst: at(&self.s[1], &scores)?,
            lse: at(&self.lse, &scores)?,
            dx: Some(to(&self.dh, &split)?.into()),
            dscore_src: Some(to(&self.ds[0], &scores)?.into()),
            dscore_dst: Some(to(&self.ds[1], &scores)?.into()),
        };
        d.gat_bwd(0.2, io)?;
        for k in 0..2 {
            let io = GemmBwd {
                dy: at(&self.ds[k], &scores)?,
                a: at(&self.h, &rows)?,
                b: at(&self.a[k], &a)?,
                saved: None,
                da: Some(to(&self.dh, &rows)?.accumulate()),
                db: Some(to(&self.da[k], &a)?.into()),
                dbias: None,
            };
            d.gemm_bwd(&Gemm::new(), io)?;
        }
        let w = [self.width, self.width];
        let io = GemmBwd {
            dy: at(&self.dh, &rows)?,
            a: at(&self.x, &rows)?,
            b: at(&self.w, &w)?,
            saved: None,
            da: Some(to(&self.dx, &rows)?.into()),
            db: Some(to(&self.dw, &w)?.into()),
            dbias: None,
        };
        Ok(d.gemm_bwd(&Gemm::new().trans(false, true), io)?)
    }
}

fn gat(c: &Case, d: &Device) -> Result<Prepared> {
    let layer = Rc::new(Layer::new(c, d)?);
    let size = c.dtype()?.size();
    let bytes = layer.g.traffic((layer.width + layer.heads) * size);
    let (l1, d1, d2) = (layer.clone(), d.clone(), d.clone());
    let fwd = work(bytes, 0.0, move |_| l1.forward(&d1));
    (fwd.queue)(0)?;
    let bwd = work(2 * bytes, 0.0, move |_| layer.backward(&d2));
    Ok(Prepared { fwd, bwd: Some(bwd) })
}
