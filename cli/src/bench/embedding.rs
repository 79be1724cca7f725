//! Embedding.

use trefoil_nn::Device;

use super::case::Case;
use super::timing::Prepared;
use crate::error::Result;

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(_: &Case, _: &Device) -> Result<Option<Prepared>> {
    Ok(None)
}
