//! Backends for tests that run on whatever there is.

use std::sync::Arc;

use trefoil::{IGpuBackend, Registry, Selector, is_required};

/// The CPU backend and the first device of every other one that opens. One that does not is a printed skip, or a failure where it is required.
pub(crate) fn backends() -> Vec<Arc<dyn IGpuBackend>> {
    let registry = Registry::default();
    let open = |name: &str| {
        let selector: Selector = name.parse().unwrap();
        match registry.open(&selector) {
            Ok(b) => Some(b),
            Err(e) if is_required(name) => panic!("TREFOIL_REQUIRE names {name}: {e}"),
            Err(e) => {
                println!("skipped on {name}: {e}");
                None
            }
        }
    };
    ["cpu", "cuda", "hip", "opencl"].into_iter().filter_map(open).collect()
}
