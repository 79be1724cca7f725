//! Which backends there are, what they find on this machine, and which one is opened.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::BackendExt;
use crate::cpu::CpuBackend;
use crate::device::{BackendKind, Caps, DeviceId};
use crate::driver::Driver;
#[cfg(feature = "driver-opencl")]
use crate::driver::RawDevice;
#[cfg(feature = "driver-cuda")]
use crate::driver::cuda;
#[cfg(feature = "driver-hip")]
use crate::driver::hip;
#[cfg(feature = "driver-opencl")]
use crate::driver::opencl;
#[cfg(any(feature = "driver-cuda", feature = "driver-opencl"))]
use crate::driver::{RawContext, RawStream};
use crate::engine::Engine;
use crate::error::{GpuError, Result, Unavailable};
use crate::ops::IGpuBackend;
use crate::ops::core::CoreOps;
#[cfg(any(feature = "driver-cuda", feature = "driver-opencl"))]
use crate::ops::core::InteropOps;
use crate::ops::elementwise::Unary;

/// Makes backends of one kind.
pub trait BackendFactory: Send + Sync {
    /// The kind; a registry has one factory per kind.
    fn kind(&self) -> BackendKind;

    /// The devices, in the order of their ordinals, or why there is none. Must not panic or print.
    fn probe(&self) -> std::result::Result<Vec<Caps>, Unavailable>;

    /// Opens a device by its position in [`BackendFactory::probe`]'s list. Errors: `Unavailable` and whatever the driver reports.
    fn open(&self, ordinal: u32) -> Result<Arc<dyn IGpuBackend>>;
}

/// What probing one backend found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProbeReport {
    /// The backend.
    pub kind: BackendKind,
    /// Its devices, or why it cannot be used.
    pub result: std::result::Result<Vec<Caps>, Unavailable>,
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(devices) => {
                for (i, c) in devices.iter().enumerate() {
                    let end = if i + 1 < devices.len() { "\n" } else { "" };
                    write!(f, "{}: {} ({}, driver {}){end}", c.id, c.name, c.arch, c.driver_version)?;
                }
                Ok(())
            }
            Err(reason) => write!(f, "{}: {reason}", self.kind),
        }
    }
}

/// Which device to open. Parsed from `auto`, `cuda[:N]`, `hip[:N]`, `opencl[:N]`, `cpu` or `custom[:N]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Selector {
    /// The first that works of CUDA, HIP, OpenCL GPUs, a registered custom backend and, if allowed, the CPU.
    Auto {
        /// Whether the CPU may be used when nothing else works.
        allow_cpu: bool,
    },
    /// This device and no other.
    Exact(DeviceId),
}

impl Selector {
    /// The selector in the environment variable `TREFOIL_BACKEND`; unset or empty is `auto` with the CPU allowed. Errors: `Config`.
    pub fn from_env() -> Result<Self> {
        match std::env::var("TREFOIL_BACKEND") {
            Ok(v) if !v.trim().is_empty() => {
                v.parse().map_err(|e: GpuError| GpuError::Config(format!("TREFOIL_BACKEND: {e}").into()))
            }
            Err(std::env::VarError::NotUnicode(v)) => {
                Err(GpuError::Config(format!("TREFOIL_BACKEND: {} is not text", v.display()).into()))
            }
            _ => Ok(Selector::Auto { allow_cpu: true }),
        }
    }
}

impl FromStr for Selector {
    type Err = GpuError;

    /// `auto` allows the CPU. Errors: `Config` that lists what is known.
    fn from_str(s: &str) -> Result<Self> {
        let unknown = || {
            let known = "auto, cuda[:N], hip[:N], opencl[:N], cpu, custom[:N]";
            GpuError::Config(format!("unknown backend `{s}`; known are {known}").into())
        };
        let text = s.trim().to_ascii_lowercase();
        if text == "auto" {
            return Ok(Selector::Auto { allow_cpu: true });
        }
        let (name, ordinal) = match text.split_once(':') {
            Some((name, n)) => (name, n.parse::<u32>().map_err(|_| unknown())?),
            None => (text.as_str(), 0),
        };
        let kind = AUTO_ORDER.into_iter().find(|k| k.name() == name).ok_or_else(unknown)?;
        Ok(Selector::Exact(DeviceId::new(kind, ordinal)))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Auto { allow_cpu: true } => f.pad("auto"),
            Selector::Auto { allow_cpu: false } => f.pad("auto, no CPU"),
            Selector::Exact(id) => id.fmt(f),
        }
    }
}

/// Whether the environment variable `TREFOIL_REQUIRE`, a list with commas, names this backend (`cuda`, `hip`, `opencl`) or tool. Tests ask it
/// before they skip what is absent: an absence that is named is a failure. An entry may carry an ordinal, as in `cuda:1`; case does not matter.
///
/// ```
/// match trefoil::Registry::default().open(&"cuda".parse()?) {
///     Ok(_gpu) => { /* test on it */ }
///     Err(e) => assert!(!trefoil::is_required("cuda"), "{e}"),
/// }
/// # Ok::<(), trefoil::GpuError>(())
/// ```
pub fn is_required(name: &str) -> bool {
    std::env::var("TREFOIL_REQUIRE").is_ok_and(|list| names(&list, name))
}

fn names(list: &str, name: &str) -> bool {
    list.split(',').any(|entry| entry.split(':').next().is_some_and(|n| n.trim().eq_ignore_ascii_case(name)))
}

/// Order in which `auto` tries kinds.
const AUTO_ORDER: [BackendKind; 5] =
    [BackendKind::Cuda, BackendKind::Hip, BackendKind::OpenCl, BackendKind::Custom, BackendKind::Cpu];

/// The backends that can be opened. The default has those that were compiled in.
#[derive(Clone)]
pub struct Registry {
    factories: Vec<Arc<dyn BackendFactory>>,
    self_test: bool,
}

impl Default for Registry {
    fn default() -> Self {
        let mut r = Registry::empty();
        #[cfg(feature = "driver-cuda")]
        r.register(DriverFactory {
            kind: BackendKind::Cuda,
            probe: cuda::probe,
            open: cuda::CudaDriver::open,
        });
        #[cfg(not(feature = "driver-cuda"))]
        r.register(NotCompiledIn { kind: BackendKind::Cuda, feature: "cuda" });
        #[cfg(feature = "driver-hip")]
        r.register(DriverFactory { kind: BackendKind::Hip, probe: hip::probe, open: hip::HipDriver::open });
        #[cfg(not(feature = "driver-hip"))]
        r.register(NotCompiledIn { kind: BackendKind::Hip, feature: "hip" });
        #[cfg(feature = "driver-opencl")]
        r.register(DriverFactory {
            kind: BackendKind::OpenCl,
            probe: opencl::probe,
            open: opencl::OpenClDriver::open,
        });
        #[cfg(not(feature = "driver-opencl"))]
        r.register(NotCompiledIn { kind: BackendKind::OpenCl, feature: "opencl" });
        r.register(CpuFactory);
        r
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.factories.iter().map(|x| x.kind())).finish()
    }
}

impl Registry {
    /// A registry without backends.
    pub fn empty() -> Self {
        let self_test = !std::env::var("TREFOIL_SELFTEST").is_ok_and(|v| v == "0" || v == "off");
        Registry { factories: Vec::new(), self_test }
    }

    /// Adds a factory. It replaces an earlier one of the same kind.
    pub fn register(&mut self, factory: impl BackendFactory + 'static) {
        self.factories.retain(|f| f.kind() != factory.kind());
        self.factories.push(Arc::new(factory));
    }

    /// Switches the self-test of [`Registry::open`] on or off, whatever `TREFOIL_SELFTEST` says.
    #[must_use]
    pub fn with_self_test(mut self, on: bool) -> Self {
        self.self_test = on;
        self
    }

    fn factory(&self, kind: BackendKind) -> Option<&dyn BackendFactory> {
        self.factories.iter().find(|f| f.kind() == kind).map(|f| &**f)
    }

    /// What every backend finds on this machine, in the order in which `auto` tries them. Never fails, panics or prints.
    pub fn probe_all(&self) -> Vec<ProbeReport> {
        let factories = AUTO_ORDER.into_iter().filter_map(|k| self.factory(k));
        factories.map(|f| ProbeReport { kind: f.kind(), result: f.probe() }).collect()
    }

    /// Opens a device.
    ///
    /// An exact choice is opened or fails; nothing else is tried. `auto` takes the first device that works and logs why those before it did
    /// not. The first time that a process opens a device it runs one small kernel with a known answer on it (not on the CPU;
    /// `TREFOIL_SELFTEST=0` skips it).
    ///
    /// Errors: `Unavailable` with the reason, the driver's failure, or `Config` where there is no such backend, or none that `auto` can use
    /// (with the reason of each).
    pub fn open(&self, selector: &Selector) -> Result<Arc<dyn IGpuBackend>> {
        match *selector {
            Selector::Exact(id) => match self.factory(id.kind) {
                Some(f) => self.open_device(f, id.ordinal),
                None => {
                    let known: Vec<&str> = self.factories.iter().map(|f| f.kind().name()).collect();
                    let text =
                        format!("no {} backend is registered; there are: {}", id.kind, known.join(", "));
                    Err(GpuError::Config(text.into()))
                }
            },
            Selector::Auto { allow_cpu } => self.open_first(allow_cpu),
        }
    }

    /// Opens a backend in a CUDA context that another library made, the device's primary one or another, on the given stream of it or, without
    /// one, on a new stream. Memory of the context can then be [imported](crate::ops::core::InteropOps::import) and further streams
    /// [adopted](crate::ops::core::InteropOps::adopt_stream). ([`Registry::open`] uses the primary context, which every library that goes
    /// through CUDA's runtime API shares; so it is with HIP, which has no other.)
    ///
    /// Errors: as [`Registry::open`].
    ///
    /// # Safety
    /// `context` is a live `CUcontext` and `stream` a live stream of it; both outlive the backend, all handles forked from it, and their buffers.
    #[cfg(feature = "driver-cuda")]
    pub unsafe fn adopt_cuda(
        &self,
        context: RawContext,
        stream: Option<RawStream>,
    ) -> Result<Arc<dyn IGpuBackend>> {
        // SAFETY: the caller's promise.
        let driver = unsafe { cuda::CudaDriver::adopt(context)? };
        // SAFETY: the caller's promise.
        unsafe { self.adopted(driver, stream) }
    }

    /// Opens a backend in an OpenCL context that another library made, on a queue of it. The backend holds references of context, device and
    /// queue (`clRetain...`), so that the other library may release its own. `cl_mem` objects of the context can then be
    /// [imported](crate::ops::core::InteropOps::import). Times between events need a queue made with `CL_QUEUE_PROFILING_ENABLE`.
    ///
    /// Errors: as [`Registry::open`]; `Invalid` for a queue that runs out of order or is of another context or device.
    ///
    /// # Safety
    /// `context` is a live `cl_context`, `device` a `cl_device_id` of it and `queue` a live `cl_command_queue`, all of the OpenCL library
    /// that this crate uses (the system's ICD loader).
    #[cfg(feature = "driver-opencl")]
    pub unsafe fn adopt_opencl(
        &self,
        context: RawContext,
        device: RawDevice,
        queue: RawStream,
    ) -> Result<Arc<dyn IGpuBackend>> {
        // SAFETY: the caller's promise.
        let driver = unsafe { opencl::OpenClDriver::adopt(context, device, queue)? };
        // SAFETY: the driver keeps the queue alive, and handles keep the driver.
        unsafe { self.adopted(driver, Some(queue)) }
    }

    /// # Safety
    /// The stream is a live one of the driver's context, and outlives the backend.
    #[cfg(any(feature = "driver-cuda", feature = "driver-opencl"))]
    unsafe fn adopted(
        &self,
        driver: impl Driver + 'static,
        stream: Option<RawStream>,
    ) -> Result<Arc<dyn IGpuBackend>> {
        let engine = Engine::new(Arc::new(driver))?;
        let backend = match stream {
            // SAFETY: the caller's promise.
            Some(stream) => unsafe { engine.adopt_stream(stream)? },
            None => Arc::new(engine),
        };
        if self.self_test {
            self_test_once(&*backend)?;
        }
        Ok(backend)
    }

    fn open_first(&self, allow_cpu: bool) -> Result<Arc<dyn IGpuBackend>> {
        let mut rejected = Vec::new();
        for f in AUTO_ORDER.into_iter().filter_map(|k| self.factory(k)) {
            let kind = f.kind();
            let is_cpu_backend = kind == BackendKind::Cpu;
            if is_cpu_backend && !allow_cpu {
                reject(&mut rejected, "cpu", "not allowed by the caller");
                continue;
            }
            let devices = match f.probe() {
                Ok(devices) => devices,
                Err(reason) => {
                    reject(&mut rejected, kind, reason);
                    continue;
                }
            };
            // OpenCL on the CPU is for tests; the CPU backend stands for the CPU.
            let usable: Vec<u32> =
                (0..).zip(&devices).filter(|(_, c)| is_cpu_backend || !c.is_cpu).map(|(i, _)| i).collect();
            if usable.is_empty() {
                let what =
                    if devices.is_empty() { "no device" } else { "only CPU devices; name it to use one" };
                reject(&mut rejected, kind, what);
            }
            for ordinal in usable {
                match self.open_device(f, ordinal) {
                    Ok(backend) => return Ok(backend),
                    Err(e) => reject(&mut rejected, DeviceId::new(kind, ordinal), e),
                }
            }
        }
        let reasons = if rejected.is_empty() { "none is registered".into() } else { rejected.join("; ") };
        Err(GpuError::Config(format!("no backend can be used: {reasons}").into()))
    }

    fn open_device(&self, f: &dyn BackendFactory, ordinal: u32) -> Result<Arc<dyn IGpuBackend>> {
        let backend = f.open(ordinal)?;
        // The CPU backend is compiled with the crate: there is no driver or compiler to distrust.
        if self.self_test && f.kind() != BackendKind::Cpu {
            self_test_once(&*backend)?;
        }
        Ok(backend)
    }
}

fn reject(rejected: &mut Vec<String>, what: impl fmt::Display, why: impl fmt::Display) {
    log::warn!("{what} is not used: {why}");
    rejected.push(format!("{what}: {why}"));
}

/// Runs the self-test unless this process has passed it on this device.
fn self_test_once(backend: &dyn IGpuBackend) -> Result<()> {
    static PASSED: Mutex<BTreeSet<(DeviceId, String)>> = Mutex::new(BTreeSet::new());
    let id = backend.id();
    let key = (id, backend.caps().arch.clone());
    if PASSED.lock().unwrap_or_else(PoisonError::into_inner).contains(&key) {
        return Ok(());
    }
    let failed = |what| GpuError::unavailable(id.kind, Unavailable::SelfTestFailed { what });
    let input = [1.0f32, -2.5, 0.0, 1e30, -1e-30];
    let answer = negated(backend, &input).map_err(|e| failed(format!("{id}: {e}")))?;
    if answer != input.map(|x| -x) {
        return Err(failed(format!("{id}: -{input:?} gave {answer:?}")));
    }
    PASSED.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    Ok(())
}

/// -x, computed on the device.
fn negated(backend: &dyn IGpuBackend, x: &[f32]) -> Result<Vec<f32>> {
    let x = backend.upload(x)?;
    let mut y = backend.alloc(crate::DType::F32, x.len())?;
    backend.unary(Unary::Neg, x.view(), y.view_mut())?;
    backend.download(y.view())
}

/// A backend that is the engine on a driver.
#[cfg_attr(
    not(any(feature = "driver-cuda", feature = "driver-hip", feature = "driver-opencl")),
    allow(dead_code)
)]
struct DriverFactory<D> {
    kind: BackendKind,
    probe: fn() -> std::result::Result<Vec<Caps>, Unavailable>,
    open: fn(u32) -> Result<D>,
}

impl<D: Driver + 'static> BackendFactory for DriverFactory<D> {
    fn kind(&self) -> BackendKind {
        self.kind
    }

    fn probe(&self) -> std::result::Result<Vec<Caps>, Unavailable> {
        (self.probe)()
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn IGpuBackend>> {
        Ok(Arc::new(Engine::new(Arc::new((self.open)(ordinal)?))?))
    }
}

/// Stands for a backend that this build lacks.
#[cfg(not(all(feature = "driver-cuda", feature = "driver-hip", feature = "driver-opencl")))]
struct NotCompiledIn {
    kind: BackendKind,
    feature: &'static str,
}

#[cfg(not(all(feature = "driver-cuda", feature = "driver-hip", feature = "driver-opencl")))]
impl BackendFactory for NotCompiledIn {
    fn kind(&self) -> BackendKind {
        self.kind
    }

    fn probe(&self) -> std::result::Result<Vec<Caps>, Unavailable> {
        Err(Unavailable::NotCompiledIn { feature: self.feature })
    }

    fn open(&self, _: u32) -> Result<Arc<dyn IGpuBackend>> {
        Err(GpuError::unavailable(self.kind, Unavailable::NotCompiledIn { feature: self.feature }))
    }
}

/// The CPU backend, one device.
struct CpuFactory;

impl BackendFactory for CpuFactory {
    fn kind(&self) -> BackendKind {
        BackendKind::Cpu
    }

    fn probe(&self) -> std::result::Result<Vec<Caps>, Unavailable> {
        Ok(vec![CpuBackend::new().caps().clone()])
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn IGpuBackend>> {
        if ordinal != 0 {
            let what = format!("ordinal {ordinal} of 1 CPU");
            return Err(GpuError::unavailable(BackendKind::Cpu, Unavailable::NoDevice { what }));
        }
        Ok(Arc::new(CpuBackend::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn a_list_names_whole_entries() {
        assert!(names("cuda, OpenCL:1", "opencl") && names("cuda,opencl", "cuda"));
        assert!(!names("opencl", "cl") && !names("no-opencl", "opencl") && !names("", "cuda"));
    }
}
