//! The memory of tensors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use trefoil::{Buffer, DType};

/// Where the elements of a storage lie: a buffer and the position of the first one.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) buffer: Arc<Buffer>,
    pub(super) base: usize,
}

/// Memory that tensors share. The place can change (parameters move into an optimizer's arena); every tensor follows.
pub(crate) struct Storage {
    pub(super) place: RwLock<Place>,
    pub(super) len: usize,
    pub(super) dtype: DType,
    pub(super) version: AtomicU64,
    owner: Mutex<Weak<()>>,
}

impl Storage {
    pub(super) fn new(buffer: Buffer) -> Arc<Self> {
        let (len, dtype) = (buffer.len(), buffer.dtype());
        Self::at(Arc::new(buffer), 0, len, dtype)
    }

    pub(super) fn at(buffer: Arc<Buffer>, base: usize, len: usize, dtype: DType) -> Arc<Self> {
        Arc::new(Storage {
            place: RwLock::new(Place { buffer, base }),
            len,
            dtype,
            version: AtomicU64::new(0),
            owner: Mutex::default(),
        })
    }

    pub(super) fn place(&self) -> Place {
        self.place.read().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes all tensors of this storage refer to `buffer` from `base` on. The caller has copied the contents.
    pub(crate) fn relocate(&self, buffer: Arc<Buffer>, base: usize) {
        *self.place.write().unwrap_or_else(|p| p.into_inner()) = Place { buffer, base };
    }

    /// Notes that the contents were changed in place.
    pub(crate) fn touch(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Claims the storage for an arena that lives as long as `token`; false if a living arena has it.
    pub(crate) fn claim(&self, token: &Arc<()>) -> bool {
        let mut owner = self.owner.lock().unwrap_or_else(|p| p.into_inner());
        if owner.strong_count() > 0 {
            return false;
        }
        *owner = Arc::downgrade(token);
        true
    }

    /// Whether a living arena holds this storage.
    pub(crate) fn is_claimed(&self) -> bool {
        self.owner.lock().unwrap_or_else(|p| p.into_inner()).strong_count() > 0
    }
}
