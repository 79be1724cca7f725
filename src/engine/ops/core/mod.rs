//! Memory, copies, streams, events and introspection.

mod capture;
mod interop;

use crate::spec::user::{UserKind, UserParameter, user_prototype};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::buffer::{Block, Buffer, Mem, View, ViewMut};
use crate::device::{Caps, DeviceId};
use crate::driver::{Arg, Driver, LaunchConfig, RawEvent, RawFunction};
use crate::dtype::DType;
use crate::engine::capture::{About, output_bits};
use crate::engine::launch::{MAX_GRID_YZ, memory_of};
use crate::engine::{Engine, program};
use crate::error::{GpuError, Result};
use crate::ops::IGpuBackend;
use crate::ops::core::{BackendEvent, Choice, CoreOps, Counters, Event, MemoryStats, RawArg, RawKernel};
use crate::ops::{Family, all_ops, check};
use crate::spec::{BLOCK, Role, all_units};

#[derive(Debug)]
struct DriverEvent {
    driver: Arc<dyn Driver>,
    raw: RawEvent,
}

impl BackendEvent for DriverEvent {
    fn wait_host(&self) -> Result<()> {
        // SAFETY: this object holds the driver's event alive.
        unsafe { self.driver.event_synchronize(self.raw) }
    }

    fn elapsed_ns(&self, later: &Event) -> Result<u64> {
        let later = same_device(self, later)?;
        // SAFETY: both objects hold events of this driver alive.
        unsafe { self.driver.elapsed_ns(self.raw, later.raw) }
    }
}

impl Drop for DriverEvent {
    fn drop(&mut self) {
        // SAFETY: this was the last holder of the event.
        unsafe { self.driver.destroy_event(self.raw) };
    }
}

fn same_device<'a>(e: &DriverEvent, other: &'a Event) -> Result<&'a DriverEvent> {
    match other.downcast_ref::<DriverEvent>() {
        Some(o) if Arc::ptr_eq(&o.driver, &e.driver) => Ok(o),
        _ => Err(GpuError::invalid("event", "later", "an event of the same device", "one of another device")),
    }
}

/// A user's kernel.
struct UserKernel {
    driver: Arc<dyn Driver>,
    function: RawFunction,
    entry: String,
    parameters: Vec<UserParameter>,
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
        self.check_owner("write_bytes", "dst", &v)?;
        sized("write_bytes", "src", &v, src.len())?;
        self.recorded(
            "write_bytes",
            "it copies from the host; make constants before the recording, or copy them from a buffer",
        )?;
        let (Some(raw), false) = (v.block().raw(), src.is_empty()) else { return Ok(()) };
        self.inner.device.counts.uploads.fetch_add(1, Ordering::Relaxed);
        self.wrote([raw]);
        // SAFETY: `check_owner` and `sized` showed that the range is live memory of this driver, whose stream it is.
        unsafe { self.driver().copy_in(self.inner.stream, raw, byte_offset(&v), src) }
            .map_err(|e| self.refused(e))
    }

    fn read_bytes(&self, src: View<'_>, dst: &mut [u8]) -> Result<()> {
        self.check_owner("read_bytes", "src", &src)?;
        sized("read_bytes", "dst", &src, dst.len())?;
        self.recorded("read_bytes", "it waits for the device; read results after the replay")?;
        self.wait_idle()?;
        let (Some(raw), false) = (src.block().raw(), dst.is_empty()) else { return Ok(()) };
        let d = &self.inner.device;
        d.index_errors.check(|| d.writes.last(raw))?;
        d.counts.downloads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `check_owner` and `sized` showed that the range is live memory of this driver, whose stream it is.
        unsafe { self.driver().copy_out(self.inner.stream, raw, byte_offset(&src), dst) }
            .map_err(|e| self.refused(e))
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        check::copy(&src, &dst)?;
        self.check_poison()?;
        self.check_owner("copy", "src", &src)?;
        let d = dst.as_view();
        self.check_owner("copy", "dst", &d)?;
        let (Some(from), Some(to), false) = (src.block().raw(), d.block().raw(), src.numel() == 0) else {
            return Ok(());
        };
        let bytes = src.numel() * src.dtype().size();
        self.wrote([to]);
        self.queue_copy((from, byte_offset(&src)), (to, byte_offset(&d)), bytes)
    }

    fn synchronize(&self) -> Result<()> {
        self.recorded("synchronize", "it waits for the device")?;
        self.wait_idle()?;
        self.inner.device.index_errors.report(self.inner.stream_id)
    }

    fn fork_stream(&self) -> Result<Arc<dyn IGpuBackend>> {
        Ok(Arc::new(Engine::on(self.inner.device.clone(), None, self.inner.choices.fork())?))
    }

    fn record(&self) -> Result<Event> {
        self.check_poison()?;
        self.recorded("record", "an event marks one point of a stream, not one of every replay")?;
        // SAFETY: the stream is the driver's and lives as long as the pool.
        let raw = unsafe { self.driver().record(self.inner.stream) }.map_err(|e| self.refused(e))?;
        Ok(Event::new(DriverEvent { driver: self.driver().clone(), raw }))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.recorded("wait", "an event passes once, not in every replay")?;
        let mine = event.downcast_ref::<DriverEvent>();
        match mine.filter(|e| Arc::ptr_eq(&e.driver, self.driver())) {
            // SAFETY: stream and event are this driver's, and both are held alive.
            Some(e) => unsafe { self.driver().wait(self.inner.stream, e.raw) }.map_err(|e| self.refused(e)),
            None => {
                Err(GpuError::invalid("wait", "event", "an event of this device", "one of another device"))
            }
        }
    }

    fn adopt(&self, buffer: Buffer) -> Result<Buffer> {
        self.recorded("adopt", "it waits for work of another stream")?;
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
        if block.is_lent() {
            let got = "one that a recording allocated, which its graph writes";
            return Err(GpuError::invalid("adopt", "buffer", "a buffer of a handle's pool", got));
        }
        if block.pool_driver().is_some_and(|d| !Arc::ptr_eq(d, self.driver())) {
            let got = format!("one of a {id} that was opened apart");
            return Err(GpuError::invalid(
                "adopt",
                "buffer",
                "a buffer of a handle forked from this one",
                got,
            ));
        }
        // Work of the former stream is waited for first: if that fails, the block goes back to its pool.
        if let Some(stream) = block.pool_stream() {
            // SAFETY: both streams are of this driver, as has been checked, and held alive by their pools; the event is not used after the
            // wait has been queued.
            unsafe {
                let e = self.driver().record(stream).map_err(|e| self.refused(e))?;
                let waited = self.driver().wait(self.inner.stream, e);
                self.driver().destroy_event(e);
                waited.map_err(|e| self.refused(e))?;
            }
        }
        let (mem, bytes, former) = block.take();
        let Some(mem) = mem else { return self.alloc_buffer(dtype, len) };
        if let (Mem::Device(_), Some(former)) = (&mem, former) {
            former.release(bytes);
            self.inner.pool.receive(bytes);
        }
        let block = Block::new(id, self.inner.stream_id, bytes, mem, Some(self.inner.pool.clone()));
        Ok(Buffer::new(Arc::new(block), dtype, len))
    }

    fn counters(&self) -> Counters {
        self.inner.device.counts.snapshot()
    }

    fn memory(&self) -> MemoryStats {
        self.inner.pool.stats()
    }

    fn reset_peak(&self) {
        self.inner.pool.reset_peak();
    }

    fn trim(&self) -> Result<()> {
        self.recorded("trim", "it waits for the device")?;
        self.inner.tables.lock().unwrap_or_else(|p| p.into_inner()).clear();
        self.inner.pool.trim()
    }

    fn warmup(&self, families: &[Family]) -> Result<()> {
        let files: Vec<_> =
            crate::spec::all_kernels().filter(|k| families.contains(&k.family)).map(|k| k.file).collect();
        let d = &self.inner.device;
        for unit in all_units().into_iter().filter(|u| u.dtype == DType::F32 && files.contains(&u.file)) {
            let mut compiled = 0;
            let done = d.programs.prepare(&*d.driver, unit, &mut compiled);
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

    unsafe fn compile_raw(&self, source: &str, entry: &str, dtype: DType) -> Result<RawKernel> {
        self.check_poison()?;
        let parameters = user_prototype(source, entry, dtype).map_err(|e| {
            GpuError::invalid(
                "compile_raw",
                "source",
                format!("one GK_KERNEL({entry}) with parameters of a launch"),
                e,
            )
        })?;
        let d = &self.inner.device;
        let text = program::assemble_text(dtype, "", program::Dialect::of(&*d.driver), "user.c", source)
            .map_err(|e| GpuError::invalid("compile_raw", "source", "text whose includes resolve", e))?;
        let mut compiled = 0;
        let function = d.programs.user_function(&*d.driver, &text, entry, &mut compiled);
        d.counts.compiles.fetch_add(compiled, Ordering::Relaxed);
        let (driver, entry) = (d.driver.clone(), entry.to_string());
        Ok(RawKernel::new(UserKernel { driver, function: function?, entry, parameters }))
    }

    fn launch_raw(&self, kernel: &RawKernel, grid: [u32; 3], args: &mut [RawArg<'_>]) -> Result<()> {
        const OP: &str = "launch_raw";
        self.check_poison()?;
        let k = kernel.downcast_ref::<UserKernel>().filter(|k| Arc::ptr_eq(&k.driver, self.driver()));
        let Some(k) = k else {
            return Err(GpuError::invalid(OP, "kernel", "a kernel of this device", "one of another device"));
        };
        let most = [i32::MAX as u32, MAX_GRID_YZ as u32, MAX_GRID_YZ as u32];
        if grid.iter().zip(most).any(|(&n, most)| n == 0 || n > most) {
            return Err(GpuError::invalid(OP, "grid", format!("1 to {most:?} blocks"), format!("{grid:?}")));
        }
        let list = self.user_arguments(&k.parameters, args)?;
        let outputs = k.parameters.iter().zip(&list).filter(|(p, _)| matches!(p.kind, UserKind::Out(_)));
        self.wrote(outputs.filter_map(|(_, arg)| memory_of(arg)));
        let written = k.parameters.iter().map(|p| matches!(p.kind, UserKind::Out(_)));
        let about = About { known: None, outputs: output_bits(written) };
        self.enqueue(k.function, &k.entry, &LaunchConfig::new(grid, [BLOCK, 1, 1]), &list, about)
    }
}

impl Engine {
    /// The arguments of a user's kernel, checked against its parameters.
    fn user_arguments(&self, parameters: &[UserParameter], args: &[RawArg<'_>]) -> Result<Vec<Arg<'static>>> {
        let wanted = parameters.iter().filter(|p| !matches!(p.kind, UserKind::LengthOf(_)));
        if wanted.clone().count() != args.len() {
            let names: Vec<_> = wanted.map(|p| p.name.as_str()).collect();
            let expected = format!("{} arguments: {}", names.len(), names.join(", "));
            return Err(GpuError::invalid("launch_raw", "args", expected, format!("{}", args.len())));
        }
        apart(args)?;
        let (mut given, mut lengths, mut list) = (args.iter(), vec![0; parameters.len()], vec![]);
        for (i, p) in parameters.iter().enumerate() {
            if let UserKind::LengthOf(buffer) = p.kind {
                list.push(Arg::I64(lengths[buffer] as i64));
                continue;
            }
            let Some(arg) = given.next() else { break };
            if let Some(v) = view_of(arg) {
                self.check_owner("launch_raw", "args", &v)?;
                check::contiguous("launch_raw", "args", &v)?;
                lengths[i] = v.numel();
            }
            list.push(self.user_argument(p, arg)?);
        }
        Ok(list)
    }

    /// One argument, if it is of the parameter's type.
    fn user_argument(&self, p: &UserParameter, arg: &RawArg<'_>) -> Result<Arg<'static>> {
        Ok(match (p.kind, arg) {
            (UserKind::In(d), RawArg::In(v)) if v.dtype() == d => Arg::Mem(self.arg_in(v).0),
            (UserKind::Out(d), RawArg::Out(v)) if v.dtype() == d => Arg::Mem(self.arg_out(v).0),
            (UserKind::Scalar(Role::I32), RawArg::I32(x)) => Arg::I32(*x),
            (UserKind::Scalar(Role::U32), RawArg::U32(x)) => Arg::U32(*x),
            (UserKind::Scalar(Role::I64), RawArg::I64(x)) => Arg::I64(*x),
            (UserKind::Scalar(Role::F32), RawArg::F32(x)) => Arg::F32(*x),
            (UserKind::Scalar(Role::Real), RawArg::F64(x)) => Arg::F64(*x),
            (kind, arg) => {
                let got = match arg {
                    RawArg::In(v) => format!("In({})", v.dtype()),
                    RawArg::Out(v) => format!("Out({})", v.dtype()),
                    scalar => format!("{scalar:?}"),
                };
                return Err(GpuError::invalid(
                    "launch_raw",
                    "args",
                    format!("{kind:?} for `{}`", p.name),
                    got,
                ));
            }
        })
    }
}

fn view_of<'a>(arg: &RawArg<'a>) -> Option<View<'a>> {
    match arg {
        RawArg::In(v) => Some(*v),
        RawArg::Out(v) => Some(v.as_view()),
        _ => None,
    }
}

/// Refuses an output that shares memory with another argument.
fn apart(args: &[RawArg<'_>]) -> Result<()> {
    for (i, a) in args.iter().enumerate() {
        let RawArg::Out(out) = a else { continue };
        let others = args.iter().enumerate().filter(|&(j, _)| j != i).filter_map(|(_, b)| view_of(b));
        for other in others {
            check::separate_output("launch_raw", "args", out, &[("another argument", other)])?;
        }
    }
    Ok(())
}
