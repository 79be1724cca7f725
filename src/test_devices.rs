//! What tests do where a device may be absent.

use crate::is_required;

/// What was opened on the backend `name`; absence is a printed skip, or a failure where the backend is [required](is_required).
pub(crate) fn present<T>(name: &str, opened: crate::error::Result<T>) -> Option<T> {
    match opened {
        Ok(t) => Some(t),
        Err(e) if is_required(name) => panic!("TREFOIL_REQUIRE names {name}: {e}"),
        Err(e) => {
            println!("skipped on {name}: {e}");
            None
        }
    }
}
