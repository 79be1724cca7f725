//! The commands, one module for each.

pub(crate) mod bench;
pub(crate) mod devices;
pub(crate) mod explain;
pub(crate) mod parity;
pub(crate) mod plot;
pub(crate) mod status;
pub(crate) mod summary;
pub(crate) mod train;

use trefoil::ops::Family;

/// Lower-case name of a family, the name of its files.
fn family_name(f: Family) -> String {
    format!("{f:?}").to_lowercase()
}
