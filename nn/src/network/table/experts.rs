//! Mixtures of experts.

use serde::Deserialize;
use serde_json::Value;
use trefoil::ops::activation::Activation;

use crate::layers::{Expert, ExpertMlp, MixtureOfExperts};
use crate::network::options::{Act, layer_type};

layer_type! {
    EXPERT: 89, "Expert", "expert", Specialized, "nn.Sequential", (1, 1);
    {
        layers: Vec<Value>;
        activation: Act = "identity";
    }
    |o, site| Expert::new(site.list("layers", &o.layers)?)?.activation(o.activation.0)
}

/// Equal experts of one or two linear layers.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mlps {
    num_experts: usize,
    hidden_features: Option<usize>,
    out_features: usize,
    activation: Option<Act>,
    bias: Option<bool>,
}

impl From<Mlps> for ExpertMlp {
    fn from(m: Mlps) -> ExpertMlp {
        let (mlp, default) = match m.hidden_features {
            Some(hidden) => (ExpertMlp::new(m.num_experts, hidden, m.out_features), Activation::Relu),
            None => (ExpertMlp::linear(m.num_experts, m.out_features), Activation::Identity),
        };
        let mlp = mlp.activation(m.activation.map_or(default, |a| a.0));
        if m.bias.unwrap_or(true) { mlp } else { mlp.no_bias() }
    }
}

/// A list of layers, or an object that describes equal ones.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Value")]
enum Experts {
    List(Vec<Value>),
    Mlps(Mlps),
}

impl TryFrom<Value> for Experts {
    type Error = String;

    fn try_from(v: Value) -> Result<Self, String> {
        match v {
            Value::Array(list) => Ok(Experts::List(list)),
            Value::Object(_) => serde_json::from_value(v).map(Experts::Mlps).map_err(|e| e.to_string()),
            v => Err(format!("expected a list of layers or an object that describes equal ones, got {v}")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RouterNoise {
    None,
    Learned,
}

layer_type! {
    MIXTURE_OF_EXPERTS: 90, "MixtureOfExperts", "mixture_of_experts", Specialized, "none", (1, 1);
    {
        in_features: usize;
        experts: Experts;
        router: Option<Value> = null;
        top_k: usize = 0;
        noise: RouterNoise = "none";
        capacity_factor: Option<f64> = null;
        load_balance_weight: f64 = 0;
        z_loss_weight: f64 = 0;
        activation: Act = "identity";
    }
    |o, site| {
        let l = match o.experts {
            Experts::List(list) => {
                let each = list.iter().enumerate();
                let layers = each.map(|(i, json)| site.layer(&format!("experts[{i}]"), json));
                MixtureOfExperts::new(site.cx, o.in_features, layers.collect::<Result<_, _>>()?)?
            }
            Experts::Mlps(mlps) => MixtureOfExperts::mlp(site.cx, o.in_features, &mlps.into())?,
        };
        let mut l = l
            .top_k(o.top_k)?
            .load_balance_weight(o.load_balance_weight)?
            .z_loss_weight(o.z_loss_weight)?
            .activation(o.activation.0);
        if let Some(router) = &o.router {
            l = l.router(site.layer("router", router)?);
        }
        if o.noise == RouterNoise::Learned {
            l = l.noise()?;
        }
        match o.capacity_factor {
            Some(factor) => l.capacity_factor(factor)?,
            None => l,
        }
    }
}
