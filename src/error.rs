//! Errors of the public interface.
//!
//! Every fallible call returns [`GpuError`]. No variant holds a type of a third party, and none is larger than 64 bytes.

use std::borrow::Cow;
use std::sync::Arc;

use crate::device::{BackendKind, DeviceId};

/// Result with [`GpuError`].
pub type Result<T, E = GpuError> = std::result::Result<T, E>;

/// What a call of this crate can fail with.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The backend cannot be used on this machine; the reason says what was looked for.
    #[error("the {kind} backend is not available: {reason}")]
    Unavailable {
        /// The backend that was asked for.
        kind: BackendKind,
        /// Why it cannot be used.
        reason: Box<Unavailable>,
    },
    /// The device cannot do this (a dtype without hardware support, say). Nothing was launched.
    #[error("{op} is not supported on {device}: {why}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The device that refused it.
        device: DeviceId,
        /// What is missing.
        why: Cow<'static, str>,
    },
    /// An argument does not fit: shape, dtype, rank, range, aliasing. Nothing was launched and no output was touched.
    #[error("{0}")]
    Invalid(Box<InvalidArg>),
    /// A kernel met an index outside its range. Reads of that index gave 0, writes were dropped. What the handle wrote from then until this
    /// report cannot be read until it is written anew.
    #[error(
        "{op}: an index is out of range; what was computed from there on cannot be read until it is computed anew with valid indices"
    )]
    IndexOutOfRange {
        /// The first operation of the handle since its last waiting call that met one.
        op: &'static str,
    },
    /// The device has no room left, even after cached blocks were released.
    #[error(
        "out of memory: {}, {in_use} in use, {cached} cached; free tensors, use a smaller batch or call trim()",
        if *requested == 0 { "the driver found no room for the memory of a launch or copy".into() } else { format!("{requested} bytes requested") }
    )]
    OutOfMemory {
        /// Bytes of the request that failed; 0 where memory that had been promised was not there when a launch or copy needed it.
        requested: usize,
        /// Bytes in live buffers at that time.
        in_use: usize,
        /// Bytes kept by the pool for reuse at that time.
        cached: usize,
    },
    /// A kernel did not compile; holds the compiler's log.
    #[error("{0}")]
    Compile(Box<CompileFailure>),
    /// A call of the driver failed.
    #[error("{0}")]
    Driver(Box<DriverFailure>),
    /// The call cannot be part of a recording ([`CaptureOps`](crate::ops::core::CaptureOps)): a replay could not repeat it without the host.
    /// Nothing was queued.
    #[error("{op} cannot be recorded: {why}")]
    Capture {
        /// The operation.
        op: &'static str,
        /// What stands in the way.
        why: &'static str,
    },
    /// An earlier asynchronous failure, or the loss of the device, made this handle unusable.
    #[error(
        "the device handle is unusable after an earlier failure: {first}; open a new one (TREFOIL_SYNC=1 names the failing kernel)"
    )]
    Poisoned {
        /// The first failure.
        first: Arc<str>,
    },
    /// Unknown backend, malformed selector or environment variable.
    #[error("{0}")]
    Config(Box<str>),
}

/// The argument that did not fit, what was expected and what came.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{op}: argument `{arg}`: expected {expected}, got {got}")]
#[non_exhaustive]
pub struct InvalidArg {
    /// The operation.
    pub op: &'static str,
    /// The argument.
    pub arg: &'static str,
    /// What would have been accepted.
    pub expected: String,
    /// What was received.
    pub got: String,
}

/// A kernel that did not compile.
#[derive(Debug, Clone, thiserror::Error)]
#[error("kernel unit {unit} does not compile for {arch}:\n{log}")]
#[non_exhaustive]
pub struct CompileFailure {
    /// Name of the unit (file, dtype and defines).
    pub unit: String,
    /// Target architecture.
    pub arch: String,
    /// Compiler log.
    pub log: String,
}

/// A failed call of a driver library.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call} failed: {name} ({code}){}", self.kernel.as_deref().map(|k| format!(" in or before kernel {k}")).unwrap_or_default())]
#[non_exhaustive]
pub struct DriverFailure {
    /// The function of the driver.
    pub call: &'static str,
    /// Its numeric status.
    pub code: i64,
    /// The status by name.
    pub name: String,
    /// The kernel, where known.
    pub kernel: Option<String>,
    /// The device or its context is lost: no later call on this handle can succeed.
    pub fatal: bool,
}

/// Why a backend or device cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The crate was built without this backend's feature.
    #[error("this build has no `{feature}` feature; rebuild with it")]
    NotCompiledIn {
        /// The cargo feature.
        feature: &'static str,
    },
    /// None of the candidate libraries could be opened.
    #[error("no driver library found (tried {}); install the vendor's driver or set {var} to the library's path", tried.join(", "))]
    LibraryNotFound {
        /// Names and paths that were tried, with the loader's words for the last.
        tried: Vec<String>,
        /// The environment variable that overrides the search.
        var: &'static str,
    },
    /// The library lacks a function that is needed.
    #[error("{library} has no symbol {symbol}; it is too old or not the vendor's library")]
    SymbolMissing {
        /// The library.
        library: String,
        /// The first missing symbol.
        symbol: String,
    },
    /// The driver is older than what this crate needs.
    #[error("the driver's version is {have}, at least {need} is needed; update the driver")]
    DriverTooOld {
        /// Version found.
        have: u32,
        /// Version needed.
        need: u32,
    },
    /// The driver answered that there is no device, or no device of this ordinal.
    #[error("no device: {what}")]
    NoDevice {
        /// What the driver said.
        what: String,
    },
    /// The run-time compiler could not be opened.
    #[error("no run-time compiler found (tried {}); install it or set {var} to the library's path", tried.join(", "))]
    CompilerNotFound {
        /// Names and paths that were tried.
        tried: Vec<String>,
        /// The environment variable that overrides the search.
        var: &'static str,
    },
    /// The device was opened and gave a wrong answer or failed in the self-test.
    #[error("the self-test failed: {what}")]
    SelfTestFailed {
        /// What went wrong.
        what: String,
    },
}

impl GpuError {
    /// An [`GpuError::Invalid`] naming operation, argument, expectation and what came.
    pub fn invalid(
        op: &'static str,
        arg: &'static str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        GpuError::Invalid(Box::new(InvalidArg { op, arg, expected: expected.into(), got: got.into() }))
    }

    /// A [`GpuError::Driver`] from a call, its status code and the status by name.
    pub fn driver(call: &'static str, code: i64, name: impl Into<String>) -> Self {
        GpuError::Driver(Box::new(DriverFailure {
            call,
            code,
            name: name.into(),
            kernel: None,
            fatal: false,
        }))
    }

    /// A [`GpuError::Driver`] after which the device or its context is lost.
    pub fn driver_fatal(call: &'static str, code: i64, name: impl Into<String>) -> Self {
        let name = name.into();
        GpuError::Driver(Box::new(DriverFailure { call, code, name, kernel: None, fatal: true }))
    }

    /// A [`GpuError::Compile`] from the unit's name, the architecture and the compiler's log.
    pub fn compile(unit: impl Into<String>, arch: impl Into<String>, log: impl Into<String>) -> Self {
        let (unit, arch, log) = (unit.into(), arch.into(), log.into());
        GpuError::Compile(Box::new(CompileFailure { unit, arch, log }))
    }

    /// Whether the device or its context is lost.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, GpuError::Driver(d) if d.fatal)
    }

    /// A [`GpuError::Unavailable`].
    pub fn unavailable(kind: BackendKind, reason: Unavailable) -> Self {
        GpuError::Unavailable { kind, reason: Box::new(reason) }
    }
}

const _: () = assert!(std::mem::size_of::<GpuError>() <= 64);
