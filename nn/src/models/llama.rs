//! Llama.

use trefoil::ops::activation::Activation;
use trefoil::ops::attention::RopeLayout;
use trefoil::ops::gemm::Precision;

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::{Dense, Embedding, KvCache, MultiHeadAttention, RmsNorm, RopeScaling, SwiGlu};
use crate::models::generation::{Generation, check_ids, last};
use crate::models::hugging_face::Names;
use crate::module::{Init, InitContext, Layer, StateDict, hooks};

/// Sizes of [`Llama`], under the names of transformers' `LlamaConfig`.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Tokens.
    pub vocab_size: usize,
    /// Width.
    pub hidden_size: usize,
    /// Width inside of the feed-forward networks.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads of queries.
    pub num_attention_heads: usize,
    /// Heads of keys and values.
    pub num_key_value_heads: usize,
    /// The longest text that a cache holds.
    pub max_position_embeddings: usize,
    /// eps of the normalizations.
    pub rms_norm_eps: f64,
    /// Base of the rotary positions.
    pub rope_theta: f64,
    /// How rotary frequencies are lowered, the rope type `llama3`; `None` is `default`.
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the embedding's table is the projection to logits too.
    pub tie_word_embeddings: bool,
    /// Standard deviation of the initial weights.
    pub initializer_range: f64,
}

impl LlamaConfig {
    /// `Llama-2-7b`.
    pub fn llama2_7b() -> Self {
        LlamaConfig {
            vocab_size: 32_000,
            hidden_size: 4096,
            intermediate_size: 11_008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 32,
            max_position_embeddings: 4096,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: None,
            tie_word_embeddings: false,
            initializer_range: 0.02,
        }
    }

    /// `Meta-Llama-3-8B`.
    pub fn llama3_8b() -> Self {
        LlamaConfig {
            vocab_size: 128_256,
            intermediate_size: 14_336,
            num_key_value_heads: 8,
            max_position_embeddings: 8192,
            rope_theta: 500_000.0,
            ..Self::llama2_7b()
        }
    }

    /// `Llama-3.1-8B`.
    pub fn llama3_1_8b() -> Self {
        LlamaConfig {
            max_position_embeddings: 131_072,
            rope_scaling: Some(RopeScaling {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192,
            }),
            ..Self::llama3_8b()
        }
    }

    /// `Llama-3.2-1B`.
    pub fn llama3_2_1b() -> Self {
        let long = Self::llama3_1_8b();
        LlamaConfig {
            hidden_size: 2048,
            intermediate_size: 8192,
            num_hidden_layers: 16,
            rope_scaling: long.rope_scaling.map(|s| RopeScaling { factor: 32.0, ..s }),
            tie_word_embeddings: true,
            ..long
        }
    }

    /// `TinyLlama-1.1B`.
    pub fn tiny_llama_1b() -> Self {
        LlamaConfig {
            hidden_size: 2048,
            intermediate_size: 5632,
            num_hidden_layers: 22,
            num_key_value_heads: 4,
            max_position_embeddings: 2048,
            ..Self::llama2_7b()
        }
    }
}

/// Llama (Touvron et al., 2023), transformers' `LlamaForCausalLM`: ids `[B, T]` to logits `[B, T, V]` of each next token. RMS norm before
/// each part, rotary positions, queries in groups, SwiGLU, no biases.
///
/// State: `embed_tokens.weight`, `layers.i.*`, `norm.weight`, `lm_head.weight` (if not tied);
/// [`from_hugging_face`](Self::from_hugging_face) reads the names of transformers. Weights start from N(0, `initializer_range`).
///
/// Rows that end early need no mask: put any tokens behind them and ignore what the model says there.
#[derive(Debug, trefoil_nn_derive::Layer)]
pub struct Llama {
    #[layer(skip)]
    config: LlamaConfig,
    embed_tokens: Embedding,
    layers: Vec<LlamaBlock>,
    norm: RmsNorm,
    lm_head: Option<Dense>,
}

const OP: &str = "Llama";

const NAMES: Names = Names {
    prefix: "model.",
    heads: &["lm_head."],
    renamed: &[("layers.*.self_attn.o_proj.*", "layers.*.self_attn.out_proj.*")],
    packed: Some((
        ["layers.*.self_attn.q_proj", "layers.*.self_attn.k_proj", "layers.*.self_attn.v_proj"],
        "layers.*.self_attn.in_proj",
    )),
    transposed: &[],
    older: &[],
    dropped: &["*rotary_emb.inv_freq"],
};

/// A block: attention and feed-forward network, each behind a normalization.
#[derive(Debug, trefoil_nn_derive::Layer)]
struct LlamaBlock {
    input_layernorm: RmsNorm,
    self_attn: MultiHeadAttention,
    post_attention_layernorm: RmsNorm,
    mlp: SwiGlu,
}

impl LlamaBlock {
    fn new(cx: &InitContext, c: &LlamaConfig) -> Result<Self> {
        let weight = Init::Normal { mean: 0.0, std: c.initializer_range };
        let norm = || RmsNorm::new(cx, &[c.hidden_size])?.eps(c.rms_norm_eps);
        let mut attention = MultiHeadAttention::new(cx, c.hidden_size, c.num_attention_heads)?
            .num_kv_heads(c.num_key_value_heads)?
            .no_bias()
            .rotary(RopeLayout::Half, c.rope_theta)?
            .causal(true);
        if let Some(scaling) = &c.rope_scaling {
            attention = attention.rope_scaling(scaling)?;
        }
        Ok(LlamaBlock {
            input_layernorm: norm()?,
            self_attn: attention.init(weight, Init::Zeros)?,
            post_attention_layernorm: norm()?,
            mlp: SwiGlu::new(cx, c.hidden_size, c.intermediate_size)?.init(weight, Init::Zeros)?,
        })
    }

    fn run(&self, x: &Tensor, cache: Option<(&mut KvCache, usize)>) -> Result<Tensor> {
        let h = hooks::layer("input_layernorm", &self.input_layernorm, x)?;
        let h = hooks::call("self_attn", &self.self_attn, &[&h], || match cache {
            Some((cache, layer)) => self.self_attn.attend_cached(&h, cache, layer),
            None => self.self_attn.forward(&h),
        })?;
        let x = x.add(&h)?;
        let h = hooks::layer("post_attention_layernorm", &self.post_attention_layernorm, &x)?;
        x.add(&hooks::layer("mlp", &self.mlp, &h)?)
    }

    /// The block without a cache.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }
}

impl Llama {
    /// A model with random weights. Errors: sizes of 0, heads that do not divide the width, heads of keys that do not divide those of
    /// queries, an odd head size.
    pub fn new(cx: &InitContext, config: &LlamaConfig) -> Result<Self> {
        let c = config;
        if c.num_hidden_layers == 0 {
            return Err(invalid(OP, "num_hidden_layers", "at least 1", "0"));
        }
        let weight = Init::Normal { mean: 0.0, std: c.initializer_range };
        let head = || Dense::new(cx, c.hidden_size, c.vocab_size)?.no_bias().init(weight, Init::Zeros);
        Ok(Llama {
            config: c.clone(),
            embed_tokens: Embedding::new(cx, c.vocab_size, c.hidden_size)?.init(cx, weight)?,
            layers: (0..c.num_hidden_layers).map(|_| LlamaBlock::new(cx, c)).collect::<Result<_>>()?,
            norm: RmsNorm::new(cx, &[c.hidden_size])?.eps(c.rms_norm_eps)?,
            lm_head: if c.tie_word_embeddings { None } else { Some(head()?) },
        })
    }

    /// The model of a state dictionary of transformers, as [`StateFile`](crate::StateFile) reads it, in any floating dtype. Errors: names and
    /// shapes that do not fit `config`.
    pub fn from_hugging_face(cx: &InitContext, config: &LlamaConfig, state: &StateDict) -> Result<Self> {
        let model = Llama::new(cx, config)?;
        NAMES.load(&model, state)?;
        Ok(model)
    }

    /// The state dictionary under the names of transformers' `LlamaForCausalLM`.
    pub fn to_hugging_face(&self) -> Result<StateDict> {
        let c = &self.config;
        NAMES.state_of(self, [c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads])
    }

    /// The sizes.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// An empty cache for [`forward_cached`](Self::forward_cached).
    pub fn cache(&self) -> Result<KvCache> {
        KvCache::new(self.config.num_hidden_layers, self.config.max_position_embeddings)
    }

    /// Final hidden states `[B, T, D]`.
    fn hidden(&self, ids: &Tensor, mut cache: Option<&mut KvCache>) -> Result<Tensor> {
        check_ids(OP, "ids", ids)?;
        let mut x = hooks::layer("embed_tokens", &self.embed_tokens, ids)?;
        for (i, block) in self.layers.iter().enumerate() {
            let cache = cache.as_deref_mut().map(|c| (c, i));
            x = hooks::call(&format!("layers.{i}"), block, &[&x], || block.run(&x, cache))?;
        }
        hooks::layer("norm", &self.norm, &x)
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        match &self.lm_head {
            Some(head) => hooks::layer("lm_head", head, hidden),
            None => {
                let table = self.embed_tokens.weight().get();
                hidden.linear(&table, None, Activation::Identity, Precision::Ieee)
            }
        }
    }

    /// Logits of new tokens `[B, T]` behind those in the cache, which grows by them: equal to those of [`forward`](Llama::forward) over all
    /// tokens. Records no gradients. After an error the cache is as before. Errors: [`NnError::CacheFull`](crate::NnError::CacheFull),
    /// `Invalid` for a cache of another model or batch.
    pub fn forward_cached(&self, ids: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        no_grad(|| cache.extend(|cache| self.logits(&self.hidden(ids, Some(cache))?)))
    }

    /// A prompt `[B, T]` and its continuation, i64. Errors: options out of range, more than `max_position_embeddings` tokens.
    pub fn generate(&self, prompt: &Tensor, options: &Generation) -> Result<Tensor> {
        let mut cache = self.cache()?;
        options.run(prompt, self.config.max_position_embeddings, |ids| {
            self.logits(&last(&self.hidden(ids, Some(&mut cache))?)?)
        })
    }

    /// Logits `[B, T, vocab_size]` of token ids `[B, T]`.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.logits(&self.hidden(ids, None)?)
    }
}
