//! Layers that reshape, merge, mask and add noise.

use serde::Deserialize;
use serde_json::Value;
use trefoil::DType;
use trefoil::ops::shape::PadMode;

use crate::core::error::Result;
use crate::layers::{
    Activation, ActivationKind, Add, Concatenate, Cropping, Dropout, Flatten, GaussianNoise, Input,
    LogSoftmax, LogVariance, Masking, Mean, Multiply, Padding, Prelu, Reshape, SequenceLast, Softmax, Split,
    TimeDistributed,
};
use crate::module::Layer;
use crate::network::MANY;
use crate::network::build::Site;
use crate::network::options::{Act, List, dtype, layer_type, unknown_activation};

/// The layer of an activation: a kind with these constants in place of its defaults.
fn activation(
    site: &Site<'_>,
    name: &str,
    dim: Option<isize>,
    constants: &[(&str, Option<f64>)],
) -> Result<Activation> {
    let Some(mut kind) = ActivationKind::from_name(name) else {
        return Err(site.wrong("kind", unknown_activation(name)));
    };
    for &(constant, value) in constants {
        let Some(value) = value else { continue };
        match kind.constants().into_iter().find(|(n, _)| *n == constant) {
            Some((_, place)) => *place = value,
            None => return Err(site.wrong(constant, format!("`{name}` has no such constant"))),
        }
    }
    match dim {
        None => Activation::new(kind),
        Some(dim) if kind.is_vector() => Ok(Activation::new(kind)?.dim(dim)),
        Some(_) => Err(site.wrong("dim", format!("`{name}` is elementwise and has no axis"))),
    }
}

layer_type! {
    ACTIVATION: 42, "Activation", "activation", Utility, "nn.ReLU and others", (1, 1);
    {
        kind: String;
        dim: Option<isize> = null;
        negative_slope: Option<f64> = null;
        alpha: Option<f64> = null;
        beta: Option<f64> = null;
        threshold: Option<f64> = null;
        min_val: Option<f64> = null;
        max_val: Option<f64> = null;
        theta: Option<f64> = null;
        num_parameters: Option<usize> = null;
        init: Option<f64> = null;
    }
    |o, site| {
        let constants = [
            ("negative_slope", o.negative_slope),
            ("alpha", o.alpha),
            ("beta", o.beta),
            ("threshold", o.threshold),
            ("min_val", o.min_val),
            ("max_val", o.max_val),
            ("theta", o.theta),
        ];
        let layer: Box<dyn Layer> = if o.kind == "prelu" {
            if let Some((name, _)) = constants.iter().find(|(_, v)| v.is_some()) {
                return Err(site.wrong(name, "`prelu` has no such constant"));
            }
            Box::new(Prelu::with_init(site.cx, o.num_parameters.unwrap_or(1), o.init.unwrap_or(0.25))?)
        } else if o.num_parameters.is_some() || o.init.is_some() {
            return Err(site.wrong("num_parameters", "only `prelu` has parameters"));
        } else {
            Box::new(activation(site, &o.kind, o.dim, &constants)?)
        };
        layer
    }
}

layer_type! {
    SOFTMAX: 0, "Softmax", "softmax", Utility, "nn.Softmax", (1, 1);
    { dim: isize = -1; }
    |o, _site| Softmax(o.dim)
}

layer_type! {
    LOG_SOFTMAX: 0, "LogSoftmax", "log_softmax", Utility, "nn.LogSoftmax", (1, 1);
    { dim: isize = -1; }
    |o, _site| LogSoftmax(o.dim)
}

layer_type! {
    ADD: 43, "Add", "add", Utility, "+", (2, MANY);
    { activation: Act = "identity"; }
    |o, _site| Add::new().activation(o.activation.0)
}

layer_type! {
    CONCATENATE: 44, "Concatenate", "concatenate", Utility, "torch.cat", (1, MANY);
    {
        dim: isize = 1;
        activation: Act = "identity";
    }
    |o, _site| Concatenate::new(o.dim).activation(o.activation.0)
}

layer_type! {
    CROPPING: 45, "Cropping", "cropping", Utility, "F.pad with negative numbers", (1, 1);
    { cropping: Vec<(usize, usize)>; }
    |o, _site| Cropping::new(&o.cropping)
}

layer_type! {
    DROPOUT: 46, "Dropout", "dropout", Utility, "nn.Dropout", (1, 1);
    { p: f64 = 0.5; }
    |o, site| Dropout::new(site.cx, o.p)?
}

layer_type! {
    FLATTEN: 47, "Flatten", "flatten", Utility, "nn.Flatten", (1, 1);
    {
        start_dim: isize = 1;
        end_dim: isize = -1;
    }
    |o, _site| Flatten::new(o.start_dim, o.end_dim)
}

layer_type! {
    GAUSSIAN_NOISE: 48, "GaussianNoise", "gaussian_noise", Utility, "none (Keras GaussianNoise)", (1, 1);
    {
        stddev: f64 = 0.1;
        mean: f64 = 0;
    }
    |o, site| GaussianNoise::new(site.cx, o.stddev)?.mean(o.mean)?
}

/// An element type by its name.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct TypeName(DType);

impl TryFrom<String> for TypeName {
    type Error = String;

    fn try_from(s: String) -> Result<Self, String> {
        dtype(&s).map(TypeName)
    }
}

layer_type! {
    INPUT: 49, "Input", "input", Utility, "none (Keras Input)", (1, 1);
    {
        shape: Vec<isize>;
        dtype: Option<TypeName> = null;
    }
    |o, _site| {
        let l = Input::new(&o.shape)?;
        match o.dtype {
            Some(d) => l.dtype(d.0),
            None => l,
        }
    }
}

layer_type! {
    MASKING: 50, "Masking", "masking", Utility, "none (Keras Masking)", (1, 1);
    { mask_value: f64 = 0; }
    |o, _site| Masking::new(o.mask_value)?
}

layer_type! {
    MULTIPLY: 51, "Multiply", "multiply", Utility, "*", (2, MANY);
    { activation: Act = "identity"; }
    |o, _site| Multiply::new().activation(o.activation.0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PaddingMode {
    Constant,
    Reflect,
    Replicate,
    Circular,
}

layer_type! {
    PADDING: 52, "Padding", "padding", Utility, "F.pad", (1, 1);
    {
        padding: Vec<(usize, usize)>;
        mode: PaddingMode = "constant";
        value: f64 = 0;
    }
    |o, site| {
        if o.mode != PaddingMode::Constant && o.value != 0.0 {
            return Err(site.wrong("value", "only the mode `constant` has a value"));
        }
        Padding::new(&o.padding)?.mode(match o.mode {
            PaddingMode::Constant => PadMode::Constant(o.value),
            PaddingMode::Reflect => PadMode::Reflect,
            PaddingMode::Replicate => PadMode::Replicate,
            PaddingMode::Circular => PadMode::Circular,
        })
    }
}

layer_type! {
    RESHAPE: 53, "Reshape", "reshape", Utility, "torch.reshape", (1, 1);
    { target_shape: Vec<isize>; }
    |o, _site| Reshape::new(&o.target_shape)?
}

layer_type! {
    SEQUENCE_LAST: 54, "SequenceLast", "sequence_last", Utility, "`x[:, -1]`", (1, 2);
    {}
    |o, _site| SequenceLast
}

layer_type! {
    SPLIT: 55, "Split", "split", Utility, "torch.split", (1, 1);
    {
        num_splits: Option<usize> = null;
        sizes: Option<Vec<usize>> = null;
        dim: isize = -1;
    }
    |o, site| match (o.num_splits, o.sizes) {
        (Some(n), None) => Split::new(n, o.dim)?,
        (None, Some(sizes)) => Split::sizes(&sizes, o.dim)?,
        (None, None) => {
            return Err(site.wrong("num_splits", "is missing; one of `num_splits` and `sizes` is required"));
        }
        _ => return Err(site.wrong("sizes", "only one of `num_splits` and `sizes` is possible")),
    }
}

layer_type! {
    TIME_DISTRIBUTED: 56, "TimeDistributed", "time_distributed", Utility, "none (Keras TimeDistributed)", (1, 1);
    {
        inner: Value;
        activation: Act = "identity";
    }
    |o, site| TimeDistributed::new(site.layer("inner", &o.inner)?).activation(o.activation.0)
}

layer_type! {
    MEAN: 57, "Mean", "mean", Utility, "torch.mean", (1, 1);
    {
        dim: List<isize>;
        keepdim: bool = false;
    }
    |o, _site| {
        let l = Mean::new(&o.dim.0);
        if o.keepdim { l.keepdim() } else { l }
    }
}

layer_type! {
    LOG_VARIANCE: 58, "LogVariance", "log_variance", Utility, "torch.log of torch.var", (1, 1);
    {
        dim: List<isize>;
        keepdim: bool = false;
        eps: f64 = 1e-8;
    }
    |o, _site| {
        let l = LogVariance::new(&o.dim.0).eps(o.eps)?;
        if o.keepdim { l.keepdim() } else { l }
    }
}
