//! What tests do where a device may be absent.

use crate::driver::{Driver, RawFunction, RawModule};
use crate::error::Result;
#[cfg(any(feature = "driver-cuda", feature = "driver-opencl"))]
use crate::is_required;

/// What was opened on the backend `name`; absence is a printed skip, or a failure where the backend is [required](is_required).
#[cfg(any(feature = "driver-cuda", feature = "driver-opencl"))]
pub(crate) fn present<T>(name: &str, opened: Result<T>) -> Option<T> {
    match opened {
        Ok(t) => Some(t),
        Err(e) if is_required(name) => panic!("TREFOIL_REQUIRE names {name}: {e}"),
        Err(e) => {
            println!("skipped on {name}: {e}");
            None
        }
    }
}

/// [`Driver::load`] of an image that the driver made, or of bytes without an image's head, which loaders refuse.
pub(crate) fn load(d: &dyn Driver, image: &[u8]) -> Result<RawModule> {
    // SAFETY: as the comment above says.
    unsafe { d.load(image) }
}

/// [`Driver::function`] of a module of the same driver.
pub(crate) fn function(d: &dyn Driver, module: RawModule, entry: &str) -> Result<RawFunction> {
    // SAFETY: as the comment above says.
    unsafe { d.function(module, entry) }
}
