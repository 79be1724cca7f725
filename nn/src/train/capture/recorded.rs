//! A step as a graph of the device.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trefoil::ops::core::{Graph, GraphInfo};
use trefoil::ops::elementwise::Binary;
use trefoil::{DType, GpuError};

use crate::core::capture::{CELLS, Cells, Drawn, Hook, Moving, Positions};
use crate::core::error::{NnError, Result};
use crate::core::tensor::{Device, Storage, Tensor, Watched, contiguous};

/// A step: inputs to outputs.
pub(crate) type Step<'f> = &'f mut dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>>;

/// A recorded step.
pub(crate) struct Recorded {
    graph: Graph,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Positions of the random streams; the graph moves them on.
    cells: Arc<Cells>,
    moving: Vec<Moving>,
    /// What the step changes in place.
    touched: Vec<Arc<Storage>>,
    hooks: Vec<Arc<dyn Hook>>,
}

impl Recorded {
    /// Records a step for inputs like these; [`start`](Recorded::start) runs it. The second value counts the tensors beside its outputs that something
    /// keeps.
    ///
    /// Errors: what stands in the way of a recording; nothing was run then, and the random streams stand where they did.
    pub(super) fn new(
        device: &Device,
        cells: &Arc<Cells>,
        inputs: &[Tensor],
        step: Step<'_>,
    ) -> Result<(Self, usize)> {
        let fixed = inputs.iter().map(|t| Tensor::empty_on(device, t.memory_format(), t.dtype(), t.shape()));
        let fixed = fixed.collect::<Result<Vec<_>>>()?;
        let deltas = Tensor::zeros(device, DType::I64, &[CELLS])?;
        let positions = Positions::record(cells)?;
        let watched = Watched::begin();
        let mut made = Err(NnError::NoGraph);
        let graph = device.capture_calls(&mut || {
            made = step(&fixed).and_then(|out| {
                let n = if positions.drawn()?.is_empty() { 0 } else { cells.len() };
                positions.closed()?;
                if n > 0 {
                    let by = deltas.relayout(contiguous("capture", &[n])?).operand();
                    let all = cells.first(n)?.operand();
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
        let moving: Vec<Moving> = drawn.iter().map(Drawn::moving).collect();
        let mut by = [0i64; CELLS];
        moving.iter().for_each(|m| by[m.at] = m.by as i64);
        let (cells, touched) = (cells.clone(), notes.touched());
        let recorded = Recorded { graph: graph?, inputs: fixed, outputs, cells, moving, touched, hooks };
        deltas.write_bytes(bytemuck::cast_slice(&by)).inspect_err(|_| recorded.undo())?;
        Ok((recorded, kept))
    }

    /// Takes back what the recording counted.
    fn undo(&self) {
        self.moving.iter().for_each(|m| _ = m.position.fetch_sub(m.by, Ordering::Relaxed));
        self.hooks.iter().for_each(|h| h.undo());
    }

    /// Runs the step that the recording has counted already. Errors: those of the step, of which a part may have run; counts stand as before it.
    pub(super) fn start(&self, inputs: &[Tensor]) -> Result<()> {
        let run = || {
            self.hooks.iter().try_for_each(|h| h.before(true))?;
            self.cells.refresh(&self.moving, true)?;
            self.run(inputs)
        };
        run().inspect_err(|_| self.undo())?;
        self.cells.moved(&self.moving);
        Ok(())
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
    pub(super) fn replay(&self, inputs: &[Tensor]) -> Result<&[Tensor]> {
        self.hooks.iter().try_for_each(|h| h.before(false))?;
        self.cells.refresh(&self.moving, false)?;
        self.run(inputs)?;
        self.hooks.iter().for_each(|h| h.after());
        self.cells.moved(&self.moving);
        for m in &self.moving {
            m.position.fetch_add(m.by, Ordering::Relaxed);
        }
        self.touched.iter().for_each(|s| s.touch());
        Ok(&self.outputs)
    }

    /// The outputs of the last run.
    pub(super) fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }
}
