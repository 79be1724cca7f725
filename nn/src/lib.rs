//! Layers, autograd and training on any trefoil backend.
//!
//! A [`Tensor`] lives on a [`Device`] and records how it was made; [`Tensor::backward`] computes gradients there. A [`Layer`] is a function
//! of tensors with parameters under PyTorch's names, an [`Optimizer`] updates them with one launch, a [`Trainer`] runs epochs, keeps a run
//! folder and resumes exactly. Nothing leaves the device during a step. The crate names no backend: whatever implements
//! [`IGpuBackend`](trefoil::IGpuBackend) serves.
//!
//! ```
//! use trefoil::{Registry, Selector, ops::Activation};
//! use trefoil_nn::layers::{Dense, Sequential};
//! use trefoil_nn::{Build, Layer, MseLoss, Optimizer, Tensor};
//!
//! let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let cx = Build::new(&device, 42);
//! let model = Sequential::new()
//!     .push(Dense::new(&cx, 2, 8)?.activation(Activation::Tanh))
//!     .push(Dense::new(&cx, 8, 1)?);
//! let mut optimizer = Optimizer::adam(&model, 0.05)?;
//!
//! let x = Tensor::from_slice(&device, &[0f32, 0., 0., 1., 1., 0., 1., 1.], &[4, 2])?;
//! let y = Tensor::from_slice(&device, &[0f32, 1., 1., 0.], &[4, 1])?;
//! let mut losses = vec![];
//! for _ in 0..100 {
//!     optimizer.zero_grad()?;
//!     let loss = MseLoss::default().forward(&model.forward(&x)?, &y)?;
//!     loss.backward()?;
//!     optimizer.step()?;
//!     losses.push(loss.detach());
//! }
//! assert!(losses[99].item::<f32>()? < losses[0].item::<f32>()?);
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```
//!
//! Training runs can also be described by JSON files: see [`config`].
#![forbid(unsafe_code)]

pub mod autograd;
pub mod checkpoint;
pub mod compare;
pub mod config;
pub mod data;
mod durable;
mod error;
mod flops;
mod glob;
mod hooks;
mod host_tensor;
mod index_check;
mod init;
pub mod inspect;
mod layer;
pub mod layers;
pub mod limits;
pub mod loom;
pub mod losses;
pub mod metrics;
pub mod model;
pub mod network;
mod ops;
pub mod optim;
mod parametrize;
pub mod plot;
pub mod state_file;
pub mod state_map;
pub mod summary;
mod tensor;
pub mod trainer;
pub mod volta;

pub use error::{At, NnError, Result};
pub use host_tensor::HostTensor;
pub use init::Init;
pub use layer::{Build, Entry, Layer, LayerExt, Param, StateDict, Visitor};
pub use losses::{Criterion, CrossEntropyLoss, MseLoss};
pub use model::Model;
pub use ops::{
    BatchNormStats, ConvLstmParams, LinearCrossEntropyLoss, RnnParams, RnnState, RunningStats,
    ScaledDotProductAttention, sequence_lengths,
};
pub use optim::Optimizer;
pub use state_file::StateFile;
pub use state_map::StateMap;
pub use tensor::{Device, Operand, Tensor};
pub use trainer::Trainer;
pub use trefoil::DType;
