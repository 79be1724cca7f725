//! Random positions of a step that is recorded.
//!
//! A random layer counts on the host how far it has drawn, and gives each call its position by value. In a recording that number stays as it is, so the call
//! also gets a cell of device memory that is added to it: how far the layer's count has moved since the recording.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trefoil::GpuError;
use trefoil::ops::random::Rng;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Device, Operand, Tensor, contiguous, same_handle};

/// Random streams of a step at most.
pub(crate) const CELLS: usize = 1024;

/// A random stream that the step draws from.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    key: (u64, u64),
    /// The layer's count.
    pub(crate) position: Arc<AtomicU64>,
    /// What it was when the recording first drew.
    pub(crate) start: u64,
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
    cells: Tensor,
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
    /// Gives the streams that are drawn from cells of `cells` (i64 `[CELLS]`).
    pub(crate) fn record(cells: &Tensor) -> Result<Self> {
        refuse("capture", "a step is being recorded by this thread")?;
        let cells = cells.detach();
        RECORDING.with(|r| {
            *r.borrow_mut() = Some(Recording { cells, drawn: vec![], hooks: vec![], open: 0, shared: false })
        });
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
        match drawn.len() <= CELLS {
            true => Ok(drawn),
            false => Err(error("capture", "the step draws from more than 1024 random streams")),
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
            let start = position.load(Ordering::Relaxed);
            r.drawn.push(Drawn { key, position: position.clone(), start });
        }
    });
}

/// The cell of a generator, while its step is recorded on this device.
pub(crate) fn cell(device: &Device, rng: &Rng<'_>) -> Result<Option<Operand>> {
    RECORDING.with(|r| {
        let r = r.borrow();
        let Some(r) = r.as_ref().filter(|r| same_handle(r.cells.device(), device)) else { return Ok(None) };
        let Some(at) =
            r.drawn.iter().position(|d| d.key == (rng.seed, rng.stream) && rng.device_offset.is_none())
        else {
            return Ok(None);
        };
        // Beyond the last cell the recording fails in the end.
        let at = at.min(CELLS - 1);
        let layout = contiguous("capture", &[1])?.shifted(at);
        let layout = layout.map_err(|_| invalid("capture", "cell", "a cell", format!("{at}")))?;
        Ok(Some(r.cells.relayout(layout).operand()))
    })
}

/// The generator with its cell.
pub(crate) fn moved<'a>(rng: Rng<'a>, cell: &'a Option<Operand>) -> Result<Rng<'a>> {
    let mut rng = rng;
    if let Some(cell) = cell {
        rng.device_offset = Some(cell.view()?);
    }
    Ok(rng)
}
