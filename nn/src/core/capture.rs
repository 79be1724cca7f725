//! Positions that a recorded step takes from device memory.
//!
//! A random layer counts on the host how far it has drawn, and gives each call its position by value. In a recording that number would stay as it is, so the
//! call gets a cell of device memory that holds where the layer stood before the step, and by value how far it has drawn in the step. The cells belong to
//! all graphs of a step together, and each graph moves them on by itself.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use trefoil::DType;
use trefoil::GpuError;
use trefoil::ops::random::Rng;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Device, Operand, Tensor, contiguous, same_handle, set_recording};

/// Positions of a step at most.
pub(crate) const CELLS: usize = 1024;

/// A count of the host and its cell.
struct Stream {
    position: Arc<AtomicU64>,
    /// The count as the device has it; `None` before it was written.
    known: Option<u64>,
}

/// Cells of device memory, i64 `[CELLS]`, with the counts that they follow.
pub(crate) struct Cells {
    memory: Tensor,
    streams: Mutex<Vec<Stream>>,
}

impl Cells {
    /// Without counts.
    pub(crate) fn new(device: &Device) -> Result<Arc<Self>> {
        let memory = Tensor::zeros(device, DType::I64, &[CELLS])?;
        Ok(Arc::new(Cells { memory, streams: Mutex::default() }))
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.streams.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The cell of a count.
    fn place(&self, position: &Arc<AtomicU64>) -> usize {
        let mut streams = self.streams();
        if let Some(at) = streams.iter().position(|s| Arc::ptr_eq(&s.position, position)) {
            return at;
        }
        streams.push(Stream { position: position.clone(), known: None });
        streams.len() - 1
    }

    /// Cells that have a count.
    pub(crate) fn len(&self) -> usize {
        self.streams().len().min(CELLS)
    }

    /// The first `n` cells.
    pub(crate) fn first(&self, n: usize) -> Result<Tensor> {
        Ok(self.memory.relayout(contiguous("capture", &[n])?))
    }

    /// Writes all counts to the device if it knows others of these. `behind`: these stand before the step that their counts are behind.
    pub(crate) fn refresh(&self, moving: &[Moving], behind: bool) -> Result<()> {
        let mut streams = self.streams();
        let now = |s: &Stream| s.position.load(Ordering::Relaxed);
        let want: Vec<u64> = streams
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let by = moving.iter().find(|m| behind && m.at == i).map_or(0, |m| m.by);
                now(s).wrapping_sub(by)
            })
            .collect();
        if moving.iter().all(|m| streams.get(m.at).is_some_and(|s| s.known == Some(want[m.at]))) {
            return Ok(());
        }
        let values: Vec<i64> = want.iter().take(CELLS).map(|&v| v as i64).collect();
        self.first(values.len())?.write_bytes(bytemuck::cast_slice(&values))?;
        streams.iter_mut().zip(want).for_each(|(s, v)| s.known = Some(v));
        Ok(())
    }

    /// Notes that the device has moved these on.
    pub(crate) fn moved(&self, moving: &[Moving]) {
        let mut streams = self.streams();
        for m in moving {
            if let Some(s) = streams.get_mut(m.at) {
                s.known = s.known.map(|v| v.wrapping_add(m.by));
            }
        }
    }
}

/// A count that a step moves on.
#[derive(Debug)]
pub(crate) struct Moving {
    /// The host's count.
    pub(crate) position: Arc<AtomicU64>,
    /// Its cell.
    pub(crate) at: usize,
    /// How far a step moves it.
    pub(crate) by: u64,
}

/// A count that the step takes from its cell.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    key: (u64, u64),
    /// The host's count.
    pub(crate) position: Arc<AtomicU64>,
    /// What it was when the recording first took it.
    pub(crate) start: u64,
    /// Its cell.
    pub(crate) at: usize,
}

impl Drawn {
    /// How far the recording has moved it.
    pub(crate) fn moving(&self) -> Moving {
        let by = self.position.load(Ordering::Relaxed).wrapping_sub(self.start);
        Moving { position: self.position.clone(), at: self.at, by }
    }
}

/// What the host does beside a step that is replayed: the count of an optimizer, say.
pub(crate) trait Hook: Send + Sync {
    /// Before a replay; the `first` is of the step that the recording has counted already.
    fn before(&self, first: bool) -> Result<()>;
    /// After a replay that was not the first.
    fn after(&self);
    /// Takes back what the recording counted: it failed.
    fn undo(&self);
}

struct Recording {
    cells: Arc<Cells>,
    drawn: Vec<Drawn>,
    hooks: Vec<Arc<dyn Hook>>,
    /// Calls that have to be followed by another one in the recording, less those that were.
    open: i32,
    /// Two counts of one random stream: a call does not tell which is its own.
    shared: bool,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// A recording of random positions, which ends with this.
pub(crate) struct Positions(());

impl Drop for Positions {
    fn drop(&mut self) {
        RECORDING.with(|r| *r.borrow_mut() = None);
        set_recording(None);
    }
}

fn error(op: &'static str, why: &'static str) -> NnError {
    GpuError::Capture { op, why }.into()
}

/// Whether the calling thread records a step.
pub(crate) fn records() -> bool {
    RECORDING.with(|r| r.borrow().is_some())
}

/// Error of a call that cannot be part of a recorded step, if the calling thread records one.
pub(crate) fn refuse(op: &'static str, why: &'static str) -> Result<()> {
    if records() { Err(error(op, why)) } else { Ok(()) }
}

impl Positions {
    /// Gives the streams that are drawn from cells of `cells`.
    pub(crate) fn record(cells: &Arc<Cells>) -> Result<Self> {
        refuse("capture", "a step is being recorded by this thread")?;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        set_recording(Some(NEXT.fetch_add(1, Ordering::Relaxed)));
        let cells = cells.clone();
        let recording = Recording { cells, drawn: vec![], hooks: vec![], open: 0, shared: false };
        RECORDING.with(|r| *r.borrow_mut() = Some(recording));
        Ok(Positions(()))
    }

    /// What was registered to happen beside a replay.
    pub(crate) fn hooks(&self) -> Vec<Arc<dyn Hook>> {
        RECORDING.with(|r| r.borrow().as_ref().map(|r| r.hooks.clone())).unwrap_or_default()
    }

    /// Error if the recording ended between two calls that belong together, or draws from a stream that two layers count.
    pub(crate) fn closed(&self) -> Result<()> {
        const SHARED: &str = "two random layers of the step have one seed and stream; give them other seeds";
        match RECORDING.with(|r| r.borrow().as_ref().map_or((0, false), |r| (r.open, r.shared))) {
            (0, false) => Ok(()),
            (_, true) => Err(error("capture", SHARED)),
            _ => {
                Err(error("clipping under loss scaling", "the optimizer's step is not part of the recording"))
            }
        }
    }

    /// The streams that were drawn from, in the order of their cells. Errors: more than there are cells.
    pub(crate) fn drawn(&self) -> Result<Vec<Drawn>> {
        let drawn = RECORDING.with(|r| r.borrow().as_ref().map(|r| r.drawn.clone())).unwrap_or_default();
        match drawn.iter().all(|d| d.at < CELLS) {
            true => Ok(drawn),
            false => Err(error("capture", "the steps draw from more than 1024 random streams")),
        }
    }
}

/// Registers what the host does beside a replay.
pub(crate) fn hook(hook: Arc<dyn Hook>) {
    RECORDING.with(|r| r.borrow_mut().as_mut().map(|r| r.hooks.push(hook)));
}

/// Opens (1) or closes (-1) a pair of calls that a recording must have both of.
pub(crate) fn pair(by: i32) {
    RECORDING.with(|r| r.borrow_mut().as_mut().map(|r| r.open += by));
}

/// Whether a pair is open.
pub(crate) fn paired() -> bool {
    RECORDING.with(|r| r.borrow().as_ref().is_some_and(|r| r.open > 0))
}

/// Notes that the step draws from a stream whose count is `position`, before it moves.
pub(crate) fn draws(seed: u64, stream: u64, position: &Arc<AtomicU64>) {
    RECORDING.with(|r| {
        let mut r = r.borrow_mut();
        let Some(r) = r.as_mut() else { return };
        let key = (seed, stream);
        if !r.drawn.iter().any(|d| Arc::ptr_eq(&d.position, position)) {
            r.shared |= r.drawn.iter().any(|d| d.key == key);
            let (start, at) = (position.load(Ordering::Relaxed), r.cells.place(position));
            r.drawn.push(Drawn { key, position: position.clone(), start, at });
        }
    });
}

/// The cell of a count that is no random stream's, i64 `[1]`, while a step is recorded on this device; the step moves the count on.
pub(crate) fn count(device: &Device, position: &Arc<AtomicU64>) -> Result<Option<Operand>> {
    let key = (u64::MAX, Arc::as_ptr(position).addr() as u64);
    draws(key.0, key.1, position);
    Ok(cell(device, &Rng::new(key.0).at(key.1, 0))?.map(|c| c.memory))
}

/// Where a generator stood before the step.
pub(crate) struct Cell {
    memory: Operand,
    /// The same as a number, when the step was recorded.
    start: u64,
}

/// The cell of a generator, while its step is recorded on this device.
pub(crate) fn cell(device: &Device, rng: &Rng<'_>) -> Result<Option<Cell>> {
    RECORDING.with(|r| {
        let r = r.borrow();
        let Some(r) = r.as_ref().filter(|r| same_handle(r.cells.memory.device(), device)) else {
            return Ok(None);
        };
        let fits = |d: &&Drawn| d.key == (rng.seed, rng.stream) && rng.device_offset.is_none();
        let Some(d) = r.drawn.iter().find(fits) else { return Ok(None) };
        // Beyond the last cell the recording fails in the end.
        let at = d.at.min(CELLS - 1);
        let layout = contiguous("capture", &[1])?.shifted(at);
        let layout = layout.map_err(|_| invalid("capture", "cell", "a cell", format!("{at}")))?;
        Ok(Some(Cell { memory: r.cells.memory.relayout(layout).operand(), start: d.start }))
    })
}

/// The generator with its cell.
pub(crate) fn moved<'a>(rng: Rng<'a>, cell: &'a Option<Cell>) -> Result<Rng<'a>> {
    let mut rng = rng;
    if let Some(cell) = cell {
        rng.offset = rng.offset.wrapping_sub(cell.start);
        rng.device_offset = Some(cell.memory.view()?);
    }
    Ok(rng)
}
