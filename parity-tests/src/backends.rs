//! The devices that tests run on.

use std::sync::Arc;

use trefoil::{GpuError, IGpuBackend, Registry, Selector};

/// The backends that parity covers, in this order.
pub const NAMES: [&str; 4] = ["cpu", "cuda", "hip", "opencl"];

/// Opens `cpu`, `cuda`, `hip` or `opencl`, each with an optional `:N`.
pub fn open(selector: &str) -> Result<Arc<dyn IGpuBackend>, GpuError> {
    Registry::default().open(&selector.parse::<Selector>()?)
}

/// A backend, or why it is absent.
#[derive(Debug)]
pub struct Candidate {
    /// Name, as in `TREFOIL_REQUIRE`.
    pub name: &'static str,
    /// The handle.
    pub handle: Result<Arc<dyn IGpuBackend>, String>,
    /// Whether absence is a failure.
    pub required: bool,
}

/// The backends that were asked for, all of them required; all backends where none was. `TREFOIL_PARITY_BACKENDS` (comma-separated) names
/// others.
pub fn all(asked: &[&str]) -> Vec<Candidate> {
    let only = std::env::var("TREFOIL_PARITY_BACKENDS").ok();
    NAMES
        .into_iter()
        .filter(|n| match &only {
            Some(only) => only.split(',').any(|x| x.trim() == *n),
            None => asked.is_empty() || asked.contains(n),
        })
        .map(|name| Candidate {
            name,
            handle: open(name).map_err(|e| e.to_string()),
            required: asked.contains(&name) || trefoil::is_required(name),
        })
        .collect()
}

/// Whether a device is a CPU behind a driver (PoCL), where compiling takes most of the time of a suite.
pub fn cpu_behind_a_driver(gpu: &dyn IGpuBackend) -> bool {
    gpu.caps().is_cpu && gpu.id().kind != trefoil::BackendKind::Cpu
}

/// A handle for one test: a fresh CPU (its error flag is shared between handles), or a stream of its own.
pub fn private(handle: &Arc<dyn IGpuBackend>) -> Result<Arc<dyn IGpuBackend>, GpuError> {
    if handle.id().kind == trefoil::BackendKind::Cpu {
        return Ok(Arc::new(trefoil::CpuBackend::new()));
    }
    handle.fork_stream()
}
