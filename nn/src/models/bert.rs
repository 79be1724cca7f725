//! BERT.

use trefoil::DType;
use trefoil::ops::activation::Activation;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::{
    AttentionMasks, Dense, Dropout, Embedding, LayerNormalization, PositionalEmbedding, TransformerConfig,
    TransformerEncoder,
};
use crate::models::generation::check_ids;
use crate::models::hugging_face::Names;
use crate::module::{Init, InitContext, Layer, StateDict, Visitor, hooks};

/// Sizes and probabilities of [`Bert`], under the names of transformers' `BertConfig`.
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// Tokens.
    pub vocab_size: usize,
    /// Width.
    pub hidden_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Width inside of the feed-forward networks.
    pub intermediate_size: usize,
    /// Dropout of the embeddings and of what is added to the residual stream.
    pub hidden_dropout_prob: f64,
    /// Dropout of attention weights.
    pub attention_probs_dropout_prob: f64,
    /// The longest text.
    pub max_position_embeddings: usize,
    /// Kinds of segments.
    pub type_vocab_size: usize,
    /// eps of the normalizations.
    pub layer_norm_eps: f64,
    /// Token whose embedding is 0 at first and gets no gradient.
    pub pad_token_id: i64,
    /// Standard deviation of the initial weights.
    pub initializer_range: f64,
}

impl BertConfig {
    /// `bert-base-uncased`, 110 million parameters.
    pub fn base_uncased() -> Self {
        BertConfig {
            vocab_size: 30_522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            pad_token_id: 0,
            initializer_range: 0.02,
        }
    }

    /// `bert-base-cased`, 108 million parameters.
    pub fn base_cased() -> Self {
        BertConfig { vocab_size: 28_996, ..Self::base_uncased() }
    }

    /// `bert-large-uncased`, 335 million parameters.
    pub fn large_uncased() -> Self {
        BertConfig {
            hidden_size: 1024,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            intermediate_size: 4096,
            ..Self::base_uncased()
        }
    }
}

/// BERT (Devlin et al., 2019), transformers' `BertModel`: ids `[B, T]` to hidden states `[B, T, D]`, and to a vector `[B, D]` of the whole
/// text, which a pooler makes of its first token.
///
/// State: `embeddings.{word_embeddings,position_embeddings,token_type_embeddings}.weight`, `embeddings.LayerNorm.*`, `encoder.layer.i.*`
/// ([`TransformerEncoder`]), `pooler.dense.*`; [`from_hugging_face`](Self::from_hugging_face) reads the names of transformers. Weights start
/// from N(0, `initializer_range`).
#[derive(Debug)]
pub struct Bert {
    config: BertConfig,
    words: Embedding,
    positions: PositionalEmbedding,
    token_types: Embedding,
    norm: LayerNormalization,
    dropout: Dropout,
    layers: Vec<TransformerEncoder>,
    pooler: Dense,
}

const OP: &str = "Bert";

const NAMES: Names = Names {
    prefix: "bert.",
    heads: &[],
    renamed: &[
        ("encoder.layer.*.attention.output.dense.*", "encoder.layer.*.self_attn.out_proj.*"),
        ("encoder.layer.*.attention.output.LayerNorm.*", "encoder.layer.*.norm1.*"),
        ("encoder.layer.*.intermediate.dense.*", "encoder.layer.*.linear1.*"),
        ("encoder.layer.*.output.dense.*", "encoder.layer.*.linear2.*"),
        ("encoder.layer.*.output.LayerNorm.*", "encoder.layer.*.norm2.*"),
    ],
    packed: Some((
        [
            "encoder.layer.*.attention.self.query",
            "encoder.layer.*.attention.self.key",
            "encoder.layer.*.attention.self.value",
        ],
        "encoder.layer.*.self_attn.in_proj",
    )),
    transposed: &[],
    older: &[("*.LayerNorm.gamma", "*.LayerNorm.weight"), ("*.LayerNorm.beta", "*.LayerNorm.bias")],
    // Heads, and positions that older versions saved.
    dropped: &["cls.*", "classifier.*", "qa_outputs.*", "embeddings.position_ids"],
};

impl Bert {
    /// A model with random weights. Errors: sizes of 0, heads that do not divide the width, probabilities outside of [0, 1), a padding token
    /// outside of the vocabulary.
    pub fn new(cx: &InitContext, config: &BertConfig) -> Result<Self> {
        let c = config;
        let weight = Init::Normal { mean: 0.0, std: c.initializer_range };
        let block = TransformerConfig::new(c.hidden_size, c.num_attention_heads)
            .d_ff(c.intermediate_size)
            .dropout(c.hidden_dropout_prob)
            .attention_dropout(c.attention_probs_dropout_prob)
            .activation_dropout(0.0)
            .activation(Activation::Gelu)
            .eps(c.layer_norm_eps)
            .init(weight, Init::Zeros);
        let table = |rows: usize| Embedding::new(cx, rows, c.hidden_size)?.init(cx, weight);
        let positions = PositionalEmbedding::new(cx, c.hidden_size, c.max_position_embeddings)?;
        let pooler = Dense::new(cx, c.hidden_size, c.hidden_size)?.activation(Activation::Tanh);
        Ok(Bert {
            config: c.clone(),
            words: table(c.vocab_size)?.padding_idx(c.pad_token_id)?,
            positions: positions.init(cx, weight)?,
            token_types: table(c.type_vocab_size)?,
            norm: LayerNormalization::new(cx, &[c.hidden_size])?.eps(c.layer_norm_eps)?,
            dropout: Dropout::new(cx, c.hidden_dropout_prob)?,
            layers: (0..c.num_hidden_layers)
                .map(|_| TransformerEncoder::new(cx, &block))
                .collect::<Result<_>>()?,
            pooler: pooler.init(weight, Init::Zeros)?,
        })
    }

    /// The model of a state dictionary of transformers, as [`StateFile`](crate::StateFile) reads it: with or without the prefix `bert.`, with or
    /// without a head (which is left out), in any floating dtype. Errors: names and shapes that do not fit `config`.
    pub fn from_hugging_face(cx: &InitContext, config: &BertConfig, state: &StateDict) -> Result<Self> {
        let model = Bert::new(cx, config)?;
        NAMES.load(&model, state)?;
        Ok(model)
    }

    /// The state dictionary under the names of transformers' `BertModel`, with the prefix `bert.` that models with heads have.
    pub fn to_hugging_face(&self) -> Result<StateDict> {
        NAMES.state_of(self, [1; 3])
    }

    /// The sizes.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Hidden states `[B, T, D]` and the pooled vectors `[B, D]` of ids `[B, T]`. `token_type_ids` `[B, T]` name the segment of each token
    /// (without them, the first); where `attention_mask` `[B, T]` is 0 there is padding, which no token sees. Errors: `Invalid` for other
    /// shapes and dtypes, and more than `max_position_embeddings` tokens.
    pub fn encode(
        &self,
        ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        check_ids(OP, "ids", ids)?;
        let others = [("token_type_ids", token_type_ids), ("attention_mask", attention_mask)];
        for (arg, t) in others.into_iter().filter_map(|(arg, t)| Some((arg, t?))) {
            if t.shape() != ids.shape() || t.dtype().is_float() {
                let got = format!("{} {:?}", t.dtype(), t.shape());
                return Err(invalid(OP, arg, format!("integers {:?} like the ids", ids.shape()), got));
            }
        }
        let first = || Tensor::zeros(ids.device(), DType::I64, ids.shape());
        let types = token_type_ids.map_or_else(first, |t| Ok(t.clone()))?;
        let words = hooks::layer("embeddings.word_embeddings", &self.words, ids)?;
        let types = hooks::layer("embeddings.token_type_embeddings", &self.token_types, &types)?;
        let x = hooks::layer("embeddings.position_embeddings", &self.positions, &words.add(&types)?)?;
        let x = hooks::layer("embeddings.LayerNorm", &self.norm, &x)?;
        let mut x = hooks::layer("embeddings.dropout", &self.dropout, &x)?;

        let mut masks = AttentionMasks::new();
        if let Some(mask) = attention_mask {
            masks = masks.key_padding_mask(mask.eq_scalar(0.0)?);
        }
        for (i, block) in self.layers.iter().enumerate() {
            let name = format!("encoder.layer.{i}");
            x = hooks::call(&name, block, &[&x], || block.encode(&x, &masks))?;
        }
        let pooled = hooks::layer("pooler.dense", &self.pooler, &x.select(1, 0)?)?;
        Ok((x, pooled))
    }
}

impl Layer for Bert {
    /// Hidden states `[B, T, D]`.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(self.encode(ids, None, None)?.0)
    }

    /// `[ids]`, `[ids, token_type_ids]` or `[ids, token_type_ids, attention_mask]` to hidden states and pooled vectors.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (hidden, pooled) = match inputs {
            [ids] => self.encode(ids, None, None)?,
            [ids, types] => self.encode(ids, Some(types), None)?,
            [ids, types, mask] => self.encode(ids, Some(types), Some(mask))?,
            _ => return Err(invalid(OP, "inputs", "1 to 3 tensors", format!("{} tensors", inputs.len()))),
        };
        Ok(vec![hidden, pooled])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("embeddings.word_embeddings", &self.words);
        v.child("embeddings.position_embeddings", &self.positions);
        v.child("embeddings.token_type_embeddings", &self.token_types);
        v.child("embeddings.LayerNorm", &self.norm);
        v.child("embeddings.dropout", &self.dropout);
        for (i, block) in self.layers.iter().enumerate() {
            v.child(&format!("encoder.layer.{i}"), block);
        }
        v.child("pooler.dense", &self.pooler);
    }
}
