//! A language model of LSTM layers.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::RnnState;
use crate::layers::{Dropout, Embedding, Lstm};
use crate::models::generation::{Generation, check_ids, last};
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

/// Sizes and probabilities of [`LstmLanguageModel`].
#[derive(Debug, Clone, PartialEq)]
pub struct LstmLanguageModelConfig {
    /// Tokens.
    pub vocab_size: usize,
    /// Width of the embedding.
    pub embedding_dim: usize,
    /// Width of the states.
    pub hidden_size: usize,
    /// LSTM layers, one above the other.
    pub num_layers: usize,
    /// Dropout before, between and behind the layers.
    pub dropout: f64,
    /// Whether the embedding's table is the projection to logits too (Press and Wolf, 2017); then both widths must agree.
    pub tie_weights: bool,
}

impl LstmLanguageModelConfig {
    /// The medium model of Zaremba et al. (2014) for the Penn Treebank.
    pub fn penn_treebank_medium() -> Self {
        LstmLanguageModelConfig {
            vocab_size: 10_000,
            embedding_dim: 650,
            hidden_size: 650,
            num_layers: 2,
            dropout: 0.5,
            tie_weights: false,
        }
    }

    /// The large model of Zaremba et al. (2014) for the Penn Treebank.
    pub fn penn_treebank_large() -> Self {
        LstmLanguageModelConfig {
            embedding_dim: 1500,
            hidden_size: 1500,
            dropout: 0.65,
            ..Self::penn_treebank_medium()
        }
    }
}

/// Embedding, LSTM layers and a projection (Zaremba et al., 2014): ids `[B, T]` to logits `[B, T, V]` of each next token.
///
/// State, under the names of PyTorch's example `word_language_model`: `encoder.weight [V, E]`, `rnn.*` ([`Lstm`]), `decoder.weight [V, H]`,
/// `decoder.bias [V]`. Tables start from U(-0.1, 0.1), the bias from 0, the layers as `torch.nn.LSTM`.
#[derive(Debug)]
pub struct LstmLanguageModel {
    config: LstmLanguageModelConfig,
    encoder: Embedding,
    drop: Dropout,
    rnn: Lstm,
    decoder_weight: Param,
    decoder_bias: Param,
}

const OP: &str = "LstmLanguageModel";

impl LstmLanguageModel {
    /// A model with random weights. Errors: sizes of 0, a probability outside of [0, 1], tied weights with different widths.
    pub fn new(cx: &InitContext, config: &LstmLanguageModelConfig) -> Result<Self> {
        let c = config;
        if c.tie_weights && c.embedding_dim != c.hidden_size {
            let want = format!("hidden_size {}, as the weights are tied", c.hidden_size);
            return Err(invalid(OP, "embedding_dim", want, format!("{}", c.embedding_dim)));
        }
        let uniform = Init::Uniform { lo: -0.1, hi: 0.1 };
        let encoder = Embedding::new(cx, c.vocab_size, c.embedding_dim)?.init(cx, uniform)?;
        let rnn = Lstm::new(cx, c.embedding_dim, c.hidden_size)?.num_layers(c.num_layers)?;
        let decoder_weight = match c.tie_weights {
            true => encoder.weight().clone(),
            false => uniform.param(cx, &[c.vocab_size, c.hidden_size], 1, 1)?,
        };
        Ok(LstmLanguageModel {
            config: c.clone(),
            encoder,
            drop: Dropout::new(cx, c.dropout)?,
            rnn: rnn.dropout(c.dropout)?,
            decoder_weight,
            decoder_bias: Init::Zeros.param(cx, &[c.vocab_size], 1, 1)?,
        })
    }

    /// The sizes.
    pub fn config(&self) -> &LstmLanguageModelConfig {
        &self.config
    }

    /// Hidden states `[B, T, H]` of the last layer, and the final state of each.
    fn hidden(&self, ids: &Tensor, initial: &[RnnState]) -> Result<(Tensor, Vec<RnnState>)> {
        check_ids(OP, "ids", ids)?;
        let x = hooks::layer("encoder", &self.encoder, ids)?;
        let x = hooks::layer("drop", &self.drop, &x)?;
        let mut state = vec![];
        let y = hooks::call("rnn", &self.rnn, &[&x], || {
            let output = self.rnn.run(&x, initial, None)?;
            state = output.state;
            Ok(output.y)
        })?;
        Ok((hooks::layer("drop", &self.drop, &y)?, state))
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let (w, b) = (self.decoder_weight.get(), self.decoder_bias.get());
        hidden.linear(&w, Some(&b), Activation::Identity, Precision::Ieee)
    }

    /// Logits of tokens `[B, T]` behind those that led to the states of the layers (none: the beginning), and the states behind them, from
    /// which the next call goes on. Errors: `Invalid` for ids and states of other shapes.
    pub fn run(&self, ids: &Tensor, initial: &[RnnState]) -> Result<(Tensor, Vec<RnnState>)> {
        let (hidden, state) = self.hidden(ids, initial)?;
        Ok((self.logits(&hidden)?, state))
    }

    /// A prompt `[B, T]` and its continuation, i64. Call [`eval`](crate::LayerExt::eval) before, so that nothing is dropped. Errors: options
    /// out of range.
    pub fn generate(&self, prompt: &Tensor, options: &Generation) -> Result<Tensor> {
        let mut state = vec![];
        options.run(prompt, usize::MAX, |ids| {
            let (hidden, next) = self.hidden(ids, &state)?;
            state = next;
            self.logits(&last(&hidden)?)
        })
    }
}

impl Layer for LstmLanguageModel {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(self.run(ids, &[])?.0)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("encoder", &self.encoder);
        v.child("drop", &self.drop);
        v.child("rnn", &self.rnn);
        v.param("decoder.weight", &self.decoder_weight);
        v.param("decoder.bias", &self.decoder_bias);
    }
}
