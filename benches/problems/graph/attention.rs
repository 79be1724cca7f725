//! Attention over the edges of a graph.

use trefoil::ops::gemm::{Gemm, GemmBwd, GemmIo};
use trefoil::ops::graph::{Gat, GatBwd};
use trefoil::{Buffer, DType, IGpuBackend, Result};

use super::{Graph, Size, size, size_of, width};
use crate::case::{Case, CaseError};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// Scores of `h` heads normalised over the edges into each node.
pub(super) fn edge_softmax(cx: &Context<'_>, dt: DType, size: Size, h: usize) -> Result<Prepared> {
    let g = Graph::new(cx, size)?;
    let (x, mut y) = (cx.normal(dt, g.edges * h)?, cx.empty(dt, g.edges * h)?);
    bytes(g.edges * (2 * h * dt.size() + 16), move |gpu| {
        let (s, groups) = ([g.edges, h], Some(Graph::groups(&g.by_dst)));
        gpu.edge_softmax(g.nodes, g.dst.view(), groups, x.shaped(&s)?, y.shaped_mut(&s)?)
    })
}

/// The gradient of [`edge_softmax`].
pub(super) fn edge_softmax_bwd(cx: &Context<'_>, dt: DType, size: Size, h: usize) -> Result<Prepared> {
    let g = Graph::new(cx, size)?;
    let n = g.edges * h;
    let (dy, y, mut dx) = (cx.normal(dt, n)?, cx.positive(dt, n)?, cx.empty(dt, n)?);
    bytes(g.edges * (3 * h * dt.size() + 16), move |gpu| {
        let (s, groups) = ([g.edges, h], Some(Graph::groups(&g.by_dst)));
        let (dy, y) = (dy.shaped(&s)?, y.shaped(&s)?);
        gpu.edge_softmax_bwd(g.nodes, g.dst.view(), groups, dy, y, dx.shaped_mut(&s)?.into())
    })
}

/// A layer of graph attention: linear map, scores of both ends (products with block-diagonal matrices), attention.
struct Layer {
    g: Graph,
    width: usize,
    heads: usize,
    /// Input, weight, score matrices, upstream gradient.
    x: Buffer,
    w: Buffer,
    a: [Buffer; 2],
    dy: Buffer,
    /// What forward makes: features, scores, result, logarithms of the sums.
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

/// Negative slope of the scores' leaky relu.
const SLOPE: f64 = 0.2;

impl Layer {
    fn new(cx: &Context<'_>, dt: DType, c: &Case) -> Result<Self, CaseError> {
        let (g, width, heads) = (Graph::new(cx, size_of(c)?)?, c.size("dim")?, c.size("heads")?);
        let (rows, scores) = (g.nodes * width, g.nodes * heads);
        let pair = |n| Ok::<_, CaseError>([cx.empty(dt, n)?, cx.empty(dt, n)?]);
        Ok(Layer {
            x: cx.normal(dt, rows)?,
            w: cx.normal(dt, width * width)?,
            a: [cx.normal(dt, width * heads)?, cx.normal(dt, width * heads)?],
            dy: cx.normal(dt, rows)?,
            h: cx.empty(dt, rows)?,
            s: pair(scores)?,
            y: cx.empty(dt, rows)?,
            lse: cx.empty(dt.accumulator(), scores)?,
            dh: cx.empty(dt, rows)?,
            ds: pair(scores)?,
            dx: cx.empty(dt, rows)?,
            dw: cx.empty(dt, width * width)?,
            da: pair(width * heads)?,
            g,
            width,
            heads,
        })
    }

    /// Bytes of the forward; the backward has twice as many.
    fn bytes(&self, dt: DType) -> usize {
        self.g.traffic((self.width + self.heads) * dt.size())
    }

    /// Shapes of features, of features by heads, of scores and of a score matrix.
    fn shapes(&self) -> ([usize; 2], [usize; 3], [usize; 2], [usize; 2]) {
        let (n, w, h) = (self.g.nodes, self.width, self.heads);
        ([n, w], [n, h, w / h], [n, h], [w, h])
    }

    fn forward(&mut self, gpu: &dyn IGpuBackend) -> Result<()> {
        let (rows, split, scores, a) = self.shapes();
        let w = self.w.shaped(&[self.width, self.width])?;
        let linear = Gemm::new().trans(false, true);
        gpu.gemm(&linear, GemmIo::new(self.x.shaped(&rows)?, w, self.h.shaped_mut(&rows)?))?;
        for (m, s) in self.a.iter().zip(&mut self.s) {
            let io = GemmIo::new(self.h.shaped(&rows)?, m.shaped(&a)?, s.shaped_mut(&scores)?);
            gpu.gemm(&Gemm::new(), io)?;
        }
        let io = Gat::new(
            self.g.src.view(),
            self.g.dst.view(),
            self.h.shaped(&split)?,
            self.s[0].shaped(&scores)?,
            self.s[1].shaped(&scores)?,
            self.y.shaped_mut(&split)?,
        )
        .by_dst(Graph::groups(&self.g.by_dst))
        .lse(self.lse.shaped_mut(&scores)?);
        gpu.gat(SLOPE, io)
    }

    fn backward(&mut self, gpu: &dyn IGpuBackend) -> Result<()> {
        let (rows, split, scores, a) = self.shapes();
        let [ds, dt] = &mut self.ds;
        let io = GatBwd::new(
            self.dy.shaped(&split)?,
            self.g.src.view(),
            self.g.dst.view(),
            self.h.shaped(&split)?,
            self.s[0].shaped(&scores)?,
            self.s[1].shaped(&scores)?,
            self.lse.shaped(&scores)?,
        )
        .by_src(Graph::groups(&self.g.by_src))
        .by_dst(Graph::groups(&self.g.by_dst))
        .dx(self.dh.shaped_mut(&split)?)
        .dscore_src(ds.shaped_mut(&scores)?)
        .dscore_dst(dt.shaped_mut(&scores)?);
        gpu.gat_bwd(SLOPE, io)?;
        for k in 0..2 {
            let io = GemmBwd::new(self.ds[k].shaped(&scores)?, self.h.shaped(&rows)?, self.a[k].shaped(&a)?)
                .da(self.dh.shaped_mut(&rows)?.accumulate())
                .db(self.da[k].shaped_mut(&a)?);
            gpu.gemm_bwd(&Gemm::new(), io)?;
        }
        let w = [self.width, self.width];
        let io = GemmBwd::new(self.dh.shaped(&rows)?, self.x.shaped(&rows)?, self.w.shaped(&w)?)
            .da(self.dx.shaped_mut(&rows)?)
            .db(self.dw.shaped_mut(&w)?);
        gpu.gemm_bwd(&Gemm::new().trans(false, true), io)
    }
}

/// A whole layer, which is no operation of its own.
pub(super) fn gat_layer(cx: &Context<'_>, c: &Case) -> Result<Prepared, CaseError> {
    let dt = c.dtype()?;
    let mut layer = Layer::new(cx, dt, c)?;
    Ok(prepared(layer.bytes(dt), 0, move |gpu, _| layer.forward(gpu))?)
}

/// All gradients of [`gat_layer`].
pub(super) fn gat_layer_bwd(cx: &Context<'_>, c: &Case) -> Result<Prepared, CaseError> {
    let dt = c.dtype()?;
    let mut layer = Layer::new(cx, dt, c)?;
    layer.forward(cx.gpu)?;
    Ok(prepared(2 * layer.bytes(dt), 0, move |gpu, _| layer.backward(gpu))?)
}

pub(crate) const ATTENTION: &[Problem] = &[
    problem("edge_softmax", "heads", F32, |cx, dt| edge_softmax(cx, dt, size(cx), 8)),
    problem("edge_softmax_bwd", "heads", F32, |cx, dt| edge_softmax_bwd(cx, dt, size(cx), 8)),
    problem("gat", "heads", F32_BF16, |cx, dt| {
        let (g, d) = (Graph::of_table(cx)?, width(cx));
        let (x, s, mut y) =
            (cx.normal(dt, g.nodes * d)?, cx.normal(dt, g.nodes * 8)?, cx.empty(dt, g.nodes * d)?);
        let mut lse = cx.empty(DType::F32, g.nodes * 8)?;
        bytes(g.traffic((d + 8) * dt.size()), move |gpu| {
            let (rows, heads) = ([g.nodes, 8, d / 8], [g.nodes, 8]);
            let io = Gat::new(
                g.src.view(),
                g.dst.view(),
                x.shaped(&rows)?,
                s.shaped(&heads)?,
                s.shaped(&heads)?,
                y.shaped_mut(&rows)?,
            )
            .by_dst(Graph::groups(&g.by_dst))
            .lse(lse.shaped_mut(&heads)?);
            gpu.gat(0.2, io)
        })
    }),
    problem("gat_bwd", "heads", F32, |cx, dt| {
        let (g, d) = (Graph::of_table(cx)?, width(cx));
        let (x, dy, s) =
            (cx.normal(dt, g.nodes * d)?, cx.normal(dt, g.nodes * d)?, cx.normal(dt, g.nodes * 8)?);
        let lse = cx.normal(DType::F32, g.nodes * 8)?;
        let (mut dx, mut du, mut dv) =
            (cx.empty(dt, g.nodes * d)?, cx.empty(dt, g.nodes * 8)?, cx.empty(dt, g.nodes * 8)?);
        bytes(2 * g.traffic((d + 8) * dt.size()), move |gpu| {
            let (rows, heads) = ([g.nodes, 8, d / 8], [g.nodes, 8]);
            let io = GatBwd::new(
                dy.shaped(&rows)?,
                g.src.view(),
                g.dst.view(),
                x.shaped(&rows)?,
                s.shaped(&heads)?,
                s.shaped(&heads)?,
                lse.shaped(&heads)?,
            )
            .by_src(Graph::groups(&g.by_src))
            .by_dst(Graph::groups(&g.by_dst))
            .dx(dx.shaped_mut(&rows)?)
            .dscore_src(du.shaped_mut(&heads)?)
            .dscore_dst(dv.shaped_mut(&heads)?);
            gpu.gat_bwd(0.2, io)
        })
    }),
];
