//! A backend that notes which operations are called.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// A backend that writes down which operations are called on it and passes them on. For tests that prove what a composition uses.
#[derive(Debug, Default)]
pub struct Recorder<T> {
    pub(crate) inner: T,
    called: Mutex<BTreeSet<&'static str>>,
}

impl<T> Recorder<T> {
    /// Records what is called on `inner`.
    pub fn new(inner: T) -> Self {
        Recorder { inner, called: Mutex::default() }
    }

    /// Names of the operations called since the last question.
    pub fn take(&self) -> BTreeSet<&'static str> {
        std::mem::take(&mut *self.called.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn note(&self, name: &'static str) {
        self.called.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
    }
}
