//! Memory, copies and introspection.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use half::{bf16, f16};

use super::{CpuBackend, HostElement, read, with_dtype, write, wrong_storage};
use crate::backend::IGpuBackend;
use crate::buffer::{Block, Buffer, Home, HostData, Mem, View, ViewMut};
use crate::device::{Caps, DeviceId};
use crate::driver::RawStream;
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::*;

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
    fn zeroed(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F32 => HostData::F32(vec![0.0; len]),
            DType::F16 => HostData::F16(vec![f16::ZERO; len]),
            DType::Bf16 => HostData::Bf16(vec![bf16::ZERO; len]),
            DType::F64 => HostData::F64(vec![0.0; len]),
            DType::I32 => HostData::I32(vec![0; len]),
            DType::I64 => HostData::I64(vec![0; len]),
            DType::U8 => HostData::U8(vec![0; len]),
        }
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

impl HostPool {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }
}

impl Home for HostPool {
    fn reclaim(&self, mem: Mem, bytes: usize) {
        let Mem::Host(data) = mem else { return };
        let data = data.into_inner().unwrap_or_else(|p| p.into_inner());
        let mut s = self.lock();
        s.stats.in_use -= bytes;
        s.stats.cached += bytes;
        s.free.entry(data.key()).or_default().push(data);
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

impl EventImpl for CpuEvent {
    fn wait_host(&self) -> Result<()> {
        Ok(())
    }

    fn elapsed_ns(&self, later: &dyn EventImpl) -> Result<u64> {
        match later.as_any().downcast_ref::<CpuEvent>() {
            Some(l) => Ok(l.0.saturating_duration_since(self.0).as_nanos() as u64),
            None => Err(GpuError::invalid("event", "later", "an event of the CPU", "one of another device")),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
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

impl CpuBackend {
    /// Reports and clears a pending index error, as every waiting call does.
    fn settle(&self) -> Result<()> {
        self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        let mut e = self.shared.index_error.lock().unwrap_or_else(|p| p.into_inner());
        e.take().map_or(Ok(()), |op| Err(GpuError::IndexOutOfRange { op }))
    }

    fn unsupported(&self, op: &'static str) -> GpuError {
        GpuError::Unsupported { op, device: self.id(), why: "the CPU backend compiles no kernels".into() }
    }
}

impl CoreOps for CpuBackend {
    fn id(&self) -> DeviceId {
        self.shared.caps.id
    }

    fn caps(&self) -> &Caps {
        &self.shared.caps
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer> {
        // Lengths are rounded so that blocks are found again; a request that no vector can hold is out of memory.
        let size = dtype.size();
        let class = len.checked_mul(size).map_or(usize::MAX, crate::engine::pool::size_class);
        let mut s = self.pool.lock();
        if class > isize::MAX as usize {
            let (in_use, cached) = (s.stats.in_use, s.stats.cached);
            return Err(GpuError::OutOfMemory { requested: class, in_use, cached });
        }
        let data = match s.free.get_mut(&(dtype, class / size)).and_then(Vec::pop) {
            Some(d) => {
                s.stats.cached -= class;
                d
            }
            None => {
                self.shared.allocations.fetch_add(1, Ordering::Relaxed);
                let mut probe = Vec::<u8>::new();
                if probe.try_reserve_exact(class).is_err() {
                    let (in_use, cached) = (s.stats.in_use, s.stats.cached);
                    return Err(GpuError::OutOfMemory { requested: class, in_use, cached });
                }
                drop(probe);
                HostData::zeroed(dtype, class / size)
            }
        };
        s.stats.in_use += class;
        s.stats.peak = s.stats.peak.max(s.stats.in_use);
        drop(s);
        let mem = Mem::Host(RwLock::new(data));
        let block = Block::new(self.id(), self.stream, class, mem, Some(self.pool.clone()));
        Ok(Buffer::new(Arc::new(block), dtype, len))
    }

    fn write_bytes(&self, dst: ViewMut<'_>, src: &[u8]) -> Result<()> {
        const OP: &str = "write_bytes";
        let v = dst.as_view();
        sized(OP, "src", &v, src.len())?;
        self.shared.uploads.fetch_add(1, Ordering::Relaxed);
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
        self.settle()?;
        self.shared.downloads.fetch_add(1, Ordering::Relaxed);
        let at = src.layout().offset();
        let guard = read(OP, &src)?;
        with_dtype!(src.dtype(), T => {
            let s = <T as HostElement>::slice(&guard).ok_or_else(|| wrong_storage(OP, src.dtype()))?;
            dst.copy_from_slice(bytemuck::cast_slice::<T, u8>(&s[at..at + src.numel()]));
        });
        Ok(())
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        check::copy(&src, &dst)?;
        self.count();
        with_dtype!(src.dtype(), T => super::store::<T>("copy", &dst, &super::gather::<T>("copy", src)?))
    }

    fn synchronize(&self) -> Result<()> {
        self.settle()
    }

    fn fork_stream(&self) -> Result<Arc<dyn IGpuBackend>> {
        let stream = self.shared.streams.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(CpuBackend { shared: self.shared.clone(), pool: Arc::default(), stream }))
    }

    fn record(&self) -> Result<Event> {
        Ok(Event(Arc::new(CpuEvent(Instant::now()))))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        event.synchronize()
    }

    fn adopt(&self, buffer: Buffer) -> Result<Buffer> {
        // Work is done when a call returns, so any handle may use any buffer of the CPU.
        if buffer.device() == self.id() {
            return Ok(buffer);
        }
        let got = format!("one on {}", buffer.device());
        Err(GpuError::invalid("adopt", "buffer", "a buffer of the CPU backend", got))
    }

    fn counters(&self) -> Counters {
        let s = &self.shared;
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
        self.pool.lock().stats
    }

    fn trim(&self) -> Result<()> {
        let mut s = self.pool.lock();
        s.free.clear();
        s.stats.cached = 0;
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
        let source = format!("src/cpu/{}.rs", format!("{:?}", info.family).to_lowercase());
        Ok(Choice { op: info.name, chosen: "cpu".into(), source, rejected: vec![] })
    }

    fn compile_raw(&self, _source: &str, _entry: &str, _dtype: DType) -> Result<RawKernel> {
        Err(self.unsupported("compile_raw"))
    }

    fn launch_raw(&self, _kernel: &RawKernel, _grid: [u32; 3], _args: &mut [RawArg<'_>]) -> Result<()> {
        Err(self.unsupported("launch_raw"))
    }
}
