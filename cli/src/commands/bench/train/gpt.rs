//! A decoder-only transformer (GPT-2).

use trefoil::ops::activation::Activation;
use trefoil::ops::attention::{Attention, Causal};
use trefoil::ops::embedding::EmbeddingGrad;
use trefoil::ops::gemm::Precision;
use trefoil_bench::Case;
use trefoil_nn::layers::{Dense, Embedding, LayerNormalization};
use trefoil_nn::{Device, Init, InitContext, Layer, Result, ScaledDotProductAttention, Tensor, Visitor};

use super::{ADAMW, Training, sequences};
use crate::error::Result as CliResult;

/// A transformer block: attention and a feed-forward network, each behind a layer normalization.
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

    /// Takes the residual stream `x` and the output of the block before, not yet added to it, and gives both for the next block: each sum is
    /// fused with the normalization behind it.
    fn run(&self, x: &Tensor, pending: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let (h, x) = match pending {
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

/// A decoder-only transformer whose head shares the weights of the token embedding.
#[derive(Debug)]
pub(super) struct Gpt {
    te: Embedding,
    pe: Embedding,
    blocks: Vec<Block>,
    norm: LayerNormalization,
    precision: Precision,
}

impl Layer for Gpt {
    /// Ids `[B, T]` to logits `[B T, V]`.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (tokens, positions) = (self.te.weight().get(), self.pe.weight().get());
        let steps = ids.shape().last().copied().unwrap_or(0);
        let positions =
            if steps == positions.shape()[0] { positions } else { positions.narrow(0, 0, steps)? };
        let mut x = tokens.embedding(ids, &EmbeddingGrad::new())?.add(&positions)?;
        let mut pending = None;
        for b in &self.blocks {
            let (sum, y) = b.run(&x, pending.as_ref())?;
            (x, pending) = (sum, Some(y));
        }
        let h = match pending {
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

pub(super) fn gpt(c: &Case, d: &Device) -> CliResult<Training<Gpt>> {
    let (vocab, t, width, heads, layers, b) =
        (c.size("vocab")?, c.size("t")?, c.size("d")?, c.size("h")?, c.size("layers")?, c.size("b")?);
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let normal = Init::Normal { mean: 0.0, std: 0.02 };
    let model = Gpt {
        te: Embedding::new(&cx, vocab, width)?.init(&cx, normal)?,
        pe: Embedding::new(&cx, t, width)?.init(&cx, normal)?,
        blocks: (0..layers).map(|_| Block::new(&cx, width, heads, c.precision())).collect::<Result<_>>()?,
        norm: LayerNormalization::new(&cx, &[width])?,
        precision: c.precision(),
    };
    let tokens = (b * t) as f64;
    // Three times two operations per weight and token; attention has two products forward and five backward, half of them masked.
    let weights = (12 * layers * width * width + vocab * width) as f64;
    let attention = (layers * t * width) as f64 * (4.0 + 10.0) * 0.5;
    Training::new(c, model, ADAMW, 1e-4, sequences(d, b, t, vocab)?, tokens * (6.0 * weights + attention))
}
