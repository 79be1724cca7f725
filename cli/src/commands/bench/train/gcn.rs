//! A graph convolutional network.

use trefoil::DType;
use trefoil::ops::activation::{Activation, Saved};
use trefoil::ops::graph::{Csr, CsrIo, EdgeGroups, GraphOps, Spmm, SpmmBwd};
use trefoil_bench::{Case, random_edges};
use trefoil_nn::autograd::{self, BackwardCtx, CustomOp};
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::{Device, Init, InitContext, Layer, Param, Result, Tensor, Visitor};

use super::{ADAM, Training, ids, random};
use crate::error::Result as CliResult;

/// D^-1/2 (A + I) D^-1/2 by rows, D counting the edges into a node; and its edges by column. Made once, as `GCNConv(cached=True)` does.
#[derive(Debug, Clone)]
struct Adjacency {
    rowptr: Tensor,
    col: Tensor,
    values: Tensor,
    /// Begin of each column's edges, their rows, and their positions in `col` and `values`.
    transpose: [Tensor; 3],
}

impl Adjacency {
    fn new(d: &Device, dtype: DType, nodes: usize, edges: usize) -> CliResult<Self> {
        let (src, dst) = random_edges(nodes, edges);
        let with_loops = |list: Vec<i64>| -> CliResult<Tensor> {
            let all: Vec<i32> = list.into_iter().chain(0..nodes as i64).map(|n| n as i32).collect();
            Ok(Tensor::from_slice(d, &all, &[all.len()])?)
        };
        let (src, dst) = (with_loops(src)?, with_loops(dst)?);
        let index = |n: usize| Tensor::empty(d, DType::I32, &[n]);
        let group = |key: &Tensor, other: &Tensor| -> Result<[Tensor; 3]> {
            let lists = [index(nodes + 1)?, index(key.numel())?, index(key.numel())?];
            let (k, o, l) = (key.operand(), other.operand(), lists.each_ref().map(Tensor::operand));
            let mut io = CsrIo::new(k.view()?);
            (io.col, io.rowptr) = (Some(o.view()?), Some(l[0].view_mut()?));
            (io.out_col, io.perm) = (Some(l[1].view_mut()?), Some(l[2].view_mut()?));
            d.csr(Csr::FromCoo, io)?;
            Ok(lists)
        };
        let [rowptr, col, _] = group(&dst, &src)?;
        let values = Tensor::empty(d, dtype, &[col.numel()])?;
        d.sym_normalize(rowptr.operand().view()?, col.operand().view()?, None, values.operand().view_mut()?)?;
        // The rows of the edges in their new order, grouped by column.
        let mut rows = vec![];
        for (row, ends) in rowptr.to_vec::<i32>()?.windows(2).enumerate() {
            rows.extend((ends[0]..ends[1]).map(|_| row as i32));
        }
        let transpose = group(&col, &Tensor::from_slice(d, &rows, &[rows.len()])?)?;
        Ok(Adjacency { rowptr, col, values, transpose })
    }
}

/// act(A x + bias), A being the adjacency.
struct Propagate {
    adjacency: Adjacency,
    act: Activation,
}

impl CustomOp for Propagate {
    fn name(&self) -> &'static str {
        "propagate"
    }

    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        let (x, bias, a) = (&inputs[0], &inputs[1], &self.adjacency);
        let y = Tensor::empty(x.device(), x.dtype(), x.shape())?;
        let (xo, bo, yo) = (x.operand(), bias.operand(), y.operand());
        let (p, c, v) = (a.rowptr.operand(), a.col.operand(), a.values.operand());
        x.device().spmm(
            Spmm::new(p.view()?, c.view()?, xo.view()?, yo.view_mut()?)
                .values(v.view()?)
                .bias(bo.view()?)
                .act(self.act),
        )?;
        save.extend([x.clone(), y.clone()]);
        Ok(vec![y])
    }

    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()> {
        let (x, y, a) = (&saved[0], &saved[1], &self.adjacency);
        let (dx, db) = (cx.target(0)?, cx.target(1)?);
        let mut dy = cx.dy()?.contiguous()?;
        let device = dy.device().clone();
        if self.act != Activation::Identity {
            let before = Tensor::empty(&device, dy.dtype(), dy.shape())?;
            let (g, y, out) = (dy.operand(), y.operand(), before.operand());
            device.activation_bwd(self.act, g.view()?, Saved::Output(y.view()?), out.grad(false)?)?;
            dy = before;
        }
        let (g, xo) = (dy.operand(), x.operand());
        let (p, c, v) = (a.rowptr.operand(), a.col.operand(), a.values.operand());
        let [tp, tc, tv] = a.transpose.each_ref().map(Tensor::operand);
        Ok(device.spmm_bwd(
            SpmmBwd::new(g.view()?, p.view()?, c.view()?, xo.view()?)
                .values(v.view()?)
                .transpose(EdgeGroups::new(tp.view()?).col(tc.view()?).perm(tv.view()?))
                .dx(dx.as_ref().map(|t| t.out()).transpose()?)
                .dbias(db.as_ref().map(|t| t.out()).transpose()?),
        )?)
    }
}

/// A graph convolution (Kipf and Welling, 2017).
#[derive(Debug)]
struct GcnConv {
    adjacency: Adjacency,
    lin: Dense,
    bias: Param,
    act: Activation,
}

impl Layer for GcnConv {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let op = Propagate { adjacency: self.adjacency.clone(), act: self.act };
        Ok(autograd::apply(op, &[self.lin.forward(x)?, self.bias.get()])?.remove(0))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("lin", &self.lin);
        v.param("bias", &self.bias);
    }
}

pub(super) fn gcn(c: &Case, d: &Device) -> CliResult<Training<Sequential>> {
    let (nodes, edges, classes) = (c.size("nodes")?, c.size("edges")?, c.size("classes")?);
    let sizes = [&[c.size("in")?], c.list("hidden")?.as_slice(), &[classes]].concat();
    let (cx, dtype) = (InitContext::new(d, 1).dtype(c.dtype()?), c.dtype()?);
    let adjacency = Adjacency::new(d, dtype, nodes, edges)?;
    let (mut model, mut flops) = (Sequential::new(), 0.0);
    for (i, pair) in sizes.windows(2).enumerate() {
        let act = if i + 2 < sizes.len() { Activation::Relu } else { Activation::Identity };
        let lin = Dense::new(&cx, pair[0], pair[1])?.init(Init::Glorot, Init::Zeros)?.no_bias();
        let lin = lin.precision(c.precision());
        let bias = Init::Zeros.param(&cx, &[pair[1]], 1, 1)?;
        model = model.push(GcnConv { adjacency: adjacency.clone(), lin, bias, act });
        let products = if i == 0 { 2.0 } else { 3.0 };
        flops += products * 2.0 * (nodes * pair[0]) as f64 * pair[1] as f64;
        // The sparse product and its gradient.
        flops += 2.0 * 2.0 * ((nodes + edges) * pair[1]) as f64;
    }
    let data = [random(d, dtype, &[nodes, sizes[0]])?, ids(d, &[nodes], classes)?];
    Training::new(c, model, ADAM, 1e-2, data, flops)
}
