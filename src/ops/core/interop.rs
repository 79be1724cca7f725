//! What a handle shares with other libraries of the process, and the choice of variants.

use std::sync::Arc;

use crate::buffer::{Buffer, Owner, View};
use crate::driver::{RawMem, RawStream};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::IGpuBackend;
use crate::ops::core::{Choice, Tuned};

/// Where a view begins, as the vendor's API knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawView {
    /// A device address (CUDA, HIP), a `cl_mem` (OpenCL), or an address of the host (CPU).
    pub memory: RawMem,
    /// First element, in bytes behind `memory`.
    pub offset: u64,
}

impl RawView {
    /// Memory and an offset in bytes.
    pub const fn new(memory: RawMem, offset: u64) -> Self {
        RawView { memory, offset }
    }

    /// The address of the first element, where memory is known by addresses (everywhere but on OpenCL).
    pub fn address(self) -> u64 {
        self.memory.as_raw() + self.offset
    }
}

op_family! {
    /// What a handle shares with other libraries of the process, and the choice of variants.
    pub trait InteropOps : Core => INTEROP_OPS {
        /// Wraps `len` elements of memory that another library owns, without copying. The memory is never freed by trefoil. `owner`, if given, is
        /// kept while a buffer or view holds the memory, and from then until this handle is next waited for (`synchronize`, `read_bytes`) or
        /// dropped: work that is still queued may use the memory until then.
        ///
        /// Errors: `Invalid` for 2^59 elements or more; `Unsupported` on the CPU backend, whose memory is typed.
        ///
        /// # Safety
        /// `memory` is memory of this device and API (a device address for CUDA and HIP, a `cl_mem` of the same context for OpenCL) of at least
        /// `len` elements, aligned to 16 bytes, and stays alive as long as the buffer or a view of it and the work queued on it (or as long as
        /// `owner`). Its other users order their work against this handle's stream ([`InteropOps::raw_stream`]).
        [unsafe] fn import(&self, memory: RawMem, dtype: DType, len: usize, owner: Option<Owner>) -> Result<Buffer>;
        /// The memory of a view, for another library. It belongs to the buffer, which must outlive its use; work on it is ordered by this
        /// handle's stream. Errors: `Invalid` for a view of another device.
        fn export(&self, v: View<'_>) -> Result<RawView>;
        /// The stream of this handle: `CUstream`, `hipStream_t` or `cl_command_queue`. It lives as long as a handle or buffer of it.
        /// Errors: `Unsupported` on the CPU backend, which has none.
        fn raw_stream(&self) -> Result<RawStream>;
        /// Another handle of the same device on a stream that another library made, so that the work of both is in one order. Compiled kernels
        /// are shared, the memory pool is its own. Errors: `Unsupported` on the CPU backend.
        ///
        /// # Safety
        /// `stream` is a live in-order stream of this device and context, and outlives the handle, its clones and their buffers.
        [unsafe] fn adopt_stream(&self, stream: RawStream) -> Result<Arc<dyn IGpuBackend>>;
        /// Chooses the variant (a name that [`CoreOps::explain`](super::CoreOps::explain) lists) that serves `op` from now on, on this handle, its
        /// clones and those forked from it later; `None` returns to the best one. An operation whose pinned variant does not apply to a problem refuses it with
        /// `Unsupported` and the reason. Errors: `Config` for an unknown operation or variant.
        fn pin_variant(&self, op: &str, variant: Option<&str>) -> Result<()>;
        /// Which variants ran for the problems at hand, and why not the others: runs `calls`, which calls operations of this device, and returns
        /// the choices that were made meanwhile among several variants, in order (those of other threads on this handle included).
        /// [`CoreOps::explain`](super::CoreOps::explain) answers for a typical problem. Errors: those of `calls`.
        fn explain_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Choice>>;
        /// Measures which variants are fastest for the problems at hand, and takes those from now on: runs `calls`, which calls operations of this
        /// handle from the calling thread, some dozens of times, each of the choices that they make with every variant that applies in turn, and
        /// takes the device time of the launches that are the problem's (less what all variants do alike behind it). A variant replaces the one that
        /// the static rules prefer where it is faster by more than the times vary. All handles of the device take it, for equal problems where
        /// nothing is pinned; it is kept in the disk cache, from which later processes take it. Choices that a pin makes, and those whose problem
        /// does not say all that its time depends on, are not measured; the CPU backend measures none.
        ///
        /// `calls` must bear repetition: what it adds to, it adds to every time, and what it computes in place, it computes again. Choices
        /// that it does not make every time are not measured. Another variant gives other bits, within the same tolerances.
        ///
        /// Errors: those of `calls` with the variants that the static rules prefer; `Capture` within a recording; `Invalid` within another
        /// measurement of the device or a profile of this handle; `Config` with `TREFOIL_TUNE=off`. A recording within `calls` fails with `Capture`.
        fn tune_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Tuned>>;
    }
}
