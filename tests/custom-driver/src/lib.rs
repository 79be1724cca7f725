//! A driver outside of trefoil, written against its public interface alone: the example of `docs/ADDING_A_BACKEND.md`, and the test that the
//! interface suffices.
//!
//! The device is the host. Memory is that of the process, a stream is a thread with a queue, and kernels are compiled by the system's C++ compiler
//! from the portable text, with a dialect of this crate's own. It is made to be read, not to be fast.

mod compiler;
mod stream;

use std::alloc::Layout;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use compiler::Compiler;
use stream::{Event, Stream};
use trefoil::driver::{
    Arg, CompileUnit, Driver, LaunchConfig, RawEvent, RawFunction, RawMem, RawModule, RawStream,
};
use trefoil::{
    BackendFactory, BackendKind, Caps, DeviceId, Engine, GpuError, IGpuBackend, Result, Unavailable,
};

/// `gk_launch_NAME` of `runtime.cpp`: arguments, blocks per axis, work-items per block; 0 is success.
type Entry = unsafe extern "C" fn(*mut *mut u64, *const u32, i32) -> i32;

/// A kernel, with the module that holds its code; the lock is the module's, whose local memory serves one launch at a time.
#[derive(Debug, Clone)]
struct Function {
    entry: Entry,
    module: Arc<Mutex<libloading::Library>>,
}

#[derive(Debug, Default)]
struct Objects {
    last: u64,
    memory: HashMap<u64, Layout>,
    streams: HashMap<u64, Arc<Stream>>,
    events: HashMap<u64, Event>,
    modules: HashMap<u64, Arc<Mutex<libloading::Library>>>,
    functions: HashMap<u64, Function>,
}

impl Objects {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// The driver.
#[derive(Debug)]
pub struct HostDriver {
    caps: Caps,
    compiler: Compiler,
    objects: Mutex<Objects>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Addresses that a job of a stream carries to its thread.
struct Span(*mut u8, usize);

// SAFETY: whoever queues the job promises that the memory lives until it has run; streams order the accesses.
unsafe impl Send for Span {}

impl Span {
    /// Begin and length; a method, so that a closure takes the whole.
    fn parts(self) -> (*mut u8, usize) {
        (self.0, self.1)
    }
}

impl HostDriver {
    /// The host as a device. Errors: why it cannot be one.
    pub fn open() -> std::result::Result<Self, Unavailable> {
        let compiler =
            Compiler::find().map_err(|tried| Unavailable::CompilerNotFound { tried, var: "CXX" })?;
        let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "the host", std::env::consts::ARCH);
        caps.driver_version = env!("CARGO_PKG_VERSION").into();
        caps.f64 = true;
        caps.device_addresses = true;
        caps.is_cpu = true;
        Ok(HostDriver { caps, compiler, objects: Mutex::default() })
    }

    fn stream(&self, s: RawStream) -> Result<Arc<Stream>> {
        let unknown = || GpuError::driver("stream", 1, "no such stream");
        lock(&self.objects).streams.get(&s.as_raw()).cloned().ok_or_else(unknown)
    }

    fn event(&self, e: RawEvent) -> Result<Event> {
        let unknown = || GpuError::driver("event", 1, "no such event");
        lock(&self.objects).events.get(&e.as_raw()).cloned().ok_or_else(unknown)
    }
}

fn address(mem: RawMem, offset: u64) -> *mut u8 {
    (mem.as_raw() as *mut u8).wrapping_add(offset as usize)
}

// Handles are made from numbers that this driver keeps track of, which is what `from_raw` asks for.
impl Driver for HostDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn dialect(&self) -> &'static str {
        "host"
    }

    fn dialect_header(&self) -> Option<&str> {
        Some(include_str!("dialect.h"))
    }

    fn compiler_id(&self) -> String {
        self.compiler.id()
    }

    fn alloc(&self, bytes: usize) -> Result<RawMem> {
        let full = || GpuError::OutOfMemory { requested: bytes, in_use: 0, cached: 0 };
        let layout = Layout::from_size_align(bytes, 256).map_err(|_| full())?;
        // SAFETY: the engine asks for one byte at least.
        let p = unsafe { std::alloc::alloc(layout) };
        if p.is_null() {
            return Err(full());
        }
        lock(&self.objects).memory.insert(p as u64, layout);
        // SAFETY: just allocated.
        Ok(unsafe { RawMem::from_raw(p as u64) })
    }

    unsafe fn free(&self, mem: RawMem) {
        if let Some(layout) = lock(&self.objects).memory.remove(&mem.as_raw()) {
            // SAFETY: allocated above with this layout, and given up by the caller.
            unsafe { std::alloc::dealloc(address(mem, 0), layout) };
        }
    }

    fn new_stream(&self) -> Result<RawStream> {
        let stream = Arc::new(Stream::new()?);
        let mut objects = lock(&self.objects);
        let id = objects.next();
        objects.streams.insert(id, stream);
        // SAFETY: just made.
        Ok(unsafe { RawStream::from_raw(id) })
    }

    unsafe fn destroy_stream(&self, s: RawStream) {
        // Its thread is waited for without the lock, which the work may need.
        let stream = lock(&self.objects).streams.remove(&s.as_raw());
        drop(stream);
    }

    unsafe fn copy_in(&self, s: RawStream, dst: RawMem, offset: u64, src: &[u8]) -> Result<()> {
        let (to, data) = (Span(address(dst, offset), src.len()), src.to_vec());
        self.stream(s)?.queue(move || {
            let (to, n) = to.parts();
            // SAFETY: the range is live by the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, n) }
        })
    }

    unsafe fn copy_out(&self, s: RawStream, src: RawMem, offset: u64, dst: &mut [u8]) -> Result<()> {
        // SAFETY: forwarded.
        unsafe { self.synchronize(s)? };
        // SAFETY: the range is live by the caller's promise, and the stream is idle.
        unsafe { std::ptr::copy_nonoverlapping(address(src, offset), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    unsafe fn copy(&self, s: RawStream, src: (RawMem, u64), dst: (RawMem, u64), bytes: usize) -> Result<()> {
        let (from, to) = (Span(address(src.0, src.1), bytes), Span(address(dst.0, dst.1), bytes));
        self.stream(s)?.queue(move || {
            let ((from, n), (to, _)) = (from.parts(), to.parts());
            // SAFETY: both ranges are live and apart by the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, to, n) }
        })
    }

    fn compile(&self, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
        self.compiler.compile(unit, &self.caps.arch)
    }

    unsafe fn load(&self, image: &[u8]) -> Result<RawModule> {
        // SAFETY: the caller's promise.
        let library = unsafe { compiler::open(image)? };
        let mut objects = lock(&self.objects);
        let id = objects.next();
        objects.modules.insert(id, Arc::new(Mutex::new(library)));
        // SAFETY: just loaded.
        Ok(unsafe { RawModule::from_raw(id) })
    }

    unsafe fn function(&self, module: RawModule, entry: &str) -> Result<RawFunction> {
        let mut objects = lock(&self.objects);
        let module = objects.modules.get(&module.as_raw()).cloned();
        let module = module.ok_or_else(|| GpuError::driver("dlsym", 1, "no such module"))?;
        // SAFETY: the type is that of every `gk_launch_NAME`.
        let found = unsafe { lock(&module).get::<Entry>(format!("gk_launch_{entry}")).map(|f| *f) };
        let entry = found.map_err(|e| GpuError::driver("dlsym", 2, e.to_string()))?;
        let id = objects.next();
        objects.functions.insert(id, Function { entry, module });
        // SAFETY: just found.
        Ok(unsafe { RawFunction::from_raw(id) })
    }

    unsafe fn launch(
        &self,
        s: RawStream,
        f: RawFunction,
        cfg: &LaunchConfig,
        args: &[Arg<'_>],
    ) -> Result<()> {
        let f = lock(&self.objects).functions.get(&f.as_raw()).cloned();
        let f = f.ok_or_else(|| GpuError::driver("launch", 1, "no such function"))?;
        let (grid, items) = (cfg.grid, cfg.block.iter().product::<u32>() as i32);
        let mut values: Vec<Vec<u64>> = args.iter().map(value).collect();
        self.stream(s)?.queue(move || {
            let mut pointers: Vec<*mut u64> = values.iter_mut().map(|v| v.as_mut_ptr()).collect();
            let _alone = lock(&f.module);
            // SAFETY: arguments match the prototype, and the memory is live, by the caller's promise; the module is held.
            let status = unsafe { (f.entry)(pointers.as_mut_ptr(), grid.as_ptr(), items) };
            assert_eq!(status, 0, "no memory for the stacks of {items} work-items");
        })
    }

    unsafe fn synchronize(&self, s: RawStream) -> Result<()> {
        self.stream(s)?.record()?.wait();
        Ok(())
    }

    unsafe fn record(&self, s: RawStream) -> Result<RawEvent> {
        let event = self.stream(s)?.record()?;
        let mut objects = lock(&self.objects);
        let id = objects.next();
        objects.events.insert(id, event);
        // SAFETY: just recorded.
        Ok(unsafe { RawEvent::from_raw(id) })
    }

    unsafe fn wait(&self, s: RawStream, e: RawEvent) -> Result<()> {
        let event = self.event(e)?;
        self.stream(s)?.queue(move || {
            event.wait();
        })
    }

    unsafe fn event_synchronize(&self, e: RawEvent) -> Result<()> {
        self.event(e)?.wait();
        Ok(())
    }

    unsafe fn elapsed_ns(&self, from: RawEvent, to: RawEvent) -> Result<u64> {
        let (from, to) = (self.event(from)?.wait(), self.event(to)?.wait());
        Ok(to.saturating_duration_since(from).as_nanos() as u64)
    }

    unsafe fn destroy_event(&self, e: RawEvent) {
        lock(&self.objects).events.remove(&e.as_raw());
    }
}

/// The value of an argument, aligned for every type.
fn value(arg: &Arg<'_>) -> Vec<u64> {
    match *arg {
        Arg::Mem(place) => vec![place.map_or(0, |(mem, offset)| address(mem, offset) as u64)],
        ref other => {
            let padded = other.bytes().chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            });
            padded.collect()
        }
    }
}

/// Makes backends over [`HostDriver`]: the selector `custom`.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostFactory;

impl BackendFactory for HostFactory {
    fn kind(&self) -> BackendKind {
        BackendKind::Custom
    }

    fn probe(&self) -> std::result::Result<Vec<Caps>, Unavailable> {
        Ok(vec![HostDriver::open()?.caps])
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn IGpuBackend>> {
        let unavailable = |reason| GpuError::unavailable(BackendKind::Custom, reason);
        if ordinal != 0 {
            return Err(unavailable(Unavailable::NoDevice { what: format!("ordinal {ordinal} of 1 host") }));
        }
        let driver = HostDriver::open().map_err(unavailable)?;
        Ok(Arc::new(Engine::new(Arc::new(driver))?))
    }
}
