//! Layers, autograd and training on any trefoil backend.
//!
//! A [`Tensor`] lives on a [`Device`] and records how it was made; [`Tensor::backward`] computes gradients there. A
//! [`Layer`](trait@Layer) is a function of tensors with parameters under PyTorch's names, an [`Optimizer`] updates them with one launch,
//! a [`Trainer`] runs epochs, keeps a run folder and resumes exactly. Nothing leaves the device during a step. The crate names no
//! backend: whatever implements [`IGpuBackend`](trefoil::IGpuBackend) serves.
//!
//! ```
//! use trefoil::{Registry, Selector, ops::activation::Activation};
//! use trefoil_nn::layers::{Dense, Sequential};
//! use trefoil_nn::{InitContext, Layer, MseLoss, Optimizer, Tensor};
//!
//! let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let cx = InitContext::new(&device, 42);
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
//! | where | what |
//! |---|---|
//! | [`Tensor`], [`Device`] | a shape on a device; operations with gradients are its methods |
//! | [`autograd`] | gradients: [`no_grad`](autograd::no_grad), [`CustomOp`](autograd::CustomOp) for operations of your own, and derivatives of gradients by [`grad`](autograd::grad) |
//! | [`layers`], [`Layer`](trait@Layer), [`LayerExt`] | the layers; what a layer is; parameters, state dictionaries, freezing |
//! | [`losses`], [`optim`], [`metrics`], [`data`] | losses, optimizers (of second order: [`ClosureOptimizer`](optim::ClosureOptimizer)) and schedules, metrics, data sets and loaders |
//! | [`Trainer`], [`Model`] | the training loop; single steps, and parameters as vectors |
//! | [`capture()`], [`CapturedStep`] | steps that are recorded on the device and replayed |
//! | [`network`], [`config`] | networks and whole training runs described in JSON |
//! | [`state_file`], [`state_map`], [`checkpoint`] | files of safetensors, PyTorch and GGUF; renaming of their entries; checkpoints |
//! | [`summary`](mod@summary), [`inspect`], [`compare`], [`plot`] | shapes and FLOPs; statistics of activations; comparison of two models; curves |
//! | [`limits`] | the largest numbers that configurations and files may ask for |
//!
//! In the repository: `docs/MIGRATING.md` has the names of PyTorch, AiDotNet, Volta and Loom beside ours, `docs/PYTORCH.md` PyTorch's
//! operators one by one, `docs/OPERATIONS.md` every operation, `docs/LAYERS.md` what was checked of each layer, `docs/NETWORKS.md` and
//! `docs/RUNS.md` the JSON formats, `docs/FIRST_MODEL.md` a model of your own, `docs/FIRST_KERNEL.md` a kernel of your own with its gradient.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `cuda`, `hip`, `opencl` | yes | the backends |
//! | `archives` | yes | compressed files: weights saved by `torch.save`, `.npz`, IDX files packed with gzip |
//! | `images` | no | folders of PNG and JPEG images as data |
//! | `json` | no | [`network`] and [`config`]: networks and training runs described in JSON |
//! | `loom`, `volta` | no | networks and names of those two frameworks, for migrations |
//! | `models` | no | [`models`]: ResNet, U-Net, GPT-2, Llama, Mamba, BERT and other reference models |
//! | `parquet` | no | tables in Parquet and Arrow as data |
//! | `progress` | no | the trainer's progress bar |
//! | `tokenizers` | no | `tokenizer.json` files |
//! | `tracing` | no | spans around epochs, steps, forward and backward passes, and checkpoints |
//!
//! What is off by default is compiled only where it is asked for: `cargo add trefoil-nn --features json,models`. The command `trefoil` has `json`,
//! `loom`, `models` and `progress` as well.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

// The derive macro names this crate, here too, where it is used.
#[allow(unused_extern_crates)]
extern crate self as trefoil_nn;

mod core;
mod functional;
mod interop;
mod io;
pub mod layers;
#[cfg(feature = "models")]
pub mod models;
mod module;
#[cfg(feature = "json")]
pub mod network;
mod report;
mod train;

pub use self::core::error::{At, NnError, Result};
pub use self::core::host_tensor::HostTensor;
pub use self::core::tensor::{Device, MemoryFormat, Operand, Tensor};
pub use self::core::{autograd, limits};
pub use self::functional::{
    BagMode, BatchNormStats, ConvLstmParams, EinsumPath, EinsumStep, EmbeddingBag, FftNorm, GaussianImage,
    Graph, Groups, HeatOperator, Histogram, LaplacianWeights, LdlFactors, LinearCrossEntropyLoss, LuFactors,
    MatrixNorm, MelFilterbank, MelScale, Mesh, MoeRouting, PagedCache, Position, ProductQuantizer,
    ProjectedGaussians, QuantGranularity, QuantileInterpolation, QuantizedWeight, Resample, ResampleOptions,
    ResampleWindow, RnnParams, RnnState, RunningStats, ScaledDotProductAttention, SelectiveScanOptions,
    SemiSparse, Spacing, Spectrogram, Stft, TriangleMesh, Unique, VolumeRendering, sequence_lengths,
};
#[cfg(feature = "loom")]
pub use self::interop::loom;
#[cfg(feature = "volta")]
pub use self::interop::volta;
pub use self::io::state_file::StateFile;
pub use self::io::state_map::StateMap;
pub use self::io::{checkpoint, state_file, state_map};
pub use self::module::{
    BufferField, Entry, Init, InitContext, Layer, LayerExt, LayerField, LocalLearning, Param, StateDict,
    Visitor, auxiliary,
};
pub use self::report::{compare, inspect, plot, profile, summary};
pub use self::train::capture::{CaptureStatus, CapturedStep, capture};
#[cfg(feature = "json")]
pub use self::train::config;
pub use self::train::losses::{Criterion, CrossEntropyLoss, MseLoss};
pub use self::train::model::Model;
pub use self::train::optim::Optimizer;
pub use self::train::trainer::Trainer;
pub use self::train::{data, losses, metrics, model, optim, trainer};
pub use trefoil::DType;
pub use trefoil_nn_derive::Layer;
