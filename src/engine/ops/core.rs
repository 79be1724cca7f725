//! Memory, copies, streams, events and introspection.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::IGpuBackend;
use crate::buffer::{Block, Buffer, View, ViewMut};
use crate::device::{Caps, DeviceId};
use crate::driver::{Arg, Driver, LaunchConfig, RawEvent, RawFunction};
use crate::dtype::DType;
use crate::engine::{Engine, program};
use crate::error::{GpuError, Result};
use crate::ops::{
    Choice, CoreOps, Counters, Event, EventImpl, Family, MemoryStats, RawArg, RawKernel, all_ops, check,
};
use crate::spec::{BLOCK, all_units};

#[derive(Debug)]
struct DriverEvent {
    driver: Arc<dyn Driver>,
    raw: RawEvent,
}

impl EventImpl for DriverEvent {
    fn wait_host(&self) -> Result<()> {
        self.driver.event_synchronize(self.raw)
    }

    fn elapsed_ns(&self, later: &dyn EventImpl) -> Result<u64> {
        let later = same_device(self, later)?;
        self.driver.elapsed_ns(self.raw, later.raw)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for DriverEvent {
    fn drop(&mut self) {
        // SAFETY: this was the last holder of the event.
        unsafe { self.driver.destroy_event(self.raw) };
    }
}

fn same_device<'a>(e: &DriverEvent, other: &'a dyn EventImpl) -> Result<&'a DriverEvent> {
    match other.as_any().downcast_ref::<DriverEvent>() {
        Some(o) if Arc::ptr_eq(&o.driver, &e.driver) => Ok(o),
        _ => Err(GpuError::invalid("event", "later", "an event of the same device", "one of another device")),
    }
}

/// A user's kernel.
struct UserKernel {
    driver: Arc<dyn Driver>,
    function: RawFunction,
    entry: String,
}

fn sized(op: &'static str, arg: &'static str, v: &View<'_>, bytes: usize) -> Result<()> {
    check::contiguous(op, arg, v)?;
    let have = v.numel() * v.dtype().size();
    if have == bytes {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, format!("{have} bytes on the host"), format!("{bytes}")))
}

fn byte_offset(v: &View<'_>) -> u64 {
    (v.layout().offset() * v.dtype().size()) as u64
}

impl CoreOps for Engine {
    fn id(&self) -> DeviceId {
        self.device_caps().id
    }

    fn caps(&self) -> &Caps {
        self.device_caps()
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer> {
        self.alloc_buffer(dtype, len)
    }

    fn write_bytes(&self, dst: ViewMut<'_>, src: &[u8]) -> Result<()> {
        let v = dst.as_view();
        self.check_poison()?;
        self.own("write_bytes", "dst", &v)?;
        sized("write_bytes", "src", &v, src.len())?;
        let (Some(raw), false) = (v.block().raw(), src.is_empty()) else { return Ok(()) };
        self.inner.device.counts.uploads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `own` and `sized` showed that the range is live memory of this driver.
        unsafe { self.driver().copy_in(self.inner.stream, raw, byte_offset(&v), src) }
            .map_err(|e| self.poison(e))
    }

    fn read_bytes(&self, src: View<'_>, dst: &mut [u8]) -> Result<()> {
        self.own("read_bytes", "src", &src)?;
        sized("read_bytes", "dst", &src, dst.len())?;
        self.wait_idle()?;
        let (Some(raw), false) = (src.block().raw(), dst.is_empty()) else { return Ok(()) };
        self.inner.device.counts.downloads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `own` and `sized` showed that the range is live memory of this driver.
        unsafe { self.driver().copy_out(self.inner.stream, raw, byte_offset(&src), dst) }
            .map_err(|e| self.poison(e))
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        check::copy(&src, &dst)?;
        self.check_poison()?;
        self.own("copy", "src", &src)?;
        let d = dst.as_view();
        self.own("copy", "dst", &d)?;
        let (Some(from), Some(to), false) = (src.block().raw(), d.block().raw(), src.numel() == 0) else {
            return Ok(());
        };
        let bytes = src.numel() * src.dtype().size();
        // SAFETY: both ranges are live memory of this driver and were shown not to overlap.
        unsafe {
            self.driver().copy(self.inner.stream, (from, byte_offset(&src)), (to, byte_offset(&d)), bytes)
        }
        .map_err(|e| self.poison(e))
    }

    fn synchronize(&self) -> Result<()> {
        self.wait_idle()
    }

    fn fork_stream(&self) -> Result<Arc<dyn IGpuBackend>> {
        Ok(Arc::new(Engine::on(self.inner.device.clone())?))
    }

    fn record(&self) -> Result<Event> {
        self.check_poison()?;
        let raw = self.driver().record(self.inner.stream).map_err(|e| self.poison(e))?;
        Ok(Event(Arc::new(DriverEvent { driver: self.driver().clone(), raw })))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let mine = event.0.as_any().downcast_ref::<DriverEvent>();
        match mine.filter(|e| Arc::ptr_eq(&e.driver, self.driver())) {
            Some(e) => self.driver().wait(self.inner.stream, e.raw).map_err(|e| self.poison(e)),
            None => {
                Err(GpuError::invalid("wait", "event", "an event of this device", "one of another device"))
            }
        }
    }

    fn adopt(&self, buffer: Buffer) -> Result<Buffer> {
        let (dtype, len, id) = (buffer.dtype(), buffer.len(), self.id());
        if buffer.device() != id || buffer.view().block().raw().is_none() {
            let got = format!("one on {}", buffer.device());
            return Err(GpuError::invalid("adopt", "buffer", format!("a buffer on {id}"), got));
        }
        let Some(block) = buffer.into_block() else {
            return Err(GpuError::invalid(
                "adopt",
                "buffer",
                "a buffer that nothing else holds",
                "a shared one",
            ));
        };
        let (mem, bytes, home) = block.take();
        let Some(mem) = mem else { return self.alloc_buffer(dtype, len) };
        // The former stream is waited for through its pool, which moves the accounting over.
        if let Some(home) = &home {
            home.release(bytes);
            if let Some(stream) = home.stream() {
                let e = self.driver().record(stream)?;
                let waited = self.driver().wait(self.inner.stream, e);
                // SAFETY: the event was recorded above and the wait has been queued.
                unsafe { self.driver().destroy_event(e) };
                waited?;
            }
            self.inner.pool.receive(bytes);
        }
        let home = home.map(|_| self.inner.pool.clone() as Arc<dyn crate::buffer::Home>);
        let block = Block::new(id, self.inner.stream_id, bytes, mem, home);
        Ok(Buffer::new(Arc::new(block), dtype, len))
    }

    fn counters(&self) -> Counters {
        self.inner.device.counts.snapshot()
    }

    fn memory(&self) -> MemoryStats {
        self.inner.pool.stats()
    }

    fn trim(&self) -> Result<()> {
        self.inner.tables.lock().unwrap_or_else(|p| p.into_inner()).clear();
        self.inner.pool.trim()
    }

    fn warmup(&self, families: &[Family]) -> Result<()> {
        let files: Vec<_> =
            crate::spec::all_kernels().filter(|k| families.contains(&k.family)).map(|k| k.file).collect();
        let d = &self.inner.device;
        for unit in all_units().into_iter().filter(|u| u.dtype == DType::F32 && files.contains(&u.file)) {
            let mut compiled = 0;
            let done = d.programs.module(&*d.driver, unit, &mut compiled);
            d.counts.compiles.fetch_add(compiled, Ordering::Relaxed);
            done?;
        }
        Ok(())
    }

    fn explain(&self, op: &str) -> Result<Choice> {
        let Some(info) = all_ops().find(|o| o.name == op) else {
            let known: Vec<_> = all_ops().map(|o| o.name).collect();
            return Err(GpuError::Config(
                format!("unknown operation `{op}`; known: {}", known.join(", ")).into(),
            ));
        };
        self.explain_op(info)
    }

    fn compile_raw(&self, source: &str, entry: &str, dtype: DType) -> Result<RawKernel> {
        self.check_poison()?;
        let d = &self.inner.device;
        let text = program::assemble_text(dtype, "", d.driver.dialect(), "user.c", source)
            .map_err(|e| GpuError::invalid("compile_raw", "source", "text whose includes resolve", e))?;
        let mut compiled = 0;
        let module = d.programs.build(&*d.driver, &format!("user kernel {entry}"), &text, &mut compiled);
        d.counts.compiles.fetch_add(compiled, Ordering::Relaxed);
        let function = d.driver.function(module?, entry)?;
        Ok(RawKernel(Arc::new(UserKernel { driver: d.driver.clone(), function, entry: entry.into() })))
    }

    fn launch_raw(&self, kernel: &RawKernel, grid: [u32; 3], args: &mut [RawArg<'_>]) -> Result<()> {
        self.check_poison()?;
        let k = kernel.0.downcast_ref::<UserKernel>().filter(|k| Arc::ptr_eq(&k.driver, self.driver()));
        let Some(k) = k else {
            return Err(GpuError::invalid(
                "launch_raw",
                "kernel",
                "a kernel of this device",
                "one of another device",
            ));
        };
        if grid.contains(&0) {
            return Err(GpuError::invalid(
                "launch_raw",
                "grid",
                "at least one block per axis",
                format!("{grid:?}"),
            ));
        }
        let mut list = Vec::with_capacity(args.len());
        for a in args.iter() {
            list.push(match a {
                RawArg::In(v) => {
                    self.own("launch_raw", "args", v)?;
                    self.arg_in(v)
                }
                RawArg::Out(v) => {
                    self.own("launch_raw", "args", &v.as_view())?;
                    self.arg_out(v)
                }
                RawArg::I32(x) => Arg::I32(*x),
                RawArg::I64(x) => Arg::I64(*x),
                RawArg::F32(x) => Arg::F32(*x),
            });
        }
        let d = &self.inner.device;
        d.counts.launches.fetch_add(1, Ordering::Relaxed);
        let cfg = LaunchConfig { grid, block: [BLOCK, 1, 1] };
        // SAFETY: the kernel's author vouches for the argument list and the range of its accesses, as the method's documentation says.
        unsafe { d.driver.launch(self.inner.stream, k.function, &cfg, &list) }.map_err(|e| self.poison(e))?;
        if d.sync_each {
            d.driver.synchronize(self.inner.stream).map_err(|e| self.poison(e))?;
        }
        log::trace!("launched user kernel {}", k.entry);
        Ok(())
    }
}
