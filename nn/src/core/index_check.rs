//! Naming the index that a device found out of range.
//!
//! A kernel reports only that there was such an index, and the host learns of it at the next call that waits. So the operations that read
//! indices record which tensor it was and which values it may hold. After the device's report the host searches the recorded tensors that
//! are still alive, once.

use std::cell::RefCell;
use std::collections::VecDeque;

use trefoil::{BackendExt, DType, GpuError};

use crate::core::error::{NnError, Result};
use crate::core::tensor::{Tensor, WeakTensor};

/// What an operation allows its indices to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) op: &'static str,
    /// Indices are below it.
    pub(crate) limit: usize,
    /// Beside them this one.
    pub(crate) ignore: Option<i64>,
    /// Class ids of a loss, of which a trainer has more in its data.
    pub(crate) labels: bool,
}

/// Records of a thread that are kept.
const NOTES: usize = 16;

thread_local! {
    static RECENT: RefCell<VecDeque<(WeakTensor, Range)>> = const { RefCell::new(VecDeque::new()) };
}

/// Records that an operation read these indices.
pub(crate) fn note(ids: &Tensor, range: Range) {
    RECENT.with(|r| {
        let mut r = r.borrow_mut();
        r.truncate(NOTES - 1);
        r.push_front((ids.downgrade(), range));
    });
}

impl Range {
    /// The position of the first index that is not allowed, in row-major order, and the index.
    pub(crate) fn first_bad(&self, ids: &Tensor) -> Result<Option<(usize, i64)>> {
        // The indices may have been written since the faulty operation, and then only a copy made after the report can be read. What was still
        // under way may report the same index once more.
        let read = || {
            let ids = ids.detach().to_dtype(DType::I64)?.copy()?;
            Ok::<_, NnError>(ids.device().download::<i64>(ids.operand().view()?)?)
        };
        let values = match read() {
            Err(NnError::Gpu(GpuError::IndexOutOfRange { .. })) => read()?,
            other => other?,
        };
        let bad = |v: i64| usize::try_from(v).map_or(true, |u| u >= self.limit) && Some(v) != self.ignore;
        Ok(values.iter().position(|&v| bad(v)).map(|i| (i, values[i])))
    }

    pub(crate) fn error(&self, place: String, index: i64) -> NnError {
        NnError::OutOfRange { op: self.op, place, index, limit: self.limit }
    }
}

/// The row of an element, and the place in it where rows have several.
pub(crate) fn place(shape: &[usize], at: usize, first_row: usize) -> String {
    let per_row = shape.iter().skip(1).product::<usize>().max(1);
    match per_row {
        1 => format!("row {}", first_row + at),
        _ => format!("row {}, position {}", first_row + at / per_row, at % per_row),
    }
}

/// Names the index behind a device's report, if its tensor still lives. Other errors pass.
pub(crate) fn explain(e: GpuError) -> NnError {
    if !matches!(e, GpuError::IndexOutOfRange { .. }) {
        return e.into();
    }
    let notes: Vec<(WeakTensor, Range)> = RECENT.with(|r| r.borrow().iter().cloned().collect());
    for (i, (ids, range)) in notes.iter().enumerate() {
        let Some(ids) = ids.upgrade() else { continue };
        if let Ok(Some((at, index))) = range.first_bad(&ids) {
            // Reported; the next report is about others.
            RECENT.with(|r| drop(r.borrow_mut().remove(i)));
            return range.error(place(ids.shape(), at, 0), index);
        }
    }
    e.into()
}

/// The ranges of the records, the newest first.
pub(crate) fn recent_ranges() -> Vec<Range> {
    RECENT.with(|r| r.borrow().iter().map(|(_, range)| *range).collect())
}
