//! What tests do where a device may be absent.

/// Whether `TREFOIL_REQUIRE`, a comma-separated list, names this backend: its absence is then a failure.
pub(crate) fn required(name: &str) -> bool {
    std::env::var("TREFOIL_REQUIRE").is_ok_and(|v| v.split(',').any(|b| b.trim() == name))
}

/// What was opened on the backend `name`; absence is a printed skip, or a failure where the backend is [`required`].
#[cfg(any(feature = "cuda", feature = "opencl"))]
pub(crate) fn present<T>(name: &str, opened: crate::error::Result<T>) -> Option<T> {
    match opened {
        Ok(t) => Some(t),
        Err(e) if required(name) => panic!("TREFOIL_REQUIRE names {name}: {e}"),
        Err(e) => {
            println!("skipped on {name}: {e}");
            None
        }
    }
}
