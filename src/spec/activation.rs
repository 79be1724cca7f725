//! Names of the activation functions in `kernels/common/activation/activation_ops.h`.

use crate::ops::activation::Activation;

/// Declares the map from an activation to its C name and scalar parameters, and the list of names.
macro_rules! activations {
    ($($p:pat => $name:literal $(($($v:expr),*))?,)*) => {
        /// C names of all activations.
        pub(crate) const ACTIVATIONS: &[&str] = &[$($name,)* ELU_FROM_OUTPUT];

        /// C name (without `_fwd` and `_bwd`) and parameters p, q of an activation.
        pub(crate) fn activation_function(act: Activation) -> (&'static str, [f64; 2]) {
            match act {
                $($p => {
                    let given: &[f64] = &[$($($v),*)?];
                    ($name, [given.first().copied().unwrap_or(0.0), given.get(1).copied().unwrap_or(0.0)])
                })*
            }
        }
    };
}

/// The gradient of elu from the saved output.
pub(crate) const ELU_FROM_OUTPUT: &str = "gk_act_elu_y";

activations! {
    Activation::Identity => "gk_act_identity",
    Activation::Relu => "gk_act_relu",
    Activation::LeakyRelu { slope } => "gk_act_leaky_relu" (slope),
    Activation::Sigmoid => "gk_act_sigmoid",
    Activation::Tanh => "gk_act_tanh",
    Activation::Gelu => "gk_act_gelu",
    Activation::GeluTanh => "gk_act_gelu_tanh",
    Activation::Swish { beta } => "gk_act_swish" (beta),
    Activation::Elu { alpha } => "gk_act_elu" (alpha),
    Activation::Mish => "gk_act_mish",
    Activation::Softplus { beta, threshold } => "gk_act_softplus" (beta, threshold),
    Activation::Hardswish => "gk_act_hardswish",
    Activation::Selu => "gk_act_selu",
    Activation::Hardsigmoid => "gk_act_hardsigmoid",
    Activation::Hardtanh { lo, hi } => "gk_act_hardtanh" (lo, hi),
    Activation::Relu6 => "gk_act_hardtanh" (0.0, 6.0),
}
