//! Conditional random fields, memories, and recurrent networks of spiking neurons or with fixed weights.

use serde::Deserialize;
use serde_json::{Value, json};
use trefoil::ops::loss::Reduction;

use crate::layers::{
    ConditionalRandomField, MemoryRead, MemoryWrite, Neuron, Reservoir, ReservoirWeights, SpikeReset,
    Spiking, Surrogate, TagScheme,
};
use crate::network::options::{Act, layer_type};

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SchemeName {
    Bio,
    Bioes,
}

/// The names of the tags.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Constraints {
    scheme: SchemeName,
    labels: Vec<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReductionName {
    Mean,
    Sum,
    None,
}

layer_type! {
    CONDITIONAL_RANDOM_FIELD: 87, "ConditionalRandomField", "conditional_random_field", Specialized,
    "none (pytorch-crf CRF)", (1, 3);
    {
        num_tags: usize;
        emission_activation: Act = "identity";
        constraints: Option<Constraints> = null;
        reduction: ReductionName = "mean";
    }
    |o, site| {
        let l = ConditionalRandomField::new(site.cx, o.num_tags)?
            .emission_activation(o.emission_activation.0)
            .reduction(match o.reduction {
                ReductionName::Mean => Reduction::Mean,
                ReductionName::Sum => Reduction::Sum,
                ReductionName::None => Reduction::None,
            });
        match &o.constraints {
            Some(c) => {
                let scheme = match c.scheme {
                    SchemeName::Bio => TagScheme::Bio,
                    SchemeName::Bioes => TagScheme::Bioes,
                };
                l.constraints(scheme, &c.labels.iter().map(String::as_str).collect::<Vec<_>>())?
            }
            None => l,
        }
    }
}

layer_type! {
    MEMORY_READ: 92, "MemoryRead", "memory_read", Specialized, "F.scaled_dot_product_attention with nn.Linear", (2, 2);
    {
        in_features: usize;
        memory_dim: usize;
        out_features: usize;
        scale: Option<f64> = null;
        activation: Act = "identity";
        entropy_weight: f64 = 0;
    }
    |o, site| {
        let l = MemoryRead::new(site.cx, o.in_features, o.memory_dim, o.out_features)?
            .activation(o.activation.0)
            .entropy_weight(o.entropy_weight)?;
        match o.scale {
            Some(scale) => l.scale(scale)?,
            None => l,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Addressing {
    Dot,
    Cosine,
}

layer_type! {
    MEMORY_WRITE: 93, "MemoryWrite", "memory_write", Specialized, "none", (2, 2);
    {
        in_features: usize;
        memory_dim: usize;
        addressing: Addressing = "dot";
        erase: bool = true;
        activation: Act = "identity";
        entropy_weight: f64 = 0;
    }
    |o, site| {
        let mut l = MemoryWrite::new(site.cx, o.in_features, o.memory_dim)?
            .activation(o.activation.0)
            .entropy_weight(o.entropy_weight)?;
        if o.addressing == Addressing::Cosine {
            l = l.cosine()?;
        }
        if o.erase { l } else { l.no_erase() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NeuronName {
    Lif,
    If,
    Izhikevich,
    Adex,
    HodgkinHuxley,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResetName {
    Subtract,
    Zero,
    None,
}

impl From<ResetName> for SpikeReset {
    fn from(r: ResetName) -> SpikeReset {
        match r {
            ResetName::Subtract => SpikeReset::Subtract,
            ResetName::Zero => SpikeReset::Zero,
            ResetName::None => SpikeReset::None,
        }
    }
}

/// A gradient of spikes: a name, or an object of `kind` and its sharpness.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct SurrogateOption(Surrogate);

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum SurrogateKind {
    Atan { alpha: Option<f64> },
    FastSigmoid { slope: Option<f64> },
    Sigmoid { slope: Option<f64> },
}

impl TryFrom<Value> for SurrogateOption {
    type Error = String;

    fn try_from(v: Value) -> Result<Self, String> {
        let object = if v.is_string() { json!({ "kind": v }) } else { v };
        let kind = serde_json::from_value(object).map_err(|e| e.to_string())?;
        Ok(SurrogateOption(match kind {
            SurrogateKind::Atan { alpha } => Surrogate::Atan { alpha: alpha.unwrap_or(2.0) },
            SurrogateKind::FastSigmoid { slope } => Surrogate::FastSigmoid { slope: slope.unwrap_or(25.0) },
            SurrogateKind::Sigmoid { slope } => Surrogate::Sigmoid { slope: slope.unwrap_or(25.0) },
        }))
    }
}

layer_type! {
    SPIKING: 102, "Spiking", "spiking", Specialized, "none (snnTorch Leaky)", (1, 1);
    {
        in_features: usize;
        out_features: usize;
        neuron: NeuronName = "lif";
        beta: Option<f64> = null;
        tau: Option<f64> = null;
        threshold: Option<f64> = null;
        reset: Option<ResetName> = null;
        refractory_steps: Option<usize> = null;
        surrogate: SurrogateOption = "atan";
        dt: Option<f64> = null;
        detach_reset: bool = true;
        batch_first: bool = false;
        stateful: bool = false;
    }
    |o, site| {
        if o.neuron != NeuronName::Lif && (o.beta.is_some() || o.tau.is_some()) {
            let key = if o.beta.is_some() { "beta" } else { "tau" };
            return Err(site.wrong(key, "only the neuron `lif` has a leak of its own"));
        }
        let neuron = match (o.neuron, o.beta, o.tau) {
            (NeuronName::Lif, Some(_), Some(_)) => {
                return Err(site.wrong("tau", "`beta` stands for the same"));
            }
            (NeuronName::Lif, Some(beta), None) => Neuron::LeakyIntegrateAndFire { beta },
            (NeuronName::Lif, None, tau) => Neuron::leaky(tau.unwrap_or(10.0))?,
            (NeuronName::If, ..) => Neuron::IntegrateAndFire,
            (NeuronName::Izhikevich, ..) => Neuron::Izhikevich,
            (NeuronName::Adex, ..) => Neuron::AdaptiveExponential,
            (NeuronName::HodgkinHuxley, ..) => Neuron::HodgkinHuxley,
        };
        let mut l = Spiking::new(site.cx, o.in_features, o.out_features, neuron)?
            .surrogate(o.surrogate.0)?
            .detach_reset(o.detach_reset)
            .batch_first(o.batch_first);
        if let Some(threshold) = o.threshold {
            l = l.threshold(threshold)?;
        }
        if let Some(reset) = o.reset {
            l = l.reset(reset.into())?;
        }
        if let Some(steps) = o.refractory_steps {
            l = l.refractory_steps(steps)?;
        }
        if let Some(dt) = o.dt {
            l = l.dt(dt)?;
        }
        if o.stateful { l.stateful() } else { l }
    }
}

layer_type! {
    RESERVOIR: 99, "Reservoir", "reservoir", Specialized, "none", (1, 1);
    {
        input_size: usize;
        reservoir_size: usize;
        connection_probability: f64 = 0.1;
        spectral_radius: f64 = 0.9;
        input_scaling: f64 = 1;
        leaking_rate: f64 = 1;
        detach_input: bool = false;
        stateful: bool = false;
    }
    |o, site| {
        let weights = ReservoirWeights {
            connection_probability: o.connection_probability,
            spectral_radius: o.spectral_radius,
            input_scaling: o.input_scaling,
        };
        let l = Reservoir::with(site.cx, o.input_size, o.reservoir_size, &weights)?
            .leaking_rate(o.leaking_rate)?
            .detach_input(o.detach_input);
        if o.stateful { l.stateful() } else { l }
    }
}
