//! Recording of calls, and their replay.
//!
//! While a thread records, a call of an operation is made once, so that its checks and errors are as ever, and written to a list. What it would change
//! outside of the recording is copied before and the copy changed, so that nothing was run when the recording ends, in whichever way.

mod calls;
mod graph;
mod plan;

pub(crate) use self::calls::{recorded_call, recorded_ops};
pub(in crate::cpu) use self::graph::{Replay, VARIANTS};

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};

use self::calls::{Call, Recorded};
use self::graph::CpuGraph;
use crate::buffer::{Access, Block, OwnedView};
use crate::cpu::{CpuBackend, HostElement, Kernels, Shared, index_errors, with_dtype};
use crate::engine::capture::thread;
use crate::engine::next_stream_id;
use crate::error::{GpuError, Result};
use crate::ops::core::{CaptureOps, Graph, Profile};
use crate::ops::operand::Visit;

impl CaptureOps for CpuBackend {
    fn capture_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Graph> {
        let recorder = self.start_recording()?;
        calls()?;
        let recording = recorder.finish()?;
        Ok(Graph::new(CpuGraph::new(self, recording)?))
    }

    fn profile_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Profile> {
        self.not_recorded("profile_calls", "times are not part of a recording")?;
        self.profile(calls)
    }
}

/// Whether a handle records, and what it has recorded.
#[derive(Default)]
pub(crate) struct Capture {
    /// Number of the thread that records; 0 where none does.
    thread: AtomicU64,
    recording: Mutex<Option<Recording>>,
}

impl Capture {
    fn lock(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands for the number of the thread that records while one of its calls is made.
const CALLING: u64 = u64::MAX;

/// A call that is being made: work that its thread does in between for others is not recorded.
struct Calling<'c>(&'c Capture);

impl<'c> Calling<'c> {
    fn begin(capture: &'c Capture) -> Self {
        capture.thread.store(CALLING, Ordering::Release);
        Calling(capture)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.thread.store(thread(), Ordering::Release);
    }
}

/// What was recorded so far.
struct Recording {
    calls: Vec<Box<dyn Call>>,
    /// What makes the calls meanwhile, on a stream and with counters that nobody asks for.
    kernels: Kernels,
    /// Numbers of the blocks that were allocated in it.
    made: FxHashSet<u64>,
    /// Blocks from outside that calls write, and their copies, each by the number of the other.
    originals: FxHashMap<u64, Arc<Block>>,
    copies: FxHashMap<u64, Arc<Block>>,
    refused: Option<GpuError>,
}

/// A recording under way, which ends with this.
struct Recorder<'c>(&'c CpuBackend);

impl Recorder<'_> {
    /// What was recorded. Errors: the first call that could not be.
    fn finish(self) -> Result<Recording> {
        match self.0.capture.lock().take() {
            Some(mut recording) => recording.refused.take().map_or(Ok(recording), Err),
            None => Err(own_error("the recording is gone")),
        }
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        let capture = &self.0.capture;
        capture.thread.store(0, Ordering::Release);
        // Its memory goes back outside of the lock.
        let unfinished = capture.lock().take();
        drop(unfinished);
    }
}

fn own_error(why: &'static str) -> GpuError {
    GpuError::Capture { op: "capture_calls", why }
}

impl CpuBackend {
    /// Records the calls of this thread from now on.
    fn start_recording(&self) -> Result<Recorder<'_>> {
        let free = self.capture.thread.compare_exchange(0, thread(), Ordering::AcqRel, Ordering::Acquire);
        if free.is_err() {
            const WHY: &str = "a recording is under way on this handle";
            self.not_recorded("capture_calls", WHY)?;
            return Err(own_error(WHY));
        }
        *self.capture.lock() = Some(Recording::new(&self.kernels));
        Ok(Recorder(self))
    }

    /// Whether the calling thread records on this handle.
    pub(crate) fn records(&self) -> bool {
        let recorder = self.capture.thread.load(Ordering::Acquire);
        recorder != 0 && recorder == thread()
    }

    /// Refuses a call that cannot be recorded while the calling thread records, and with it the recording.
    pub(super) fn not_recorded(&self, op: &'static str, why: &'static str) -> Result<()> {
        if !self.records() {
            return Ok(());
        }
        let e = GpuError::Capture { op, why };
        if let Some(r) = &mut *self.capture.lock() {
            r.refused.get_or_insert_with(|| e.clone());
        }
        Err(e)
    }

    /// Notes a block that was allocated, should the calling thread record.
    pub(super) fn note_block(&self, block: &Block) {
        if self.records()
            && let Some(r) = &mut *self.capture.lock()
        {
            r.made.insert(block.id());
        }
    }

    /// What makes calls that are not recorded.
    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Makes and records a call of the thread that records.
    pub(crate) fn record_call<A: Send + Sync + 'static>(
        &self,
        name: &'static str,
        args: A,
        run: fn(&Kernels, &A) -> Result<()>,
        each: fn(&mut A, Visit<'_>),
    ) -> Result<()> {
        match &mut *self.capture.lock() {
            Some(r) => {
                let _calling = Calling::begin(&self.capture);
                r.call(Box::new(Recorded { name, args, run, each }))
            }
            None => Err(own_error("the recording is gone")),
        }
    }
}

impl Recording {
    fn new(kernels: &Kernels) -> Self {
        let shared = Arc::new(Shared::new(kernels.shared.caps.clone()));
        Recording {
            calls: vec![],
            kernels: Kernels { shared, stream: next_stream_id(), ..kernels.clone() },
            made: FxHashSet::default(),
            originals: FxHashMap::default(),
            copies: FxHashMap::default(),
            refused: None,
        }
    }

    /// Makes a call on copies of what it would change outside, and writes it down. Errors: those of the call, which then is not recorded.
    fn call(&mut self, mut call: Box<dyn Call>) -> Result<()> {
        let mut copied = Ok(());
        call.each(&mut |v| {
            if copied.is_ok() {
                copied = self.protect(v);
            }
        });
        copied?;
        exchange(&mut *call, &self.copies);
        let done = call.run(&self.kernels);
        exchange(&mut *call, &self.originals);
        if done.is_ok() {
            self.calls.push(call);
        }
        done
    }

    /// Copies the block of an operand that is from outside and about to be written.
    fn protect(&mut self, v: &OwnedView) -> Result<()> {
        let id = v.block.id();
        if v.access == Access::Read || self.made.contains(&id) || self.copies.contains_key(&id) {
            return Ok(());
        }
        // The call itself refuses memory of another device.
        let Some(copy) = self.kernels.copy_of(&v.block)? else { return Ok(()) };
        self.originals.insert(copy.id(), v.block.clone());
        self.copies.insert(id, Arc::new(copy));
        Ok(())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Indices out of range in calls that were not run are nobody's errors.
        index_errors().forget(self.kernels.stream);
    }
}

/// Puts other blocks in the place of those of a call that `by` knows by their numbers.
fn exchange(call: &mut dyn Call, by: &FxHashMap<u64, Arc<Block>>) {
    call.each(&mut |v| {
        if let Some(block) = by.get(&v.block.id()) {
            v.block = block.clone();
        }
    });
}

impl Kernels {
    /// A block with the contents of one of this backend; `None` for others.
    fn copy_of(&self, block: &Block) -> Result<Option<Block>> {
        let Some(host) = block.host() else { return Ok(None) };
        let data = host.data.read().unwrap_or_else(PoisonError::into_inner);
        let (dtype, len) = data.key();
        let mut copy = self.pool.alloc(
            dtype,
            len * dtype.size(),
            self.shared.caps.memory_bytes,
            &self.shared.allocations,
        )?;
        with_dtype!(dtype, T => {
            if let (Some(to), Some(from)) = (<T as HostElement>::slice_mut(&mut copy), <T as HostElement>::slice(&data)) {
                to.copy_from_slice(from);
            }
        });
        Ok(Some(self.block(len * dtype.size(), copy)))
    }
}
