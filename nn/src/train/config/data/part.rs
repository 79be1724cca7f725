//! A part of the data as a source of items.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use trefoil::DType;

use crate::core::error::{NnError, Result};
use crate::core::limits;
use crate::train::data::text::Windows;
use crate::train::data::{Arrays, HostTensor, Item, ItemSource};

/// A part of the data: whose items, and which of them.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) from: PartOf,
    pub(super) scale: f64,
    pub(super) classes: usize,
    pub(super) skipped: Skipped,
}

#[derive(Clone)]
pub(super) enum PartOf {
    Items { items: Arc<dyn ItemSource>, rows: Vec<usize>, labels: Option<Vec<i64>> },
    Text(Windows),
}

/// Malformed items that were left out, by their number.
#[derive(Clone, Default)]
pub(super) struct Skipped(Arc<Mutex<BTreeMap<usize, String>>>);

impl Skipped {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }
}

impl Part {
    /// The item under a number, and its number in the file.
    fn fetch(&self, i: usize) -> Result<Item> {
        match &self.from {
            PartOf::Items { items, rows, .. } => {
                let at = rows.get(i).copied().unwrap_or(usize::MAX);
                items.item(at).inspect_err(|e| {
                    if let NnError::Data { .. } = e {
                        self.skipped.lock().insert(at, e.to_string());
                    }
                })
            }
            PartOf::Text(windows) => windows.item(i),
        }
    }

    /// Largest class id, and its item.
    pub(super) fn largest(&self) -> Option<(i64, usize)> {
        match &self.from {
            PartOf::Items { rows, labels: Some(labels), .. } => {
                labels.iter().copied().zip(rows.iter().copied()).max()
            }
            _ => None,
        }
    }

    /// Bytes on a device, from the first good item.
    pub(super) fn bytes(&self, dtype: DType, skip: bool) -> Result<usize> {
        let of = |t: &HostTensor| t.numel() * if t.dtype.is_index() { t.dtype.size() } else { dtype.size() };
        let first = (0..self.len()).map(|i| self.fetch(i)).find(|item| !skip || item.is_ok());
        match first {
            Some(item) => item.map(|i| (of(&i.x) + of(&i.y)).saturating_mul(self.len())),
            None => Err(NnError::config("data", "expected at least one good item, got none")),
        }
    }

    /// The items that are not malformed, with their labels.
    pub(super) fn good(&self) -> Result<(Arrays, Option<Vec<i64>>)> {
        let (mut x, mut y, mut kept) = (vec![], vec![], vec![]);
        for i in 0..self.len() {
            match self.fetch(i) {
                Ok(item) => {
                    limits::push(&mut x, item.x)?;
                    limits::push(&mut y, item.y)?;
                    limits::push(&mut kept, i)?;
                }
                Err(NnError::Data { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        let labels = match &self.from {
            PartOf::Items { labels: Some(l), .. } => Some(limits::collect(kept.iter().map(|&i| l[i]))?),
            _ => None,
        };
        let stack = |all: &[HostTensor]| HostTensor::stack(&limits::collect(all.iter())?);
        Ok((Arrays::new(stack(&x)?, stack(&y)?)?, labels))
    }
}

impl ItemSource for Part {
    fn len(&self) -> usize {
        match &self.from {
            PartOf::Items { rows, .. } => rows.len(),
            PartOf::Text(windows) => windows.len(),
        }
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn item(&self, i: usize) -> Result<Item> {
        self.fetch(i)
    }

    fn items(&self, wanted: &[usize]) -> Result<Item> {
        match &self.from {
            PartOf::Items { items, rows, .. } => {
                items.items(&wanted.iter().map(|&i| rows[i]).collect::<Vec<_>>())
            }
            PartOf::Text(windows) => windows.items(wanted),
        }
    }
}
