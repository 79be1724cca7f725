//! A driver without a device, for tests of what stands above drivers.
//!
//! Memory is host vectors, copies happen at once and are checked against their bounds, kernels are recorded and not run, and any call can be
//! told to fail.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::{BackendKind, Caps, DeviceId};
use crate::driver::{
    Arg, CompileUnit, Driver, LaunchConfig, RawEvent, RawFunction, RawGraph, RawMem, RawModule, RawStream,
    StreamGraphs, TensorMap,
};
use crate::error::{GpuError, Result};

/// An argument of a recorded launch.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnedArg {
    /// [`Arg::Mem`].
    Mem(Option<(RawMem, u64)>),
    /// [`Arg::Map`].
    Map(TensorMap),
    /// The bytes of a scalar or of a struct.
    Bytes(Vec<u8>),
}

impl From<&Arg<'_>> for OwnedArg {
    fn from(arg: &Arg<'_>) -> Self {
        match arg {
            Arg::Mem(place) => OwnedArg::Mem(*place),
            Arg::Map(map) => OwnedArg::Map(*map),
            value => OwnedArg::Bytes(value.bytes().to_vec()),
        }
    }
}

/// A call that a [`MockDriver`] received.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Call {
    /// [`Driver::alloc`] of so many bytes.
    Alloc(usize),
    /// [`Driver::free`].
    Free(RawMem),
    /// [`Driver::copy_in`]: stream, memory, offset, bytes.
    CopyIn(RawStream, RawMem, u64, usize),
    /// [`Driver::copy_out`]: stream, memory, offset, bytes.
    CopyOut(RawStream, RawMem, u64, usize),
    /// [`Driver::copy`]: stream, source, destination, bytes.
    Copy(RawStream, (RawMem, u64), (RawMem, u64), usize),
    /// [`Driver::compile`] of the unit of this name.
    Compile(String),
    /// [`Driver::launch`].
    Launch {
        /// The stream.
        stream: RawStream,
        /// Name of the kernel.
        entry: String,
        /// Geometry.
        config: LaunchConfig,
        /// Arguments.
        args: Vec<OwnedArg>,
    },
    /// [`Driver::synchronize`].
    Synchronize(RawStream),
    /// [`Driver::record`].
    Record(RawStream, RawEvent),
    /// [`Driver::wait`].
    Wait(RawStream, RawEvent),
    /// [`StreamGraphs::begin_graph`].
    BeginGraph(RawStream),
    /// [`StreamGraphs::end_graph`].
    EndGraph(RawStream, RawGraph),
    /// [`StreamGraphs::launch_graph`].
    LaunchGraph(RawStream, RawGraph),
    /// [`StreamGraphs::destroy_graph`].
    DestroyGraph(RawStream, RawGraph),
}

/// A failure of certain calls of a method.
#[derive(Debug)]
struct Plan {
    method: &'static str,
    /// Numbers of the calls, from 1.
    calls: RangeInclusive<usize>,
    error: GpuError,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    memory: BTreeMap<u64, Vec<u8>>,
    in_use: usize,
    limit: Option<usize>,
    functions: HashMap<u64, String>,
    failures: VecDeque<(&'static str, GpuError)>,
    plan: Option<Plan>,
    /// Calls of each method that can fail.
    counts: BTreeMap<&'static str, usize>,
    streams: usize,
    events: usize,
    /// Whether the driver has graphs.
    graphs: bool,
    next: u64,
}

impl State {
    fn handle(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Counts a call of the method; its planned failure, if it is its turn.
    fn fails(&mut self, method: &'static str) -> Result<()> {
        let count = self.counts.entry(method).or_default();
        *count += 1;
        if let Some(p) = self.plan.as_ref().filter(|p| p.method == method && p.calls.contains(count)) {
            return Err(p.error.clone());
        }
        match self.failures.iter().position(|(m, _)| *m == method) {
            Some(i) => match self.failures.remove(i) {
                Some((_, e)) => Err(e),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    fn range(&mut self, call: &'static str, mem: RawMem, offset: u64, bytes: usize) -> Result<&mut [u8]> {
        let m = self
            .memory
            .get_mut(&mem.0)
            .ok_or_else(|| GpuError::driver(call, 1, format!("no live memory {}", mem.0)))?;
        let len = m.len();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        m.get_mut(start..start.saturating_add(bytes)).ok_or_else(|| {
            GpuError::driver(call, 2, format!("bytes {offset}.. of {bytes} in memory of {len}"))
        })
    }
}

/// The recording driver.
#[derive(Debug)]
pub struct MockDriver {
    caps: Caps,
    dialect: &'static str,
    state: Mutex<State>,
}

impl Default for MockDriver {
    fn default() -> Self {
        let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "mock", "mock");
        caps.f64 = true;
        caps.driver_version = "1".into();
        MockDriver::new(caps)
    }
}

impl MockDriver {
    /// A driver with these capabilities; its dialect is that of the device's kind (`opencl` for kinds without one).
    pub fn new(caps: Caps) -> Self {
        let dialect = match caps.id.kind {
            BackendKind::Cuda => "cuda",
            BackendKind::Hip => "hip",
            _ => "opencl",
        };
        MockDriver { caps, dialect, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that was called since the last [`MockDriver::clear`].
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// The names of the kernels that were launched since then, in order.
    pub fn launches(&self) -> Vec<String> {
        let entry = |c: &Call| match c {
            Call::Launch { entry, .. } => Some(entry.clone()),
            _ => None,
        };
        self.lock().calls.iter().filter_map(entry).collect()
    }

    /// Forgets the recorded calls.
    pub fn clear(&self) {
        self.lock().calls.clear();
    }

    /// Lets the next call of a method (`"launch"`, `"compile"`, ...) fail. Several failures of one method happen one after the other.
    pub fn fail_next(&self, method: &'static str, error: GpuError) {
        self.lock().failures.push_back((method, error));
    }

    /// Lets certain calls of a method fail, by their numbers from 1. There is one such plan at a time.
    pub fn fail_calls(&self, method: &'static str, calls: RangeInclusive<usize>, error: GpuError) {
        self.lock().plan = Some(Plan { method, calls, error });
    }

    /// How often each method that can fail was called.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.lock().counts.clone()
    }

    /// Sets the size of the device's memory; `None` is no limit.
    pub fn limit_memory(&self, bytes: Option<usize>) {
        self.lock().limit = bytes;
    }

    /// Whether the driver records graphs, of which it keeps the calls only. At first it has none.
    pub fn have_graphs(&self, on: bool) {
        self.lock().graphs = on;
    }

    /// Bytes that are allocated and not freed.
    pub fn memory_in_use(&self) -> usize {
        self.lock().in_use
    }

    /// Streams and events that were made and not destroyed.
    pub fn live_handles(&self) -> (usize, usize) {
        let s = self.lock();
        (s.streams, s.events)
    }
}

impl Driver for MockDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn dialect(&self) -> &'static str {
        self.dialect
    }

    fn compiler_id(&self) -> String {
        "mock".into()
    }

    fn alloc(&self, bytes: usize) -> Result<RawMem> {
        let mut s = self.lock();
        s.calls.push(Call::Alloc(bytes));
        s.fails("alloc")?;
        let fits = s.in_use.checked_add(bytes).is_some_and(|n| s.limit.is_none_or(|limit| n <= limit));
        if !fits {
            return Err(GpuError::OutOfMemory { requested: bytes, in_use: 0, cached: 0 });
        }
        let Ok(data) = bytemuck::allocation::try_zeroed_vec(bytes) else {
            return Err(GpuError::OutOfMemory { requested: bytes, in_use: 0, cached: 0 });
        };
        // Handles look like addresses far apart, so that an offset never leads into other memory.
        let mem = RawMem(s.handle() << 40);
        s.in_use += bytes;
        s.memory.insert(mem.0, data);
        Ok(mem)
    }

    unsafe fn free(&self, mem: RawMem) {
        let mut s = self.lock();
        s.calls.push(Call::Free(mem));
        if let Some(m) = s.memory.remove(&mem.0) {
            s.in_use -= m.len();
        }
    }

    fn new_stream(&self) -> Result<RawStream> {
        let mut s = self.lock();
        s.fails("new_stream")?;
        s.streams += 1;
        Ok(RawStream(s.handle()))
    }

    unsafe fn destroy_stream(&self, _: RawStream) {
        self.lock().streams -= 1;
    }

    unsafe fn copy_in(&self, stream: RawStream, dst: RawMem, offset: u64, src: &[u8]) -> Result<()> {
        let mut s = self.lock();
        s.calls.push(Call::CopyIn(stream, dst, offset, src.len()));
        s.fails("copy_in")?;
        s.range("copy_in", dst, offset, src.len())?.copy_from_slice(src);
        Ok(())
    }

    unsafe fn copy_out(&self, stream: RawStream, src: RawMem, offset: u64, dst: &mut [u8]) -> Result<()> {
        let mut s = self.lock();
        s.calls.push(Call::CopyOut(stream, src, offset, dst.len()));
        s.fails("copy_out")?;
        dst.copy_from_slice(s.range("copy_out", src, offset, dst.len())?);
        Ok(())
    }

    unsafe fn copy(
        &self,
        stream: RawStream,
        src: (RawMem, u64),
        dst: (RawMem, u64),
        bytes: usize,
    ) -> Result<()> {
        let mut s = self.lock();
        s.calls.push(Call::Copy(stream, src, dst, bytes));
        s.fails("copy")?;
        let data = s.range("copy", src.0, src.1, bytes)?.to_vec();
        s.range("copy", dst.0, dst.1, bytes)?.copy_from_slice(&data);
        Ok(())
    }

    fn compile(&self, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
        let mut s = self.lock();
        s.calls.push(Call::Compile(unit.name.to_string()));
        s.fails("compile")?;
        Ok(unit.source.as_bytes().to_vec())
    }

    unsafe fn load(&self, _: &[u8]) -> Result<RawModule> {
        let mut s = self.lock();
        s.fails("load")?;
        Ok(RawModule(s.handle()))
    }

    unsafe fn function(&self, _: RawModule, entry: &str) -> Result<RawFunction> {
        let mut s = self.lock();
        s.fails("function")?;
        let f = s.handle();
        s.functions.insert(f, entry.to_string());
        Ok(RawFunction(f))
    }

    unsafe fn launch(
        &self,
        stream: RawStream,
        f: RawFunction,
        config: &LaunchConfig,
        args: &[Arg<'_>],
    ) -> Result<()> {
        let mut s = self.lock();
        let entry = s.functions.get(&f.0).cloned().unwrap_or_default();
        s.calls.push(Call::Launch {
            stream,
            entry,
            config: *config,
            args: args.iter().map(OwnedArg::from).collect(),
        });
        s.fails("launch")?;
        for a in args {
            if let Arg::Mem(Some((mem, offset))) = a {
                s.range("launch", *mem, *offset, 0)?;
            }
        }
        Ok(())
    }

    unsafe fn synchronize(&self, stream: RawStream) -> Result<()> {
        let mut s = self.lock();
        s.calls.push(Call::Synchronize(stream));
        s.fails("synchronize")
    }

    unsafe fn record(&self, stream: RawStream) -> Result<RawEvent> {
        let mut s = self.lock();
        s.fails("record")?;
        s.events += 1;
        let e = RawEvent(s.handle());
        s.calls.push(Call::Record(stream, e));
        Ok(e)
    }

    unsafe fn wait(&self, stream: RawStream, e: RawEvent) -> Result<()> {
        let mut s = self.lock();
        s.calls.push(Call::Wait(stream, e));
        s.fails("wait")
    }

    unsafe fn event_synchronize(&self, _: RawEvent) -> Result<()> {
        self.lock().fails("event_synchronize")
    }

    /// The distance of the events' numbers: later events have larger ones.
    unsafe fn elapsed_ns(&self, from: RawEvent, to: RawEvent) -> Result<u64> {
        self.lock().fails("elapsed_ns")?;
        Ok(to.0.saturating_sub(from.0))
    }

    unsafe fn destroy_event(&self, _: RawEvent) {
        self.lock().events -= 1;
    }

    fn stream_graphs(&self) -> std::result::Result<&dyn StreamGraphs, &str> {
        if self.lock().graphs { Ok(self) } else { Err("the mock has no graphs") }
    }
}

impl StreamGraphs for MockDriver {
    unsafe fn begin_graph(&self, stream: RawStream) -> Result<()> {
        let mut s = self.lock();
        s.calls.push(Call::BeginGraph(stream));
        s.fails("begin_graph")
    }

    unsafe fn end_graph(&self, stream: RawStream) -> Result<RawGraph> {
        let mut s = self.lock();
        let graph = RawGraph(s.handle());
        s.calls.push(Call::EndGraph(stream, graph));
        s.fails("end_graph").map(|()| graph)
    }

    unsafe fn launch_graph(&self, stream: RawStream, graph: RawGraph) -> Result<()> {
        let mut s = self.lock();
        s.calls.push(Call::LaunchGraph(stream, graph));
        s.fails("launch_graph")
    }

    unsafe fn destroy_graph(&self, stream: RawStream, graph: RawGraph) {
        self.lock().calls.push(Call::DestroyGraph(stream, graph));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_checks_bounds() {
        let d = MockDriver::default();
        let s = d.new_stream().unwrap();
        let (a, b) = (d.alloc(16).unwrap(), d.alloc(16).unwrap());
        let mut out = [0u8; 4];
        // SAFETY: the mock checks every range.
        unsafe {
            d.copy_in(s, a, 4, &[1, 2, 3, 4]).unwrap();
            d.copy(s, (a, 4), (b, 12), 4).unwrap();
            d.copy_out(s, b, 12, &mut out).unwrap();
            assert!(d.copy_in(s, a, 13, &[0; 4]).is_err());
            d.free(a);
            assert!(d.copy_in(s, a, 0, &[0; 4]).is_err());
            assert!(d.copy(s, (b, 0), (a, 0), 1).is_err());
        }
        assert_eq!(out, [1, 2, 3, 4]);
        assert_eq!(d.memory_in_use(), 16);
        assert!(d.calls().contains(&Call::Copy(s, (a, 4), (b, 12), 4)));
    }

    #[test]
    fn fails_on_request() {
        let d = MockDriver::default();
        d.limit_memory(Some(100));
        let first = d.alloc(60).unwrap();
        assert!(matches!(d.alloc(60), Err(GpuError::OutOfMemory { requested: 60, .. })));
        // SAFETY: not used again.
        unsafe { d.free(first) };
        d.alloc(60).unwrap();
        let s = d.new_stream().unwrap();
        d.fail_next("synchronize", GpuError::driver("sync", 7, "BROKEN"));
        let config = LaunchConfig::new([1; 3], [1; 3]);
        // SAFETY: nothing runs.
        unsafe {
            assert!(d.synchronize(s).is_err());
            d.synchronize(s).unwrap();
            let module = d.load(&[]).unwrap();
            let f = d.function(module, "kernel_a").unwrap();
            d.launch(s, f, &config, &[Arg::I32(3)]).unwrap();
        }
        assert_eq!(d.launches(), ["kernel_a"]);
        d.fail_calls("alloc", 4..=5, GpuError::OutOfMemory { requested: 0, in_use: 0, cached: 0 });
        d.limit_memory(None);
        assert_eq!([(); 4].map(|()| d.alloc(1).is_ok()), [false, false, true, true]);
        assert_eq!(d.counts()["alloc"], 7);
    }
}
