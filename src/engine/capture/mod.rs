//! Recording of calls, and their replay.
//!
//! While a thread records, the engine's last step, the call of the driver, is written to a list and not made. The driver sees nothing of it, so units can
//! compile and tables of addresses be uploaded meanwhile. At the end the list is queued once on a stream of its own that the driver records into a graph,
//! if it can; else every replay queues the list on the handle's stream.

mod fusion;
mod lanes;
mod native;
mod pool;
mod queued;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustc_hash::{FxHashMap, FxHashSet};

use self::fusion::{Item, Plan, Space};
use self::lanes::{MOST_LANES, lanes};
use self::pool::GraphPool;
pub(crate) use self::queued::{About, QueuedAttention, QueuedBlas, QueuedConv, QueuedFft, output_bits};
use self::queued::{Queued, Value};
use super::launch::{Table, name_kernel};
use super::plan::{Problem, Reason, Variant};
use super::{Engine, lock};
use crate::buffer::{Block, Buffer, Mem, View};
use crate::device::Caps;
use crate::driver::{Arg, LaunchConfig, RawFunction, RawGraph, RawMem, RawStream, StreamGraphs};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::index_error;
use crate::ops::core::{BackendGraph, Choice, Graph, GraphInfo};

/// How a recording is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// With fused calls.
    Fused,
    /// The same, independent calls at the same time where the driver makes graphs.
    Parallel,
    /// Call by call as it was recorded.
    Plain,
}

/// A recording; all can be replayed in every way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CaptureProblem;

impl Problem for CaptureProblem {
    type Plan = Mode;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "parallel", source: "src/engine/capture/lanes.rs" },
        Variant { name: "fused", source: "src/engine/capture/fusion" },
        Variant { name: "plain", source: "src/engine/capture" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> std::result::Result<Mode, Reason> {
        Ok([Mode::Parallel, Mode::Fused, Mode::Plain][variant])
    }
}

/// Calls for which memory stays as it is behind its last reader, where calls run side by side: who overwrites it has to wait.
const SLACK: usize = 8;

/// Whether a handle records, and what it has recorded.
#[derive(Default)]
pub(crate) struct Capture {
    /// Number of the thread that records; 0 where none does.
    thread: AtomicU64,
    /// Whether that thread runs calls in between: checks and timings that have to be done once.
    suspended: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

/// A number of the calling thread, not 0.
pub(crate) fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static OWN: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    OWN.with(|n| *n)
}

/// What was recorded so far.
struct Recording {
    calls: Vec<Queued>,
    pool: Arc<GraphPool>,
    /// Blocks from outside, by number.
    kept: FxHashMap<u64, Arc<Block>>,
    /// Memory that the graph holds: of `kept`, `tables`, and the engine's own.
    held: FxHashSet<RawMem>,
    tables: Vec<Table>,
    written: FxHashSet<RawMem>,
    /// Codes of the operations that may report an index out of range.
    reports: Vec<i32>,
    refused: Option<GpuError>,
}

/// A recording under way, which ends with this.
pub(super) struct Recorder<'e> {
    engine: &'e Engine,
}

/// Calls run, and are not recorded, while this lives.
pub(crate) struct Suspended<'e>(Option<&'e Capture>);

impl Drop for Suspended<'_> {
    fn drop(&mut self) {
        if let Some(capture) = self.0 {
            capture.suspended.store(false, Ordering::Relaxed);
        }
    }
}

impl Recorder<'_> {
    /// What was recorded. Errors: the first call that could not be.
    pub(super) fn finish(self) -> Result<Finished> {
        let recording = lock(&self.engine.inner.capture.recording).take();
        let Some(r) = recording else { return Err(own_error("the recording is gone")) };
        r.refused.clone().map_or(Ok(Finished(r)), Err)
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        let capture = &self.engine.inner.capture;
        capture.thread.store(0, Ordering::Release);
        // Its memory goes back outside of the lock.
        let unfinished = lock(&capture.recording).take();
        drop(unfinished);
    }
}

/// A recording that has ended.
pub(super) struct Finished(Recording);

fn own_error(why: &'static str) -> GpuError {
    GpuError::Capture { op: "capture_calls", why }
}

impl Capture {
    /// Whether the calling thread's calls are recorded.
    fn on(&self) -> bool {
        let recorder = self.thread.load(Ordering::Acquire);
        recorder != 0 && recorder == thread() && !self.suspended.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// How recordings are replayed.
    pub(super) fn explain_capture(&self, op: &'static str) -> Result<Choice> {
        self.explain_problem(op, &CaptureProblem)
    }

    /// Records the calls of this thread from now on.
    pub(super) fn start_recording(&self) -> Result<Recorder<'_>> {
        let i = &self.inner;
        if i.choices.store().is_some_and(|s| s.tries()) {
            return Err(own_error("variants are being timed: what is recorded does not run"));
        }
        let free = i.capture.thread.compare_exchange(0, thread(), Ordering::AcqRel, Ordering::Acquire);
        if free.is_err() {
            const WHY: &str = "a recording is under way on this handle";
            self.recorded("capture_calls", WHY)?;
            return Err(own_error(WHY));
        }
        let mut recording = Recording {
            calls: vec![],
            pool: Arc::new(GraphPool::new(i.pool.clone())),
            kept: FxHashMap::default(),
            held: FxHashSet::default(),
            tables: vec![],
            written: FxHashSet::default(),
            reports: vec![],
            refused: None,
        };
        recording.held.extend(i.error_word.view().block().raw());
        *lock(&i.capture.recording) = Some(recording);
        Ok(Recorder { engine: self })
    }

    /// The recording, while the calling thread records.
    fn recording(&self) -> Option<Open<'_>> {
        let capture = &self.inner.capture;
        if !capture.on() {
            return None;
        }
        let recording = lock(&capture.recording);
        recording.is_some().then_some(Open(recording))
    }

    /// Whether the calling thread records on this handle.
    pub(crate) fn records(&self) -> bool {
        self.inner.capture.on()
    }

    /// Refuses a call that cannot be recorded while the calling thread records, and with it the recording.
    pub(crate) fn recorded(&self, op: &'static str, why: &'static str) -> Result<()> {
        match self.recording() {
            None => Ok(()),
            Some(mut r) => r.with(|r| {
                let e = GpuError::Capture { op, why };
                r.refused.get_or_insert_with(|| e.clone());
                Err(e)
            }),
        }
    }

    /// Lets calls of the calling thread run, should it record.
    pub(crate) fn suspend(&self) -> Suspended<'_> {
        let capture = &self.inner.capture;
        let on = capture.on();
        if on {
            capture.suspended.store(true, Ordering::Relaxed);
        }
        Suspended(on.then_some(capture))
    }

    /// A buffer of the graph that is being recorded, if the calling thread records.
    pub(super) fn alloc_recorded(&self, dtype: DType, len: usize, bytes: usize) -> Option<Result<Buffer>> {
        let pool = self.recording()?.with(|r| r.pool.clone());
        let made = pool.alloc(bytes).map(|(raw, size)| {
            let (id, stream) = (self.device_caps().id, self.inner.stream_id);
            Buffer::new(Arc::new(Block::new(id, stream, size, Mem::Device(raw), Some(pool))), dtype, len)
        });
        Some(made)
    }

    /// Keeps an operand alive with the graph that is being recorded.
    pub(super) fn keep_recorded(&self, v: &View<'_>) {
        if let Some(mut r) = self.recording() {
            r.with(|r| r.keep(v.block()));
        }
    }

    /// Keeps a table.
    pub(super) fn keep_table(&self, table: &Table) {
        if let Some(mut r) = self.recording() {
            r.with(|r| {
                r.held.extend(table.memory());
                r.tables.push(table.clone());
            });
        }
    }

    /// Notes what the recorded call writes; false where the calling thread does not record.
    pub(super) fn note_recorded(&self, memory: &mut dyn Iterator<Item = RawMem>) -> bool {
        let Some(mut r) = self.recording() else { return false };
        r.with(|r| r.written.extend(memory));
        true
    }

    /// Notes that the recorded call may report an index out of range under this code.
    pub(super) fn note_report(&self, code: i32) {
        if let Some(mut r) = self.recording() {
            r.with(|r| {
                if !r.reports.contains(&code) {
                    r.reports.push(code);
                }
            });
        }
    }

    /// Records a launch; `None` where the calling thread does not record.
    pub(super) fn record_launch(
        &self,
        f: RawFunction,
        name: &str,
        config: &LaunchConfig,
        args: &[Arg<'_>],
        about: About,
    ) -> Option<Result<()>> {
        let mut r = self.recording()?;
        Some(r.with(|r| {
            let memory = args.iter().filter_map(super::launch::memory_of);
            r.holds(memory)?;
            let args = args.iter().map(Value::of).collect();
            r.push(Queued::Launch { f, name: name.into(), config: *config, args, about });
            Ok(())
        }))
    }

    /// Records a copy; `None` where the calling thread does not record.
    pub(super) fn record_copy(
        &self,
        from: (RawMem, u64),
        to: (RawMem, u64),
        bytes: usize,
    ) -> Option<Result<()>> {
        let mut r = self.recording()?;
        Some(r.with(|r| {
            r.holds([from.0, to.0])?;
            r.push(Queued::Copy { from, to, bytes });
            Ok(())
        }))
    }

    /// Records a product of a vendor's library; `None` where the calling thread does not record.
    pub(super) fn record_blas(&self, q: QueuedBlas) -> Option<Result<()>> {
        let mut r = self.recording()?;
        Some(r.with(|r| {
            let memory = q.matrices.into_iter().chain(q.bias).map(|(m, _)| m);
            r.holds(memory.chain(q.workspace.map(|(m, ..)| m)))?;
            r.push(Queued::Blas(Box::new(q)));
            Ok(())
        }))
    }

    /// Records a convolution of a vendor's library; `None` where the calling thread does not record.
    pub(super) fn record_conv(&self, q: QueuedConv) -> Option<Result<()>> {
        let mut r = self.recording()?;
        Some(r.with(|r| {
            r.holds(q.tensors.into_iter().map(|(m, _)| m).chain(q.workspace.map(|(m, ..)| m)))?;
            r.push(Queued::Conv(Box::new(q)));
            Ok(())
        }))
    }

    /// Records attention of a vendor's library; `None` where the calling thread does not record.
    pub(super) fn record_attention(&self, q: QueuedAttention) -> Option<Result<()>> {
        let mut r = self.recording()?;
        Some(r.with(|r| {
            let memory = q.tensors.iter().map(|&(m, _)| m).chain(q.workspace.map(|(m, ..)| m));
            r.holds(memory)?;
            r.push(Queued::Attention(Box::new(q)));
            Ok(())
        }))
    }

    /// Records Fourier transforms of a vendor's library; `None` where the calling thread does not record.
    pub(super) fn record_fft(&self, q: QueuedFft) -> Option<Result<()>> {
        let mut r = self.recording()?;
        Some(r.with(|r| {
            r.holds([q.x.0, q.y.0].into_iter().chain(q.workspace.map(|(m, ..)| m)))?;
            r.push(Queued::Fft(Box::new(q)));
            Ok(())
        }))
    }

    /// Makes a graph of what was recorded.
    pub(super) fn instantiate(&self, finished: Finished) -> Result<Graph> {
        let mut r = finished.0;
        let mode = self.plan("capture_calls", &CaptureProblem)?;
        let mut info = GraphInfo { recorded: r.calls.len(), ..GraphInfo::default() };
        let tables = r.tables.iter().filter_map(Table::memory).collect();
        let space = Space::new(&r.calls, r.pool.spans(), tables);
        let items = match mode {
            Mode::Plain => None,
            Mode::Fused => self.fused(&mut r, &space, &mut info, false),
            Mode::Parallel => self.fused(&mut r, &space, &mut info, true),
        };
        let items = items.unwrap_or_else(|| fusion::as_recorded(std::mem::take(&mut r.calls), &space));
        info.edges = fusion::edges(&items, &r.memory());
        let driver = self.driver();
        let lanes = if mode == Mode::Parallel { MOST_LANES } else { 1 };
        let native = match driver.stream_graphs() {
            _ if self.inner.device.sync_each => Err("TREFOIL_SYNC waits after every launch".to_string()),
            Err(why) => Err(why.to_string()),
            Ok(_) if items.is_empty() => Err("it is empty".to_string()),
            Ok(graphs) => self.native(graphs, &items, lanes).map_err(|e| {
                log::warn!("{}: the driver makes no graph of a recording: {e}", self.device_caps().id);
                e.to_string()
            }),
        };
        info.copies = items.iter().filter(|i| matches!(i.call, Queued::Copy { .. })).count();
        info.launches = items.len() - info.copies;
        info.bytes = r.pool.bytes();
        info.queued_by_host = native.as_ref().err().cloned();
        info.calls = items.iter().map(|i| i.call.name().to_string()).collect();
        let native = native.ok();
        // What the driver has in its graph needs no list.
        let calls = if native.is_some() { vec![] } else { items.into_iter().map(|i| i.call).collect() };
        let held = Held { _pool: r.pool, _kept: r.kept.into_values().collect(), _tables: r.tables };
        let (written, reports) = (r.written.into_iter().collect(), r.reports);
        let (engine, running) = (self.clone(), Mutex::default());
        Ok(Graph::new(EngineGraph { engine, calls, native, info, written, reports, running, _held: held }))
    }

    /// The calls of a recording with as few launches as their bits allow, in as little memory; `None` where they stay as they are.
    /// `parallel`: they are to run side by side.
    fn fused(
        &self,
        r: &mut Recording,
        space: &Space,
        info: &mut GraphInfo,
        parallel: bool,
    ) -> Option<Vec<Item>> {
        if !self.driver().runs_kernels() {
            return None;
        }
        let plan = Plan::new(self, &r.calls, space, if parallel { SLACK } else { 0 })?;
        let nothing = (plan.fused, plan.unread) == (0, 0);
        if nothing && !parallel && r.pool.bytes_of(&plan.gone) <= plan.arena {
            return None;
        }
        // Where there is no room beside what the recording took, everything stays where it is.
        let arena = r.pool.exchange(&plan.gone, plan.arena).ok()?;
        (info.unread, info.fused) = (plan.unread, plan.fused);
        r.written.retain(|m| !plan.gone.contains(m));
        r.written.extend(arena);
        let calls = std::mem::take(&mut r.calls);
        Some(plan.apply(self, calls, space, arena))
    }

    /// The driver's graph of the calls, on so many streams at most.
    fn native(&self, graphs: &dyn StreamGraphs, items: &[Item], most: usize) -> Result<RawGraph> {
        let lanes = lanes(items, most);
        let several = lanes.iter().any(|l| l.stream > 0);
        match native::record(&**self.driver(), graphs, items, &lanes) {
            Err(e) if several => {
                log::warn!("{}: a recording on several streams failed: {e}", self.device_caps().id);
                self.native(graphs, items, 1)
            }
            made => made,
        }
    }
}

/// The recording of the calling thread, locked.
struct Open<'e>(MutexGuard<'e, Option<Recording>>);

impl Open<'_> {
    fn with<T>(&mut self, f: impl FnOnce(&mut Recording) -> T) -> T {
        match &mut *self.0 {
            Some(r) => f(r),
            None => unreachable!("`Engine::recording` gives one"),
        }
    }
}

impl Recording {
    fn push(&mut self, call: Queued) {
        self.calls.push(call);
        self.pool.tick();
    }

    /// Sizes of the memory that holds values.
    fn memory(&self) -> FxHashMap<RawMem, u64> {
        let kept = self.kept.values().filter_map(|b| Some((b.raw()?, b.bytes() as u64)));
        kept.chain(self.pool.blocks().into_iter().map(|(m, n)| (m, n as u64))).collect()
    }

    fn keep(&mut self, block: &Arc<Block>) {
        let Some(raw) = block.raw().filter(|&raw| !self.pool.owns(raw)) else { return };
        if self.held.insert(raw) || !self.kept.contains_key(&block.id()) {
            self.kept.insert(block.id(), block.clone());
        }
    }

    /// Error if a call uses memory that the graph would not keep alive.
    fn holds(&mut self, memory: impl IntoIterator<Item = RawMem>) -> Result<()> {
        let unknown = |m: &RawMem| !self.held.contains(m) && !self.pool.owns(*m);
        if memory.into_iter().find(unknown).is_none() {
            return Ok(());
        }
        let e = own_error("a call uses memory that is neither an operand nor of the recording");
        self.refused.get_or_insert_with(|| e.clone());
        Err(e)
    }
}

/// What a graph keeps alive.
struct Held {
    _pool: Arc<GraphPool>,
    _kept: Vec<Arc<Block>>,
    _tables: Vec<Table>,
}

/// A graph of an engine.
struct EngineGraph {
    engine: Engine,
    /// The calls, where the driver has no graph of them.
    calls: Vec<Queued>,
    native: Option<RawGraph>,
    info: GraphInfo,
    written: Vec<RawMem>,
    reports: Vec<i32>,
    /// Held while the calls are queued: those of two replays must not mix.
    running: Mutex<()>,
    _held: Held,
}

impl EngineGraph {
    fn queue(&self, stream: RawStream) -> Result<()> {
        let (e, device) = (&self.engine, &self.engine.inner.device);
        if let Some(graph) = self.native {
            let graphs = device.driver.stream_graphs().map_err(|why| GpuError::driver("replay", 0, why))?;
            // SAFETY: the graph is alive and holds what it uses; the stream is the driver's and lives as long as the pool.
            return unsafe { graphs.launch_graph(stream, graph) }.map_err(|failed| e.refused(failed));
        }
        let mut list = vec![];
        for call in &self.calls {
            // SAFETY: as above.
            unsafe { call.make(&*device.driver, stream, &mut list) }
                .map_err(|failed| e.refused(name_kernel(failed, call.name())))?;
            if device.sync_each {
                // SAFETY: as above.
                unsafe { device.driver.synchronize(stream) }
                    .map_err(|failed| e.poison(name_kernel(failed, call.name())))?;
            }
        }
        Ok(())
    }
}

impl BackendGraph for EngineGraph {
    fn replay(&self) -> Result<()> {
        let (e, i) = (&self.engine, &self.engine.inner);
        e.recorded("replay", "a graph is not part of another")?;
        e.check_poison()?;
        let _one_at_a_time = lock(&self.running);
        // Held until everything is queued: its reports must not be cleared with those of earlier calls.
        let mut may_report = (!self.reports.is_empty()).then(|| lock(&i.may_report));
        if let Some(list) = &mut may_report {
            let now = index_error::now();
            for &code in &self.reports {
                if list.iter().all(|(c, _)| *c != code) {
                    list.push((code, now));
                }
            }
            i.reports_pending.store(true, Ordering::Release);
        }
        e.wrote(self.written.iter().copied());
        i.device.counts.launches.fetch_add(self.info.launches as u64, Ordering::Relaxed);
        self.queue(i.stream)
    }

    fn info(&self) -> &GraphInfo {
        &self.info
    }
}

impl Drop for EngineGraph {
    fn drop(&mut self) {
        let i = &self.engine.inner;
        if let (Some(graph), Ok(graphs)) = (self.native.take(), i.device.driver.stream_graphs()) {
            // SAFETY: nobody else has the graph, which was launched on this stream only.
            unsafe { graphs.destroy_graph(i.stream, graph) };
        }
    }
}

impl fmt::Debug for EngineGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:?} on {:?})", self.info, self.engine)
    }
}
