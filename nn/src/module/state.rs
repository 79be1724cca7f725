//! State dictionaries: names and checks, the report of a load, and what a forward changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use trefoil::DType;

use crate::core::error::{NnError, Result};
use crate::core::tensor::Tensor;
use crate::module::layer::{Entry, Layer, Visitor};
use crate::module::param::Param;

/// Named tensors of a model on the device, parameters and buffers.
pub type StateDict = BTreeMap<String, Tensor>;

/// What [`StateFile::load`](crate::StateFile::load) or [`LayerExt::load_matching`](crate::LayerExt::load_matching) did. Names are the model's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadReport {
    /// Written into the model.
    pub loaded: Vec<String>,
    /// In the model but not in the file, and not tied to a tensor that was loaded.
    pub missing: Vec<String>,
    /// In the file but not in the model.
    pub unexpected: Vec<String>,
    /// In both, with another shape or dtype: not loaded.
    pub mismatched: Vec<Mismatch>,
}

impl LoadReport {
    /// Whether everything was there and fitted, and nothing else was.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }
}

/// A tensor that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Name in the model.
    pub name: String,
    /// Shape in the model.
    pub expected: Vec<usize>,
    /// Dtype in the model.
    pub expected_dtype: DType,
    /// Shape in the file.
    pub found: Vec<usize>,
    /// Dtype in the file, `None` for one that this crate has not.
    pub found_dtype: Option<DType>,
}

/// Error if a name occurs twice.
pub(crate) fn check_unique<'a>(names: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(NnError::DuplicateName { name: name.clone() });
        }
    }
    Ok(())
}

/// Error unless both lists hold the same names.
pub(crate) fn check_names<'a>(
    own: impl Iterator<Item = &'a String>,
    given: impl Iterator<Item = &'a String>,
) -> Result<()> {
    let own: BTreeSet<&String> = own.collect();
    let given: BTreeSet<&String> = given.collect();
    if own == given {
        return Ok(());
    }
    Err(NnError::StateNames {
        missing: own.difference(&given).map(|s| s.to_string()).collect(),
        unexpected: given.difference(&own).map(|s| s.to_string()).collect(),
    })
}

/// Error unless a received tensor fits the model's.
pub(crate) fn check_fit(name: &str, own: &Tensor, dtype: DType, shape: &[usize]) -> Result<()> {
    if own.shape() == shape && own.dtype() == dtype {
        return Ok(());
    }
    Err(NnError::StateShape {
        name: name.to_string(),
        expected: own.shape().to_vec(),
        expected_dtype: own.dtype(),
        found: shape.to_vec(),
        found_dtype: dtype,
    })
}

/// What a forward may change besides its results: positions of random number generators, and buffers such as running statistics. A
/// forward that is repeated, or made on trial, takes it before and puts it back after.
pub(crate) struct Snapshot {
    counters: Vec<u64>,
    buffers: Vec<(Param, Tensor)>,
}

impl Snapshot {
    /// Positions, and copies of the buffers on the device.
    pub(crate) fn take(layer: &dyn Layer) -> Result<Self> {
        let (mut counters, mut all) = (vec![], vec![]);
        layer.visit(&mut Visitor::new(&mut |_, e| match e {
            Entry::Counter(c) => counters.push(c.load(Ordering::Relaxed)),
            Entry::Buffer(p) => all.push(p.clone()),
            Entry::Param(_) | Entry::Training(_) => {}
        }));
        let copy = |p: Param| Ok((p.clone(), p.get().copy()?));
        Ok(Snapshot { counters, buffers: all.into_iter().map(copy).collect::<Result<_>>()? })
    }

    /// Puts everything back. Generators that did not exist then start at 0.
    pub(crate) fn restore(&self, layer: &dyn Layer) -> Result<()> {
        let mut counters = self.counters.iter();
        layer.visit(&mut Visitor::new(&mut |_, e| {
            if let Entry::Counter(c) = e {
                c.store(counters.next().copied().unwrap_or(0), Ordering::Relaxed);
            }
        }));
        self.buffers.iter().try_for_each(|(p, old)| p.get().assign(old))
    }
}
