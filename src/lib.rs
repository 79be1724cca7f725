//! GPU kernels for deep learning behind one trait.
//!
//! [`IGpuBackend`] is served by CUDA, HIP, OpenCL and a CPU implementation; which one is decided at run time by [`Registry`]. No toolkit is needed to
//! build, no vendor library to start. The kernel text is written once and compiled by the device's own compiler on first use.
//!
//! ```
//! use trefoil::{BackendExt, DType, Registry, Selector, ops::elementwise::Binary};
//!
//! let gpu = Registry::default().open(&"cpu".parse::<Selector>()?)?; // or "cuda", "hip", "opencl", "auto"
//! let a = gpu.upload(&[1.0f32, 2.0, 3.0])?;
//! let b = gpu.upload(&[10.0f32])?;
//! let mut y = gpu.alloc(DType::F32, 3)?;
//! gpu.binary(Binary::Add { alpha: 1.0 }, a.view(), b.view(), y.view_mut())?; // b is broadcast
//! assert_eq!(gpu.download::<f32>(y.view())?, [11.0, 12.0, 13.0]);
//! # Ok::<(), trefoil::GpuError>(())
//! ```
//!
//! # The layers
//!
//! ```text
//!  trefoil-nn (nn/): Tensor, autograd, layers,        another framework, or a program
//!  optimizers, training                               that calls the operations itself
//!               |                                                    |
//!               v                                                    v
//!  +---------------------------------------------------------------------------------+
//!  | IGpuBackend (src/ops): one trait per family of operations, with its checks      |
//!  | CoreOps  ElementwiseOps  SoftmaxOps  ReduceOps  GemmOps  ConvOps  LossOps  ...  |
//!  +---------------------------------------------------------------------------------+
//!               |                                                    |
//!               v                                                    v
//!  +-------------------------------------------------+  +----------------------------+
//!  | Engine (src/engine): host code of every GPU     |  | CpuBackend (src/cpu):      |
//!  |                                                 |  | the same operations in     |
//!  | check   operands, device, stream                |  | Rust; shares no arithmetic |
//!  | plan    which variant, which launch geometry    |  | with the kernels, and is   |
//!  | cache   compiled kernels, in memory and on disk |  | in f64 the reference of    |
//!  | pool    device memory                           |  | the tests                  |
//!  | launch  queued, nothing waits                   |  +----------------------------+
//!  +-------------------------------------------------+
//!               |                 ^
//!               |                 |  kernel text (kernels/), compiled at run time
//!               v
//!  +---------------------------------------------------------------------------------+
//!  | Driver (src/driver): memory, copies, streams, events, compile, load, launch     |
//!  +------------------+-----------------+------------------+-------------------------+
//!  | CUDA             | HIP             | OpenCL           | custom: any Driver of   |
//!  | NVRTC, cuBLASLt, | hiprtc, MIOpen, | GPUs, PoCL,      | yours (ADDING_A_BACKEND)|
//!  | cuDNN, cuFFT     | hipBLASLt       | CLBlast          |                         |
//!  +------------------+-----------------+------------------+-------------------------+
//! ```
//!
//! # The modules
//!
//! | where | what |
//! |---|---|
//! | [`Registry`], [`Selector`] | finds out what the machine has, and opens it |
//! | [`IGpuBackend`], [`ops`] | the operations: one module, one trait and one set of parameter structs per family; [`ops::all_ops`] lists them |
//! | [`prelude`] | the traits, for calls on a backend's own type |
//! | [`Buffer`], [`View`], [`ViewMut`], [`GradMut`], [`Layout`] | device memory, and how operations see it: shape, strides, offset |
//! | [`BackendExt`] | typed uploads and downloads |
//! | [`Caps`], [`DeviceId`], [`DType`], [`Element`] | what a device can do; the storage types |
//! | [`GpuError`] | the one error type |
//! | [`Engine`], [`driver`] | the backend of every GPU, and what it needs of a vendor's interface: a further backend implements [`driver::Driver`] |
//! | [`CpuBackend`] | the operations in Rust |
//! | [`spec`] | the table of kernels; for tools |
//! | [`testing`] | a device that records, and the suite of tests for drivers |
//!
//! # Where to begin
//!
//! * Kernels of your own: [`compile_raw`](ops::core::CoreOps::compile_raw), and the tutorial `docs/FIRST_KERNEL.md` of the repository.
//! * Which operation is PyTorch's `X`, and what computes its gradient: `docs/OPERATIONS.md`. Rules that hold for all operations: [`ops`].
//! * Tensors, autograd, layers and training: the crate `trefoil-nn`.
//! * How it is made: `docs/ARCHITECTURE.md`. Accuracy and determinism: `docs/NUMERICS.md`. A further backend: `docs/ADDING_A_BACKEND.md`.
//! * Environment variables, all of which begin with `TREFOIL_`: `docs/ENVIRONMENT.md`.
//!
//! # Features
//!
//! `all-backends` (default), or any of `cuda`, `hip` and `opencl`. They add code, not requirements: libraries are loaded at run time. Without
//! them the crate is the CPU backend alone.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod buffer;
mod cpu;
mod device;
pub mod driver;
mod dtype;
mod engine;
mod error;
mod index_error;
mod layout;
pub mod ops;
mod registry;
pub mod spec;
#[cfg(all(test, any(feature = "driver-cuda", feature = "driver-hip", feature = "driver-opencl")))]
mod test_devices;
pub mod testing;

pub use backend::BackendExt;
pub use buffer::{Block, Buffer, GradMut, Owner, View, ViewMut};
pub use cpu::CpuBackend;
pub use device::{BackendKind, Caps, DeviceId, MatrixCores};
pub use dtype::{DType, Element, bf16_from_f64, f16_from_f64};
pub use engine::Engine;
pub use error::{CompileFailure, DriverFailure, GpuError, InvalidArg, Result, Unavailable};
pub use layout::{Dims, Layout, LayoutError, MAX_ELEMENTS, MAX_RANK, broadcast_shapes};
pub use ops::{IGpuBackend, prelude};
pub use registry::{BackendFactory, ProbeReport, Registry, Selector, is_required};
