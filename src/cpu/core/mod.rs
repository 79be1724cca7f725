//! Memory, copies and introspection.
// Blocks come from the fallible `HostData::zeroed`; everything else here is of fixed size or one entry of the pool.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

mod capture;
mod interop;
mod profile;
mod threads;

pub(super) use self::capture::{Capture, Replay, VARIANTS as REPLAYS};
pub(crate) use self::capture::{recorded_call, recorded_ops};
pub(super) use self::profile::Timed;
pub(super) use self::threads::{include_main_thread, keep_awake};

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::Instant;

use bytemuck::allocation::try_zeroed_vec;

use crate::buffer::{Block, Buffer, HostData, HostMem, Mem, Reclaimer, View, ViewMut};
use crate::cpu::values::copy;
use crate::cpu::vector;
use crate::cpu::{CpuBackend, HostElement, Kernels, index_errors, read, with_dtype, write, wrong_storage};
use crate::device::{Caps, DeviceId, physical_memory};
use crate::driver::RawStream;
use crate::dtype::DType;
use crate::engine::{checked_bytes, pool::size_class};
use crate::error::{GpuError, Result};
use crate::ops::IGpuBackend;
use crate::ops::core::*;
use crate::ops::{Family, all_ops, check};

/// Vectors kept for reuse, so that a training loop does not go to the system's allocator.
#[derive(Debug, Default)]
pub(crate) struct HostPool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: HashMap<(DType, usize), Vec<HostData>>,
    stats: MemoryStats,
}

impl HostData {
    /// Zeros; `None` where there is no memory for them.
    fn zeroed(dtype: DType, len: usize) -> Option<Self> {
        Some(match dtype {
            DType::F32 => HostData::F32(try_zeroed_vec(len).ok()?),
            DType::F16 => HostData::F16(try_zeroed_vec(len).ok()?),
            DType::Bf16 => HostData::Bf16(try_zeroed_vec(len).ok()?),
            DType::F64 => HostData::F64(try_zeroed_vec(len).ok()?),
            DType::I32 => HostData::I32(try_zeroed_vec(len).ok()?),
            DType::I64 => HostData::I64(try_zeroed_vec(len).ok()?),
            DType::U8 => HostData::U8(try_zeroed_vec(len).ok()?),
        })
    }

    fn key(&self) -> (DType, usize) {
        match self {
            HostData::F32(v) => (DType::F32, v.len()),
            HostData::F16(v) => (DType::F16, v.len()),
            HostData::Bf16(v) => (DType::Bf16, v.len()),
            HostData::F64(v) => (DType::F64, v.len()),
            HostData::I32(v) => (DType::I32, v.len()),
            HostData::I64(v) => (DType::I64, v.len()),
            HostData::U8(v) => (DType::U8, v.len()),
        }
    }
}

/// Bytes that a pool may keep for reuse however little was ever in use at a time: a sixteenth of the machine's memory.
static ALWAYS_CACHED: LazyLock<usize> = LazyLock::new(|| (physical_memory().unwrap_or(0) / 16) as usize);

/// Bytes that all pools of the process hold.
static HELD: AtomicU64 = AtomicU64::new(0);

impl HostPool {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Elements of a dtype, of a size class of `class` bytes; `most` bytes (0: unknown) are there for all pools. `fresh` counts what did not
    /// come from the cache.
    fn alloc(&self, dtype: DType, class: usize, most: u64, fresh: &AtomicU64) -> Result<HostData> {
        let mut s = self.lock();
        let len = class / dtype.size();
        let data = match s.free.get_mut(&(dtype, len)).and_then(Vec::pop) {
            Some(data) => {
                s.stats.cached -= class;
                data
            }
            None => {
                fresh.fetch_add(1, Ordering::Relaxed);
                if !reserve(class, most) {
                    s.flush();
                    if !reserve(class, most) {
                        return Err(s.out_of_memory(class));
                    }
                }
                let data = HostData::zeroed(dtype, len).or_else(|| {
                    s.flush();
                    HostData::zeroed(dtype, len)
                });
                data.ok_or_else(|| {
                    HELD.fetch_sub(class as u64, Ordering::Relaxed);
                    s.out_of_memory(class)
                })?
            }
        };
        s.stats.in_use += class;
        s.stats.peak = s.stats.peak.max(s.stats.in_use);
        Ok(data)
    }
}

/// Counts `bytes` as held if they fit beside what is held.
fn reserve(bytes: usize, most: u64) -> bool {
    let most = if most == 0 { u64::MAX } else { most };
    let add = |held: u64| held.checked_add(bytes as u64).filter(|&sum| sum <= most);
    HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

impl State {
    /// Gives the cached vectors back to the system.
    fn flush(&mut self) {
        self.free.clear();
        HELD.fetch_sub(self.stats.cached as u64, Ordering::Relaxed);
        self.stats.cached = 0;
    }

    fn out_of_memory(&self, requested: usize) -> GpuError {
        GpuError::OutOfMemory { requested, in_use: self.stats.in_use, cached: self.stats.cached }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Reclaimer for HostPool {
    fn reclaim(&self, mem: Mem, bytes: usize) {
        let Mem::Host(HostMem { data, .. }) = mem else { return };
        let data = data.into_inner().unwrap_or_else(|p| p.into_inner());
        let mut s = self.lock();
        s.stats.in_use -= bytes;
        // Programs whose sizes keep changing would otherwise fill the memory with vectors that never fit.
        if s.stats.cached + bytes <= s.stats.peak.max(*ALWAYS_CACHED) {
            s.stats.cached += bytes;
            s.free.entry(data.key()).or_default().push(data);
        } else {
            HELD.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }

    fn release(&self, bytes: usize) {
        self.lock().stats.in_use -= bytes;
    }

    fn stream(&self) -> Option<RawStream> {
        None
    }
}

#[derive(Debug)]
struct CpuEvent(Instant);

impl BackendEvent for CpuEvent {
    fn wait_host(&self) -> Result<()> {
        Ok(())
    }

    fn elapsed_ns(&self, later: &Event) -> Result<u64> {
        match later.downcast_ref::<CpuEvent>() {
            Some(l) => Ok(l.0.saturating_duration_since(self.0).as_nanos() as u64),
            None => Err(GpuError::invalid("event", "later", "an event of the CPU", "one of another device")),
        }
    }
}

fn sized(op: &'static str, arg: &'static str, v: &View<'_>, bytes: usize) -> Result<()> {
    check::contiguous(op, arg, v)?;
    let have = v.numel() * v.dtype().size();
    if have == bytes {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, format!("{have} bytes on the host"), format!("{bytes}")))
}

const NO_COMPILER: &str = "the CPU backend compiles no kernels";

impl Kernels {
    /// A block for so many bytes.
    fn alloc(&self, dtype: DType, bytes: usize) -> Result<Block> {
        // Lengths are rounded so that blocks are found again.
        let class = size_class(bytes).ok_or_else(|| self.pool.lock().out_of_memory(bytes))?;
        let data = self.pool.alloc(dtype, class, self.shared.caps.memory_bytes, &self.shared.allocations)?;
        Ok(self.block(class, data))
    }

    /// A block of memory of the pool.
    fn block(&self, bytes: usize, data: HostData) -> Block {
        let mem = Mem::Host(HostMem { data: RwLock::new(data), write: Mutex::default() });
        Block::new(self.shared.caps.id, self.stream, bytes, mem, Some(self.pool.clone()))
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        check::copy(&src, &dst)?;
        let _timed = self.count("copy");
        with_dtype!(src.dtype(), T => copy::<T>("copy", src, &dst.grad(false)))
    }
}

impl CpuBackend {
    fn unsupported(&self, op: &'static str, why: &'static str) -> GpuError {
        GpuError::Unsupported { op, device: self.id(), why: why.into() }
    }
}

impl CoreOps for CpuBackend {
    fn id(&self) -> DeviceId {
        self.kernels.shared.caps.id
    }

    fn caps(&self) -> &Caps {
        &self.kernels.shared.caps
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer> {
        let bytes = checked_bytes("alloc", dtype, len)?;
        let block = self.kernels.alloc(dtype, bytes)?;
        self.note_block(&block);
        Ok(Buffer::new(Arc::new(block), dtype, len))
    }

    fn write_bytes(&self, dst: ViewMut<'_>, src: &[u8]) -> Result<()> {
        const OP: &str = "write_bytes";
        let v = dst.as_view();
        sized(OP, "src", &v, src.len())?;
        self.not_recorded(
            OP,
            "it copies from the host; make constants before the recording, or copy them from a buffer",
        )?;
        self.kernels.enter();
        self.kernels.shared.uploads.fetch_add(1, Ordering::Relaxed);
        let at = v.layout().offset();
        let mut guard = write(OP, &dst)?;
        with_dtype!(v.dtype(), T => {
            let s = <T as HostElement>::slice_mut(&mut guard).ok_or_else(|| wrong_storage(OP, v.dtype()))?;
            bytemuck::cast_slice_mut::<T, u8>(&mut s[at..at + v.numel()]).copy_from_slice(src);
        });
        Ok(())
    }

    fn read_bytes(&self, src: View<'_>, dst: &mut [u8]) -> Result<()> {
        const OP: &str = "read_bytes";
        sized(OP, "dst", &src, dst.len())?;
        self.not_recorded(OP, "results are there after the replay; read them then")?;
        self.kernels.shared.syncs.fetch_add(1, Ordering::Relaxed);
        if let Some(memory) = src.block().host() {
            index_errors().check(|| *memory.write.lock().unwrap_or_else(PoisonError::into_inner))?;
        }
        self.kernels.shared.downloads.fetch_add(1, Ordering::Relaxed);
        let at = src.layout().offset();
        let guard = read(OP, &src)?;
        with_dtype!(src.dtype(), T => {
            let s = <T as HostElement>::slice(&guard).ok_or_else(|| wrong_storage(OP, src.dtype()))?;
            dst.copy_from_slice(bytemuck::cast_slice::<T, u8>(&s[at..at + src.numel()]));
        });
        Ok(())
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        recorded_call!(self, copy(src: View<'_>, dst: ViewMut<'_>))
    }

    fn synchronize(&self) -> Result<()> {
        self.not_recorded("synchronize", "it reports what the calls did, which are not run yet")?;
        self.kernels.shared.syncs.fetch_add(1, Ordering::Relaxed);
        index_errors().report(self.kernels.stream)
    }

    fn fork_stream(&self) -> Result<Arc<dyn IGpuBackend>> {
        Ok(Arc::new(CpuBackend::of(self.kernels.shared.clone(), self.kernels.choices.fork())))
    }

    fn record(&self) -> Result<Event> {
        self.not_recorded("record", "an event marks one point of a stream, not one of every replay")?;
        Ok(Event::new(CpuEvent(Instant::now())))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.not_recorded("wait", "an event passes once, not in every replay")?;
        event.synchronize()
    }

    fn adopt(&self, buffer: Buffer) -> Result<Buffer> {
        self.not_recorded("adopt", "what a graph uses stays with its handle")?;
        // Work is done when a call returns, so any handle may use any buffer of the CPU.
        if buffer.device() == self.id() {
            return Ok(buffer);
        }
        let got = format!("one on {}", buffer.device());
        Err(GpuError::invalid("adopt", "buffer", "a buffer of the CPU backend", got))
    }

    fn counters(&self) -> Counters {
        let s = &self.kernels.shared;
        Counters {
            launches: s.launches.load(Ordering::Relaxed),
            uploads: s.uploads.load(Ordering::Relaxed),
            downloads: s.downloads.load(Ordering::Relaxed),
            compiles: 0,
            allocations: s.allocations.load(Ordering::Relaxed),
            syncs: s.syncs.load(Ordering::Relaxed),
        }
    }

    fn memory(&self) -> MemoryStats {
        self.kernels.pool.lock().stats
    }

    fn reset_peak(&self) {
        let mut s = self.kernels.pool.lock();
        s.stats.peak = s.stats.in_use;
    }

    fn trim(&self) -> Result<()> {
        self.not_recorded("trim", "memory is given back once, not in every replay")?;
        self.kernels.pool.lock().flush();
        Ok(())
    }

    fn warmup(&self, _families: &[Family]) -> Result<()> {
        Ok(())
    }

    fn explain(&self, op: &str) -> Result<Choice> {
        let Some(info) = all_ops().find(|o| o.name == op) else {
            let known: Vec<_> = all_ops().map(|o| o.name).collect();
            return Err(GpuError::Config(
                format!("unknown operation `{op}`; known: {}", known.join(", ")).into(),
            ));
        };
        let (choices, caps) = (&self.kernels.choices, self.caps());
        if info.name == "capture_calls" {
            return choices.explain(info.name, caps, &Replay);
        }
        if vector::OPERATIONS.contains(&info.name) {
            return choices.explain(info.name, caps, &vector::Arithmetic::F32);
        }
        let source = format!("src/cpu/{}", info.family.name());
        Ok(Choice::new(info.name, vector::REFERENCE.into(), source))
    }

    #[allow(unsafe_code, reason = "the trait's method is unsafe; this one compiles nothing")]
    unsafe fn compile_raw(&self, _source: &str, _entry: &str, _dtype: DType) -> Result<RawKernel> {
        Err(self.unsupported("compile_raw", NO_COMPILER))
    }

    fn launch_raw(&self, _kernel: &RawKernel, _grid: [u32; 3], _args: &mut [RawArg<'_>]) -> Result<()> {
        Err(self.unsupported("launch_raw", NO_COMPILER))
    }
}
