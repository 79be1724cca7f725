//! Options of layers: how they are declared, and the types of their values.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use trefoil::DType;
use trefoil::ops::{Activation, PadMode};

use crate::init::Init;
use crate::layers::{PerAxis, activation_from_name};

/// Declares a row of the table of layers: its description, its options with their defaults (as JSON; without one an option is required)
/// and how the layer is made of them.
macro_rules! layer_type {
    ($id:ident: $entry:literal, $kind:literal, $name:literal, $family:ident, $torch:literal, $inputs:expr;
     { $($key:ident: $t:ty $(= $default:expr)?),* $(,)? }
     |$o:ident, $site:ident| $body:expr) => {
        pub(super) const $id: $crate::network::LayerInfo = {
            #[derive(serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            struct Options { $($key: $t),* }

            fn build(
                $site: &$crate::network::build::Site<'_>,
                options: serde_json::Value,
            ) -> $crate::Result<Box<dyn $crate::Layer>> {
                #[allow(unused_variables)]
                let $o: Options = $site.read(options)?;
                Ok(Box::new($body))
            }

            $crate::network::LayerInfo {
                entry: $entry,
                kind: $kind,
                name: $name,
                family: $crate::network::Family::$family,
                torch: $torch,
                inputs: $inputs,
                keys: &[$($crate::network::Key {
                    name: stringify!($key),
                    default: $crate::network::options::default_text(&[$(stringify!($default))?]),
                }),*],
                build,
            }
        };
    };
}
pub(super) use layer_type;

/// The default of an option, if it was given one.
pub(super) const fn default_text(text: &[&'static str]) -> Option<&'static str> {
    match text {
        [t] => Some(t),
        _ => None,
    }
}

/// One value for all axes, or a list with one for each.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "Value", bound = "T: DeserializeOwned + Copy")]
pub(super) struct Axes<T, const N: usize>(pub(super) [T; N]);

impl<T, const N: usize> PerAxis<T, N> for Axes<T, N> {
    fn per_axis(self) -> [T; N] {
        self.0
    }
}

impl<T: DeserializeOwned + Copy, const N: usize> TryFrom<Value> for Axes<T, N> {
    type Error = String;

    fn try_from(v: Value) -> Result<Self, String> {
        let wrong = || format!("expected a number or a list of {N}, got {v}");
        match &v {
            Value::Array(_) => {
                let all: Vec<T> = serde_json::from_value(v.clone()).map_err(|_| wrong())?;
                all.try_into().map(Axes).map_err(|_| wrong())
            }
            _ => serde_json::from_value(v.clone()).map(|one| Axes([one; N])).map_err(|_| wrong()),
        }
    }
}

/// A whole number or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Value", bound = "T: DeserializeOwned")]
pub(super) struct List<T>(pub(super) Vec<T>);

impl<T: DeserializeOwned> TryFrom<Value> for List<T> {
    type Error = String;

    fn try_from(v: Value) -> Result<Self, String> {
        let list = if v.is_array() { v.clone() } else { Value::Array(vec![v.clone()]) };
        let wrong = |_| format!("expected a whole number or a list of them, got {v}");
        serde_json::from_value(list).map(List).map_err(wrong)
    }
}

/// Padding of a convolution: `"same"`, `"valid"`, or cells per axis.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
pub(super) enum ConvPadding<const N: usize> {
    Same,
    Cells([usize; N]),
}

impl<const N: usize> TryFrom<Value> for ConvPadding<N> {
    type Error = String;

    fn try_from(v: Value) -> Result<Self, String> {
        match v.as_str() {
            Some("same") => Ok(ConvPadding::Same),
            Some("valid") => Ok(ConvPadding::Cells([0; N])),
            Some(_) => Err(format!("expected \"same\", \"valid\", a number or a list of {N}, got {v}")),
            None => Axes::try_from(v).map(|Axes(cells)| ConvPadding::Cells(cells)),
        }
    }
}

/// What the padding of a convolution holds.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ConvPadMode {
    Zeros,
    Reflect,
    Replicate,
    Circular,
}

impl From<ConvPadMode> for PadMode {
    fn from(m: ConvPadMode) -> PadMode {
        match m {
            ConvPadMode::Zeros => PadMode::Constant(0.0),
            ConvPadMode::Reflect => PadMode::Reflect,
            ConvPadMode::Replicate => PadMode::Replicate,
            ConvPadMode::Circular => PadMode::Circular,
        }
    }
}

/// Constants of activations; each belongs to some of them.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Constants {
    pub(super) negative_slope: Option<f64>,
    pub(super) alpha: Option<f64>,
    pub(super) beta: Option<f64>,
    pub(super) threshold: Option<f64>,
    pub(super) min_val: Option<f64>,
    pub(super) max_val: Option<f64>,
}

/// The elementwise activation of a name with these constants in place of its defaults.
pub(super) fn elementwise(kind: &str, mut given: Constants) -> Result<Activation, String> {
    let mut act = activation_from_name(kind).ok_or_else(|| {
        format!(
            "unknown activation `{kind}`; known are identity, relu, leaky_relu, relu6, sigmoid, tanh, gelu, gelu_tanh, silu, swish, elu, \
             selu, mish, softplus, hard_swish, hard_sigmoid, hardtanh"
        )
    })?;
    let put = |to: &mut f64, from: &mut Option<f64>| *to = from.take().unwrap_or(*to);
    match &mut act {
        Activation::LeakyRelu { slope } => put(slope, &mut given.negative_slope),
        Activation::Elu { alpha } => put(alpha, &mut given.alpha),
        Activation::Swish { beta } if kind == "swish" => put(beta, &mut given.beta),
        Activation::Softplus { beta, threshold } => {
            put(beta, &mut given.beta);
            put(threshold, &mut given.threshold);
        }
        Activation::Hardtanh { lo, hi } => {
            put(lo, &mut given.min_val);
            put(hi, &mut given.max_val);
        }
        _ => {}
    }
    given.none_left(kind)?;
    Ok(act)
}

impl Constants {
    /// Error if a constant was given that `kind` has not taken.
    pub(super) fn none_left(&self, kind: &str) -> Result<(), String> {
        let all = [
            ("negative_slope", self.negative_slope),
            ("alpha", self.alpha),
            ("beta", self.beta),
            ("threshold", self.threshold),
            ("min_val", self.min_val),
            ("max_val", self.max_val),
        ];
        match all.iter().find(|(_, v)| v.is_some()) {
            Some((name, _)) => Err(format!("`{kind}` has no constant `{name}`")),
            None => Ok(()),
        }
    }
}

/// An activation: a name, or an object of `kind` and its constants.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Act(pub(super) Activation);

impl TryFrom<Value> for Act {
    type Error = String;

    fn try_from(v: Value) -> Result<Self, String> {
        match v {
            Value::String(kind) => elementwise(&kind, Constants::default()).map(Act),
            Value::Object(mut o) => {
                let Some(Value::String(kind)) = o.remove("kind") else {
                    return Err("expected a name of an activation as `kind`".into());
                };
                let constants = serde_json::from_value(Value::Object(o)).map_err(|e| e.to_string())?;
                elementwise(&kind, constants).map(Act)
            }
            v => Err(format!("expected the name of an activation or an object with its `kind`, got {v}")),
        }
    }
}

/// The element type of a name.
pub(super) fn dtype(name: &str) -> Result<DType, String> {
    DType::ALL.into_iter().find(|d| d.name() == name).ok_or_else(|| {
        format!("unknown dtype `{name}`; known are {}", DType::ALL.map(DType::name).join(", "))
    })
}

/// How a parameter is filled.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum InitRule {
    Lin,
    Glorot,
    He,
    Lecun,
    Zeros,
    Constant(f64),
    Normal {
        #[serde(default)]
        mean: f64,
        std: f64,
    },
    Uniform {
        lo: f64,
        hi: f64,
    },
}

impl From<InitRule> for Init {
    fn from(r: InitRule) -> Init {
        match r {
            InitRule::Lin => Init::Lin,
            InitRule::Glorot => Init::Glorot,
            InitRule::He => Init::He,
            InitRule::Lecun => Init::LeCun,
            InitRule::Zeros => Init::Zeros,
            InitRule::Constant(c) => Init::Constant(c),
            InitRule::Normal { mean, std } => Init::Normal { mean, std },
            InitRule::Uniform { lo, hi } => Init::Uniform { lo, hi },
        }
    }
}

/// The rules of weight and bias, if one of them was given; the other one is then `default`.
pub(super) fn rules(weight: Option<InitRule>, bias: Option<InitRule>, default: Init) -> Option<(Init, Init)> {
    if weight.is_none() && bias.is_none() {
        return None;
    }
    Some((weight.map_or(default, Init::from), bias.map_or(default, Init::from)))
}
