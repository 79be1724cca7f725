//! Which steps are recorded: one graph for each set of shapes.

use std::fmt;
use std::sync::Arc;

use trefoil::ops::core::{Counters, GraphInfo};
use trefoil::{DType, GpuError};

use super::recorded::{Recorded, Step};
use crate::core::autograd::grad_enabled;
use crate::core::capture::Cells;
use crate::core::error::{NnError, Result};
use crate::core::hooks;
use crate::core::tensor::{Device, MemoryFormat, Tensor, Watched};

/// What is recorded of a step, and why not everything is.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct CaptureStatus {
    /// Graphs, one for each set of shapes.
    pub graphs: usize,
    /// Steps that were replayed.
    pub replays: u64,
    /// The last graph.
    pub last: Option<GraphInfo>,
    /// Why some steps, or all, are plain calls: the first reason.
    pub plain: Option<String>,
    /// Why the clearing of gradients, clipping and update of a [`Trainer`](crate::Trainer)'s steps are plain calls beside the graphs; `None` where they
    /// are part of them.
    pub update: Option<String>,
}

impl CaptureStatus {
    /// Graphs of one step at most; further shapes are plain calls.
    pub const MOST_GRAPHS: usize = 8;
}

/// What must be the same for a graph to serve.
#[derive(Debug, PartialEq)]
struct Key {
    inputs: Vec<(Vec<usize>, DType, MemoryFormat)>,
    /// What else the step depends on.
    more: u64,
}

impl Key {
    fn is(&self, more: u64, inputs: &[Tensor]) -> bool {
        let fits = |((shape, dtype, format), t): (&(Vec<usize>, DType, MemoryFormat), &Tensor)| {
            shape == t.shape() && *dtype == t.dtype() && *format == t.memory_format()
        };
        self.more == more && self.inputs.len() == inputs.len() && self.inputs.iter().zip(inputs).all(fits)
    }
}

enum State {
    /// It never ran.
    New,
    /// It ran, and is watched when it next does: so many times already.
    Ran(u32),
    /// Nothing that was seen stands in the way.
    Ready,
    Recorded(Box<Recorded>),
    Plain,
}

/// Sets of shapes that are remembered.
const MOST_SHAPES: usize = 64;
/// Runs that are watched before a step is given up: a driver may prepare something in the first, another thread may use the device.
const WATCHED: u32 = 3;

/// The graphs of a step.
pub(crate) struct Steps {
    device: Device,
    known: Vec<(Key, State)>,
    /// Positions that the graphs share; made with the first.
    cells: Option<Arc<Cells>>,
    status: CaptureStatus,
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Steps({:?})", self.status)
    }
}

/// A step that was made.
pub(crate) struct Done {
    pub(crate) outputs: Vec<Tensor>,
    /// Whether the outputs are the graph's, which the next replay overwrites.
    pub(crate) replayed: bool,
}

impl Done {
    pub(crate) fn plainly(outputs: Vec<Tensor>) -> Self {
        Done { outputs, replayed: false }
    }
}

impl Steps {
    pub(crate) fn new(device: &Device) -> Self {
        let mut steps = Steps::none(device);
        if let Err(e) = device.capture_calls(&mut || Ok(())) {
            steps.give_up(e.to_string());
        }
        steps
    }

    fn none(device: &Device) -> Self {
        Steps { device: device.clone(), known: vec![], cells: None, status: CaptureStatus::default() }
    }

    /// Steps that are never recorded, for this reason.
    pub(crate) fn plain(device: &Device, why: &str) -> Self {
        let mut steps = Steps::none(device);
        steps.give_up(why.to_string());
        steps
    }

    pub(crate) fn status(&self) -> &CaptureStatus {
        &self.status
    }

    fn give_up(&mut self, why: String) {
        if self.status.plain.is_none() {
            log::info!("steps on {} are not recorded: {why}", self.device.id());
            self.status.plain = Some(why);
        }
    }

    /// Whether no step is ever recorded.
    pub(crate) fn off(&self) -> bool {
        self.status.plain.is_some() && self.known.is_empty()
    }

    /// Where a set of shapes stands; `None` where too many are known.
    fn place(&mut self, more: u64, inputs: &[Tensor]) -> Option<usize> {
        if let Some(at) = self.known.iter().position(|(key, _)| key.is(more, inputs)) {
            return Some(at);
        }
        if self.known.len() >= MOST_SHAPES {
            self.give_up(format!(
                "more than {MOST_SHAPES} sets of shapes, or a model that changes between steps"
            ));
            return None;
        }
        let inputs = inputs.iter().map(|t| (t.shape().to_vec(), t.dtype(), t.memory_format())).collect();
        self.known.push((Key { inputs, more }, State::New));
        Some(self.known.len() - 1)
    }

    /// Runs a step, or replays it. `more` stands for what it depends on beside its inputs' shapes and dtypes.
    pub(crate) fn run(&mut self, more: u64, inputs: &[Tensor], step: Step<'_>) -> Result<Done> {
        // An observer sees operations, which a replay has not.
        if self.off() || hooks::watched() {
            return plainly(inputs, step);
        }
        // In any other order of memory other kernels might serve than in the graph.
        let dense = |t: &Tensor| t.detach().in_format(t.memory_format());
        let inputs = inputs.iter().map(dense).collect::<Result<Vec<_>>>()?;
        let more = more << 1 | u64::from(grad_enabled());
        let Some(at) = self.place(more, &inputs) else { return plainly(&inputs, step) };
        match &mut self.known[at].1 {
            State::Plain => plainly(&inputs, step),
            State::New => {
                let done = plainly(&inputs, step)?;
                self.known[at].1 = State::Ran(0);
                Ok(done)
            }
            &mut State::Ran(times) => self.watch(at, times + 1, &inputs, step),
            State::Ready => self.record(at, &inputs, step),
            State::Recorded(r) => match r.replay(&inputs).map(<[Tensor]>::to_vec) {
                Ok(outputs) => {
                    self.status.replays += 1;
                    Ok(Done { outputs, replayed: true })
                }
                // What the host does beside it does not fit any more; nothing was run.
                Err(NnError::Gpu(GpuError::Capture { .. })) => {
                    self.known[at].1 = State::Ran(0);
                    self.status.graphs -= 1;
                    plainly(&inputs, step)
                }
                Err(e) => Err(e),
            },
        }
    }

    /// Runs a step, and looks for what a recording could not repeat.
    fn watch(&mut self, at: usize, times: u32, inputs: &[Tensor], step: Step<'_>) -> Result<Done> {
        let before = self.device.counters();
        let watched = Watched::begin();
        let done = plainly(inputs, step);
        let notes = watched.end();
        let done = done?;
        let obstacle =
            host_work(&before, &self.device.counters()).or_else(|| keeps(notes.kept(&done.outputs)));
        self.known[at].1 = match obstacle {
            None => State::Ready,
            Some(_) if times < WATCHED => State::Ran(times),
            Some(why) => {
                self.give_up(why);
                State::Plain
            }
        };
        Ok(done)
    }

    /// Records a step and replays it, or runs it where that does not go.
    fn record(&mut self, at: usize, inputs: &[Tensor], step: Step<'_>) -> Result<Done> {
        if self.status.graphs >= CaptureStatus::MOST_GRAPHS {
            self.give_up(format!("there are {} graphs for other shapes already", self.status.graphs));
            self.known[at].1 = State::Plain;
            return plainly(inputs, step);
        }
        let cells = match &self.cells {
            Some(cells) => cells.clone(),
            None => self.cells.insert(Cells::new(&self.device)?).clone(),
        };
        match Recorded::new(&self.device, &cells, inputs, &mut *step) {
            Ok((recorded, kept)) => {
                // Nothing is left to fall back on: a part of the step may have run.
                recorded.start(inputs)?;
                let outputs = recorded.outputs().to_vec();
                self.known[at].1 = match keeps(kept) {
                    // The graph has run once, so that what is kept has its values; its memory stays with it.
                    Some(why) => {
                        self.give_up(why);
                        State::Plain
                    }
                    None => {
                        self.recorded(recorded.info().clone());
                        State::Recorded(Box::new(recorded))
                    }
                };
                Ok(Done { outputs, replayed: true })
            }
            Err(e) => {
                self.give_up(e.to_string());
                self.known[at].1 = State::Plain;
                plainly(inputs, step)
            }
        }
    }

    fn recorded(&mut self, info: GraphInfo) {
        let how = info
            .queued_by_host
            .as_ref()
            .map_or_else(|| "launched as a whole".to_string(), |why| format!("queued by the host ({why})"));
        let (launches, bytes) = (info.launches, info.bytes);
        if self.status.graphs == 0 {
            log::info!(
                "steps on {} are recorded: {launches} launches, {bytes} bytes, {how}",
                self.device.id()
            );
        }
        self.status.graphs += 1;
        self.status.last = Some(info);
    }
}

fn plainly(inputs: &[Tensor], step: Step<'_>) -> Result<Done> {
    Ok(Done::plainly(step(inputs)?.iter().map(Tensor::detach).collect()))
}

/// What the device was asked for that only the host can do.
fn host_work(before: &Counters, after: &Counters) -> Option<String> {
    let reads = after.downloads - before.downloads;
    let (waits, uploads) = (after.syncs - before.syncs, after.uploads - before.uploads);
    match (reads, waits, uploads) {
        (0, 0, 0) => None,
        (0, 0, n) => Some(format!("a step copies from the host ({n} times)")),
        (n, waits, _) => Some(format!("a step waits for the device ({} times)", n.max(waits))),
    }
}

fn keeps(kept: usize) -> Option<String> {
    let what = "tensors that a step made are kept beyond it: gradients outside of an optimizer's memory, or states that layers carry over";
    (kept > 0).then(|| format!("{kept} {what}"))
}
