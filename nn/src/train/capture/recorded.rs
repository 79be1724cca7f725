//! A step as a graph of the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trefoil::ops::core::{Graph, GraphInfo};
use trefoil::ops::elementwise::Binary;
use trefoil::{DType, GpuError};

use crate::core::capture::{CELLS, Drawn, Hook, Positions};
use crate::core::error::{NnError, Result};
use crate::core::tensor::{Device, Storage, Tensor, Watched, contiguous};

/// A step: inputs to outputs.
pub(crate) type Step<'f> = &'f mut dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>>;

/// A random stream that a replay moves on.
#[derive(Debug)]
struct Moving {
    position: Arc<AtomicU64>,
    /// Its count when the step was recorded.
    start: u64,
    /// Its count as the device has it.
    known: u64,
    /// How far a step moves it.
    by: u64,
}

impl Moving {
    fn of(d: Drawn) -> Self {
        let known = d.position.load(Ordering::Relaxed);
        Moving { start: d.start, known, by: known.wrapping_sub(d.start), position: d.position }
    }
}

/// A recorded step.
pub(crate) struct Recorded {
    graph: Graph,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// How far each stream has moved since the recording, i64; the graph moves them on.
    cells: Tensor,
    moving: Vec<Moving>,
    /// What the step changes in place.
    touched: Vec<Arc<Storage>>,
    hooks: Vec<Arc<dyn Hook>>,
}

/// The first `n` elements of a vector.
fn first(t: &Tensor, n: usize) -> Result<Tensor> {
    Ok(t.relayout(contiguous("capture", &[n])?))
}

fn write(t: &Tensor, values: impl Iterator<Item = u64>) -> Result<()> {
    let values: Vec<i64> = values.map(|v| v as i64).collect();
    match values.len() {
        0 => Ok(()),
        n => first(t, n)?.write_bytes(bytemuck::cast_slice(&values)),
    }
}

impl Recorded {
    /// Records a step for inputs like these, and runs it once. The second value counts the tensors beside its outputs that something keeps.
    ///
    /// Errors: what stands in the way of a recording; nothing was run then, and the random streams stand where they did.
    pub(super) fn new(device: &Device, inputs: &[Tensor], step: Step<'_>) -> Result<(Self, usize)> {
        let fixed = inputs.iter().map(|t| Tensor::empty_on(device, t.memory_format(), t.dtype(), t.shape()));
        let fixed = fixed.collect::<Result<Vec<_>>>()?;
        let [cells, deltas] = [(); 2].map(|()| Tensor::zeros(device, DType::I64, &[CELLS]));
        let (cells, deltas) = (cells?, deltas?);
        let positions = Positions::record(&cells)?;
        let watched = Watched::begin();
        let mut made = Err(NnError::NoGraph);
        let graph = device.capture_calls(&mut || {
            made = step(&fixed).and_then(|out| {
                let n = positions.drawn()?.len();
                positions.closed()?;
                if n > 0 {
                    let (all, by) = (first(&cells, n)?.operand(), first(&deltas, n)?.operand());
                    let add = Binary::Add { alpha: 1.0 };
                    device.binary(add, all.view()?, by.view()?, all.view_mut()?)?;
                }
                Ok(out.iter().map(Tensor::detach).collect())
            });
            match &made {
                Ok(_) => Ok(()),
                Err(_) => Err(GpuError::Capture { op: "capture", why: "the step failed" }),
            }
        });
        let notes = watched.end();
        let (drawn, hooks) = (positions.drawn()?, positions.hooks());
        drop(positions);
        let outputs: Vec<Tensor> = made
            .and_then(|out| match &graph {
                Ok(_) => Ok(out),
                Err(e) => Err(e.clone().into()),
            })
            .inspect_err(|_| {
                drawn.iter().for_each(|d| d.position.store(d.start, Ordering::Relaxed));
                hooks.iter().for_each(|h| h.undo());
            })?;
        let kept = notes.kept(&outputs);
        let moving: Vec<Moving> = drawn.into_iter().map(Moving::of).collect();
        write(&deltas, moving.iter().map(|m| m.by))?;
        let touched = notes.touched();
        let recorded = Recorded { graph: graph?, inputs: fixed, outputs, cells, moving, touched, hooks };
        recorded.hooks.iter().try_for_each(|h| h.before(true))?;
        recorded.run(inputs)?;
        Ok((recorded, kept))
    }

    /// What was recorded.
    pub(super) fn info(&self) -> &GraphInfo {
        self.graph.info()
    }

    fn run(&self, inputs: &[Tensor]) -> Result<()> {
        for (fixed, x) in self.inputs.iter().zip(inputs) {
            if !fixed.shares_storage(x) {
                fixed.assign(x)?;
            }
        }
        Ok(self.graph.replay()?)
    }

    /// The step on these inputs; its outputs stand until the next replay.
    pub(super) fn replay(&mut self, inputs: &[Tensor]) -> Result<&[Tensor]> {
        let now = |m: &Moving| m.position.load(Ordering::Relaxed);
        if self.moving.iter().any(|m| now(m) != m.known) {
            write(&self.cells, self.moving.iter().map(|m| now(m).wrapping_sub(m.start)))?;
        }
        self.hooks.iter().try_for_each(|h| h.before(false))?;
        self.run(inputs)?;
        self.hooks.iter().for_each(|h| h.after());
        for m in &mut self.moving {
            m.known = now(m).wrapping_add(m.by);
            m.position.store(m.known, Ordering::Relaxed);
        }
        self.touched.iter().for_each(|s| s.touch());
        Ok(&self.outputs)
    }

    /// The outputs of the last run.
    pub(super) fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }
}
