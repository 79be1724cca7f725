//! How layers of the golden suites are made and called. Where inputs are no plain tensors in the order of a graph (masks,
//! states), the layer is made by its constructor and called by its own method.
#![allow(dead_code, missing_docs)]

use serde_json::{Map, Value};
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::*;
use trefoil_nn::{InitContext, Layer, Result, RnnState, Tensor, network};

use super::golden::Case;

/// A layer, and how it is called.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a test holds one at a time")]
pub(crate) enum Made {
    Graph(Box<dyn Layer>),
    Attention(Attention),
    MultiHead(MultiHeadAttention),
    SelfAttention(SelfAttention),
    Cross(CrossAttention),
    Encoder(TransformerEncoder),
    TransformerDecoder(TransformerDecoder),
    Decoder(Decoder),
    Lstm(Lstm),
    Gru(Gru),
    Recurrent(Recurrent),
    Bidirectional(Bidirectional),
    ConvLstm(ConvLstm),
    Positions(PositionalEncoding),
}

/// The options of a layer, with what is left out.
struct Options<'a>(&'a Map<String, Value>);

impl Options<'_> {
    fn size(&self, key: &str) -> usize {
        self.optional(key).unwrap_or_else(|| panic!("no {key}"))
    }

    fn optional(&self, key: &str) -> Option<usize> {
        self.0.get(key).map(|v| v.as_u64().unwrap() as usize)
    }

    fn number(&self, key: &str, default: f64) -> f64 {
        self.0.get(key).map_or(default, |v| v.as_f64().unwrap())
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.0.get(key).map_or(default, |v| v.as_bool().unwrap())
    }

    fn pair(&self, key: &str) -> Option<[usize; 2]> {
        let n = |v: &Value| v.as_u64().unwrap() as usize;
        self.0.get(key).map(|v| v.as_array().map_or_else(|| [n(v); 2], |a| [n(&a[0]), n(&a[1])]))
    }

    fn activation(&self) -> Activation {
        activation_from_name(self.0.get("activation").map_or("relu", |v| v.as_str().unwrap())).unwrap()
    }

    fn transformer(&self) -> TransformerConfig {
        let c = TransformerConfig::new(self.size("d_model"), self.size("nhead"))
            .d_ff(self.size("dim_feedforward"))
            .dropout(self.number("dropout", 0.1))
            .activation(self.activation())
            .eps(self.number("layer_norm_eps", 1e-5));
        let c = if self.flag("norm_first", false) { c.norm_first() } else { c };
        if self.flag("bias", true) { c } else { c.no_bias() }
    }
}

/// A recurrent layer of its options.
macro_rules! recurrent {
    ($type:ident, $cx:expr, $o:expr) => {{
        let l = match $o.optional("input_size") {
            Some(n) => $type::new($cx, n, $o.size("hidden_size"))?,
            None => $type::lazy($cx, $o.size("hidden_size"))?,
        };
        let l = match $o.optional("num_layers") {
            Some(n) => l.num_layers(n)?,
            None => l,
        };
        let l = if $o.flag("bias", true) { l } else { l.no_bias() };
        if $o.flag("return_sequences", true) { l } else { l.return_last() }
    }};
}

fn elman(cx: &InitContext, o: &Options<'_>) -> Result<Recurrent> {
    let l = recurrent!(Recurrent, cx, o);
    Ok(if o.0.get("nonlinearity").is_some_and(|v| v == "relu") { l.relu() } else { l })
}

fn bidirectional(cx: &InitContext, o: &Options<'_>) -> Result<Bidirectional> {
    let inner = o.0["inner"].as_object().unwrap();
    let i = Options(inner);
    let l = match inner["type"].as_str() {
        Some("lstm") => recurrent!(Lstm, cx, i).bidirectional()?,
        Some("gru") => recurrent!(Gru, cx, i).bidirectional()?,
        _ => elman(cx, &i)?.bidirectional()?,
    };
    l.merge(match o.0.get("merge_mode").and_then(Value::as_str) {
        None | Some("concat") => Merge::Concat,
        Some("sum") => Merge::Sum,
        Some("mul") => Merge::Mul,
        Some("ave") => Merge::Average,
        Some(_) => Merge::None,
    })
}

fn multi_head(cx: &InitContext, o: &Options<'_>) -> Result<MultiHeadAttention> {
    let e = o.size("embed_dim");
    let mut l = MultiHeadAttention::new(cx, e, o.size("num_heads"))?.dropout(o.number("dropout", 0.0))?;
    if o.0.contains_key("kdim") || o.0.contains_key("vdim") {
        l = l.key_value_dims(o.optional("kdim").unwrap_or(e), o.optional("vdim").unwrap_or(e))?;
    }
    if let Some(n) = o.optional("num_kv_heads") {
        l = l.num_kv_heads(n)?;
    }
    if let Some(rope) = o.0.get("rope") {
        l = l.rope(rope["base"].as_f64().unwrap())?;
    }
    let l = if o.flag("alibi", false) { l.alibi() } else { l };
    Ok(if o.flag("bias", true) { l } else { l.no_bias() })
}

fn self_attention(cx: &InitContext, o: &Options<'_>) -> Result<SelfAttention> {
    let l = SelfAttention::new(cx, o.size("embed_dim"), o.size("num_heads"))?;
    let l = if o.flag("out_proj", true) { l } else { l.no_out_proj()? };
    let l = if o.flag("bias", true) { l } else { l.no_bias() };
    l.dropout(o.number("dropout", 0.0))
}

fn attention(cx: &InitContext, o: &Options<'_>) -> Result<Attention> {
    let (d, a) = (o.size("embed_dim"), o.size("attention_size"));
    let dc = o.optional("context_dim").unwrap_or(d);
    let l = match o.flag("bias", false) {
        true => Attention::with_bias(cx, d, a, dc)?,
        false => Attention::with_context(cx, d, a, dc)?,
    };
    l.dropout(o.number("dropout", 0.0))
}

fn cross_attention(cx: &InitContext, o: &Options<'_>) -> Result<CrossAttention> {
    let (dq, dc, h) = (o.size("query_dim"), o.size("context_dim"), o.size("num_heads"));
    let l = match o.flag("qkv_bias", false) {
        true => CrossAttention::with_qkv_bias(cx, dq, dc, h)?,
        false => CrossAttention::new(cx, dq, dc, h)?,
    };
    let l = if o.flag("zero_init_out", false) { l.zero_init_out()? } else { l };
    let l = if o.flag("out_bias", true) { l } else { l.no_out_bias() };
    l.dropout(o.number("dropout", 0.0))
}

fn decoder(cx: &InitContext, o: &Options<'_>) -> Result<Decoder> {
    let (a, f) = (o.size("attention_size"), o.size("dim_feedforward"));
    let l = match o.optional("d_model") {
        Some(d) => Decoder::new(cx, d, a, f)?,
        None => Decoder::lazy(cx, a, f)?,
    };
    let l = l.activation(o.activation())?.eps(o.number("layer_norm_eps", 1e-5))?;
    let l = if o.flag("norm_first", false) { l.norm_first()? } else { l };
    l.dropout(o.number("dropout", 0.0))
}

fn conv_lstm(cx: &InitContext, o: &Options<'_>) -> Result<ConvLstm> {
    let kernel = o.pair("kernel_size").unwrap();
    let l = match o.optional("in_channels") {
        Some(c) => ConvLstm::new(cx, c, o.size("filters"), kernel)?,
        None => ConvLstm::lazy(cx, o.size("filters"), kernel)?,
    };
    let l = l.stride(o.pair("stride").unwrap_or([1; 2]))?.dilation(o.pair("dilation").unwrap_or([1; 2]))?;
    let l = match o.pair("padding") {
        Some(p) => l.padding(p),
        None => l,
    };
    let l = if o.flag("bias", true) { l } else { l.no_bias() };
    let l = if o.flag("peephole", false) { l.peepholes() } else { l };
    Ok(if o.flag("return_sequences", true) { l } else { l.return_last() })
}

fn positions(cx: &InitContext, o: &Options<'_>) -> Result<PositionalEncoding> {
    let l = PositionalEncoding::with_base(cx, o.size("d_model"), o.size("max_len"), o.number("base", 1e4))?;
    l.dropout(o.number("dropout", 0.0))
}

/// Whether the inputs are those of a graph.
fn plain(c: &Case) -> bool {
    let names: Vec<&str> = c.inputs.iter().map(String::as_str).collect();
    let args: Vec<&str> = c.args.keys().map(String::as_str).collect();
    match c.entry.as_str() {
        "attention" | "cross_attention" => {
            args.is_empty() && matches!(names[..], ["query"] | ["query", "context"])
        }
        "multi_head_attention" => {
            args.is_empty() && matches!(names[..], ["query"] | ["query", "key"] | ["query", "key", "value"])
        }
        "self_attention" => args.is_empty() && names == ["query"],
        "transformer_encoder" => args.is_empty() && names == ["src"],
        // In a graph the target sees no later steps.
        "transformer_decoder" | "decoder" => args == ["tgt_is_causal"] && names == ["tgt", "memory"],
        "lstm" | "gru" | "recurrent" | "bidirectional" => !names.contains(&"h0"),
        "conv_lstm" => false,
        "positional_encoding" => args.is_empty(),
        _ => true,
    }
}

impl Made {
    pub(crate) fn new(cx: &InitContext, c: &Case) -> Result<Self> {
        if plain(c) {
            return Ok(Made::Graph(network::layer(cx, &Value::Object(c.config.clone()))?));
        }
        let o = Options(&c.config);
        Ok(match c.entry.as_str() {
            "attention" => Made::Attention(attention(cx, &o)?),
            "multi_head_attention" => Made::MultiHead(multi_head(cx, &o)?),
            "self_attention" => Made::SelfAttention(self_attention(cx, &o)?),
            "cross_attention" => Made::Cross(cross_attention(cx, &o)?),
            "transformer_encoder" => Made::Encoder(TransformerEncoder::new(cx, &o.transformer())?),
            "transformer_decoder" => Made::TransformerDecoder(TransformerDecoder::new(cx, &o.transformer())?),
            "decoder" => Made::Decoder(decoder(cx, &o)?),
            "lstm" => Made::Lstm(recurrent!(Lstm, cx, o)),
            "gru" => Made::Gru(recurrent!(Gru, cx, o)),
            "recurrent" => Made::Recurrent(elman(cx, &o)?),
            "bidirectional" => Made::Bidirectional(bidirectional(cx, &o)?),
            "conv_lstm" => Made::ConvLstm(conv_lstm(cx, &o)?),
            "positional_encoding" => Made::Positions(positions(cx, &o)?),
            other => panic!("no way to call {other} with {:?}", c.inputs),
        })
    }

    pub(crate) fn layer(&self) -> &dyn Layer {
        match self {
            Made::Graph(l) => &**l,
            Made::Attention(l) => l,
            Made::MultiHead(l) => l,
            Made::SelfAttention(l) => l,
            Made::Cross(l) => l,
            Made::Encoder(l) => l,
            Made::TransformerDecoder(l) => l,
            Made::Decoder(l) => l,
            Made::Lstm(l) => l,
            Made::Gru(l) => l,
            Made::Recurrent(l) => l,
            Made::Bidirectional(l) => l,
            Made::ConvLstm(l) => l,
            Made::Positions(l) => l,
        }
    }

    /// The outputs of a call with the case's inputs, in their order.
    pub(crate) fn call(&self, c: &Case, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let of = |name: &str| c.inputs.iter().position(|n| n == name).map(|i| &inputs[i]);
        let need = |name: &str| of(name).unwrap_or_else(|| panic!("{}: no {name}", c.name));
        let masks = |prefix: &str, attn: &str| {
            let mut m = AttentionMasks::new();
            m.attn_mask = of(&format!("{prefix}{attn}")).cloned();
            m.key_padding_mask = of(&format!("{prefix}key_padding_mask")).cloned();
            if c.flag(&format!("{prefix}is_causal")) { m.causal() } else { m }
        };
        let states = || -> Result<Vec<RnnState>> {
            let Some(h) = of("h0") else { return Ok(vec![]) };
            // Those of several layers or directions are stacked.
            let inner = c.config.get("inner").unwrap_or(&Value::Null);
            let layers = [c.config.get("num_layers"), inner.get("num_layers")];
            if layers == [None; 2] && !matches!(self, Made::Bidirectional(_)) {
                return Ok(vec![RnnState { h: h.clone(), c: of("c0").cloned() }]);
            }
            let one =
                |i| Ok(RnnState { h: h.select(0, i)?, c: of("c0").map(|c| c.select(0, i)).transpose()? });
            (0..h.shape()[0]).map(one).collect()
        };
        let outputs = |y: Vec<Tensor>, state: Vec<RnnState>| -> Vec<Tensor> {
            y.into_iter()
                .chain(state.into_iter().flat_map(|s| [Some(s.h), s.c].into_iter().flatten()))
                .collect()
        };
        match self {
            Made::Graph(l) if c.flag("stacked") => Ok(vec![l.forward(&inputs[0])?]),
            Made::Graph(l) => l.forward_all(inputs),
            Made::Attention(l) => {
                Ok(vec![l.attend(need("query"), of("context"), &masks("", "attn_mask"))?])
            }
            Made::MultiHead(l) => {
                let q = need("query");
                let k = of("key").unwrap_or(q);
                Ok(vec![l.attend(q, k, of("value").unwrap_or(k), &masks("", "attn_mask"))?])
            }
            Made::SelfAttention(l) => Ok(vec![l.attend(need("query"), &masks("", "attn_mask"))?]),
            Made::Cross(l) => Ok(vec![l.attend(need("query"), of("context"), &masks("", "attn_mask"))?]),
            Made::Encoder(l) => {
                let mut m = masks("src_", "mask");
                m.is_causal = c.flag("is_causal");
                Ok(vec![l.encode(need("src"), &m)?])
            }
            Made::TransformerDecoder(l) => {
                let (own, other) = (masks("tgt_", "mask"), masks("memory_", "mask"));
                Ok(vec![l.decode(need("tgt"), need("memory"), &own, &other)?])
            }
            Made::Decoder(l) => {
                let (own, other) = (masks("tgt_", "mask"), masks("memory_", "mask"));
                Ok(vec![l.decode(need("tgt"), need("memory"), &own, &other)?])
            }
            Made::Lstm(l) => l.run(need("x"), &states()?, of("lengths")).map(|o| outputs(vec![o.y], o.state)),
            Made::Gru(l) => l.run(need("x"), &states()?, of("lengths")).map(|o| outputs(vec![o.y], o.state)),
            Made::Recurrent(l) => {
                l.run(need("x"), &states()?, of("lengths")).map(|o| outputs(vec![o.y], o.state))
            }
            Made::Bidirectional(l) => {
                l.run(need("x"), &states()?, of("lengths")).map(|(y, state)| outputs(y, state))
            }
            Made::ConvLstm(l) => {
                let s = states()?;
                l.run(need("x"), s.first()).map(|(y, state)| outputs(vec![y], vec![state]))
            }
            Made::Positions(l) => {
                let offset = c.args.get("offset").and_then(Value::as_u64).unwrap_or(0) as usize;
                Ok(vec![l.forward_at(need("x"), offset)?])
            }
        }
    }
}
