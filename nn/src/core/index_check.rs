//! Naming the index, or another value, that a device found out of range.
//!
//! A kernel reports only that there was such an index, and the host learns of it at the next call that waits. So the operations that read
//! indices record which tensor it was and which values it may hold, as do layers that have the device examine their inputs. After the
//! device's report the host searches the recorded tensors that are still alive, once.

use std::cell::RefCell;
use std::collections::VecDeque;

use trefoil::{BackendExt, Element, GpuError};

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

/// What a layer allows its inputs to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Values {
    pub(crate) op: &'static str,
    pub(crate) expected: &'static str,
    pub(crate) allows: fn(f64) -> bool,
}

/// What a recorded tensor may hold.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Index(Range),
    Values(Values),
}

/// Records of a thread that are kept.
const NOTES: usize = 16;

thread_local! {
    static RECENT: RefCell<VecDeque<(WeakTensor, Rule)>> = const { RefCell::new(VecDeque::new()) };
}

/// Records that an operation read these indices.
pub(crate) fn note(ids: &Tensor, range: Range) {
    record(ids, Rule::Index(range));
}

/// Records that an operation has the device examine these values.
pub(crate) fn note_values(x: &Tensor, values: Values) {
    record(x, Rule::Values(values));
}

fn record(t: &Tensor, rule: Rule) {
    RECENT.with(|r| {
        let mut r = r.borrow_mut();
        r.truncate(NOTES - 1);
        r.push_front((t.downgrade(), rule));
    });
}

/// The elements of a tensor that the device has reported. They may have been written since the faulty operation, and then only a copy made
/// after the report can be read. What was still under way may report the same fault once more.
fn reported<T: Element>(t: &Tensor) -> Result<Vec<T>> {
    let read = || {
        let t = t.detach().to_dtype(T::DTYPE)?.copy()?;
        Ok::<_, NnError>(t.device().download::<T>(t.operand().view()?)?)
    };
    match read() {
        Err(NnError::Gpu(GpuError::IndexOutOfRange { .. })) => read(),
        other => other,
    }
}

impl Range {
    /// The position of the first index that is not allowed, in row-major order, and the index.
    pub(crate) fn first_bad(&self, ids: &Tensor) -> Result<Option<(usize, i64)>> {
        let values = reported::<i64>(ids)?;
        let bad = |v: i64| usize::try_from(v).map_or(true, |u| u >= self.limit) && Some(v) != self.ignore;
        Ok(values.iter().position(|&v| bad(v)).map(|i| (i, values[i])))
    }

    pub(crate) fn error(&self, place: String, index: i64) -> NnError {
        NnError::OutOfRange { op: self.op, place, index, limit: self.limit }
    }
}

impl Values {
    /// The error of the first value that is not allowed, in row-major order.
    fn first_bad(&self, x: &Tensor) -> Result<Option<NnError>> {
        let values = reported::<f32>(x)?;
        Ok(values.iter().position(|&v| !(self.allows)(v.into())).map(|at| NnError::Value {
            op: self.op,
            place: place(x.shape(), at, 0),
            value: values[at].into(),
            expected: self.expected,
        }))
    }
}

impl Rule {
    /// The error of the first element of a tensor that breaks the rule.
    fn broken(&self, t: &Tensor) -> Result<Option<NnError>> {
        match self {
            Rule::Index(range) => {
                Ok(range.first_bad(t)?.map(|(at, index)| range.error(place(t.shape(), at, 0), index)))
            }
            Rule::Values(values) => values.first_bad(t),
        }
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

/// Names the index or value behind a device's report, if its tensor still lives. Other errors pass.
pub(crate) fn explain(e: GpuError) -> NnError {
    if !matches!(e, GpuError::IndexOutOfRange { .. }) {
        return e.into();
    }
    let notes: Vec<(WeakTensor, Rule)> = RECENT.with(|r| r.borrow().iter().cloned().collect());
    for (i, (t, rule)) in notes.iter().enumerate() {
        let Some(t) = t.upgrade() else { continue };
        if let Ok(Some(error)) = rule.broken(&t) {
            // Reported; the next report is about others.
            RECENT.with(|r| drop(r.borrow_mut().remove(i)));
            return error;
        }
    }
    e.into()
}

/// The ranges of the records of indices, the newest first.
pub(crate) fn recent_ranges() -> Vec<Range> {
    let range = |(_, rule): &(WeakTensor, Rule)| match rule {
        Rule::Index(range) => Some(*range),
        Rule::Values(_) => None,
    };
    RECENT.with(|r| r.borrow().iter().filter_map(range).collect())
}
