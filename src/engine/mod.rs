//! The one implementation of all families over any [`Driver`]: argument checks, choice of variants, kernel units, memory pool, launches.

pub(crate) mod blas;
pub(crate) mod cache;
pub(crate) mod capture;
mod dnn;
pub(crate) mod geometry;
mod include;
pub(crate) mod launch;
mod ops;
pub(crate) mod plan;
pub(crate) mod pool;
mod profile;
pub(crate) mod program;
pub(crate) mod tune;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use self::ops::step_numbers;
use crate::buffer::{Block, Buffer, Mem};
use crate::device::Caps;
use crate::driver::shapes::ShapeDriver;
use crate::driver::{Driver, RawStream};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::index_error::{IndexErrors, WriteLog};
use crate::layout::MAX_ELEMENTS;
use crate::ops::core::{Counters, MemoryStats};

/// A device with one in-order stream, driven through a [`Driver`]. Cheap to clone; clones share the stream.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    device: Arc<Device>,
    pool: Arc<pool::Pool>,
    stream: RawStream,
    /// Number of the stream within the process; blocks carry it.
    stream_id: u64,
    /// First asynchronous failure, or loss of the device; after it every call is refused.
    poison: Mutex<Option<Arc<str>>>,
    poisoned: AtomicBool,
    /// One i32 on the device that kernels set to the code of an operation that met an index out of range, unless it is set.
    error_word: Buffer,
    /// Operations that may have set the word since it was last read: their codes, with the number of their first write. Locked while such a
    /// kernel is queued and while the word is read and cleared, so that no report falls between the two.
    may_report: Mutex<Vec<(i32, u64)>>,
    /// Whether `may_report` has entries; set before such a kernel is queued.
    reports_pending: AtomicBool,
    /// Uploaded argument tables, by content.
    tables: Mutex<launch::TableCache>,
    choices: plan::Choices,
    capture: capture::Capture,
    profiler: profile::Profiler,
}

/// What all handles of a device share.
struct Device {
    driver: Arc<dyn Driver>,
    counts: Arc<Counts>,
    programs: program::Programs,
    blas: blas::Trust,
    dnn: dnn::Trust,
    index_errors: IndexErrors,
    writes: WriteLog,
    sync_each: bool,
}

/// Counters of a device.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    launches: AtomicU64,
    uploads: AtomicU64,
    downloads: AtomicU64,
    compiles: AtomicU64,
    allocations: AtomicU64,
    syncs: AtomicU64,
    /// Bytes that the pools of the device hold.
    held: AtomicU64,
}

impl Counts {
    /// Counts an allocation, if the device with `memory` bytes (0: unknown) has room for it beside what is held.
    pub(crate) fn allocate(&self, bytes: usize, memory: u64) -> bool {
        let (bytes, most) = (bytes as u64, if memory == 0 { u64::MAX } else { memory });
        let add = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= most);
        let fits = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        self.allocations.fetch_add(fits.into(), Ordering::Relaxed);
        fits
    }

    /// Counts memory that went back to the driver, or was not given.
    pub(crate) fn free(&self, bytes: usize) {
        self.held.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Counters {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Counters {
            launches: get(&self.launches),
            uploads: get(&self.uploads),
            downloads: get(&self.downloads),
            compiles: get(&self.compiles),
            allocations: get(&self.allocations),
            syncs: get(&self.syncs),
        }
    }
}

/// A number for a new stream, unique in the process.
pub(crate) fn next_stream_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// An engine on a driver, with a new stream. Reads the `TREFOIL_` variables of `docs/ENVIRONMENT.md`.
    ///
    /// Errors: what the driver says to a new stream and a first small allocation; `Config` for a malformed `TREFOIL_VARIANT` or `TREFOIL_TUNE`.
    pub fn new(driver: Arc<dyn Driver>) -> Result<Self> {
        let disk = cache::DiskCache::from_env();
        let measured = tune::Store::from_env(&*driver, &disk)?;
        let device = Device {
            driver,
            counts: Arc::default(),
            programs: program::Programs::new(disk),
            blas: blas::Trust::default(),
            dnn: dnn::Trust::default(),
            index_errors: IndexErrors::default(),
            writes: WriteLog::default(),
            sync_each: std::env::var("TREFOIL_SYNC").is_ok_and(|v| v != "0"),
        };
        Engine::on(Arc::new(device), None, plan::Choices::from_env()?.measured(measured))
    }

    /// An engine without a device: every operation checks its arguments as always, then computes nothing. Buffers take no memory and read
    /// as zeros. It tells whether shapes and dtypes fit before a device is used, at the price of the checks alone; it claims to have f64.
    /// Reads no environment variables.
    ///
    /// ```
    /// use trefoil::{DType, Engine, ops::elementwise::Unary, prelude::*};
    ///
    /// let shapes = Engine::shapes();
    /// let x = shapes.alloc(DType::F32, 1 << 40)?;
    /// let (mut y, mut z) = (shapes.alloc(DType::F32, 1 << 40)?, shapes.alloc(DType::F32, 7)?);
    /// assert!(shapes.unary(Unary::Exp, x.view(), y.view_mut()).is_ok());
    /// assert!(shapes.unary(Unary::Exp, x.view(), z.view_mut()).is_err());
    /// # Ok::<(), trefoil::GpuError>(())
    /// ```
    pub fn shapes() -> Self {
        let device = Device {
            driver: Arc::new(ShapeDriver::new()),
            counts: Arc::default(),
            programs: program::Programs::new(cache::DiskCache::default()),
            blas: blas::Trust::default(),
            dnn: dnn::Trust::default(),
            index_errors: IndexErrors::default(),
            writes: WriteLog::default(),
            sync_each: false,
        };
        Engine::on(Arc::new(device), None, plan::Choices::default())
            .unwrap_or_else(|e| unreachable!("nothing can fail: {e}"))
    }

    /// A handle of a device with a new stream, or with somebody else's, and with pins of variants.
    fn on(device: Arc<Device>, adopted: Option<RawStream>, choices: plan::Choices) -> Result<Self> {
        let stream = adopted.map_or_else(|| device.driver.new_stream(), Ok)?;
        let stream_id = next_stream_id();
        let (driver, counts) = (device.driver.clone(), device.counts.clone());
        let pool = Arc::new(pool::Pool::new(driver, stream, adopted.is_some(), counts));
        let error_word = alloc_from(&device, &pool, stream_id, DType::I32, 1)?;
        if let Some(raw) = error_word.view().block().raw() {
            // SAFETY: the word is 4 bytes of live memory, and the stream is the driver's.
            unsafe { device.driver.copy_in(stream, raw, 0, &0i32.to_le_bytes())? };
        }
        let inner = Inner {
            device,
            pool,
            stream,
            stream_id,
            poison: Mutex::new(None),
            poisoned: AtomicBool::new(false),
            error_word,
            may_report: Mutex::default(),
            reports_pending: AtomicBool::new(false),
            tables: Mutex::default(),
            choices,
            capture: capture::Capture::default(),
            profiler: profile::Profiler::default(),
        };
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// The driver under this engine.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.inner.device.driver
    }

    fn alloc_buffer(&self, dtype: DType, len: usize) -> Result<Buffer> {
        self.check_poison()?;
        let i = &self.inner;
        check_dtype(&i.device, dtype)?;
        match self.alloc_recorded(dtype, len, checked_bytes("alloc", dtype, len)?) {
            Some(buffer) => buffer,
            None => alloc_from(&i.device, &i.pool, i.stream_id, dtype, len),
        }
    }

    fn check_poison(&self) -> Result<()> {
        if self.inner.poisoned.load(Ordering::Acquire)
            && let Some(first) = lock(&self.inner.poison).clone()
        {
            return Err(GpuError::Poisoned { first });
        }
        Ok(())
    }

    /// Makes a failure sticky and passes it on: that of queued work, which waiting calls report.
    fn poison(&self, e: GpuError) -> GpuError {
        lock(&self.inner.poison).get_or_insert_with(|| e.to_string().into());
        self.inner.poisoned.store(true, Ordering::Release);
        e
    }

    /// Passes on the failure of a call that queues something: sticky if the device is lost; what the driver merely refuses leaves the handle
    /// as it was.
    fn refused(&self, e: GpuError) -> GpuError {
        match e {
            GpuError::OutOfMemory { requested, .. } => {
                let MemoryStats { in_use, cached, .. } = self.inner.pool.stats();
                GpuError::OutOfMemory { requested, in_use, cached }
            }
            e if e.is_fatal() => self.poison(e),
            e => e,
        }
    }

    /// Waits for the stream and learns what failed on it; an index out of range is noted, to be reported by the caller.
    fn wait_idle(&self) -> Result<()> {
        self.check_poison()?;
        let i = &self.inner;
        i.device.counts.syncs.fetch_add(1, Ordering::Relaxed);
        let retired = i.pool.retired();
        // SAFETY: the stream is the driver's and lives as long as the pool.
        let done = unsafe { i.device.driver.synchronize(i.stream) };
        // Whether it was waited for or has failed: nothing uses their memory any more.
        drop(retired);
        done.map_err(|e| self.poison(e))?;
        let mut may_report = lock(&i.may_report);
        if may_report.is_empty() {
            return Ok(());
        }
        let Some(raw) = i.error_word.view().block().raw() else { return Ok(()) };
        let mut word = [0u8; 4];
        // SAFETY: the word is 4 bytes of live memory, and the stream is the driver's.
        unsafe { i.device.driver.copy_out(i.stream, raw, 0, &mut word) }.map_err(|e| self.poison(e))?;
        let code = i32::from_le_bytes(word);
        if code != 0 {
            // SAFETY: as above.
            unsafe { i.device.driver.copy_in(i.stream, raw, 0, &0i32.to_le_bytes()) }
                .map_err(|e| self.poison(e))?;
            let from = may_report.iter().find(|(c, _)| *c == code).map_or(0, |(_, from)| *from);
            i.device.index_errors.found(i.stream_id, launch::op_of_code(code), from);
        }
        may_report.clear();
        i.reports_pending.store(false, Ordering::Release);
        Ok(())
    }

    /// Capabilities of the device.
    fn device_caps(&self) -> &Caps {
        self.inner.device.driver.caps()
    }
}

fn check_dtype(device: &Device, dtype: DType) -> Result<()> {
    let caps = device.driver.caps();
    match caps.supports(dtype) {
        true => Ok(()),
        false => {
            Err(GpuError::Unsupported { op: "alloc", device: caps.id, why: "the device has no f64".into() })
        }
    }
}

fn alloc_from(
    device: &Device,
    pool: &Arc<pool::Pool>,
    stream_id: u64,
    dtype: DType,
    len: usize,
) -> Result<Buffer> {
    check_dtype(device, dtype)?;
    let caps = device.driver.caps();
    let (raw, size) = pool.alloc(checked_bytes("alloc", dtype, len)?)?;
    let block = Block::new(caps.id, stream_id, size, Mem::Device(raw), Some(pool.clone()));
    Ok(Buffer::new(Arc::new(block), dtype, len))
}

/// Size of `len` elements in bytes. `Invalid` for what no layout can describe.
pub(crate) fn checked_bytes(op: &'static str, dtype: DType, len: usize) -> Result<usize> {
    if len >= MAX_ELEMENTS {
        return Err(GpuError::invalid(op, "len", "fewer than 2^59 elements", format!("{len}")));
    }
    Ok(len * dtype.size())
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.device_caps().id)
    }
}
