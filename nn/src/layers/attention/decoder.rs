//! A decoder block with attentions of a single head.

use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::attention::scores::check_width;
use crate::layers::attention::transformer::Tail;
use crate::layers::{Attention, AttentionMasks, TransformerConfig};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Visitor, set_training_of};

/// A decoder block whose attentions have a single head of any width ([`Attention`], without biases): residual sums and normalizations as in
/// [`TransformerDecoder`](crate::layers::TransformerDecoder).
///
/// State: `self_attn.*`, `cross_attn.*` (`q_proj.weight [A, D]` and so on), `linear1.*`, `linear2.*`, `norm1.*` to `norm3.*`.
#[derive(Debug)]
pub struct Decoder {
    cx: InitContext,
    attention_size: usize,
    config: TransformerConfig,
    parts: OnceCell<DecoderParts>,
    training: AtomicBool,
}

#[derive(Debug)]
struct DecoderParts {
    self_attn: Attention,
    cross_attn: Attention,
    tail: Tail,
}

const DECODER: &str = "Decoder";

impl Decoder {
    /// Sequences of width `d_model`, attentions of width `attention_size`, a feed-forward network of width `d_ff` with relu, no dropout,
    /// eps 1e-5, normalization behind the sums. Errors: a size of 0.
    pub fn new(cx: &InitContext, d_model: usize, attention_size: usize, d_ff: usize) -> Result<Self> {
        if d_model == 0 {
            return Err(invalid(DECODER, "d_model", "at least 1", "0"));
        }
        let layer = Self::lazy(cx, attention_size, d_ff)?;
        layer.parts(d_model)?;
        Ok(layer)
    }

    /// The first forward fixes `d_model` and makes the parameters. Errors: a size of 0.
    pub fn lazy(cx: &InitContext, attention_size: usize, d_ff: usize) -> Result<Self> {
        if attention_size == 0 || d_ff == 0 {
            let got = format!("attention_size {attention_size}, dim_feedforward {d_ff}");
            return Err(invalid(DECODER, "attention_size", "sizes of at least 1", got));
        }
        Ok(Decoder {
            cx: cx.clone(),
            attention_size,
            config: TransformerConfig::new(0, 1).d_ff(d_ff).dropout(0.0),
            parts: OnceCell::new(),
            training: AtomicBool::new(true),
        })
    }

    /// Changes the description; parameters that were made are made anew.
    fn with(mut self, change: impl FnOnce(TransformerConfig) -> TransformerConfig) -> Result<Self> {
        let width = self.parts.take().map(|p| p.self_attn.embed_dim());
        self.config = change(self.config);
        if let Some(d) = width {
            self.parts(d)?;
        }
        Ok(self)
    }

    /// Sets the activation of the feed-forward network.
    pub fn activation(self, act: Activation) -> Result<Self> {
        self.with(|c| c.activation(act))
    }

    /// Sets the probability of all dropouts, that of attention weights included. Errors: outside of [0, 1).
    pub fn dropout(self, p: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&p) {
            return Err(invalid(DECODER, "dropout", "a probability in [0, 1)", format!("{p}")));
        }
        self.with(|c| c.dropout(p))
    }

    /// Sets eps of the normalizations. Errors: not a finite number above 0.
    pub fn eps(self, eps: f64) -> Result<Self> {
        if !(eps > 0.0 && eps.is_finite()) {
            return Err(invalid(DECODER, "layer_norm_eps", "a finite number above 0", format!("{eps}")));
        }
        self.with(|c| c.eps(eps))
    }

    /// Sets how weights and biases of attentions and linear layers are filled.
    pub fn init(self, weight: Init, bias: Init) -> Result<Self> {
        self.with(|c| c.init(weight, bias))
    }

    /// Normalizes what enters a sublayer.
    pub fn norm_first(self) -> Result<Self> {
        self.with(TransformerConfig::norm_first)
    }

    /// Sets the arithmetic of the products.
    pub fn precision(self, precision: Precision) -> Result<Self> {
        self.with(|c| c.precision(precision))
    }

    fn parts(&self, d_model: usize) -> Result<&DecoderParts> {
        self.parts.get_or_try_init(|| {
            let config = TransformerConfig { d_model, ..self.config.clone() };
            let attention = || {
                let a = Attention::new(&self.cx, d_model, self.attention_size)?;
                let a = a.dropout(config.dropout)?.precision(config.precision);
                match config.init {
                    Some([weight, bias]) => a.init(weight, bias),
                    None => Ok::<_, NnError>(a),
                }
            };
            let (self_attn, cross_attn) = (attention()?, attention()?);
            let parts = DecoderParts { self_attn, cross_attn, tail: Tail::new(&self.cx, &config, 3)? };
            set_training_of(self.training.load(Ordering::Relaxed), &|v| parts.visit(v));
            Ok(parts)
        })
    }

    /// Runs over `tgt` `[B, Tq, D]` with `memory` `[B, Tk, D]` (both without B too), each attention with its masks. Errors: `Invalid` for
    /// ranks, widths, batches and masks that do not fit.
    pub fn decode(
        &self,
        tgt: &Tensor,
        memory: &Tensor,
        tgt_masks: &AttentionMasks,
        memory_masks: &AttentionMasks,
    ) -> Result<Tensor> {
        let (2 | 3, Some(&d)) = (tgt.rank(), tgt.shape().last().filter(|&&d| d > 0)) else {
            let got = format!("shape {:?}", tgt.shape());
            return Err(invalid(DECODER, "tgt", "shape [B, T, D] or [T, D]", got));
        };
        let p = self.parts(d)?;
        let width = p.self_attn.embed_dim();
        check_width(DECODER, "tgt", tgt, width)?;
        check_width(DECODER, "memory", memory, width)?;
        if memory.rank() != tgt.rank() {
            let want = format!("rank {} like tgt", tgt.rank());
            return Err(invalid(DECODER, "memory", want, format!("{}", memory.rank())));
        }
        let (own, cross) = (&p.self_attn, &p.cross_attn);
        let attend = |x: &Tensor| hooks::call("self_attn", own, &[x], || own.attend(x, None, tgt_masks));
        let look = |x: &Tensor| {
            hooks::call("cross_attn", cross, &[x, memory], || cross.attend(x, Some(memory), memory_masks))
        };
        p.tail.run(tgt, &[&attend, &look])
    }
}

impl DecoderParts {
    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("self_attn", &self.self_attn);
        v.child("cross_attn", &self.cross_attn);
        self.tail.visit(v);
    }
}

impl Layer for Decoder {
    /// Errors always: the memory is missing; see [`decode`](Decoder::decode).
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        Err(invalid(DECODER, "inputs", "tgt and memory, by forward_all", "1 tensor"))
    }

    /// `[tgt, memory]`; `tgt` sees no later steps.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [tgt, memory] => {
                let masks = AttentionMasks::new();
                Ok(vec![self.decode(tgt, memory, &masks.clone().causal(), &masks)?])
            }
            _ => Err(invalid(DECODER, "inputs", "tgt and memory", format!("{} tensors", inputs.len()))),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.training(&self.training);
        if let Some(p) = self.parts.get() {
            p.visit(v);
        }
    }
}
