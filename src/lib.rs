//! GPU kernels for deep learning behind one trait.
//!
//! [`IGpuBackend`] is served by CUDA, HIP, OpenCL and a CPU implementation; which one is decided at run time by [`Registry`]. The kernel text is
//! written once (`kernels/common`), the host code once ([`Engine`]); a backend is a [`driver::Driver`]. The CPU implementation
//! ([`CpuBackend`]) is independent of both and is, in f64, the oracle of the tests.
//!
//! ```
//! use trefoil::{BackendExt, Registry, Selector, ops::elementwise::Binary};
//!
//! let gpu = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let a = gpu.upload(&[1.0f32, 2.0, 3.0])?;
//! let b = gpu.upload(&[10.0f32])?;
//! let mut y = gpu.alloc(trefoil::DType::F32, 3)?;
//! gpu.binary(Binary::Add { alpha: 1.0 }, a.view(), b.view(), y.view_mut())?;
//! assert_eq!(gpu.download::<f32>(y.view())?, [11.0, 12.0, 13.0]);
//! # Ok::<(), trefoil::GpuError>(())
//! ```
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
mod matmul;
pub mod ops;
mod registry;
pub mod spec;
#[cfg(all(test, any(feature = "driver-cuda", feature = "driver-hip", feature = "driver-opencl")))]
mod test_devices;

pub use backend::BackendExt;
pub use buffer::{Block, Buffer, GradMut, Owner, View, ViewMut};
pub use cpu::CpuBackend;
pub use device::{BackendKind, Caps, DeviceId};
pub use dtype::{DType, Element};
pub use engine::Engine;
pub use error::{CompileFailure, DriverFailure, GpuError, InvalidArg, Result, Unavailable};
pub use layout::{Dims, Layout, LayoutError, MAX_ELEMENTS, MAX_RANK, broadcast_shapes};
pub use ops::{IGpuBackend, prelude};
pub use registry::{BackendFactory, ProbeReport, Registry, Selector, is_required};
