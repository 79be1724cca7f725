//! Vision Transformer.

use trefoil::ops::activation::Activation;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::{
    AttentionMasks, Dense, Dropout, LayerNormalization, PatchEmbedding, TransformerConfig, TransformerEncoder,
};
use crate::models::hugging_face::Names;
use crate::module::{Init, InitContext, Layer, Param, StateDict, Visitor, hooks};

/// Sizes and probabilities of [`VisionTransformer`], under the names of transformers' `ViTConfig`.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionTransformerConfig {
    /// Height and width of the images.
    pub image_size: [usize; 2],
    /// Height and width of a patch.
    pub patch_size: [usize; 2],
    /// Channels of the images.
    pub num_channels: usize,
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
    /// eps of the normalizations.
    pub layer_norm_eps: f64,
    /// Classes.
    pub num_labels: usize,
    /// Standard deviation of the initial weights.
    pub initializer_range: f64,
}

impl VisionTransformerConfig {
    /// `vit-base-patch16-224`, 87 million parameters, the 1000 classes of ImageNet.
    pub fn base_patch16_224() -> Self {
        VisionTransformerConfig {
            image_size: [224; 2],
            patch_size: [16; 2],
            num_channels: 3,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_dropout_prob: 0.0,
            attention_probs_dropout_prob: 0.0,
            layer_norm_eps: 1e-12,
            num_labels: 1000,
            initializer_range: 0.02,
        }
    }

    /// `vit-large-patch16-224`, 304 million parameters, the 1000 classes of ImageNet.
    pub fn large_patch16_224() -> Self {
        VisionTransformerConfig {
            hidden_size: 1024,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            intermediate_size: 4096,
            ..Self::base_patch16_224()
        }
    }
}

/// Vision Transformer (Dosovitskiy et al., 2021), transformers' `ViTForImageClassification`: images `[B, C, H, W]` to logits `[B, classes]`,
/// which a linear layer makes of the class token.
///
/// State: `embeddings.cls_token [1, 1, D]`, `embeddings.position_embeddings [1, N + 1, D]`, `embeddings.patch_embeddings.proj.*`,
/// `encoder.layer.i.*` ([`TransformerEncoder`]), `layernorm.*`, `classifier.*`; [`from_hugging_face`](Self::from_hugging_face) reads the
/// names of transformers. Weights start from N(0, `initializer_range`).
#[derive(Debug)]
pub struct VisionTransformer {
    config: VisionTransformerConfig,
    cls_token: Param,
    positions: Param,
    patches: PatchEmbedding,
    dropout: Dropout,
    layers: Vec<TransformerEncoder>,
    norm: LayerNormalization,
    classifier: Dense,
}

const OP: &str = "VisionTransformer";

const NAMES: Names = Names {
    prefix: "vit.",
    heads: &["classifier."],
    renamed: &[
        ("embeddings.patch_embeddings.projection.*", "embeddings.patch_embeddings.proj.*"),
        ("encoder.layer.*.attention.output.dense.*", "encoder.layer.*.self_attn.out_proj.*"),
        ("encoder.layer.*.layernorm_before.*", "encoder.layer.*.norm1.*"),
        ("encoder.layer.*.intermediate.dense.*", "encoder.layer.*.linear1.*"),
        ("encoder.layer.*.output.dense.*", "encoder.layer.*.linear2.*"),
        ("encoder.layer.*.layernorm_after.*", "encoder.layer.*.norm2.*"),
    ],
    packed: Some((
        [
            "encoder.layer.*.attention.attention.query",
            "encoder.layer.*.attention.attention.key",
            "encoder.layer.*.attention.attention.value",
        ],
        "encoder.layer.*.self_attn.in_proj",
    )),
    transposed: &[],
    older: &[],
    dropped: &["pooler.*"],
};

impl VisionTransformer {
    /// A model with random weights. Errors: sizes of 0, patches that do not divide the images, heads that do not divide the width,
    /// probabilities outside of [0, 1).
    pub fn new(cx: &InitContext, config: &VisionTransformerConfig) -> Result<Self> {
        let c = config;
        let [rows, columns] = [0, 1].map(|i| c.image_size[i].checked_div(c.patch_size[i]).unwrap_or(0));
        if rows * c.patch_size[0] != c.image_size[0]
            || columns * c.patch_size[1] != c.image_size[1]
            || rows.min(columns) == 0
        {
            let got = format!("patches of {:?} for images of {:?}", c.patch_size, c.image_size);
            return Err(invalid(OP, "patch_size", "a divisor of image_size", got));
        }
        let Some(tokens) = rows.checked_mul(columns).and_then(|n| n.checked_add(1)) else {
            return Err(invalid(OP, "image_size", "fewer patches", format!("{rows} x {columns}")));
        };
        let weight = Init::Normal { mean: 0.0, std: c.initializer_range };
        let block = TransformerConfig::new(c.hidden_size, c.num_attention_heads)
            .d_ff(c.intermediate_size)
            .dropout(c.hidden_dropout_prob)
            .attention_dropout(c.attention_probs_dropout_prob)
            .activation_dropout(0.0)
            .activation(Activation::Gelu)
            .eps(c.layer_norm_eps)
            .norm_first()
            .init(weight, Init::Zeros);
        let patches = PatchEmbedding::new(cx, c.num_channels, c.patch_size, c.hidden_size)?;
        let classifier = Dense::new(cx, c.hidden_size, c.num_labels)?;
        Ok(VisionTransformer {
            config: c.clone(),
            cls_token: weight.param(cx, &[1, 1, c.hidden_size], 1, 1)?,
            positions: weight.param(cx, &[1, tokens, c.hidden_size], 1, 1)?,
            patches: patches.init(weight, Init::Zeros)?,
            dropout: Dropout::new(cx, c.hidden_dropout_prob)?,
            layers: (0..c.num_hidden_layers)
                .map(|_| TransformerEncoder::new(cx, &block))
                .collect::<Result<_>>()?,
            norm: LayerNormalization::new(cx, &[c.hidden_size])?.eps(c.layer_norm_eps)?,
            classifier: classifier.init(weight, Init::Zeros)?,
        })
    }

    /// The model of a state dictionary of transformers, as [`StateFile`](crate::StateFile) reads it, in any floating dtype. Errors: names and
    /// shapes that do not fit `config`.
    pub fn from_hugging_face(
        cx: &InitContext,
        config: &VisionTransformerConfig,
        state: &StateDict,
    ) -> Result<Self> {
        let model = VisionTransformer::new(cx, config)?;
        NAMES.load(&model, state)?;
        Ok(model)
    }

    /// The state dictionary under the names of transformers' `ViTForImageClassification`.
    pub fn to_hugging_face(&self) -> Result<StateDict> {
        NAMES.state_of(self, [1; 3])
    }

    /// The sizes.
    pub fn config(&self) -> &VisionTransformerConfig {
        &self.config
    }

    /// Hidden states `[B, N + 1, D]` of images, the class token first. Errors: `Invalid` for images of other sizes.
    pub fn encode(&self, images: &Tensor) -> Result<Tensor> {
        let (c, [h, w]) = (self.config.num_channels, self.config.image_size);
        let &[b, channels, height, width] = images.shape() else {
            return Err(invalid(OP, "images", "shape [B, C, H, W]", format!("{:?}", images.shape())));
        };
        if [channels, height, width] != [c, h, w] {
            let got = format!("shape {:?}", images.shape());
            return Err(invalid(OP, "images", format!("shape [B, {c}, {h}, {w}]"), got));
        }
        let patches = hooks::layer("embeddings.patch_embeddings", &self.patches, images)?;
        let token = self.cls_token.get().expand(&[b, 1, self.config.hidden_size])?;
        let x = Tensor::concat(1, &[&token, &patches])?.add(&self.positions.get())?;
        let mut x = hooks::layer("embeddings.dropout", &self.dropout, &x)?;
        for (i, block) in self.layers.iter().enumerate() {
            let name = format!("encoder.layer.{i}");
            x = hooks::call(&name, block, &[&x], || block.encode(&x, &AttentionMasks::new()))?;
        }
        hooks::layer("layernorm", &self.norm, &x)
    }
}

impl Layer for VisionTransformer {
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        hooks::layer("classifier", &self.classifier, &self.encode(images)?.select(1, 0)?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("embeddings.cls_token", &self.cls_token);
        v.param("embeddings.position_embeddings", &self.positions);
        v.child("embeddings.patch_embeddings", &self.patches);
        v.child("embeddings.dropout", &self.dropout);
        for (i, block) in self.layers.iter().enumerate() {
            v.child(&format!("encoder.layer.{i}"), block);
        }
        v.child("layernorm", &self.norm);
        v.child("classifier", &self.classifier);
    }
}
