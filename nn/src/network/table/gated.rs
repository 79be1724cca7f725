//! Gated position-wise networks.

use crate::layers::{BilinearGlu, GeGlu, ReGlu, SwiGlu};
use crate::module::Init;
use crate::network::options::{InitRule, Size, layer_type, rules};

/// The rows of the types, which differ by their gates.
macro_rules! gated_types {
    ($($id:ident: $entry:literal, $type:ident, $kind:literal, $name:literal, $torch:literal;)*) => {$(
        layer_type! {
            $id: $entry, $kind, $name, DenseLike, $torch, (1, 1);
            {
                d_model: Option<usize> = null;
                d_ff: usize;
                out_features: Option<Size> = null;
                down_proj: bool = true;
                bias: bool = false;
                weight_init: Option<InitRule> = null;
                bias_init: Option<InitRule> = null;
            }
            |o, site| {
                let mut l = match o.d_model {
                    Some(d) => $type::new(site.cx, d, o.d_ff)?,
                    None => $type::lazy(site.cx, o.d_ff)?,
                };
                if o.bias {
                    l = l.with_bias()?;
                }
                l = match (o.out_features, o.down_proj) {
                    (None, true) => l,
                    (Some(n), true) => l.out_features(n.0)?,
                    (None, false) => l.no_down_proj()?,
                    (Some(_), false) => return Err(site.wrong("out_features", "is the width behind `down_proj`")),
                };
                match rules(o.weight_init, o.bias_init, Init::Lin) {
                    Some((weight, bias)) => l.init(weight, bias)?,
                    None => l,
                }
            }
        }
    )*};
}

gated_types! {
    SWIGLU: 117, SwiGlu, "SwiGlu", "swiglu", "none (Llama's MLP)";
    GEGLU: 118, GeGlu, "GeGlu", "geglu", "none";
    REGLU: 119, ReGlu, "ReGlu", "reglu", "none";
    BILINEAR_GLU: 120, BilinearGlu, "BilinearGlu", "bilinear_glu", "none";
}
