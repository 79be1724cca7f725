//! Naming the label or input of a data source that a device found out of range, after the batch that held it is gone.

use trefoil::GpuError;

use super::Source;
use crate::core::error::{NnError, Result};
use crate::core::index_check::{Range, place, recent_ranges};

/// Names the index behind a device's report by looking through a source in its own order; other errors pass. `what`: the name of the source.
pub(crate) fn explain_source(e: NnError, source: &dyn Source, batch: usize, what: &str) -> NnError {
    if !matches!(e.root(), NnError::Gpu(GpuError::IndexOutOfRange { .. })) {
        return e;
    }
    let notes = recent_ranges();
    let of = |labels: bool| notes.iter().find(|r| r.labels == labels).copied();
    in_source(source, batch, what, of(true), of(false)).ok().flatten().unwrap_or(e)
}

/// The error about the first label or input of a source that is not allowed.
pub(crate) fn in_source(
    source: &dyn Source,
    batch: usize,
    what: &str,
    labels: Option<Range>,
    inputs: Option<Range>,
) -> Result<Option<NnError>> {
    let mut first = 0;
    for b in source.epoch(None, batch)? {
        let b = b?;
        for (ids, range, part) in [(&b.y, labels, "labels"), (&b.x, inputs, "inputs")] {
            let Some(range) = range.filter(|_| !ids.dtype().is_float()) else { continue };
            if let Some((at, index)) = range.first_bad(ids)? {
                let place = format!("{} of the {part} of the {what}", place(ids.shape(), at, first));
                return Ok(Some(range.error(place, index)));
            }
        }
        first += b.len;
    }
    Ok(None)
}
