//! Options of layers: how they are declared, and the types of their values.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::shape::PadMode;

use crate::layers::{ActivationKind, PerAxis};
use crate::module::Init;

/// Declares a row of the table of layers: its description, its [options](crate::core::options::options) and how the layer is made of them.
macro_rules! layer_type {
    ($id:ident: $entry:literal, $kind:literal, $name:literal, $family:ident, $torch:literal, $inputs:expr $(, spatial $axes:literal)?;
     { $($options:tt)* }
     |$o:ident, $site:ident| $body:expr) => {
        pub(super) const $id: $crate::network::LayerInfo = {
            $crate::core::options::options!(Options { $($options)* });

            fn build(
                $site: &$crate::network::build::Site<'_>,
                keys: serde_json::Map<String, serde_json::Value>,
            ) -> $crate::core::error::Result<Box<dyn $crate::module::Layer>> {
                #[allow(unused_variables)]
                let $o = Options::take(&$site.path(""), $name, keys)?;
                Ok(Box::new($body))
            }

            $crate::network::LayerInfo {
                entry: $entry,
                kind: $kind,
                name: $name,
                family: $crate::network::Family::$family,
                torch: $torch,
                inputs: $inputs,
                spatial: $crate::core::options::given(&[$($axes)?]),
                keys: Options::KEYS,
                build,
            }
        };
    };
}
pub(super) use layer_type;

/// A layer with its bias and its initial values as the options say.
macro_rules! initialized {
    ($layer:expr, $o:ident) => {{
        let mut l = $layer;
        if !$o.bias {
            l = l.no_bias();
        }
        match $crate::network::options::rules($o.weight_init, $o.bias_init, $crate::module::Init::Lin) {
            Some((weight, bias)) => l.init(weight, bias)?,
            None => l,
        }
    }};
}
pub(super) use initialized;

/// A row of the table for a type of convolution over some spatial axes: the options that all of them have, and its own between them.
macro_rules! convolution_type {
    ($id:ident: $entry:literal, $kind:literal, $name:literal, $family:ident, $torch:literal, $type:ident, $axes:literal;
     { $($own:tt)* }
     ($($argument:expr)?) |$l:ident, $o:ident| $configure:expr) => {
        layer_type! {
            $id: $entry, $kind, $name, $family, $torch, (1, 1), spatial $axes;
            {
                in_channels: Option<usize> = null;
                out_channels: usize;
                kernel_size: Axes<usize, $axes>;
                stride: Axes<usize, $axes> = 1;
                $($own)*
                bias: bool = true;
                activation: Act = "identity";
                weight_init: Option<InitRule> = null;
                bias_init: Option<InitRule> = null;
            }
            |$o, site| {
                let layer = match $o.in_channels {
                    Some(n) => $type::new(site.cx, n, $o.out_channels, $o.kernel_size $(, $argument)?)?,
                    None => $type::lazy(site.cx, $o.out_channels, $o.kernel_size $(, $argument)?)?,
                };
                let $l = layer.stride($o.stride).activation($o.activation.0);
                initialized!($configure, $o)
            }
        }
    };
}
pub(super) use convolution_type;

/// A size of at least 1.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "usize")]
pub(super) struct Size(pub(super) usize);

impl TryFrom<usize> for Size {
    type Error = &'static str;

    fn try_from(n: usize) -> Result<Self, &'static str> {
        if n == 0 { Err("expected at least 1, got 0") } else { Ok(Size(n)) }
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

/// What is wrong with the name of an activation.
pub(super) fn unknown_activation(name: &str) -> String {
    format!(
        "unknown activation `{name}`; known are identity, relu, leaky_relu, relu6, sigmoid, tanh, gelu, gelu_tanh, silu, swish, elu, selu, \
         mish, softplus, hard_swish, hard_sigmoid, hardtanh, and in layers of type `activation` celu, prelu, log_sigmoid, softsign, lisht, \
         isru, bent_identity, gaussian, sqrbf, scaled_tanh, thresholded_relu, sign, softmax, log_softmax, softmin, sparsemax, squash"
    )
}

/// The elementwise activation of a name with these constants in place of its defaults.
fn elementwise(name: &str, constants: Map<String, Value>) -> Result<Activation, String> {
    let mut kind = ActivationKind::from_name(name).ok_or_else(|| unknown_activation(name))?;
    for (key, value) in constants {
        let Some(value) = value.as_f64() else {
            return Err(format!("expected a number as `{key}`, got {value}"));
        };
        match kind.constants().into_iter().find(|(n, _)| *n == key) {
            Some((_, place)) => *place = value,
            None => return Err(format!("`{name}` has no constant `{key}`")),
        }
    }
    match kind {
        ActivationKind::Elementwise(act) => Ok(act),
        _ => Err(format!("`{name}` needs a layer of type `activation` behind this one")),
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
            Value::String(kind) => elementwise(&kind, Map::new()).map(Act),
            Value::Object(mut o) => {
                let Some(Value::String(kind)) = o.remove("kind") else {
                    return Err("expected a name of an activation as `kind`".into());
                };
                elementwise(&kind, o).map(Act)
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
