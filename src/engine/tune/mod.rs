//! Choice of variants by measurement.
//!
//! [`InteropOps::tune_calls`](crate::ops::core::InteropOps::tune_calls) times the variants of the operations that some calls use. The fastest of each
//! is kept in the [`Store`] of the device and in the disk cache, and takes the place of the static rules wherever it still applies and nothing is
//! pinned.
//!
//! Nothing is measured unasked: an operation cannot tell whether it may run several times (it may add to its result, or work in place), and another
//! variant gives other bits.

mod measure;
mod record;
mod share;

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use rustc_hash::FxHashMap;

pub(crate) use self::record::Record;
use self::record::{Records, decode, encode, name};
use self::share::Marks;
use super::cache::DiskCache;
use super::capture::thread;
use super::lock;
use super::plan::{Candidates, first};
use crate::device::Caps;
use crate::driver::Driver;
use crate::error::{GpuError, Result};

/// Problems whose choices are remembered by number; programs whose shapes change all the time do not fill the memory.
const MOST_KNOWN: usize = 1 << 14;

/// The operation of this module.
pub(crate) const OP: &str = "tune_calls";

/// Everything that the time of a problem depends on.
pub(crate) trait ProblemKey {
    /// In words: the same in every process.
    fn text(&self) -> String;
    /// As a number of this process.
    fn digest(&self, op: &str) -> u64;
}

impl<K: Debug + Hash> ProblemKey for K {
    fn text(&self) -> String {
        format!("{self:?}")
    }

    fn digest(&self, op: &str) -> u64 {
        let mut h = DefaultHasher::new();
        // Problems of one operation that are no equals differ in size or in what they hash.
        (op, size_of::<K>()).hash(&mut h);
        self.hash(&mut h);
        h.finish()
    }
}

/// A choice among variants that calls made.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    op: &'static str,
    digest: u64,
    problem: String,
    /// Numbers and names of the variants that apply, first the one that the static rules take.
    candidates: Vec<(usize, &'static str)>,
}

impl Decision {
    /// `None` where no variant applies.
    fn of(op: &'static str, caps: &Caps, of: &dyn Candidates, key: &dyn ProblemKey) -> Option<Self> {
        let (first, all) = (first(of, caps)?, of.variants());
        let others = (0..all.len()).filter(|&v| v != first && of.check(v, caps).is_ok());
        let candidates = std::iter::once(first).chain(others).map(|v| (v, all[v].name)).collect();
        Some(Decision { op, digest: key.digest(op), problem: key.text(), candidates })
    }
}

/// What is tried with the calls of a thread.
#[derive(Debug, Default)]
enum Trial {
    #[default]
    None,
    /// Their choices are collected.
    Collect(Vec<Decision>),
    /// The problem of this number is served by this variant.
    Force { digest: u64, variant: usize, marks: Marks },
}

#[derive(Debug, Default)]
struct Known {
    records: Records,
    /// What was asked for in this process, by number.
    by_digest: FxHashMap<u64, Option<Arc<Record>>>,
}

/// Measured choices of a device, which all of its handles share.
#[derive(Debug)]
pub(crate) struct Store {
    disk: DiskCache,
    /// Its name in the disk cache: that of device, driver, compiler and kernels.
    entry: String,
    /// Whether there is anything to ask for; all that a call looks at where nothing was measured.
    active: AtomicBool,
    known: RwLock<Known>,
    /// Number of the thread whose calls are tried; 0 where none are.
    thread: AtomicU64,
    trial: Mutex<Trial>,
    /// Operations that the profile of the tried calls has seen so far.
    ops: AtomicUsize,
}

/// One hash of the text of all kernels, and of the version of the code that plans their launches.
fn kernels() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| {
        let sources = crate::spec::kernels::SOURCES.iter().flat_map(|&(path, text)| [path, text]);
        DiskCache::key(&sources.chain([env!("CARGO_PKG_VERSION")]).collect::<Vec<_>>())
    })
}

/// Whether measured choices are used, by the value of `TREFOIL_TUNE`.
fn used(value: Option<&OsStr>) -> Result<bool> {
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("" | "use") => Ok(true),
        Some("off" | "0") => Ok(false),
        Some(got) => {
            Err(GpuError::Config(format!("TREFOIL_TUNE: expected `use` or `off`, got `{got}`").into()))
        }
    }
}

impl Store {
    /// The choices that the disk cache holds for a device; `None` with `TREFOIL_TUNE=off`. `Config` for another value than `use` and `off`.
    pub(crate) fn from_env(driver: &dyn Driver, disk: &DiskCache) -> Result<Option<Arc<Store>>> {
        let used = used(std::env::var_os("TREFOIL_TUNE").as_deref())?;
        Ok(used.then(|| Arc::new(Store::open(driver, disk.clone(), kernels()))))
    }

    fn open(driver: &dyn Driver, disk: DiskCache, kernels: &str) -> Self {
        let caps = driver.caps();
        // Devices of one architecture differ in speed and size, and so do parts of one.
        let size = format!("{} {}", caps.compute_units, caps.memory_bytes);
        let (compiler, header) = (driver.compiler_id(), driver.dialect_header().unwrap_or_default());
        let device = [&caps.name, &size, &caps.arch, &caps.driver_version, &compiler, header];
        let entry = DiskCache::key(&[&["measured choices", kernels][..], &device].concat());
        let records = disk.read(&entry).and_then(|text| decode(&text)).unwrap_or_default();
        let active = AtomicBool::new(!records.is_empty());
        let known = RwLock::new(Known { records, ..Known::default() });
        Store {
            disk,
            entry,
            active,
            known,
            thread: AtomicU64::new(0),
            trial: Mutex::default(),
            ops: AtomicUsize::new(0),
        }
    }

    /// Whether anything was measured, or is.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether the calling thread's calls are tried.
    pub(crate) fn tries(&self) -> bool {
        let tried = self.thread.load(Ordering::Relaxed);
        tried != 0 && tried == thread()
    }

    /// Notes that the profile of this thread's calls has seen so many operations.
    pub(crate) fn note_ops(&self, count: usize) {
        if self.tries() {
            self.ops.store(count, Ordering::Relaxed);
        }
    }

    /// The number of the variant that was fastest, or that is being tried.
    pub(crate) fn variant(
        &self,
        op: &'static str,
        caps: &Caps,
        of: &dyn Candidates,
        key: &dyn ProblemKey,
    ) -> Option<usize> {
        if self.tries() {
            match &mut *lock(&self.trial) {
                Trial::Force { digest, variant, marks } if *digest == key.digest(op) => {
                    // That of the operation whose operands were checked last.
                    marks.met.push(self.ops.load(Ordering::Relaxed).saturating_sub(1));
                    return Some(*variant);
                }
                Trial::Collect(list) if list.iter().all(|d| d.digest != key.digest(op)) => {
                    list.extend(Decision::of(op, caps, of, key));
                }
                _ => {}
            }
        }
        let record = self.record(op, key)?;
        of.variants().iter().position(|v| v.name == record.chosen)
    }

    /// What was measured of a problem.
    pub(crate) fn record(&self, op: &str, key: &dyn ProblemKey) -> Option<Arc<Record>> {
        let digest = key.digest(op);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.by_digest.get(&digest) {
            return found.clone();
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let found = known.records.get(&name(op, &key.text())).cloned();
        if known.by_digest.len() >= MOST_KNOWN {
            known.by_digest.clear();
        }
        known.by_digest.insert(digest, found.clone());
        found
    }

    /// Takes a choice into use.
    fn remember(&self, op: &str, problem: &str, record: Record) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.records.insert(name(op, problem), Arc::new(record));
        known.by_digest.clear();
        self.active.store(true, Ordering::Relaxed);
    }

    /// Writes these choices of this process beside those that the disk cache holds; whether it took them.
    fn keep<'a>(&self, measured: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
        let mut all = self.disk.read(&self.entry).and_then(|text| decode(&text)).unwrap_or_default();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        for (op, problem) in measured {
            let name = name(op, problem);
            if let Some(record) = known.records.get(&name) {
                all.insert(name, record.clone());
            }
        }
        drop(known);
        self.disk.write(&self.entry, encode(&all).as_bytes())
    }

    /// Lets the calls of this thread be tried. `Invalid` while those of another are.
    fn try_calls(&self) -> Result<Trying<'_>> {
        let free = self.thread.compare_exchange(0, thread(), Ordering::AcqRel, Ordering::Acquire);
        if free.is_err() {
            return Err(GpuError::invalid(OP, "calls", "one measurement of a device at a time", "another"));
        }
        self.active.store(true, Ordering::Relaxed);
        Ok(Trying(self))
    }
}

/// Calls of this thread are tried while this lives.
struct Trying<'s>(&'s Store);

impl Trying<'_> {
    /// The choices that `calls` make.
    fn decisions(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Decision>> {
        *lock(&self.0.trial) = Trial::Collect(vec![]);
        let done = calls();
        match std::mem::take(&mut *lock(&self.0.trial)) {
            Trial::Collect(list) => done.map(|()| list),
            _ => done.map(|()| vec![]),
        }
    }

    /// Runs `calls` with a variant for a problem, and says where they had it.
    fn with<T>(&self, digest: u64, variant: usize, calls: impl FnOnce() -> T) -> (T, Marks) {
        self.0.ops.store(0, Ordering::Relaxed);
        *lock(&self.0.trial) = Trial::Force { digest, variant, marks: Marks::default() };
        let done = calls();
        match std::mem::take(&mut *lock(&self.0.trial)) {
            Trial::Force { marks, .. } => (done, marks),
            _ => (done, Marks::default()),
        }
    }

    /// Notes that another run of the tried calls begins.
    fn begin_run(&self) {
        if let Trial::Force { marks, .. } = &mut *lock(&self.0.trial) {
            marks.starts.push(self.0.ops.load(Ordering::Relaxed));
        }
    }
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        *lock(&self.0.trial) = Trial::None;
        let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
        self.0.active.store(!known.records.is_empty(), Ordering::Relaxed);
        self.0.thread.store(0, Ordering::Release);
    }
}

#[cfg(all(test, feature = "driver-opencl"))]
mod tests;
