//! Gradients as operations on tensors, for passes that create a graph: what the backward of an operation gives where its kernel's result
//! could not be differentiated again.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod elementwise;
pub(crate) mod norm;
pub(crate) mod reduce;
