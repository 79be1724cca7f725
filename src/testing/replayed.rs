//! A backend that records every call and replays it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::ops::core::CaptureOps;

/// A backend that makes a graph of every operation that is called, and replays that instead. For tests that prove that a replay gives what the call gives.
#[derive(Debug, Default)]
pub struct Replayed<T> {
    pub(crate) inner: T,
    replayed: Mutex<BTreeSet<&'static str>>,
}

impl<T> Replayed<T> {
    /// Replays what is called on `inner`.
    pub fn new(inner: T) -> Self {
        Replayed { inner, replayed: Mutex::default() }
    }

    /// Names of the operations replayed since the last question.
    pub fn take(&self) -> BTreeSet<&'static str> {
        std::mem::take(&mut *self.replayed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: CaptureOps> Replayed<T> {
    pub(crate) fn replay(&self, name: &'static str, call: impl FnOnce(&T) -> Result<()>) -> Result<()> {
        let mut call = Some(call);
        let graph = self.inner.capture_calls(&mut || call.take().map_or(Ok(()), |call| call(&self.inner)))?;
        graph.replay()?;
        self.replayed.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        Ok(())
    }
}

/// Implements a family's trait: calls are recorded and replayed, those of `Core` passed on.
macro_rules! replayed_ops {
    (Core $tr:ident { $( $([$unsafe:ident])? fn $name:ident($($arg:ident : $ty:ty),*) $(-> $ret:ty)?; )* }) => {
        impl<T: $tr> $tr for $crate::testing::Replayed<T> {
            // SAFETY: an unsafe method's contract is forwarded as it is.
            $( $($unsafe)? fn $name(&self $(, $arg: $ty)*) $(-> $ret)? { $($unsafe)? { self.inner.$name($($arg),*) } } )*
        }
    };
    ($family:ident $tr:ident { $( fn $name:ident($($arg:ident : $ty:ty),*) -> $ret:ty; )* }) => {
        impl<T: $tr + $crate::ops::core::CaptureOps> $tr for $crate::testing::Replayed<T> {
            $( fn $name(&self $(, $arg: $ty)*) -> $ret {
                self.replay(stringify!($name), |inner| inner.$name($($arg),*))
            } )*
        }
    };
}
pub(crate) use replayed_ops;
