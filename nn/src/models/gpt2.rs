//! GPT-2.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::{
    AttentionMasks, Dropout, Embedding, KvCache, LayerNormalization, PositionalEmbedding, TransformerConfig,
    TransformerEncoder,
};
use crate::models::generation::{Generation, check_ids, last};
use crate::models::hugging_face::Names;
use crate::module::{Init, InitContext, LayerExt, StateDict, hooks};

/// Sizes and probabilities of [`Gpt2`], under the names of transformers' `GPT2Config`.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// Tokens.
    pub vocab_size: usize,
    /// The longest text.
    pub n_positions: usize,
    /// Width.
    pub n_embd: usize,
    /// Blocks.
    pub n_layer: usize,
    /// Attention heads.
    pub n_head: usize,
    /// Width inside of the feed-forward networks.
    pub n_inner: usize,
    /// Dropout of what is added to the residual stream.
    pub resid_pdrop: f64,
    /// Dropout of the embeddings.
    pub embd_pdrop: f64,
    /// Dropout of attention weights.
    pub attn_pdrop: f64,
    /// eps of the normalizations.
    pub layer_norm_epsilon: f64,
    /// Standard deviation of the initial weights.
    pub initializer_range: f64,
}

impl Gpt2Config {
    fn sized(n_embd: usize, n_layer: usize, n_head: usize) -> Self {
        Gpt2Config {
            vocab_size: 50_257,
            n_positions: 1024,
            n_embd,
            n_layer,
            n_head,
            n_inner: 4 * n_embd,
            resid_pdrop: 0.1,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            layer_norm_epsilon: 1e-5,
            initializer_range: 0.02,
        }
    }

    /// `gpt2`, 124 million parameters.
    pub fn small() -> Self {
        Self::sized(768, 12, 12)
    }

    /// `gpt2-medium`, 355 million parameters.
    pub fn medium() -> Self {
        Self::sized(1024, 24, 16)
    }

    /// `gpt2-large`, 774 million parameters.
    pub fn large() -> Self {
        Self::sized(1280, 36, 20)
    }

    /// `gpt2-xl`, 1558 million parameters.
    pub fn xl() -> Self {
        Self::sized(1600, 48, 25)
    }
}

/// GPT-2 (Radford et al., 2019), transformers' `GPT2LMHeadModel`: ids `[B, T]` to logits `[B, T, V]` of each next token. The projection to
/// logits is the table of the embedding.
///
/// State: `wte.weight`, `wpe.weight`, `h.i.*` ([`TransformerEncoder`]), `ln_f.*`; [`from_hugging_face`](Self::from_hugging_face) reads
/// the names of transformers. Weights start from N(0, `initializer_range`), those before a residual sum narrower by sqrt(2 n_layer).
///
/// Rows that end early need no mask: put any tokens behind them and ignore what the model says there.
///
/// ```no_run
/// use trefoil_nn::models::{Generation, Gpt2, Gpt2Config};
/// use trefoil_nn::{Device, InitContext, LayerExt, StateFile, Tensor};
///
/// # fn f(device: Device) -> trefoil_nn::Result<()> {
/// // The folder that `git clone https://huggingface.co/openai-community/gpt2` makes.
/// let state = StateFile::open("gpt2")?.state_dict(&device)?;
/// let model = Gpt2::from_hugging_face(&InitContext::new(&device, 0), &Gpt2Config::small(), &state)?;
/// model.eval();
/// // "Hello, I am"
/// let prompt = Tensor::from_slice(&device, &[15496i64, 11, 314, 716], &[1, 4])?;
/// let text = model.generate(&prompt, &Generation::sampled(50, 1).top_k(40).temperature(0.8))?;
/// println!("{:?}", text.to_vec::<i64>()?);
/// # Ok(()) }
/// ```
#[derive(Debug, trefoil_nn_derive::Layer)]
pub struct Gpt2 {
    #[layer(skip)]
    config: Gpt2Config,
    wte: Embedding,
    wpe: PositionalEmbedding,
    drop: Dropout,
    h: Vec<TransformerEncoder>,
    ln_f: LayerNormalization,
}

const OP: &str = "Gpt2";

const NAMES: Names = Names {
    prefix: "transformer.",
    heads: &[],
    renamed: &[
        ("h.*.ln_1.*", "h.*.norm1.*"),
        ("h.*.ln_2.*", "h.*.norm2.*"),
        ("h.*.attn.c_attn.*", "h.*.self_attn.in_proj_*"),
        ("h.*.attn.c_proj.*", "h.*.self_attn.out_proj.*"),
        ("h.*.mlp.c_fc.*", "h.*.linear1.*"),
        ("h.*.mlp.c_proj.*", "h.*.linear2.*"),
    ],
    packed: None,
    transposed: &[
        "h.*.attn.c_attn.weight",
        "h.*.attn.c_proj.weight",
        "h.*.mlp.c_fc.weight",
        "h.*.mlp.c_proj.weight",
    ],
    older: &[],
    // Causal masks, and the embedding's table under another name.
    dropped: &["h.*.attn.bias", "h.*.attn.masked_bias", "lm_head.weight"],
};

impl Gpt2 {
    /// A model with random weights. Errors: sizes of 0, heads that do not divide the width, probabilities outside of [0, 1).
    pub fn new(cx: &InitContext, config: &Gpt2Config) -> Result<Self> {
        let c = config;
        if c.n_layer == 0 {
            return Err(invalid(OP, "n_layer", "at least 1", "0"));
        }
        let normal = |std: f64| Init::Normal { mean: 0.0, std };
        let weight = normal(c.initializer_range);
        let block = TransformerConfig::new(c.n_embd, c.n_head)
            .d_ff(c.n_inner)
            .dropout(c.resid_pdrop)
            .attention_dropout(c.attn_pdrop)
            .activation_dropout(0.0)
            .activation(Activation::GeluTanh)
            .eps(c.layer_norm_epsilon)
            .norm_first()
            .init(weight, Init::Zeros);
        let model = Gpt2 {
            config: c.clone(),
            wte: Embedding::new(cx, c.vocab_size, c.n_embd)?.init(cx, weight)?,
            wpe: PositionalEmbedding::new(cx, c.n_embd, c.n_positions)?.init(cx, weight)?,
            drop: Dropout::new(cx, c.embd_pdrop)?,
            h: (0..c.n_layer).map(|_| TransformerEncoder::new(cx, &block)).collect::<Result<_>>()?,
            ln_f: LayerNormalization::new(cx, &[c.n_embd])?.eps(c.layer_norm_epsilon)?,
        };
        let residual = normal(c.initializer_range / (2.0 * c.n_layer as f64).sqrt());
        for (name, p) in model.named_parameters() {
            if name.ends_with("out_proj.weight") || name.ends_with("linear2.weight") {
                p.set(residual.tensor(cx, p.get().shape(), 1, 1)?);
            }
        }
        Ok(model)
    }

    /// The model of a state dictionary of transformers, as [`StateFile`](crate::StateFile) reads it: with or without the prefix
    /// `transformer.`, in any floating dtype. Errors: names and shapes that do not fit `config`.
    pub fn from_hugging_face(cx: &InitContext, config: &Gpt2Config, state: &StateDict) -> Result<Self> {
        let model = Gpt2::new(cx, config)?;
        NAMES.load(&model, state)?;
        Ok(model)
    }

    /// The state dictionary under the names and in the layouts of transformers' `GPT2LMHeadModel`.
    pub fn to_hugging_face(&self) -> Result<StateDict> {
        NAMES.state_of(self, [1; 3])
    }

    /// The sizes.
    pub fn config(&self) -> &Gpt2Config {
        &self.config
    }

    /// An empty cache for [`forward_cached`](Self::forward_cached).
    pub fn cache(&self) -> Result<KvCache> {
        KvCache::new(self.config.n_layer, self.config.n_positions)
    }

    /// Final hidden states `[B, T, D]`.
    fn hidden(&self, ids: &Tensor, mut cache: Option<&mut KvCache>) -> Result<Tensor> {
        check_ids(OP, "ids", ids)?;
        let past = cache.as_ref().map_or(0, |c| c.len());
        let x = hooks::layer("wte", &self.wte, ids)?;
        let x = hooks::call("wpe", &self.wpe, &[&x], || self.wpe.forward_at(&x, past))?;
        let mut x = hooks::layer("drop", &self.drop, &x)?;
        let causal = AttentionMasks::new().causal();
        for (i, block) in self.h.iter().enumerate() {
            x = hooks::call(&format!("h.{i}"), block, &[&x], || match cache.as_deref_mut() {
                Some(cache) => block.encode_cached(&x, cache, i),
                None => block.encode(&x, &causal),
            })?;
        }
        hooks::layer("ln_f", &self.ln_f, &x)
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        hidden.linear(&self.wte.weight().get(), None, Activation::Identity, Precision::Ieee)
    }

    /// Logits of new tokens `[B, T]` behind those in the cache, which grows by them: equal to those of [`forward`](Gpt2::forward) over all
    /// tokens. Records no gradients. After an error the cache is as before. Errors: [`NnError::CacheFull`](crate::NnError::CacheFull),
    /// `Invalid` for more than `n_positions` tokens and a cache of another model or batch.
    pub fn forward_cached(&self, ids: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        no_grad(|| cache.extend(|cache| self.logits(&self.hidden(ids, Some(cache))?)))
    }

    /// A prompt `[B, T]` and its continuation, i64. Call [`eval`](LayerExt::eval) before, so that nothing is dropped. Errors: options out
    /// of range, more than `n_positions` tokens.
    pub fn generate(&self, prompt: &Tensor, options: &Generation) -> Result<Tensor> {
        let mut cache = self.cache()?;
        options.run(prompt, self.config.n_positions, |ids| {
            self.logits(&last(&self.hidden(ids, Some(&mut cache))?)?)
        })
    }

    /// Logits `[B, T, vocab_size]` of token ids `[B, T]`.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.logits(&self.hidden(ids, None)?)
    }
}
