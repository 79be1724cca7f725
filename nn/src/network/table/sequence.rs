//! Layers for sequences: attention, recurrent, transformer.

use serde::Deserialize;
use serde_json::Value;
use trefoil::ops::attention::RopeLayout;

use crate::core::error::Result;
use crate::core::options::read;
use crate::layers::{
    Attention, Bidirectional, ConvLstm, CrossAttention, FeedForward, Gru, Lstm, Merge, MultiHeadAttention,
    PositionalEmbedding, PositionalEncoding, Recurrent, RecurrentLayer, RecurrentStack, RopeScaling,
    SelfAttention, TransformerConfig, TransformerDecoder, TransformerEncoder,
};
use crate::module::Init;
use crate::network::build::{Entry, Site};
use crate::network::options::{Act, Axes, InitRule, Size, layer_type, rules};

layer_type! {
    ATTENTION: 7, "Attention", "attention", Attention, "F.scaled_dot_product_attention with nn.Linear", (1, 2);
    {
        embed_dim: Size;
        attention_size: Size;
        context_dim: Option<Size> = null;
        bias: bool = false;
        dropout: f64 = 0;
        is_causal: bool = false;
    }
    |o, site| {
        let c = o.context_dim.unwrap_or(o.embed_dim).0;
        let (d, a) = (o.embed_dim.0, o.attention_size.0);
        let l = match o.bias {
            true => Attention::with_bias(site.cx, d, a, c)?,
            false => Attention::with_context(site.cx, d, a, c)?,
        };
        l.dropout(o.dropout)?.causal(o.is_causal)
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct RopeOptions {
    #[serde(default = "rope_base")]
    base: f64,
    #[serde(default)]
    layout: RopePairs,
    scaling: Option<RopeScaling>,
}

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RopePairs {
    #[default]
    Interleaved,
    Half,
}

fn rope_base() -> f64 {
    10_000.0
}

layer_type! {
    MULTI_HEAD_ATTENTION: 8, "MultiHeadAttention", "multi_head_attention", Attention, "nn.MultiheadAttention", (1, 3);
    {
        embed_dim: Size;
        num_heads: usize;
        num_kv_heads: Option<usize> = null;
        dropout: f64 = 0;
        bias: bool = true;
        kdim: Option<usize> = null;
        vdim: Option<usize> = null;
        rope: Option<RopeOptions> = null;
        alibi: bool = false;
        is_causal: bool = false;
    }
    |o, site| {
        let e = o.embed_dim.0;
        let mut l = MultiHeadAttention::new(site.cx, e, o.num_heads)?.dropout(o.dropout)?;
        let widths = (o.kdim.unwrap_or(e), o.vdim.unwrap_or(e));
        if widths != (e, e) {
            l = l.key_value_dims(widths.0, widths.1)?;
        }
        if let Some(n) = o.num_kv_heads {
            l = l.num_kv_heads(n)?;
        }
        if !o.bias {
            l = l.no_bias();
        }
        if let Some(rope) = o.rope {
            let layout = match rope.layout {
                RopePairs::Interleaved => RopeLayout::Interleaved,
                RopePairs::Half => RopeLayout::Half,
            };
            l = l.rotary(layout, rope.base)?;
            if let Some(scaling) = &rope.scaling {
                l = l.rope_scaling(scaling)?;
            }
        }
        if o.alibi {
            l = l.alibi();
        }
        l.causal(o.is_causal)
    }
}

layer_type! {
    SELF_ATTENTION: 9, "SelfAttention", "self_attention", Attention, "nn.MultiheadAttention", (1, 1);
    {
        embed_dim: Size;
        num_heads: usize = 8;
        dropout: f64 = 0;
        bias: bool = true;
        out_proj: bool = true;
        is_causal: bool = false;
    }
    |o, site| {
        let mut l = SelfAttention::new(site.cx, o.embed_dim.0, o.num_heads)?.dropout(o.dropout)?;
        if !o.out_proj {
            l = l.no_out_proj()?;
        }
        if !o.bias {
            l = l.no_bias();
        }
        l.causal(o.is_causal)
    }
}

layer_type! {
    CROSS_ATTENTION: 10, "CrossAttention", "cross_attention", Attention, "nn.MultiheadAttention(kdim=.., vdim=..)",
    (1, 2);
    {
        query_dim: Size;
        context_dim: Size;
        num_heads: usize;
        qkv_bias: bool = false;
        out_bias: bool = true;
        dropout: f64 = 0;
        zero_init_out: bool = false;
    }
    |o, site| {
        let (dq, dc, h) = (o.query_dim.0, o.context_dim.0, o.num_heads);
        let mut l = match o.qkv_bias {
            true => CrossAttention::with_qkv_bias(site.cx, dq, dc, h)?,
            false => CrossAttention::new(site.cx, dq, dc, h)?,
        };
        l = l.dropout(o.dropout)?;
        if o.zero_init_out {
            l = l.zero_init_out()?;
        }
        if o.out_bias { l } else { l.no_out_bias() }
    }
}

/// Options of every recurrent layer, after the unknown ones were refused.
#[derive(Debug, Clone, Copy, Deserialize)]
struct RecurrentOptions {
    input_size: Option<Size>,
    hidden_size: usize,
    nonlinearity: Option<Nonlinearity>,
    bias: bool,
    return_sequences: bool,
    stateful: bool,
    num_layers: usize,
    dropout: f64,
    weight_init: Option<InitRule>,
    bias_init: Option<InitRule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Nonlinearity {
    Tanh,
    Relu,
}

macro_rules! recurrent {
    ($type:ident, $o:expr, $site:expr) => {{
        let o = $o;
        let mut l = match o.input_size {
            Some(n) => $type::new($site.cx, n.0, o.hidden_size)?,
            None => $type::lazy($site.cx, o.hidden_size)?,
        };
        if o.num_layers != 1 {
            l = l.num_layers(o.num_layers)?;
        }
        if o.dropout != 0.0 {
            l = l.dropout(o.dropout)?;
        }
        if !o.bias {
            l = l.no_bias();
        }
        let bound = 1.0 / (o.hidden_size as f64).sqrt();
        if let Some((w, b)) = rules(o.weight_init, o.bias_init, Init::Uniform { lo: -bound, hi: bound }) {
            l = l.init(w, b)?;
        }
        if !o.return_sequences {
            l = l.return_last();
        }
        if o.stateful { l.stateful() } else { l }
    }};
}

fn elman(l: Recurrent, nonlinearity: Option<Nonlinearity>) -> Recurrent {
    if nonlinearity == Some(Nonlinearity::Relu) { l.relu() } else { l }
}

/// A row of the table for a recurrent layer: the options that all have, and its own between them.
macro_rules! recurrent_type {
    ($id:ident: $entry:literal, $kind:literal, $name:literal, $torch:literal; { $($own:tt)* } |$o:ident, $site:ident| $body:expr) => {
        layer_type! {
            $id: $entry, $kind, $name, Recurrent, $torch, (1, 2);
            {
                input_size: Option<Size> = null;
                hidden_size: usize;
                $($own)*
                bias: bool = true;
                return_sequences: bool = true;
                stateful: bool = false;
                num_layers: usize = 1;
                dropout: f64 = 0;
                weight_init: Option<InitRule> = null;
                bias_init: Option<InitRule> = null;
            }
            |$o, $site| $body
        }
    };
}

recurrent_type! {
    LSTM: 11, "LSTM", "lstm", "nn.LSTM(batch_first=True)";
    {}
    |o, site| recurrent!(Lstm, &o, site)
}

recurrent_type! {
    GRU: 12, "GRU", "gru", "nn.GRU(batch_first=True)";
    {}
    |o, site| recurrent!(Gru, &o, site)
}

recurrent_type! {
    RECURRENT: 14, "Recurrent", "recurrent", "nn.RNN(batch_first=True)";
    { nonlinearity: Nonlinearity = "tanh"; }
    |o, site| elman(recurrent!(Recurrent, &o, site), Some(o.nonlinearity))
}

/// Padding of the input's convolution.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct LstmPadding(Option<[usize; 2]>);

impl TryFrom<Value> for LstmPadding {
    type Error = String;

    fn try_from(v: Value) -> Result<Self, String> {
        if v == "same" {
            return Ok(LstmPadding(None));
        }
        let cells = serde_json::from_value::<Axes<usize, 2>>(v.clone());
        cells
            .map(|a| LstmPadding(Some(a.0)))
            .map_err(|_| format!("expected \"same\", a number or a list of 2, got {v}"))
    }
}

layer_type! {
    CONV_LSTM: 13, "ConvLSTM", "conv_lstm", Recurrent, "none (Keras ConvLSTM2D)", (1, 1);
    {
        in_channels: Option<usize> = null;
        filters: usize;
        kernel_size: Axes<usize, 2>;
        stride: Axes<usize, 2> = 1;
        padding: LstmPadding = "same";
        dilation: Axes<usize, 2> = 1;
        bias: bool = true;
        peephole: bool = false;
        return_sequences: bool = true;
    }
    |o, site| {
        let mut l = match o.in_channels {
            Some(n) => ConvLstm::new(site.cx, n, o.filters, o.kernel_size.0)?,
            None => ConvLstm::lazy(site.cx, o.filters, o.kernel_size.0)?,
        };
        l = l.stride(o.stride)?.dilation(o.dilation)?;
        if let Some(cells) = o.padding.0 {
            l = l.padding(cells);
        }
        if !o.bias {
            l = l.no_bias();
        }
        if o.peephole {
            l = l.peepholes();
        }
        if o.return_sequences { l } else { l.return_last() }
    }
}

/// Makes the recurrent layer under a key.
fn stack(site: &Site<'_>, key: &str, json: &Value) -> Result<RecurrentStack> {
    let path = site.path(key);
    let entry = Entry::new(&path, json)?;
    let name = entry.info.name;
    if !["lstm", "gru", "recurrent"].contains(&name) {
        return Err(site.wrong(key, format!("expected a layer of type lstm, gru or recurrent, got `{name}`")));
    }
    let (site, options) = entry.resolve(site.cx)?;
    let make = || {
        let o: RecurrentOptions = read(&path, Value::Object(options))?;
        Ok(match name {
            "lstm" => recurrent!(Lstm, &o, site).into_stack(),
            "gru" => recurrent!(Gru, &o, site).into_stack(),
            _ => elman(recurrent!(Recurrent, &o, site), o.nonlinearity).into_stack(),
        })
    };
    make().map_err(|e| site.explain(e))
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MergeMode {
    Concat,
    Sum,
    Mul,
    Ave,
    None,
}

layer_type! {
    BIDIRECTIONAL: 15, "Bidirectional", "bidirectional", Recurrent, "nn.LSTM(bidirectional=True)", (1, 2);
    {
        inner: Value;
        merge_mode: MergeMode = "concat";
        backward_inner: Option<Value> = null;
    }
    |o, site| {
        let mut l = Bidirectional::of(stack(site, "inner", &o.inner)?)?;
        if let Some(json) = &o.backward_inner {
            l = l.backward_of(stack(site, "backward_inner", json)?)?;
        }
        l.merge(match o.merge_mode {
            MergeMode::Concat => Merge::Concat,
            MergeMode::Sum => Merge::Sum,
            MergeMode::Mul => Merge::Mul,
            MergeMode::Ave => Merge::Average,
            MergeMode::None => Merge::None,
        })?
    }
}

/// The description of a block.
macro_rules! transformer {
    ($o:ident) => {{
        let mut c =
            TransformerConfig::new($o.d_model.0, $o.nhead).d_ff($o.dim_feedforward.0).dropout($o.dropout);
        (c.attention_dropout, c.activation_dropout) = ($o.attention_dropout, $o.activation_dropout);
        c = c.activation($o.activation.0).eps($o.layer_norm_eps);
        if $o.norm_first {
            c = c.norm_first();
        }
        if $o.bias { c } else { c.no_bias() }
    }};
}

/// A block: the options that encoder and decoder have, and its own.
macro_rules! transformer_type {
    ($id:ident: $entry:literal, $kind:literal, $name:literal, $torch:literal, $inputs:expr; { $($own:tt)* } |$o:ident, $site:ident| $body:expr) => {
        layer_type! {
            $id: $entry, $kind, $name, Transformer, $torch, $inputs;
            {
                d_model: Size;
                nhead: usize;
                dim_feedforward: Size = 2048;
                dropout: f64 = 0.1;
                attention_dropout: Option<f64> = null;
                activation_dropout: Option<f64> = null;
                activation: Act = "relu";
                layer_norm_eps: f64 = 1e-5;
                norm_first: bool = false;
                bias: bool = true;
                $($own)*
            }
            |$o, $site| $body
        }
    };
}

transformer_type! {
    TRANSFORMER_ENCODER: 25, "TransformerEncoder", "transformer_encoder", "nn.TransformerEncoderLayer", (1, 1);
    { is_causal: bool = false; }
    |o, site| TransformerEncoder::new(site.cx, &transformer!(o))?.causal(o.is_causal)
}

transformer_type! {
    TRANSFORMER_DECODER: 26, "TransformerDecoder", "transformer_decoder", "nn.TransformerDecoderLayer", (2, 2);
    {}
    |o, site| TransformerDecoder::new(site.cx, &transformer!(o))?
}

layer_type! {
    FEED_FORWARD: 28, "FeedForward", "feed_forward", Transformer, "nn.Linear, nn.Linear", (1, 1);
    {
        d_model: Option<usize> = null;
        d_ff: usize;
        activation: Act = "relu";
        dropout: f64 = 0;
        bias: bool = true;
    }
    |o, site| {
        let l = match o.d_model {
            Some(d) => FeedForward::new(site.cx, d, o.d_ff)?,
            None => FeedForward::lazy(site.cx, o.d_ff)?,
        };
        let l = l.activation(o.activation.0).dropout(o.dropout)?;
        if o.bias { l } else { l.no_bias() }
    }
}

layer_type! {
    POSITIONAL_EMBEDDING: 0, "PositionalEmbedding", "positional_embedding", Transformer, "nn.Embedding of positions", (1, 1);
    {
        d_model: usize;
        max_len: usize;
        weight_init: Option<InitRule> = null;
    }
    |o, site| {
        let l = PositionalEmbedding::new(site.cx, o.d_model, o.max_len)?;
        match o.weight_init {
            Some(rule) => l.init(site.cx, rule.into())?,
            None => l,
        }
    }
}

layer_type! {
    POSITIONAL_ENCODING: 29, "PositionalEncoding", "positional_encoding", Transformer, "none", (1, 1);
    {
        d_model: Size;
        max_len: Size = 5000;
        base: f64 = 10000;
        dropout: f64 = 0;
    }
    |o, site| PositionalEncoding::with_base(site.cx, o.d_model.0, o.max_len.0, o.base)?.dropout(o.dropout)?
}
