//! Layers, autograd and training on any trefoil backend.
#![forbid(unsafe_code)]

pub mod autograd;
pub mod checkpoint;
pub mod config;
pub mod data;
mod error;
mod init;
mod layer;
pub mod layers;
pub mod metrics;
mod ops;
pub mod optim;
pub mod plot;
mod tensor;
pub mod trainer;

pub use error::{NnError, Result};
pub use init::Init;
pub use layer::{Build, Entry, Layer, LayerExt, Param, StateDict, Visitor};
pub use ops::{CrossEntropyLoss, MseLoss};
pub use optim::Optimizer;
pub use tensor::{Device, Operand, Tensor};
pub use trainer::Trainer;
pub use trefoil::DType;
