//! Blocks of the Transformer.

use std::cell::RefCell;

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::attention::cache::KvCache;
use crate::layers::spatial::argument;
use crate::layers::{AttentionMasks, Dense, Dropout, LayerNormalization, MultiHeadAttention};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Visitor};

/// Description of an encoder or decoder block; the defaults are PyTorch's.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TransformerConfig {
    /// Width D of the sequences.
    pub d_model: usize,
    /// Heads, a divisor of D.
    pub heads: usize,
    /// Width F of the feed-forward network.
    pub d_ff: usize,
    /// Probability of all dropouts, that of attention weights included, but for those that have one of their own.
    pub dropout: f64,
    /// Probability of dropping attention weights, where it is another.
    pub attention_dropout: Option<f64>,
    /// Probability of the dropout between activation and second linear layer, where it is another.
    pub activation_dropout: Option<f64>,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Of the normalizations.
    pub eps: f64,
    /// Normalize what enters a sublayer instead of the sum behind it.
    pub norm_first: bool,
    /// Biases in linear layers and normalizations.
    pub bias: bool,
    /// Arithmetic of the products.
    pub precision: Precision,
    /// How weights and biases of attentions and linear layers are filled, where not as each layer does.
    pub init: Option<[Init; 2]>,
}

impl TransformerConfig {
    /// F = 2048, dropout 0.1, relu, eps 1e-5, normalization behind the sums, biases.
    pub fn new(d_model: usize, heads: usize) -> Self {
        TransformerConfig {
            d_model,
            heads,
            d_ff: 2048,
            dropout: 0.1,
            attention_dropout: None,
            activation_dropout: None,
            activation: Activation::Relu,
            eps: 1e-5,
            norm_first: false,
            bias: true,
            precision: Precision::Ieee,
            init: None,
        }
    }

    setters! {
        /// Sets the width of the feed-forward network.
        d_ff: usize => d_ff;
        /// Sets the probability of all dropouts.
        dropout: f64 => dropout;
        /// Sets the activation.
        activation: Activation => activation;
        /// Sets eps of the normalizations.
        eps: f64 => eps;
    }

    /// Sets the probability of dropping attention weights apart from that of the other dropouts.
    pub fn attention_dropout(mut self, p: f64) -> Self {
        self.attention_dropout = Some(p);
        self
    }

    /// Sets the probability of the dropout behind the activation apart from that of the other dropouts; BERT and GPT-2 have none there.
    pub fn activation_dropout(mut self, p: f64) -> Self {
        self.activation_dropout = Some(p);
        self
    }

    /// Normalizes what enters a sublayer.
    pub fn norm_first(mut self) -> Self {
        self.norm_first = true;
        self
    }

    /// Without biases.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    setters! {
        /// Sets the arithmetic of the products.
        precision: Precision => precision;
    }

    /// Sets how weights and biases of attentions and linear layers are filled.
    pub fn init(mut self, weight: Init, bias: Init) -> Self {
        self.init = Some([weight, bias]);
        self
    }

    fn attention(&self, cx: &InitContext) -> Result<MultiHeadAttention> {
        let a = argument("nhead", MultiHeadAttention::new(cx, self.d_model, self.heads))?;
        let a = a.dropout(self.attention_dropout.unwrap_or(self.dropout))?.precision(self.precision);
        let a = if self.bias { a } else { a.no_bias() };
        match self.init {
            Some([weight, bias]) => a.init(weight, bias),
            None => Ok(a),
        }
    }

    fn dense(&self, cx: &InitContext, inputs: usize, outputs: usize) -> Result<Dense> {
        let [weight, bias] = self.init.unwrap_or_default();
        let l = Dense::lazy(cx, outputs)?.init(weight, bias)?.inputs(inputs)?.precision(self.precision);
        Ok(if self.bias { l } else { l.no_bias() })
    }

    fn norm(&self, cx: &InitContext) -> Result<LayerNormalization> {
        let l = argument("layer_norm_eps", LayerNormalization::new(cx, &[self.d_model])?.eps(self.eps))?;
        Ok(if self.bias { l } else { l.no_bias() })
    }
}

/// Names of what belongs to each sublayer, of which there are at most three.
const NORMS: [&str; 3] = ["norm1", "norm2", "norm3"];
const DROPOUTS: [&str; 3] = ["dropout1", "dropout2", "dropout3"];

/// Attention or the network, between the normalizations and sums.
pub(crate) type Sublayer<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

/// What all blocks end with, and the dropouts of their sublayers.
#[derive(Debug)]
pub(crate) struct Tail {
    linear1: Dense,
    linear2: Dense,
    inner: Dropout,
    /// One per sublayer, behind it.
    outer: Vec<Dropout>,
    /// One per sublayer, or none at all.
    norms: Vec<LayerNormalization>,
    norm_first: bool,
}

impl Tail {
    pub(crate) fn new(cx: &InitContext, p: &TransformerConfig, sublayers: usize) -> Result<Self> {
        let linear1 = p.dense(cx, p.d_model, p.d_ff)?.activation(p.activation);
        Ok(Tail {
            linear1,
            linear2: p.dense(cx, p.d_ff, p.d_model)?,
            inner: Dropout::part(cx, p.activation_dropout.unwrap_or(p.dropout))?,
            outer: (0..sublayers).map(|_| Dropout::part(cx, p.dropout)).collect::<Result<_>>()?,
            norms: (0..sublayers).map(|_| p.norm(cx)).collect::<Result<_>>()?,
            norm_first: p.norm_first,
        })
    }

    /// Without normalizations.
    pub(crate) fn no_norms(mut self) -> Self {
        self.norms.clear();
        self
    }

    fn network(&self, x: &Tensor) -> Result<Tensor> {
        let h = hooks::layer("linear1", &self.linear1, x)?;
        hooks::layer("linear2", &self.linear2, &hooks::layer("dropout", &self.inner, &h)?)
    }

    /// All sublayers with their residual sums. Sum and normalization are one operation; with `norm_first` it belongs to the next sublayer.
    pub(crate) fn run(&self, x: &Tensor, sublayers: &[Sublayer<'_>]) -> Result<Tensor> {
        let network = |t: &Tensor| self.network(t);
        let all = sublayers.iter().copied().chain([&network as Sublayer<'_>]);
        let mut x = x.clone();
        // With norm_first: what the last sublayer gave, not yet added.
        let mut open: Option<Tensor> = None;
        for (i, (sublayer, drop)) in all.zip(&self.outer).enumerate() {
            let norm = self.norms.get(i);
            let added = |y: &Tensor, x: &Tensor| match norm {
                Some(norm) => hooks::call(NORMS[i], norm, &[y, x], || norm.add_forward(y, x)),
                None => y.add(x).map(|sum| (sum.clone(), sum)),
            };
            let dropped = |y: &Tensor| hooks::layer(DROPOUTS[i], drop, y);
            if self.norm_first {
                let normed = match open.take() {
                    Some(y) => {
                        let (normed, sum) = added(&y, &x)?;
                        x = sum;
                        normed
                    }
                    None => match norm {
                        Some(norm) => hooks::layer(NORMS[i], norm, &x)?,
                        None => x.clone(),
                    },
                };
                open = Some(dropped(&sublayer(&normed)?)?);
            } else {
                x = added(&dropped(&sublayer(&x)?)?, &x)?.0;
            }
        }
        match open {
            Some(y) => x.add(&y),
            None => Ok(x),
        }
    }

    pub(crate) fn visit(&self, v: &mut Visitor<'_>) {
        v.child("linear1", &self.linear1);
        v.child("dropout", &self.inner);
        v.child("linear2", &self.linear2);
        for (name, n) in NORMS.iter().zip(&self.norms) {
            v.child(name, n);
        }
        for (name, d) in DROPOUTS.iter().zip(&self.outer) {
            v.child(name, d);
        }
    }
}

/// One block of the encoder, `torch.nn.TransformerEncoderLayer(batch_first=True)` (Vaswani et al., 2017): self-attention and a feed-forward
/// network, `[B, T, D]` or `[T, D]`.
///
/// State: `self_attn.*` ([`MultiHeadAttention`]), `linear1.*`, `linear2.*`, `norm1.*`, `norm2.*`.
#[derive(Debug)]
pub struct TransformerEncoder {
    self_attn: MultiHeadAttention,
    causal: bool,
    tail: Tail,
}

impl TransformerEncoder {
    /// A block of this description. Errors: sizes of 0, heads that do not divide D, a dropout outside of [0, 1), eps not above 0.
    pub fn new(cx: &InitContext, config: &TransformerConfig) -> Result<Self> {
        let self_attn = config.attention(cx)?;
        Ok(TransformerEncoder { self_attn, causal: false, tail: Tail::new(cx, config, 2)? })
    }

    setters! {
        /// Whether `forward` hides later steps, which makes the block one of a language model (default false).
        causal: bool => causal;
    }

    /// Runs with masks. Errors: `Invalid` for widths and masks that do not fit.
    pub fn encode(&self, src: &Tensor, masks: &AttentionMasks) -> Result<Tensor> {
        let own = &self.self_attn;
        let attend = |x: &Tensor| hooks::call("self_attn", own, &[x], || own.attend(x, x, x, masks));
        self.tail.run(src, &[&attend])
    }

    /// Runs new tokens `[B, T, D]` behind those that `layer` of the cache holds, see [`MultiHeadAttention::attend_cached`].
    pub fn encode_cached(&self, src: &Tensor, cache: &mut KvCache, layer: usize) -> Result<Tensor> {
        let own = &self.self_attn;
        // The block calls its sublayers by shared references.
        let cache = RefCell::new(cache);
        let attend = |x: &Tensor| {
            hooks::call("self_attn", own, &[x], || own.attend_cached(x, &mut cache.borrow_mut(), layer))
        };
        no_grad(|| self.tail.run(src, &[&attend]))
    }
}

impl Layer for TransformerEncoder {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.encode(x, &AttentionMasks::of(self.causal))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("self_attn", &self.self_attn);
        self.tail.visit(v);
    }
}

/// One block of the decoder, `torch.nn.TransformerDecoderLayer(batch_first=True)`: self-attention, attention over the encoder's result and
/// a feed-forward network.
///
/// State: `self_attn.*`, `multihead_attn.*` ([`MultiHeadAttention`]), `linear1.*`, `linear2.*`, `norm1.*` to `norm3.*`.
#[derive(Debug)]
pub struct TransformerDecoder {
    self_attn: MultiHeadAttention,
    cross_attn: MultiHeadAttention,
    tail: Tail,
}

impl TransformerDecoder {
    /// A block of this description. Errors: as [`TransformerEncoder::new`].
    pub fn new(cx: &InitContext, config: &TransformerConfig) -> Result<Self> {
        let (self_attn, cross_attn) = (config.attention(cx)?, config.attention(cx)?);
        Ok(TransformerDecoder { self_attn, cross_attn, tail: Tail::new(cx, config, 3)? })
    }

    /// Runs over `tgt` `[B, Tq, D]` with the encoder's result `memory` `[B, Tk, D]` (both without B too), each attention with its masks.
    /// Errors: `Invalid` for widths, batches and masks that do not fit.
    pub fn decode(
        &self,
        tgt: &Tensor,
        memory: &Tensor,
        tgt_masks: &AttentionMasks,
        memory_masks: &AttentionMasks,
    ) -> Result<Tensor> {
        if memory.rank() != tgt.rank() {
            let want = format!("rank {} like tgt", tgt.rank());
            return Err(invalid("TransformerDecoder", "memory", want, format!("{}", memory.rank())));
        }
        let (own, cross) = (&self.self_attn, &self.cross_attn);
        let attend = |x: &Tensor| hooks::call("self_attn", own, &[x], || own.attend(x, x, x, tgt_masks));
        let look = |x: &Tensor| {
            hooks::call("multihead_attn", cross, &[x, memory], || {
                cross.attend(x, memory, memory, memory_masks)
            })
        };
        self.tail.run(tgt, &[&attend, &look])
    }
}

impl Layer for TransformerDecoder {
    /// Errors always: the memory is missing; see [`decode`](TransformerDecoder::decode).
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        Err(invalid("TransformerDecoder", "inputs", "tgt and memory, by forward_all", "1 tensor"))
    }

    /// `[tgt, memory]`; `tgt` sees no later steps.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [tgt, memory] => {
                let masks = AttentionMasks::new();
                Ok(vec![self.decode(tgt, memory, &masks.clone().causal(), &masks)?])
            }
            _ => {
                let got = format!("{} tensors", inputs.len());
                Err(invalid("TransformerDecoder", "inputs", "tgt and memory", got))
            }
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("self_attn", &self.self_attn);
        v.child("multihead_attn", &self.cross_attn);
        self.tail.visit(v);
    }
}
