//! Tensors, automatic differentiation, errors and limits: what everything else is made of.

pub mod autograd;
pub(crate) mod capture;
pub(crate) mod derivatives;
mod display;
pub(crate) mod engine;
pub(crate) mod error;
pub(crate) mod glob;
pub(crate) mod grad_mode;
pub(crate) mod hooks;
pub(crate) mod host_tensor;
pub(crate) mod index_check;
pub mod limits;
#[cfg(feature = "json")]
pub(crate) mod options;
pub(crate) mod parametrize;
pub(crate) mod readback;
pub(crate) mod span;
pub(crate) mod tensor;
pub(crate) mod timeline;
