//! Whole training steps of trefoil-nn: clear gradients, forward, loss, backward, update.
//!
//! The models are those that PyTorch's baseline trains, layer for layer. With a 16-bit dtype parameters, activations and gradients have
//! 16 bits and the optimizer keeps f32 masters.

use std::cell::RefCell;

use trefoil::DType;
use trefoil::ops::{
    Activation, Attention, Causal, Csr, CsrIo, Distribution, EdgeGroups, EmbeddingGrad, GnnOps, OptimRule,
    Precision, Rng, Saved, Spmm, SpmmBwd,
};
use trefoil_nn::autograd::{self, BackwardCtx, CustomOp};
use trefoil_nn::layers::{
    BatchNormalization, Convolutional, Dense, Embedding, GlobalPooling, LayerNormalization, Lstm, MaxPooling,
    Sequential,
};
use trefoil_nn::{
    CrossEntropyLoss, Device, Init, InitContext, Layer, Optimizer, Param, Result, ScaledDotProductAttention,
    Tensor, Visitor,
};

use super::case::Case;
use super::gnn::random_edges;
use super::ops::{precision, random, work};
use super::timing::Prepared;
use crate::error::Result as CliResult;

/// A model with what it learns from.
struct Training<M> {
    model: M,
    optimizer: RefCell<Optimizer>,
    x: Tensor,
    y: Tensor,
    /// Arithmetic operations of the matrix products of a step.
    flops: f64,
}

impl<M: Layer + 'static> Training<M> {
    fn new(c: &Case, model: M, rule: OptimRule, lr: f64, [x, y]: [Tensor; 2], flops: f64) -> CliResult<Self> {
        let optimizer = Optimizer::new(&model, rule, lr)?;
        let optimizer = if c.dtype()?.is_half() { optimizer.master_weights()? } else { optimizer };
        Ok(Training { model, optimizer: RefCell::new(optimizer), x, y, flops })
    }

    /// A step; its loss, on the device.
    fn step(&self) -> Result<Tensor> {
        let mut o = self.optimizer.borrow_mut();
        o.zero_grad()?;
        let loss = CrossEntropyLoss::default().forward(&self.model.forward(&self.x)?, &self.y)?;
        o.backward(&loss)?;
        o.step()?;
        Ok(loss.detach())
    }

    fn prepared(self) -> Prepared {
        // Weights are read by both passes; an optimizer with two states reads and writes four arrays of their size, less the gradient's
        // write. Activations are not counted.
        let params: usize = trefoil_nn::LayerExt::num_parameters(&self.model);
        let flops = self.flops;
        Prepared {
            fwd: work(params * 4 * 9, flops, move |_| {
                self.step()?;
                Ok(())
            }),
            bwd: None,
        }
    }
}

const ADAM: OptimRule = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };
const ADAMW: OptimRule = OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 };
const MOMENTUM: OptimRule = OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.0, nesterov: false };

/// A case ready to run; `None` if it is none of these models.
pub(super) fn prepare(c: &Case, d: &Device) -> CliResult<Option<Prepared>> {
    Ok(Some(match c.op() {
        "train_mlp" => mlp(c, d)?.prepared(),
        "train_gpt" => gpt(c, d)?.prepared(),
        "train_resnet" => resnet(c, d)?.prepared(),
        "train_lstm_lm" => lstm_lm(c, d)?.prepared(),
        "train_gcn" => gcn(c, d)?.prepared(),
        _ => return Ok(None),
    }))
}

fn ids(d: &Device, shape: &[usize], below: usize, seed: u64) -> CliResult<Tensor> {
    let uniform = Distribution::Int { lo: 0, hi: below as i64 };
    Ok(Tensor::random(d, DType::I64, shape, uniform, Rng::new(seed))?)
}

/// Sequences `[B, T]` of random ids, and what follows each of them `[B T]`.
fn sequences(d: &Device, batch: usize, steps: usize, vocab: usize) -> CliResult<[Tensor; 2]> {
    let all = ids(d, &[batch, steps + 1], vocab, 2)?;
    let next = all.narrow(1, 1, steps)?.contiguous()?.reshape(&[batch * steps])?;
    Ok([all.narrow(1, 0, steps)?.contiguous()?, next])
}

fn mlp(c: &Case, d: &Device) -> CliResult<Training<Sequential>> {
    let (batch, inputs, outputs, hidden) =
        (c.size("batch")?, c.size("in")?, c.size("out")?, c.list("hidden")?);
    let sizes = [&[inputs], hidden.as_slice(), &[outputs]].concat();
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let mut model = Sequential::new();
    let mut flops = 0.0;
    for (i, pair) in sizes.windows(2).enumerate() {
        let a = if i + 2 < sizes.len() { Activation::Relu } else { Activation::Identity };
        model = model.push(Dense::new(&cx, pair[0], pair[1])?.activation(a).precision(precision(c)));
        // Forward, weight gradient, and the input's gradient in all layers but the first.
        let products = if i == 0 { 2.0 } else { 3.0 };
        flops += products * 2.0 * (batch * pair[0]) as f64 * pair[1] as f64;
    }
    let data = [random(d, c.dtype()?, &[batch, inputs], 1, 1.0)?, ids(d, &[batch], outputs, 2)?];
    Training::new(c, model, ADAM, 1e-3, data, flops)
}

/// Attention and network of a transformer, each behind a normalization.
#[derive(Debug)]
struct Block {
    n1: LayerNormalization,
    qkv: Dense,
    o: Dense,
    n2: LayerNormalization,
    f1: Dense,
    f2: Dense,
    heads: usize,
}

impl Block {
    fn new(cx: &InitContext, d: usize, heads: usize, precision: Precision) -> Result<Self> {
        let dense = |inputs: usize, outputs: usize| {
            let l =
                Dense::new(cx, inputs, outputs)?.init(Init::Normal { mean: 0.0, std: 0.02 }, Init::Lin)?;
            Ok::<_, trefoil_nn::NnError>(l.precision(precision))
        };
        Ok(Block {
            n1: LayerNormalization::new(cx, &[d])?,
            qkv: dense(d, 3 * d)?,
            o: dense(d, d)?,
            n2: LayerNormalization::new(cx, &[d])?,
            f1: dense(d, 4 * d)?.activation(Activation::GeluTanh),
            f2: dense(4 * d, d)?,
            heads,
        })
    }

    /// The residual stream `x` and what the block before gave, not yet added to it; the same for the next block. Each sum is part of the
    /// normalization behind it.
    fn run(&self, x: &Tensor, open: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let (h, x) = match open {
            Some(y) => self.n1.add_forward(y, x)?,
            None => (self.n1.forward(x)?, x.clone()),
        };
        let attention = ScaledDotProductAttention::with(Attention::new().causal(Causal::TopLeft));
        let a = attention.forward_packed(&self.qkv.forward(&h)?, self.heads)?.merge_heads()?;
        let (h, x) = self.n2.add_forward(&self.o.forward(&a)?, &x)?;
        Ok((x, self.f2.forward(&self.f1.forward(&h)?)?))
    }
}

impl Layer for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (x, y) = self.run(x, None)?;
        x.add(&y)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("n1", &self.n1);
        v.child("qkv", &self.qkv);
        v.child("o", &self.o);
        v.child("n2", &self.n2);
        v.child("f1", &self.f1);
        v.child("f2", &self.f2);
    }
}

/// A decoder-only transformer whose head is the table of tokens.
#[derive(Debug)]
struct Gpt {
    te: Embedding,
    pe: Embedding,
    blocks: Vec<Block>,
    norm: LayerNormalization,
    precision: Precision,
}

impl Layer for Gpt {
    /// Ids `[B, T]` to logits `[B T, V]`.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (tokens, places) = (self.te.weight().get(), self.pe.weight().get());
        let steps = ids.shape().last().copied().unwrap_or(0);
        let places = if steps == places.shape()[0] { places } else { places.narrow(0, 0, steps)? };
        let mut x = tokens.embedding(ids, &EmbeddingGrad::new())?.add(&places)?;
        let mut open = None;
        for b in &self.blocks {
            let (sum, y) = b.run(&x, open.as_ref())?;
            (x, open) = (sum, Some(y));
        }
        let h = match open {
            Some(y) => self.norm.add_forward(&y, &x)?.0,
            None => self.norm.forward(&x)?,
        };
        let h = h.reshape(&[ids.numel(), tokens.shape()[1]])?;
        h.linear(&tokens, None, Activation::Identity, self.precision)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("te", &self.te);
        v.child("pe", &self.pe);
        self.blocks.iter().enumerate().for_each(|(i, b)| v.child(&format!("b.{i}"), b));
        v.child("n", &self.norm);
    }
}

fn gpt(c: &Case, d: &Device) -> CliResult<Training<Gpt>> {
    let (vocab, t, width, heads, layers, b) =
        (c.size("vocab")?, c.size("t")?, c.size("d")?, c.size("h")?, c.size("layers")?, c.size("b")?);
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let normal = Init::Normal { mean: 0.0, std: 0.02 };
    let model = Gpt {
        te: Embedding::new(&cx, vocab, width)?.init(&cx, normal)?,
        pe: Embedding::new(&cx, t, width)?.init(&cx, normal)?,
        blocks: (0..layers).map(|_| Block::new(&cx, width, heads, precision(c))).collect::<Result<_>>()?,
        norm: LayerNormalization::new(&cx, &[width])?,
        precision: precision(c),
    };
    let tokens = (b * t) as f64;
    // Three times two operations per weight and token; attention has two products forward and five backward, half of them masked.
    let weights = (12 * layers * width * width + vocab * width) as f64;
    let attention = (layers * t * width) as f64 * (4.0 + 10.0) * 0.5;
    Training::new(c, model, ADAMW, 1e-4, sequences(d, b, t, vocab)?, tokens * (6.0 * weights + attention))
}

/// Convolution and batch normalization, with relu where the block does not end.
#[derive(Debug)]
struct ConvNorm {
    conv: Convolutional,
    norm: BatchNormalization,
}

/// Channels in and out, window, stride.
type ConvSize = (usize, usize, usize, usize);

/// What a network's convolutions are made with, and how large they get.
struct Sizes<'a> {
    cx: &'a InitContext,
    precision: Precision,
    batch: usize,
    /// Arithmetic operations of the forward's convolutions.
    flops: f64,
}

impl Sizes<'_> {
    /// A convolution of an image of `side`, and the side of its result.
    fn conv(&mut self, side: usize, (i, o, k, s): ConvSize, act: Activation) -> Result<(ConvNorm, usize)> {
        let conv = Convolutional::new(self.cx, i, o, k)?.stride(s).padding(k / 2).no_bias();
        let conv = conv.init(Init::He, Init::Zeros)?.precision(self.precision);
        let side = (side + 2 * (k / 2) - k) / s + 1;
        self.flops += 2.0 * (self.batch * o * side * side) as f64 * (i * k * k) as f64;
        let norm = BatchNormalization::new(self.cx, o)?.activation(act);
        Ok((ConvNorm { conv, norm }, side))
    }
}

impl Layer for ConvNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("conv", &self.conv);
        v.child("bn", &self.norm);
    }
}

/// A residual block: convolutions, the last of which ends with the sum and relu.
#[derive(Debug)]
struct Bottleneck {
    body: Vec<ConvNorm>,
    last: ConvNorm,
    downsample: Option<ConvNorm>,
}

impl Layer for Bottleneck {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.body.iter().try_fold(x.clone(), |h, l| l.forward(&h))?;
        let x = match &self.downsample {
            Some(l) => l.forward(x)?,
            None => x.clone(),
        };
        self.last.norm.add_forward(&self.last.conv.forward(&h)?, &x)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.body.iter().enumerate().for_each(|(i, l)| v.child(&format!("{i}"), l));
        v.child("last", &self.last);
        if let Some(l) = &self.downsample {
            v.child("downsample", l);
        }
    }
}

/// torchvision's `resnet18` (blocks of two 3x3 convolutions) and `resnet50` (1x1, 3x3 with the stride, 1x1 to four times the width).
fn resnet(c: &Case, d: &Device) -> CliResult<Training<Sequential>> {
    let (deep, counts) = match c.text("net")? {
        "resnet18" => (false, [2, 2, 2, 2]),
        "resnet50" => (true, [3, 4, 6, 3]),
        _ => return Err(c.unknown("net", "resnet18 or resnet50")),
    };
    let (classes, side, batch) = (c.size("classes")?, c.size("h")?, c.size("b")?);
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let mut z = Sizes { cx: &cx, precision: precision(c), batch, flops: 0.0 };
    let (relu, none) = (Activation::Relu, Activation::Identity);
    let (stem, s) = z.conv(side, (3, 64, 7, 2), relu)?;
    // The image's gradient is not taken.
    let first = z.flops;
    let mut model = Sequential::new().push(stem).push(MaxPooling::new(3)?.stride(2).padding(1));
    let (mut s, mut from) = ((s + 2 - 3) / 2 + 1, 64);
    for (stage, &count) in counts.iter().enumerate() {
        let width = 64 << stage;
        let out = if deep { 4 * width } else { width };
        for i in 0..count {
            let stride = if i == 0 && stage > 0 { 2 } else { 1 };
            let sizes: &[ConvSize] = if deep {
                &[(from, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
            } else {
                &[(from, width, 3, stride), (width, width, 3, 1)]
            };
            let downsample = match stride > 1 || from != out {
                true => Some(z.conv(s, (from, out, 1, stride), none)?.0),
                false => None,
            };
            let mut body = vec![];
            for &size in sizes {
                let (layer, next) = z.conv(s, size, relu)?;
                body.push(layer);
                s = next;
            }
            // The last relu comes behind the sum, which is part of that normalization.
            let last = body.pop().ok_or_else(|| c.unknown("net", "a network with convolutions"))?;
            model = model.push(Bottleneck { body, last, downsample });
            from = out;
        }
    }
    let head = Dense::new(&cx, from, classes)?.precision(precision(c));
    let model = model.push(GlobalPooling::avg().keepdim(false)).push(head);
    let flops = 3.0 * (z.flops + 2.0 * (batch * from) as f64 * classes as f64) - first;
    let data = [random(d, c.dtype()?, &[batch, 3, side, side], 1, 1.0)?, ids(d, &[batch], classes, 2)?];
    Training::new(c, model, MOMENTUM, 0.1, data, flops)
}

/// Embedding, LSTM, distribution of the next token.
#[derive(Debug)]
struct LstmLm {
    table: Embedding,
    lstm: Lstm,
    head: Dense,
}

impl Layer for LstmLm {
    /// Ids `[B, T]` to logits `[B T, V]`.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let h = self.lstm.forward(&self.table.forward(ids)?)?;
        let width = h.shape().last().copied().unwrap_or(0);
        self.head.forward(&h.reshape(&[ids.numel(), width])?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("e", &self.table);
        v.child("r", &self.lstm);
        v.child("o", &self.head);
    }
}

fn lstm_lm(c: &Case, d: &Device) -> CliResult<Training<LstmLm>> {
    let (vocab, width, layers, b, t) =
        (c.size("vocab")?, c.size("d")?, c.size("layers")?, c.size("b")?, c.size("t")?);
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let model = LstmLm {
        table: Embedding::new(&cx, vocab, width)?,
        lstm: Lstm::new(&cx, width, width)?.num_layers(layers)?.precision(precision(c)),
        head: Dense::new(&cx, width, vocab)?.precision(precision(c)),
    };
    let flops = 6.0 * (b * t) as f64 * (layers * 8 * width * width + vocab * width) as f64;
    Training::new(c, model, ADAM, 1e-3, sequences(d, b, t, vocab)?, flops)
}

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
        x.device().spmm(Spmm {
            rowptr: p.view()?,
            col: c.view()?,
            values: Some(v.view()?),
            x: xo.view()?,
            bias: Some(bo.view()?),
            act: self.act,
            y: yo.view_mut()?,
        })?;
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
        Ok(device.spmm_bwd(SpmmBwd {
            dy: g.view()?,
            rowptr: p.view()?,
            col: c.view()?,
            values: Some(v.view()?),
            x: xo.view()?,
            transpose: Some(EdgeGroups::new(tp.view()?).col(tc.view()?).perm(tv.view()?)),
            dx: dx.as_ref().map(|t| t.out()).transpose()?,
            dvalues: None,
            dbias: db.as_ref().map(|t| t.out()).transpose()?,
        })?)
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

fn gcn(c: &Case, d: &Device) -> CliResult<Training<Sequential>> {
    let (nodes, edges, classes) = (c.size("nodes")?, c.size("edges")?, c.size("classes")?);
    let sizes = [&[c.size("in")?], c.list("hidden")?.as_slice(), &[classes]].concat();
    let (cx, dtype) = (InitContext::new(d, 1).dtype(c.dtype()?), c.dtype()?);
    let adjacency = Adjacency::new(d, dtype, nodes, edges)?;
    let (mut model, mut flops) = (Sequential::new(), 0.0);
    for (i, pair) in sizes.windows(2).enumerate() {
        let act = if i + 2 < sizes.len() { Activation::Relu } else { Activation::Identity };
        let lin = Dense::new(&cx, pair[0], pair[1])?.init(Init::Glorot, Init::Zeros)?.no_bias();
        let lin = lin.precision(precision(c));
        let bias = Init::Zeros.param(&cx, &[pair[1]], 1, 1)?;
        model = model.push(GcnConv { adjacency: adjacency.clone(), lin, bias, act });
        let products = if i == 0 { 2.0 } else { 3.0 };
        flops += products * 2.0 * (nodes * pair[0]) as f64 * pair[1] as f64;
        // The sparse product and its gradient.
        flops += 2.0 * 2.0 * ((nodes + edges) * pair[1]) as f64;
    }
    let data = [random(d, dtype, &[nodes, sizes[0]], 1, 1.0)?, ids(d, &[nodes], classes, 2)?];
    Training::new(c, model, ADAM, 1e-2, data, flops)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use trefoil::CpuBackend;

    use super::*;

    /// Steps on one batch must lower its loss to `share` of what it was.
    fn learns<M: Layer + 'static>(
        case: Value,
        make: fn(&Case, &Device) -> CliResult<Training<M>>,
        steps: usize,
        share: f32,
    ) {
        learns_at(None, case, make, steps, share);
    }

    fn learns_at<M: Layer + 'static>(
        lr: Option<f64>,
        case: Value,
        make: fn(&Case, &Device) -> CliResult<Training<M>>,
        steps: usize,
        share: f32,
    ) {
        let d: Device = Arc::new(CpuBackend::new());
        let c = Case::new(case).unwrap();
        let t = make(&c, &d).unwrap();
        if let Some(lr) = lr {
            t.optimizer.borrow_mut().set_lr(lr).unwrap();
        }
        let losses: Vec<f32> = (0..=steps).map(|_| t.step().unwrap().item().unwrap()).collect();
        assert!(losses.iter().all(|l| l.is_finite()), "{}: {losses:?}", c.id());
        assert!(losses[steps] < share * losses[0], "{}: {losses:?}", c.id());
        assert!(t.flops > 0.0);
    }

    #[test]
    fn every_model_learns_a_batch() {
        let mlp_case =
            json!({"id": "mlp", "op": "train_mlp", "batch": 8, "in": 6, "hidden": [32, 32], "out": 3});
        learns(mlp_case, mlp, 100, 0.7);
        for dtype in ["f32", "bf16"] {
            let case = json!({"id": dtype, "op": "train_gpt", "vocab": 16, "t": 8, "d": 32, "h": 2, "layers": 2, "b": 2,
                "dtype": dtype});
            learns(case, gpt, 100, 0.9);
        }
        let case =
            json!({"id": "lstm", "op": "train_lstm_lm", "vocab": 12, "d": 16, "layers": 2, "b": 2, "t": 6});
        learns(case, lstm_lm, 60, 0.9);
        let case = json!({"id": "gcn", "op": "train_gcn", "hidden": [16, 16], "classes": 4, "in": 8, "nodes": 40, "edges": 60});
        learns(case, gcn, 60, 0.7);
    }

    #[test]
    fn residual_networks_learn_a_batch() {
        // Several values per channel everywhere: of two, a normalization leaves nothing but signs. The rate of the benchmark is one for
        // large batches; fifty layers on so few pixels bear only a short step.
        for (net, h, b, lr, steps) in [("resnet18", 32, 4, 0.002, 3), ("resnet50", 8, 8, 1e-5, 1)] {
            let case = json!({"id": net, "op": "train_resnet", "net": net, "classes": 3, "h": h, "b": b});
            learns_at(Some(lr), case, resnet, steps, 1.0);
        }
    }

    #[test]
    fn a_network_that_does_not_exist_is_named() {
        let d: Device = Arc::new(CpuBackend::new());
        let c = json!({"id": "net", "op": "train_resnet", "net": "resnet1", "classes": 3, "h": 8, "b": 2});
        let e = prepare(&Case::new(c).unwrap(), &d).err().map(|e| e.to_string());
        assert!(e.is_some_and(|e| e.contains("`net`") && e.contains("resnet18 or resnet50")));
    }
}
