//! OpenCL 1.2 through the system's ICD loader.
//!
//! Memory is a `cl_mem`; a kernel gets it as two arguments, the object and a byte offset, because sub-buffers must begin at multiples of the
//! device's base alignment. Streams are in-order queues with profiling, so that events carry time stamps.

mod clblast;
mod probe;
mod program;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use opencl3::command_queue as queue;
use opencl3::error_codes::error_text;
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING, cl_command_queue, cl_event, cl_int, cl_kernel, cl_mem};
use opencl3::{event, kernel, memory};

use super::{
    Arg, CompileUnit, Driver, LaunchConfig, RawContext, RawDevice, RawEvent, RawFunction, RawMem, RawModule,
    RawStream, VendorBlas, refuse_cooperative, refuse_maps,
};
use crate::device::{BackendKind, Caps};
use crate::error::{GpuError, Result};

use clblast::Clblast;
#[cfg(test)]
pub(crate) use clblast::tests::copy_early;
pub(crate) use probe::probe;

const DEVICE_NOT_AVAILABLE: cl_int = -2;
const MEM_OBJECT_ALLOCATION_FAILURE: cl_int = -4;
const OUT_OF_RESOURCES: cl_int = -5;
const OUT_OF_HOST_MEMORY: cl_int = -6;
const INVALID_CONTEXT: cl_int = -34;
const INVALID_COMMAND_QUEUE: cl_int = -36;
const INVALID_BUFFER_SIZE: cl_int = -61;
/// NVIDIA's status after a kernel has touched memory that is not its own.
const NVIDIA_ILLEGAL_ACCESS: cl_int = -9999;

/// Copies from the host up to this size are staged on GPUs, so that the caller does not wait for queued kernels.
const STAGE_LIMIT: usize = 4 << 20;
/// Staged bytes that may wait for the device at any time.
const STAGE_TOTAL: usize = 64 << 20;

/// One OpenCL device.
#[derive(Debug)]
pub(crate) struct OpenClDriver {
    enqueue: probe::EnqueueKernel,
    caps: Caps,
    compiler_id: String,
    options: String,
    /// `cl_device_id`
    device: u64,
    /// `cl_context`, of which the driver holds one reference.
    context: u64,
    /// Device and queue of somebody else of which the driver holds one reference each.
    adopted: Option<(u64, u64)>,
    /// `cl_program` of images that were compiled here and not loaded yet.
    built: Mutex<HashMap<Vec<u8>, u64>>,
    /// `cl_program` of every loaded module.
    programs: Mutex<Vec<u64>>,
    /// `cl_kernel` of every function that was handed out.
    kernels: Mutex<Vec<u64>>,
    /// A kernel object holds its arguments until it is queued: setting them and queueing is one step.
    launching: Mutex<()>,
    staged: Mutex<Staged>,
    stage_writes: bool,
    blas: OnceLock<std::result::Result<Clblast, String>>,
}

/// Host copies of writes that the device has not yet finished, oldest first.
#[derive(Debug, Default)]
struct Staged {
    writes: VecDeque<(u64, Box<[u8]>)>,
    bytes: usize,
}

impl Staged {
    /// Frees the copies whose write is done; with `all`, waits for every write.
    fn reap(&mut self, all: bool) {
        while let Some((e, data)) = self.writes.front() {
            let e = *e as cl_event;
            let done = if all {
                // A failed write is as done as a completed one.
                let _ = event::wait_for_events(&[e]);
                true
            } else {
                let status = event::get_event_data(e, event::CL_EVENT_COMMAND_EXECUTION_STATUS);
                status.is_ok_and(|b| probe::number(&b) as cl_int <= 0)
            };
            if !done {
                break;
            }
            self.bytes -= data.len();
            self.writes.pop_front();
            release_event(e);
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Error of a call; running out of memory may also show up when a lazily made buffer is first used.
fn failure(call: &'static str, code: cl_int) -> GpuError {
    match code {
        MEM_OBJECT_ALLOCATION_FAILURE | OUT_OF_HOST_MEMORY => {
            GpuError::OutOfMemory { requested: 0, in_use: 0, cached: 0 }
        }
        DEVICE_NOT_AVAILABLE | INVALID_CONTEXT | INVALID_COMMAND_QUEUE | NVIDIA_ILLEGAL_ACCESS => {
            GpuError::driver_fatal(call, code.into(), error_text(code))
        }
        _ => GpuError::driver(call, code.into(), error_text(code)),
    }
}

/// Error of a call that waits: queued work failed, and what depends on it is lost.
fn waiting_failure(call: &'static str, code: cl_int) -> GpuError {
    match failure(call, code) {
        GpuError::Driver(mut d) => {
            d.fatal = true;
            GpuError::Driver(d)
        }
        e => e,
    }
}

fn release_event(e: cl_event) {
    // SAFETY: each event is released once, by whoever holds it.
    let _ = unsafe { event::release_event(e) };
}

/// Drops the event that a call returned.
fn done(call: &'static str, r: std::result::Result<cl_event, cl_int>) -> Result<()> {
    r.map(release_event).map_err(|c| failure(call, c))
}

fn set_arg(k: cl_kernel, index: &mut u32, value: &[u8]) -> Result<()> {
    // SAFETY: the value is plain data of exactly this size and is copied by the call.
    unsafe { kernel::set_kernel_arg(k, *index, value.len(), value.as_ptr().cast()) }
        .map_err(|c| failure("clSetKernelArg", c))?;
    *index += 1;
    Ok(())
}

impl OpenClDriver {
    /// Opens the device at this position of [`probe`]'s list.
    pub(crate) fn open(ordinal: u32) -> Result<Self> {
        let unavailable = |r| GpuError::unavailable(BackendKind::OpenCl, r);
        let found = probe::device(ordinal).map_err(unavailable)?;
        let context = opencl3::context::context::create_context(
            &[found.device as _],
            ptr::null(),
            None,
            ptr::null_mut(),
        )
        .map_err(|c| failure("clCreateContext", c))?;
        OpenClDriver::on(found, context as u64)
    }

    /// The driver of a device; it takes over a reference of the context.
    fn on(found: probe::Found, context: u64) -> Result<Self> {
        Ok(OpenClDriver {
            enqueue: probe::library().map_err(|r| GpuError::unavailable(BackendKind::OpenCl, r))?,
            stage_writes: !found.caps.is_cpu,
            compiler_id: format!("opencl {}; {}", found.caps.arch, found.options),
            caps: found.caps,
            options: found.options,
            device: found.device,
            context,
            adopted: None,
            built: Mutex::default(),
            programs: Mutex::default(),
            kernels: Mutex::default(),
            launching: Mutex::default(),
            staged: Mutex::default(),
            blas: OnceLock::new(),
        })
    }

    /// The driver of somebody else's context. It holds references of context, device and queue as long as it lives.
    ///
    /// # Safety
    /// All three are live objects of the OpenCL library that this crate uses.
    pub(crate) unsafe fn adopt(context: RawContext, device: RawDevice, q: RawStream) -> Result<Self> {
        let unavailable = |r| GpuError::unavailable(BackendKind::OpenCl, r);
        let found = probe::device_of_id(device.0).map_err(unavailable)?;
        let info = |what| {
            let bytes = queue::get_command_queue_data(q.0 as _, what);
            bytes.map(|b| probe::number(&b)).map_err(|c| failure("clGetCommandQueueInfo", c))
        };
        let out_of_order =
            info(queue::CL_QUEUE_PROPERTIES)? & queue::CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0;
        let of_another =
            info(queue::CL_QUEUE_CONTEXT)? != context.0 || info(queue::CL_QUEUE_DEVICE)? != device.0;
        if out_of_order || of_another {
            let got = if out_of_order { "one that runs out of order" } else { "one of another" };
            let want = "an in-order queue of the context and the device";
            return Err(GpuError::invalid("adopt_opencl", "queue", want, got));
        }
        // SAFETY: live by the caller's promise; each is released once, when the driver is dropped.
        unsafe { opencl3::context::context::retain_context(context.0 as _) }
            .map_err(|c| failure("clRetainContext", c))?;
        let mut driver = OpenClDriver::on(found, context.0)?;
        // SAFETY: as above.
        unsafe {
            opencl3::device::retain_device(device.0 as _).map_err(|c| failure("clRetainDevice", c))?;
            if let Err(c) = queue::retain_command_queue(q.0 as _) {
                let _ = opencl3::device::release_device(device.0 as _);
                return Err(failure("clRetainCommandQueue", c));
            }
        }
        driver.adopted = Some((device.0, q.0));
        Ok(driver)
    }

    /// Queues a write from a copy of the bytes.
    fn write_staged(&self, q: cl_command_queue, dst: RawMem, offset: u64, src: &[u8]) -> Result<()> {
        let mut staged = lock(&self.staged);
        let full = staged.bytes + src.len() > STAGE_TOTAL;
        staged.reap(full);
        let copy: Box<[u8]> = src.into();
        // SAFETY: the copy lives in `staged` until the write's event is complete; the range is the caller's promise.
        let e = unsafe {
            queue::enqueue_write_buffer(
                q,
                dst.0 as cl_mem,
                CL_NON_BLOCKING,
                offset as usize,
                copy.len(),
                copy.as_ptr().cast(),
                0,
                ptr::null(),
            )
        }
        .map_err(|c| failure("clEnqueueWriteBuffer", c))?;
        staged.bytes += copy.len();
        staged.writes.push_back((e as u64, copy));
        queue::flush(q).map_err(|c| failure("clFlush", c))
    }
}

impl Driver for OpenClDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn dialect(&self) -> &'static str {
        "opencl"
    }

    fn compiler_id(&self) -> String {
        self.compiler_id.clone()
    }

    fn alloc(&self, bytes: usize) -> Result<RawMem> {
        // SAFETY: the context is live; no host pointer is given.
        let mem = unsafe {
            memory::create_buffer(self.context as _, memory::CL_MEM_READ_WRITE, bytes, ptr::null_mut())
        };
        match mem {
            Ok(m) => Ok(RawMem(m as u64)),
            Err(
                MEM_OBJECT_ALLOCATION_FAILURE | OUT_OF_RESOURCES | OUT_OF_HOST_MEMORY | INVALID_BUFFER_SIZE,
            ) => Err(GpuError::OutOfMemory { requested: bytes, in_use: 0, cached: 0 }),
            Err(c) => Err(failure("clCreateBuffer", c)),
        }
    }

    unsafe fn free(&self, mem: RawMem) {
        // SAFETY: the caller gives up the object.
        if let Err(c) = unsafe { memory::release_mem_object(mem.0 as cl_mem) } {
            log::warn!("clReleaseMemObject: {}", error_text(c));
        }
    }

    fn new_stream(&self) -> Result<RawStream> {
        // The 1.2 call: devices of OpenCL 1.2 lack its successor.
        #[allow(deprecated)]
        // SAFETY: context and device are live and belong together.
        let q = unsafe {
            queue::create_command_queue(self.context as _, self.device as _, queue::CL_QUEUE_PROFILING_ENABLE)
        };
        q.map(|q| RawStream(q as u64)).map_err(|c| failure("clCreateCommandQueue", c))
    }

    unsafe fn destroy_stream(&self, s: RawStream) {
        let q = s.0 as cl_command_queue;
        let _ = queue::finish(q);
        lock(&self.staged).reap(false);
        // SAFETY: the caller gives up the queue, and its work is done.
        let _ = unsafe { queue::release_command_queue(q) };
    }

    unsafe fn copy_in(&self, s: RawStream, dst: RawMem, offset: u64, src: &[u8]) -> Result<()> {
        let q = s.0 as cl_command_queue;
        if src.is_empty() {
            return Ok(());
        }
        if self.stage_writes && src.len() <= STAGE_LIMIT {
            return self.write_staged(q, dst, offset, src);
        }
        // SAFETY: blocking, so `src` outlives the copy; the range is the caller's promise.
        let r = unsafe {
            queue::enqueue_write_buffer(
                q,
                dst.0 as cl_mem,
                CL_BLOCKING,
                offset as usize,
                src.len(),
                src.as_ptr().cast(),
                0,
                ptr::null(),
            )
        };
        done("clEnqueueWriteBuffer", r)
    }

    unsafe fn copy_out(&self, s: RawStream, src: RawMem, offset: u64, dst: &mut [u8]) -> Result<()> {
        if dst.is_empty() {
            // SAFETY: forwarded.
            return unsafe { self.synchronize(s) };
        }
        // SAFETY: blocking, so `dst` outlives the copy; the range is the caller's promise.
        let r = unsafe {
            queue::enqueue_read_buffer(
                s.0 as _,
                src.0 as cl_mem,
                CL_BLOCKING,
                offset as usize,
                dst.len(),
                dst.as_mut_ptr().cast(),
                0,
                ptr::null(),
            )
        };
        r.map(release_event).map_err(|c| waiting_failure("clEnqueueReadBuffer", c))?;
        lock(&self.staged).reap(false);
        Ok(())
    }

    unsafe fn copy(&self, s: RawStream, src: (RawMem, u64), dst: (RawMem, u64), bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: ranges and disjointness are the caller's promise.
        let r = unsafe {
            queue::enqueue_copy_buffer(
                s.0 as _,
                src.0.0 as cl_mem,
                dst.0.0 as cl_mem,
                src.1 as usize,
                dst.1 as usize,
                bytes,
                0,
                ptr::null(),
            )
        };
        done("clEnqueueCopyBuffer", r)
    }

    fn compile(&self, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
        program::compile(self, unit)
    }

    unsafe fn load(&self, image: &[u8]) -> Result<RawModule> {
        let p = program::load(self, image)?;
        lock(&self.programs).push(p as u64);
        Ok(RawModule(p as u64))
    }

    unsafe fn function(&self, module: RawModule, entry: &str) -> Result<RawFunction> {
        let name = program::c_string("clCreateKernel", entry)?;
        let k = kernel::create_kernel(module.0 as _, &name).map_err(|c| failure("clCreateKernel", c))?;
        lock(&self.kernels).push(k as u64);
        Ok(RawFunction(k as u64))
    }

    unsafe fn launch(
        &self,
        s: RawStream,
        f: RawFunction,
        cfg: &LaunchConfig,
        args: &[Arg<'_>],
    ) -> Result<()> {
        refuse_maps("clEnqueueNDRangeKernel", args)?;
        refuse_cooperative("clEnqueueNDRangeKernel", cfg)?;
        let k = f.0 as cl_kernel;
        let local = cfg.block.map(|n| n as usize);
        let global = std::array::from_fn::<usize, 3, _>(|i| cfg.grid[i] as usize * local[i]);
        let _one_at_a_time = lock(&self.launching);
        let mut i = 0;
        for a in args {
            match a {
                Arg::Mem(m) => {
                    let (object, offset) = m.map_or((0, 0), |(m, o)| (m.0, o));
                    set_arg(k, &mut i, &(object as usize).to_ne_bytes())?;
                    set_arg(k, &mut i, &offset.to_ne_bytes())?;
                }
                value => set_arg(k, &mut i, value.bytes())?,
            }
        }
        // SAFETY: the arguments are set; that they fit the kernel is the caller's promise. No event is asked for.
        let code = unsafe {
            (self.enqueue)(
                s.0 as _,
                k,
                3,
                ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        if code == 0 { Ok(()) } else { Err(failure("clEnqueueNDRangeKernel", code)) }
    }

    unsafe fn synchronize(&self, s: RawStream) -> Result<()> {
        queue::finish(s.0 as _).map_err(|c| waiting_failure("clFinish", c))?;
        lock(&self.staged).reap(false);
        Ok(())
    }

    unsafe fn record(&self, s: RawStream) -> Result<RawEvent> {
        // SAFETY: the queue is live; an empty wait list means all earlier commands.
        let e = unsafe { queue::enqueue_marker_with_wait_list(s.0 as _, 0, ptr::null()) }
            .map_err(|c| failure("clEnqueueMarkerWithWaitList", c))?;
        // Another queue may wait for the event: it must reach the device without help of this one.
        if let Err(c) = queue::flush(s.0 as _) {
            release_event(e);
            return Err(failure("clFlush", c));
        }
        Ok(RawEvent(e as u64))
    }

    unsafe fn wait(&self, s: RawStream, e: RawEvent) -> Result<()> {
        let e = e.0 as cl_event;
        // SAFETY: queue and event are live and of one context; the call retains the event.
        done("clEnqueueBarrierWithWaitList", unsafe {
            queue::enqueue_barrier_with_wait_list(s.0 as _, 1, &e)
        })
    }

    unsafe fn event_synchronize(&self, e: RawEvent) -> Result<()> {
        event::wait_for_events(&[e.0 as cl_event]).map_err(|c| waiting_failure("clWaitForEvents", c))
    }

    unsafe fn elapsed_ns(&self, from: RawEvent, to: RawEvent) -> Result<u64> {
        let end = |e: RawEvent| {
            event::get_event_profiling_data(e.0 as cl_event, event::CL_PROFILING_COMMAND_END)
                .map(|b| probe::number(&b))
                .map_err(|c| failure("clGetEventProfilingInfo", c))
        };
        Ok(end(to)?.saturating_sub(end(from)?))
    }

    unsafe fn destroy_event(&self, e: RawEvent) {
        release_event(e.0 as cl_event);
    }

    fn vendor_blas(&self) -> std::result::Result<&dyn VendorBlas, &str> {
        let open = || {
            Clblast::open(self.device, self.context)
                .inspect_err(|reason| log::debug!("{}: no CLBlast: {reason}", self.caps.id))
        };
        self.blas.get_or_init(open).as_ref().map(|b| b as &dyn VendorBlas).map_err(String::as_str)
    }
}

impl Drop for OpenClDriver {
    fn drop(&mut self) {
        lock(&self.staged).reap(true);
        // SAFETY: every handle was made by this driver, is released once, and nobody else can use it: the driver is going away.
        unsafe {
            for k in lock(&self.kernels).drain(..) {
                let _ = kernel::release_kernel(k as _);
            }
            let unused = std::mem::take(&mut *lock(&self.built)).into_values();
            for p in lock(&self.programs).drain(..).chain(unused) {
                let _ = opencl3::program::release_program(p as _);
            }
            if let Some((device, q)) = self.adopted {
                let _ = queue::release_command_queue(q as _);
                let _ = opencl3::device::release_device(device as _);
            }
            let _ = opencl3::context::context::release_context(self.context as _);
        }
    }
}
