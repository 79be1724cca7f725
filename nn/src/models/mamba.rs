//! Mamba.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::{Dense, Embedding, Mamba, RecurrentState, RmsNorm};
use crate::models::generation::{Generation, check_ids, last};
use crate::models::hugging_face::Names;
use crate::module::{Init, InitContext, Layer, StateDict, hooks};

/// Sizes of [`MambaLanguageModel`], under the names of transformers' `MambaConfig`.
#[derive(Debug, Clone, PartialEq)]
pub struct MambaConfig {
    /// Tokens.
    pub vocab_size: usize,
    /// Width.
    pub hidden_size: usize,
    /// States of a channel.
    pub state_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Factor between the width of a block outside and inside.
    pub expand: usize,
    /// Tokens of the convolutions.
    pub conv_kernel: usize,
    /// Rank of the step sizes; `None` is `hidden_size / 16`.
    pub time_step_rank: Option<usize>,
    /// eps of the normalizations.
    pub layer_norm_epsilon: f64,
    /// Whether the embedding's table is the projection to logits too.
    pub tie_word_embeddings: bool,
    /// Standard deviation of the initial embeddings.
    pub initializer_range: f64,
}

impl MambaConfig {
    /// `state-spaces/mamba-130m-hf`.
    pub fn mamba_130m() -> Self {
        MambaConfig {
            vocab_size: 50_280,
            hidden_size: 768,
            state_size: 16,
            num_hidden_layers: 24,
            expand: 2,
            conv_kernel: 4,
            time_step_rank: None,
            layer_norm_epsilon: 1e-5,
            tie_word_embeddings: true,
            initializer_range: 0.1,
        }
    }

    /// `state-spaces/mamba-370m-hf`.
    pub fn mamba_370m() -> Self {
        MambaConfig { hidden_size: 1024, num_hidden_layers: 48, ..Self::mamba_130m() }
    }
}

/// A language model of Mamba blocks (Gu and Dao, 2023), transformers' `MambaForCausalLM`: ids `[B, T]` to logits `[B, T, V]` of each next token. RMS
/// norm before each block, whose result is added to its input.
///
/// State: `embeddings.weight`, `layers.i.norm.weight`, `layers.i.mixer.*` ([`Mamba`]), `norm_f.weight`, `lm_head.weight` (if not tied);
/// [`from_hugging_face`](Self::from_hugging_face) reads the names of transformers. Embeddings start from N(0, `initializer_range`), blocks as
/// [`Mamba`] says.
#[derive(Debug, trefoil_nn_derive::Layer)]
pub struct MambaLanguageModel {
    #[layer(skip)]
    config: MambaConfig,
    embeddings: Embedding,
    layers: Vec<MambaBlock>,
    norm_f: RmsNorm,
    lm_head: Option<Dense>,
}

const OP: &str = "MambaLanguageModel";

const NAMES: Names = Names {
    prefix: "backbone.",
    heads: &["lm_head."],
    renamed: &[],
    packed: None,
    transposed: &[],
    older: &[],
    dropped: &[],
};

/// A block behind a normalization.
#[derive(Debug, trefoil_nn_derive::Layer)]
struct MambaBlock {
    norm: RmsNorm,
    mixer: Mamba,
}

impl MambaBlock {
    fn new(cx: &InitContext, c: &MambaConfig) -> Result<Self> {
        let mut mixer =
            Mamba::new(cx, c.hidden_size)?.expand(c.expand)?.d_state(c.state_size)?.d_conv(c.conv_kernel)?;
        if let Some(rank) = c.time_step_rank {
            mixer = mixer.dt_rank(rank)?;
        }
        Ok(MambaBlock { norm: RmsNorm::new(cx, &[c.hidden_size])?.eps(c.layer_norm_epsilon)?, mixer })
    }

    fn run(&self, x: &Tensor, state: Option<(&mut RecurrentState, usize)>) -> Result<Tensor> {
        let h = hooks::layer("norm", &self.norm, x)?;
        let h = hooks::call("mixer", &self.mixer, &[&h], || match state {
            Some((state, layer)) => self.mixer.forward_with_state(&h, state, layer),
            None => self.mixer.forward(&h),
        })?;
        x.add(&h)
    }

    /// The block without a state.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }
}

impl MambaLanguageModel {
    /// A model with random weights. Errors: sizes of 0.
    pub fn new(cx: &InitContext, config: &MambaConfig) -> Result<Self> {
        let c = config;
        if c.num_hidden_layers == 0 {
            return Err(invalid(OP, "num_hidden_layers", "at least 1", "0"));
        }
        let weight = Init::Normal { mean: 0.0, std: c.initializer_range };
        let head = || Dense::new(cx, c.hidden_size, c.vocab_size)?.no_bias().init(weight, Init::Zeros);
        Ok(MambaLanguageModel {
            config: c.clone(),
            embeddings: Embedding::new(cx, c.vocab_size, c.hidden_size)?.init(cx, weight)?,
            layers: (0..c.num_hidden_layers).map(|_| MambaBlock::new(cx, c)).collect::<Result<_>>()?,
            norm_f: RmsNorm::new(cx, &[c.hidden_size])?.eps(c.layer_norm_epsilon)?,
            lm_head: if c.tie_word_embeddings { None } else { Some(head()?) },
        })
    }

    /// The model of a state dictionary of transformers, as [`StateFile`](crate::StateFile) reads it, in any floating dtype. Errors: names and
    /// shapes that do not fit `config`.
    pub fn from_hugging_face(cx: &InitContext, config: &MambaConfig, state: &StateDict) -> Result<Self> {
        let model = MambaLanguageModel::new(cx, config)?;
        let mut state = state.clone();
        if config.tie_word_embeddings {
            // A file may hold the tied table twice.
            state.remove("lm_head.weight");
        }
        NAMES.load(&model, &state)?;
        Ok(model)
    }

    /// The state dictionary under the names of transformers' `MambaForCausalLM`.
    pub fn to_hugging_face(&self) -> Result<StateDict> {
        NAMES.state_of(self, [0; 3])
    }

    /// The sizes.
    pub fn config(&self) -> &MambaConfig {
        &self.config
    }

    /// The state before the first token, for [`forward_with_state`](Self::forward_with_state).
    pub fn state(&self) -> Result<RecurrentState> {
        RecurrentState::new(self.config.num_hidden_layers)
    }

    /// Final hidden states `[B, T, D]`.
    fn hidden(&self, ids: &Tensor, mut state: Option<&mut RecurrentState>) -> Result<Tensor> {
        check_ids(OP, "ids", ids)?;
        let mut x = hooks::layer("embeddings", &self.embeddings, ids)?;
        for (i, block) in self.layers.iter().enumerate() {
            let state = state.as_deref_mut().map(|s| (s, i));
            x = hooks::call(&format!("layers.{i}"), block, &[&x], || block.run(&x, state))?;
        }
        hooks::layer("norm_f", &self.norm_f, &x)
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        match &self.lm_head {
            Some(head) => hooks::layer("lm_head", head, hidden),
            None => {
                let table = self.embeddings.weight().get();
                hidden.linear(&table, None, Activation::Identity, Precision::Ieee)
            }
        }
    }

    /// Logits of new tokens `[B, T]` behind those that `state` has seen, which goes on to the last of them: equal to those of
    /// [`forward`](MambaLanguageModel::forward) over all tokens, to rounding. Records no gradients. After an error the state is as before. Errors:
    /// `Invalid` for a state of another model or batch.
    pub fn forward_with_state(&self, ids: &Tensor, state: &mut RecurrentState) -> Result<Tensor> {
        no_grad(|| state.extend(|state| self.logits(&self.hidden(ids, Some(state))?)))
    }

    /// A prompt `[B, T]` and its continuation, i64. Each new token costs the same. Errors: options out of range.
    pub fn generate(&self, prompt: &Tensor, options: &Generation) -> Result<Tensor> {
        let mut state = self.state()?;
        options.run(prompt, usize::MAX, |ids| self.logits(&last(&self.hidden(ids, Some(&mut state))?)?))
    }

    /// Logits `[B, T, vocab_size]` of token ids `[B, T]`.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.logits(&self.hidden(ids, None)?)
    }
}
