//! Layers, autograd and training on any trefoil backend.
#![forbid(unsafe_code)]

pub mod autograd;
mod error;
mod ops;
mod tensor;

pub use error::{NnError, Result};
pub use ops::{CrossEntropyLoss, MseLoss};
pub use tensor::{Device, Operand, Tensor};
pub use trefoil::DType;
