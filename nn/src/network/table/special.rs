//! Layers around a layer, and linear layers of other algebras.

use serde::Deserialize;
use serde_json::Value;

use crate::layers::{Decoder, HyperbolicLinear, OctonionLinear, SpectralNormalization};
use crate::module::Init;
use crate::network::options::{Act, InitRule, Size, layer_type, rules};

layer_type! {
    SPECTRAL_NORMALIZATION: 23, "SpectralNormalization", "spectral_normalization", Normalization,
    "nn.utils.parametrizations.spectral_norm", (1, 1);
    {
        inner: Value;
        parameter: String = "weight";
        n_power_iterations: usize = 1;
        eps: f64 = 1e-12;
        dim: Option<isize> = null;
    }
    |o, site| {
        let l = SpectralNormalization::of(site.cx, site.layer("inner", &o.inner)?, &o.parameter)?;
        let l = l.power_iterations(o.n_power_iterations)?.eps(o.eps)?;
        match o.dim {
            Some(dim) => l.dim(dim)?,
            None => l,
        }
    }
}

layer_type! {
    DECODER: 27, "Decoder", "decoder", Transformer, "nn.TransformerDecoderLayer with one head", (2, 2);
    {
        d_model: Option<Size> = null;
        attention_size: Size;
        dim_feedforward: Size;
        activation: Act = "relu";
        dropout: f64 = 0;
        layer_norm_eps: f64 = 1e-5;
        norm_first: bool = false;
    }
    |o, site| {
        let (a, f) = (o.attention_size.0, o.dim_feedforward.0);
        let l = match o.d_model {
            Some(d) => Decoder::new(site.cx, d.0, a, f)?,
            None => Decoder::lazy(site.cx, a, f)?,
        };
        let l = l.activation(o.activation.0)?.eps(o.layer_norm_eps)?.dropout(o.dropout)?;
        if o.norm_first { l.norm_first()? } else { l }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HyperbolicOutput {
    Ball,
    Tangent,
}

layer_type! {
    HYPERBOLIC_LINEAR: 59, "HyperbolicLinear", "hyperbolic_linear", DenseLike, "none (geoopt MobiusLinear)", (1, 1);
    {
        in_features: usize;
        out_features: usize;
        c: f64 = 1;
        bias: bool = true;
        hyperbolic_input: bool = true;
        nonlin: Option<Act> = null;
        output: HyperbolicOutput = "ball";
        weight_init: Option<InitRule> = null;
        bias_init: Option<InitRule> = null;
    }
    |o, site| {
        let mut l = HyperbolicLinear::new(site.cx, o.in_features, o.out_features)?.c(o.c)?;
        if !o.bias {
            l = l.no_bias();
        }
        if !o.hyperbolic_input {
            l = l.tangent_input();
        }
        if let Some(act) = o.nonlin {
            l = l.nonlinearity(act.0);
        }
        if o.output == HyperbolicOutput::Tangent {
            l = l.tangent_output();
        }
        match rules(o.weight_init, o.bias_init, Init::Glorot) {
            Some((weight, bias)) => l.init(weight, bias)?,
            None => l,
        }
    }
}

layer_type! {
    OCTONION_LINEAR: 60, "OctonionLinear", "octonion_linear", DenseLike, "none", (1, 1);
    {
        in_features: usize;
        out_features: usize;
        bias: bool = true;
        activation: Act = "identity";
    }
    |o, site| {
        let l = OctonionLinear::new(site.cx, o.in_features, o.out_features)?.activation(o.activation.0);
        if o.bias { l } else { l.no_bias() }
    }
}
