//! Layers of graphs.

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::linear::dense::Dense;
use crate::module::Param;

pub(crate) mod attention;
pub(in crate::layers) mod cache;
pub(crate) mod convolutional;
pub(crate) mod directional;
pub(crate) mod edge_conditional;
pub(crate) mod heterogeneous;
pub(crate) mod isomorphism;
pub(crate) mod message_passing;
pub(crate) mod principal;
pub(crate) mod random_walk;
pub(crate) mod readout;
pub(crate) mod sage;
pub(crate) mod transformer;

/// Weight and bias of a part, where the layer multiplies by them in its own way.
fn weight_and_bias(op: &'static str, part: &Dense) -> Result<(Tensor, Tensor)> {
    match (part.weight().map(Param::get), part.bias().map(Param::get)) {
        (Some(weight), Some(bias)) => Ok((weight, bias)),
        _ => Err(invalid(op, "part", "a linear layer with weight and bias", "one without")),
    }
}
