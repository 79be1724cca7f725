//! Devices to hold the CPU against.

use std::sync::Arc;

use trefoil::{IGpuBackend, Registry, Selector, is_required};

/// The first OpenCL device, if there is one. Errors: there is none, and `TREFOIL_REQUIRE` asks for it.
pub(crate) fn opencl() -> Result<Option<Arc<dyn IGpuBackend>>, String> {
    let selector: Selector = "opencl".parse().map_err(|e: trefoil::GpuError| e.to_string())?;
    match Registry::default().open(&selector) {
        Ok(device) => Ok(Some(device)),
        Err(e) if is_required("opencl") => Err(e.to_string()),
        Err(e) => {
            eprintln!("skipped on opencl: {e}");
            Ok(None)
        }
    }
}
