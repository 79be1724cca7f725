//! The memory of tensors.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use trefoil::{Buffer, DType};

use super::Tensor;

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
        let storage = Self::at(Arc::new(buffer), 0, len, dtype);
        note(|n| n.made.push(Arc::downgrade(&storage)));
        storage
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
    pub(crate) fn touch(self: &Arc<Self>) {
        self.version.fetch_add(1, Ordering::Relaxed);
        note(|n| n.touched.push(Arc::downgrade(self)));
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

/// What a step did to memory: the storages that it made, and those that it changed in place.
#[derive(Default)]
pub(crate) struct Notes {
    made: Vec<Weak<Storage>>,
    /// Weak, so that taking notes keeps nothing alive.
    touched: Vec<Weak<Storage>>,
}

thread_local! {
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

fn note(f: impl FnOnce(&mut Notes)) {
    NOTES.with(|n| n.borrow_mut().as_mut().map(f));
}

/// Takes notes of what the calling thread does, until this is dropped.
pub(crate) struct Watched(());

impl Watched {
    pub(crate) fn begin() -> Self {
        NOTES.with(|n| *n.borrow_mut() = Some(Notes::default()));
        Watched(())
    }

    pub(crate) fn end(self) -> Notes {
        NOTES.with(|n| n.borrow_mut().take()).unwrap_or_default()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Their storages go outside of the borrow.
        let left = NOTES.with(|n| n.borrow_mut().take());
        drop(left);
    }
}

impl Notes {
    /// How many of the storages that were made still live, beside these.
    pub(crate) fn kept(&self, beside: &[Tensor]) -> usize {
        let is_kept = |s: &Arc<Storage>| !beside.iter().any(|t| Arc::ptr_eq(t.storage(), s));
        self.made.iter().filter_map(Weak::upgrade).filter(is_kept).count()
    }

    /// The storages that were changed and live on, once each.
    pub(crate) fn touched(self) -> Vec<Arc<Storage>> {
        let made: Vec<_> = self.made.iter().map(Weak::as_ptr).collect();
        let mut all: Vec<_> = self.touched.iter().filter_map(Weak::upgrade).collect();
        all.sort_unstable_by_key(|s| Arc::as_ptr(s) as usize);
        all.dedup_by_key(|s| Arc::as_ptr(s) as usize);
        all.retain(|s| !made.contains(&Arc::as_ptr(s)));
        all
    }
}
