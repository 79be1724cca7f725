//! Temporal memory of hierarchical temporal memory.

mod cells;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::{CpuBackend, DType};

use self::cells::{Active, Segments};
use super::{STEP_FUNCTION, Seen, check_share, check_size, check_vectors, clear, constant_of};
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result, invalid};
use crate::core::limits;
use crate::core::tensor::{Device, Tensor, is_trial};
use crate::layers::regularization::noise::RandomStream;
use crate::module::{InitContext, Layer, LocalLearning, Param, Visitor};

const OP: &str = "TemporalMemory";

/// Options of [`TemporalMemory`], under NuPIC's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TemporalMemoryOptions {
    /// Cells of a column.
    pub cells_per_column: usize,
    /// Active connected synapses that make a segment active.
    pub activation_threshold: usize,
    /// Active synapses, connected or not, that make a segment match.
    pub min_threshold: usize,
    /// Permanence of a new synapse.
    pub initial_permanence: f64,
    /// Permanence from which a synapse is connected.
    pub connected_permanence: f64,
    /// Growth of the permanence of a synapse whose cell was active.
    pub permanence_increment: f64,
    /// Loss of the permanence of a synapse whose cell was not.
    pub permanence_decrement: f64,
    /// Loss of the permanence of active synapses that predicted a column which did not become active.
    pub predicted_segment_decrement: f64,
    /// Synapses with active cells up to which a learning segment grows.
    pub max_new_synapse_count: usize,
    /// Segments of a cell; beyond them the one that was used longest ago goes.
    pub max_segments_per_cell: usize,
    /// Synapses of a segment; beyond them the weakest go.
    pub max_synapses_per_segment: usize,
    /// Segments of all cells together.
    pub capacity: usize,
}

impl Default for TemporalMemoryOptions {
    fn default() -> Self {
        TemporalMemoryOptions {
            cells_per_column: 32,
            activation_threshold: 13,
            min_threshold: 10,
            initial_permanence: 0.21,
            connected_permanence: 0.5,
            permanence_increment: 0.1,
            permanence_decrement: 0.1,
            predicted_segment_decrement: 0.0,
            max_new_synapse_count: 20,
            max_segments_per_cell: 255,
            max_synapses_per_segment: 255,
            capacity: 4096,
        }
    }
}

impl TemporalMemoryOptions {
    fn check(&self) -> Result<()> {
        for (arg, n) in [
            ("cells_per_column", self.cells_per_column),
            ("min_threshold", self.min_threshold),
            ("max_new_synapse_count", self.max_new_synapse_count),
            ("max_segments_per_cell", self.max_segments_per_cell),
            ("max_synapses_per_segment", self.max_synapses_per_segment),
            ("capacity", self.capacity),
        ] {
            check_size(OP, arg, n)?;
        }
        for (arg, share) in [
            ("initial_permanence", self.initial_permanence),
            ("connected_permanence", self.connected_permanence),
            ("permanence_increment", self.permanence_increment),
            ("permanence_decrement", self.permanence_decrement),
            ("predicted_segment_decrement", self.predicted_segment_decrement),
        ] {
            check_share(OP, arg, share)?;
        }
        if self.min_threshold > self.activation_threshold {
            let expected = format!("at most activation_threshold = {}", self.activation_threshold);
            return Err(invalid(OP, "min_threshold", expected, format!("{}", self.min_threshold)));
        }
        Ok(())
    }
}

/// Temporal memory of hierarchical temporal memory (Hawkins and Ahmad, 2016), NuPIC's `TemporalMemory`: a sequence of sets of active columns,
/// `[C]` or its steps `[T, C]` of 0 and 1, becomes the sets of active cells, `[C M]` or `[T, C M]`, cell k of column c at c M + k. In a column
/// that was predicted the predicted cells are active, in others all cells. The cells learn by segments, lists of synapses with cells that were
/// active a step before. The gradient of the input is 0.
///
/// The segments change their number and size in every step, so that this layer works on the host: every call waits for the device and copies
/// the columns, and the buffers too, between device and host. In training, [`LocalLearning::learn`] takes the steps of the last forward again,
/// with learning; [`step`](Self::step) does both at once.
///
/// Buffers: `active_cells` and `winner_cells [C M]` = 0 (u8), `segment_cell [S]` = -1 (i64, the cell of each of `capacity` segments, -1 for a
/// free one), `last_used [S]` = 0 (i64), `presynaptic [S, P]` = -1 (i32) and `permanence [S, P]` = 0 (f32) of at most
/// `max_synapses_per_segment` synapses each, `iteration` = 0 (i64). [`reset_state`](Layer::reset_state) ends a sequence: no cell is active.
#[derive(Debug)]
pub struct TemporalMemory {
    columns: usize,
    options: TemporalMemoryOptions,
    active_cells: Param,
    winner_cells: Param,
    segment_cell: Param,
    last_used: Param,
    presynaptic: Param,
    permanence: Param,
    iteration: Param,
    rng: RandomStream,
    host: Device,
    training: AtomicBool,
    seen: Seen<Steps>,
}

/// The steps of a forward, and where they began.
#[derive(Debug)]
struct Steps {
    columns: Vec<Vec<usize>>,
    before: Active,
    drawn: u64,
}

impl TemporalMemory {
    /// For a number of columns. Errors: a size of 0, more than 2^31 cells; permanences outside of [0, 1]; `min_threshold` above
    /// `activation_threshold`.
    pub fn new(cx: &InitContext, column_count: usize, options: TemporalMemoryOptions) -> Result<Self> {
        check_size(OP, "column_count", column_count)?;
        options.check()?;
        let cells = column_count.checked_mul(options.cells_per_column).filter(|&n| i32::try_from(n).is_ok());
        let Some(cells) = cells else {
            let got = format!("{column_count} columns of {} cells", options.cells_per_column);
            return Err(invalid(OP, "cells_per_column", "at most 2^31 - 1 cells", got));
        };
        let buffer = |dtype, shape: &[usize], value| {
            Ok::<_, NnError>(Param::buffer(Tensor::full(cx.device(), dtype, shape, value)?))
        };
        let synapses = [options.capacity, options.max_synapses_per_segment];
        Ok(TemporalMemory {
            columns: column_count,
            options,
            active_cells: buffer(DType::U8, &[cells], 0.0)?,
            winner_cells: buffer(DType::U8, &[cells], 0.0)?,
            segment_cell: buffer(DType::I64, &[options.capacity], -1.0)?,
            last_used: buffer(DType::I64, &[options.capacity], 0.0)?,
            presynaptic: buffer(DType::I32, &synapses, -1.0)?,
            permanence: buffer(DType::F32, &synapses, 0.0)?,
            iteration: buffer(DType::I64, &[], 0.0)?,
            rng: RandomStream::new(cx),
            host: Arc::new(CpuBackend::new()),
            training: AtomicBool::new(true),
            seen: Seen::default(),
        })
    }

    fn cells(&self) -> usize {
        self.columns * self.options.cells_per_column
    }

    fn active(&self) -> Result<Active> {
        Ok(Active { cells: self.active_cells.get().to_vec()?, winners: self.winner_cells.get().to_vec()? })
    }

    fn set_active(&self, active: &Active) -> Result<()> {
        self.active_cells.get().write_bytes(&active.cells)?;
        self.winner_cells.get().write_bytes(&active.winners)
    }

    fn segments(&self) -> Result<Segments> {
        Segments::new(
            self.options,
            self.cells(),
            self.segment_cell.get().to_vec()?,
            self.last_used.get().to_vec()?,
            &self.presynaptic.get().to_vec::<i32>()?,
            &self.permanence.get().to_vec::<f32>()?,
            self.iteration.get().item()?,
        )
    }

    fn set_segments(&self, segments: &Segments) -> Result<()> {
        let (presynaptic, permanence) = segments.table()?;
        self.segment_cell.get().write_bytes(bytemuck::cast_slice(&segments.cell))?;
        self.last_used.get().write_bytes(bytemuck::cast_slice(&segments.last_used))?;
        self.presynaptic.get().write_bytes(bytemuck::cast_slice(&presynaptic))?;
        self.permanence.get().write_bytes(bytemuck::cast_slice(&permanence))?;
        self.iteration.get().write_bytes(bytemuck::bytes_of(&segments.iteration))
    }

    /// The active columns of each step. Errors: a value other than 0 and 1.
    fn read(&self, x: &Tensor) -> Result<Vec<Vec<usize>>> {
        let values = x.detach().to_dtype(DType::F32)?.to_vec::<f32>()?;
        if let Some(at) = values.iter().position(|&v| v != 0.0 && v != 1.0) {
            let place = format!("step {}, column {}", at / self.columns, at % self.columns);
            return Err(NnError::Value { op: OP, place, value: values[at].into(), expected: "0 or 1" });
        }
        let on = |step: &[f32]| (0..self.columns).filter(|&c| step[c] == 1.0).collect();
        Ok(values.chunks(self.columns).map(on).collect())
    }

    /// Takes steps from `active`. Gives the active cells of each.
    fn advance(&self, active: &mut Active, columns: &[Vec<usize>], learn: bool) -> Result<Vec<u8>> {
        let mut segments = self.segments()?;
        let mut draw = |n: usize| Tensor::permutation(&self.host, n, self.rng.take(2 * n))?.to_vec::<i64>();
        let mut all = vec![];
        for columns in columns {
            *active = segments.step(active, columns, learn, &mut draw)?;
            limits::reserve(&mut all, active.cells.len())?;
            all.extend_from_slice(&active.cells);
        }
        if learn {
            self.set_segments(&segments)?;
        }
        self.set_active(active)?;
        Ok(all)
    }

    fn run(&self, x: &Tensor, learn: bool, keep: bool) -> Result<Tensor> {
        check_vectors(OP, "x", x, self.columns)?;
        let shape = [&x.shape()[..x.rank() - 1], &[self.cells()]].concat();
        if is_trial(x.device()) {
            return Tensor::empty(x.device(), x.dtype(), &shape);
        }
        let (columns, mut active) = (self.read(x)?, self.active()?);
        let (before, drawn) = (active.clone(), self.rng.position());
        let cells = self.advance(&mut active, &columns, learn)?;
        if keep {
            self.seen.put(Steps { columns, before, drawn });
        }
        let y = Tensor::from_slice(x.device(), &cells, &shape)?.to_dtype(x.dtype())?;
        Ok(constant_of("temporal_memory", y, x))
    }

    /// The active cells after a step, or several, of a sequence, with or without learning. Errors: another number of columns; values other
    /// than 0 and 1; more segments than the capacity.
    pub fn step(&self, x: &Tensor, learn: bool) -> Result<Tensor> {
        no_grad(|| self.run(&x.detach(), learn, false))
    }

    /// The cells, `[C M]` of 0 and 1 (u8), that are predicted to be active in the next step.
    pub fn predictive_cells(&self) -> Result<Tensor> {
        let cells = self.segments()?.predicted(&self.active()?);
        Tensor::from_slice(self.active_cells.get().device(), &cells, &[self.cells()])
    }

    /// The columns, `[C]` of 0 and 1 (u8), that are predicted to be active in the next step.
    pub fn predicted_columns(&self) -> Result<Tensor> {
        let cells = self.predictive_cells()?.reshape(&[self.columns, self.options.cells_per_column])?;
        cells.any(&[-1], false)
    }

    /// Number of segments of all cells.
    pub fn segment_count(&self) -> Result<usize> {
        Ok(self.segments()?.cell.iter().filter(|&&c| c >= 0).count())
    }
}

impl Layer for TemporalMemory {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, false, self.training.load(Ordering::Relaxed))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.buffer("active_cells", &self.active_cells);
        v.buffer("winner_cells", &self.winner_cells);
        v.buffer("segment_cell", &self.segment_cell);
        v.buffer("last_used", &self.last_used);
        v.buffer("presynaptic", &self.presynaptic);
        v.buffer("permanence", &self.permanence);
        v.buffer("iteration", &self.iteration);
        self.rng.visit(v);
        v.training(&self.training);
    }

    fn reset_state(&self) {
        self.seen.take();
        [&self.active_cells, &self.winner_cells].into_iter().for_each(clear);
    }

    fn no_gradient(&self) -> Option<String> {
        Some(STEP_FUNCTION.into())
    }

    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        Some(self)
    }
}

impl LocalLearning for TemporalMemory {
    fn learn(&self) -> Result<()> {
        let Some(Steps { columns, before: mut active, drawn }) = self.seen.take() else { return Ok(()) };
        self.rng.rewind(drawn);
        self.advance(&mut active, &columns, true).map(drop)
    }
}
