//! How the steps of a recurrent network run.

use crate::device::{BackendKind, Caps};
use crate::dtype::DType;
use crate::engine::launch::{Grid, MAX_GRID_YZ};
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::ops::rnn::RnnCell;
use crate::spec::BLOCK;

/// Rows of the batch per block of the fused kernels (`GK_RNN_ROWS`), and columns of a state (`GK_UNITS`).
pub(crate) const ROWS: usize = 8;
const UNITS: usize = BLOCK as usize / 32;

/// Rows of the batch and columns of a state per block of `rnn/tiled.c`, forward and, per cluster, backward.
const TILE: [[usize; 2]; 2] = [[32, 8], [64, 32]];
/// Bytes of a stage there (`GK_STAGE_CHUNKS`), and in all those of the sums of a block, and of what a cluster exchanges.
const STAGE: [usize; 2] = [16 << 10, 12 << 10];
const SUMS: usize = 32 << 10;
const PUTS: usize = 8 << 10;

/// Columns of a state that a block of `rnn/persistent.c` may have, and rows of its tiles.
const PERSISTENT_COLUMNS: [usize; 2] = [16, 8];
const PERSISTENT_ROWS: usize = 16;
/// 16-byte items of the ring of stages there (`GK_RING_CHUNKS`), and places between the counts of groups (`GK_TURN_STEP`).
const RING: usize = 3 * 16 * 65;
pub(crate) const TURN_STEP: usize = 32;
/// Bytes that blocks may exchange: beyond what caches hold, products are faster.
const MOST_EXCHANGED: usize = 64 << 20;

/// Steps that one kernel counts: places of gates are multiples of four of them in 32 bits.
pub(crate) const MOST_STEPS: usize = 1 << 28;

/// Multiplications of a step from which on a product of its own and a further kernel are no slower than tiles of a step.
const LARGE: usize = 1 << 29;
/// Columns of a state from which on steps in tiles are faster than all steps in one kernel.
const LARGE_STATE: usize = 1024;
/// The largest state whose gradients tiles sum faster than a product does, in f32: 16-bit products win at any size.
const LARGE_BACKWARD: usize = 512;

/// The steps of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StepsProblem {
    pub(crate) cell: RnnCell,
    pub(crate) dtype: DType,
    pub(crate) batch: usize,
    pub(crate) hidden: usize,
    /// Whether rows of states and weights are whole items of 16 bytes at multiples of 16 bytes.
    pub(crate) aligned: bool,
    pub(crate) backward: bool,
    /// Whether there are more than [`MOST_STEPS`].
    pub(crate) long: bool,
}

/// How they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepsPlan {
    /// All steps are one kernel, whose blocks wait for each other.
    Persistent(Persistent),
    /// A step is one kernel, which multiplies by the recurrent weights itself: sums over lanes.
    Fused {
        /// Blocks along the columns of a state and along the batch.
        blocks: [usize; 2],
    },
    /// The same in tiles.
    Tiled {
        /// Blocks along the columns of a state and along the batch.
        blocks: [usize; 2],
        /// Bytes of `GK_LOCAL_DYNAMIC`.
        local: usize,
    },
    /// A step is a product and a kernel.
    Products,
}

/// The launch of all steps as one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Persistent {
    /// Blocks along the columns of a state, and groups of blocks along the batch.
    pub(crate) blocks: [usize; 2],
    /// Columns and rows of a block.
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    /// Floats that blocks exchange.
    pub(crate) exchanged: usize,
    /// Bytes of `GK_LOCAL_DYNAMIC`.
    pub(crate) local: usize,
}

impl StepsPlan {
    /// How all steps are one kernel, if they are.
    pub(crate) fn persistent(self) -> Option<Persistent> {
        if let StepsPlan::Persistent(p) = self { Some(p) } else { None }
    }

    pub(crate) fn is_tiled(self) -> bool {
        matches!(self, StepsPlan::Tiled { .. })
    }

    /// The grid of the kernel of a step that multiplies by the weights itself.
    pub(crate) fn grid(self) -> Option<Grid> {
        match self {
            StepsPlan::Fused { blocks: [x, y] } => Some(Grid::Blocks([x, y, 1])),
            StepsPlan::Tiled { blocks: [x, y], local } => Some(Grid::BlocksWithLocal([x, y, 1], local)),
            StepsPlan::Persistent(_) | StepsPlan::Products => None,
        }
    }
}

impl StepsProblem {
    /// Blocks for tiles of so many rows of the batch and columns.
    fn blocks(&self, [rows, columns]: [usize; 2]) -> Result<[usize; 2], Reason> {
        if self.batch > rows * MAX_GRID_YZ {
            return Err("the batch exceeds the grid".into());
        }
        Ok([self.hidden.div_ceil(columns), self.batch.div_ceil(rows)])
    }

    /// All steps in one kernel, with so many columns of a state per block.
    fn persistent_of(&self, columns: usize, caps: &Caps) -> Result<Persistent, Reason> {
        let (gates, chunks, most) = (self.cell.gates(), self.hidden.div_ceil(4), caps.compute_units as usize);
        let x = self.hidden.div_ceil(columns);
        if x > most {
            return Err(
                format!("a state of {} columns has more blocks than the device runs", self.hidden).into()
            );
        }
        let groups = (most / x).min(self.batch.div_ceil(PERSISTENT_ROWS)).max(1);
        let rows = self.batch.div_ceil(groups).next_multiple_of(PERSISTENT_ROWS);
        let blocks = [x, self.batch.div_ceil(rows)];
        let (local, exchanged) = if self.backward {
            (gates * columns * (16 * chunks + 4 * PERSISTENT_ROWS), 2 * blocks[1] * x * x * rows * columns)
        } else {
            let parts = BLOCK as usize / 2 / columns;
            let sums = (parts * (PERSISTENT_ROWS * gates * columns + 2)).div_ceil(4);
            (16 * (RING + sums + gates * columns * (chunks | 1)), 2 * self.batch * chunks * 4)
        };
        if local > caps.shared_bytes as usize {
            return Err(format!("it needs {local} bytes of local memory, of {}", caps.shared_bytes).into());
        }
        if 4 * exchanged > MOST_EXCHANGED {
            return Err(format!("blocks would exchange {} MiB", (4 * exchanged) >> 20).into());
        }
        Ok(Persistent { blocks, columns, rows, exchanged, local })
    }

    /// The same, with the columns that leave the blocks least to do.
    fn persistent(&self, caps: &Caps) -> Result<Persistent, Reason> {
        if !caps.cooperative || !caps.warp_groups {
            return Err("blocks cannot wait for each other on this device".into());
        }
        if self.long {
            return Err(format!("more than {MOST_STEPS} steps").into());
        }
        let [wide, narrow] = PERSISTENT_COLUMNS.map(|columns| self.persistent_of(columns, caps));
        match (wide, narrow) {
            (Ok(a), Ok(b)) => Ok(if b.rows * b.columns < a.rows * a.columns { b } else { a }),
            (a, b) => a.or(b),
        }
    }

    fn tiled(&self, caps: &Caps) -> Result<StepsPlan, Reason> {
        if !self.aligned {
            return Err("rows of states or weights are no whole items of 16 bytes".into());
        }
        let way = usize::from(self.backward);
        // As many stages as `rnn/tiled.c` has: where copies are asynchronous, more are on their way.
        let stages = match (caps.ptx(), caps.id.kind) {
            (false, _) => 2,
            (true, BackendKind::OpenCl) => 3,
            (true, _) => 4,
        };
        let local = (stages * STAGE[way]).max(SUMS) + way * PUTS;
        if local > caps.shared_bytes as usize {
            return Err(format!("it needs {local} bytes of local memory, of {}", caps.shared_bytes).into());
        }
        let [x, y] = self.blocks(TILE[way])?;
        let cluster = if self.backward { caps.cluster as usize } else { 1 };
        Ok(StepsPlan::Tiled { blocks: [x * cluster, y], local })
    }

    /// All steps in one kernel where a block has at most 16 rows of 16 columns or 32 of 8 in each. Forward, large states are faster in tiles.
    fn prefers_one_kernel(&self, caps: &Caps) -> bool {
        let small = |p: Persistent| p.rows * p.columns <= PERSISTENT_ROWS * PERSISTENT_COLUMNS[0];
        self.persistent(caps).is_ok_and(small) && (self.backward || self.hidden < LARGE_STATE)
    }

    /// Tiles where copies to local memory are asynchronous, for steps that are more than a launch and less than a large product. Backward, clusters
    /// give every SM a part of the sums.
    fn prefers_tiles(&self, caps: &Caps) -> bool {
        let small = self.batch <= 32 && self.hidden <= 512;
        let work = self.batch.saturating_mul(self.cell.gates() * self.hidden).saturating_mul(self.hidden);
        let backward = caps.cluster > 1 && self.dtype == DType::F32 && self.hidden <= LARGE_BACKWARD;
        caps.ptx() && !small && work < LARGE && (!self.backward || backward)
    }
}

impl Problem for StepsProblem {
    type Plan = StepsPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "persistent", source: "kernels/common/rnn/persistent.c" },
        Variant { name: "fused_step", source: "kernels/common/rnn/fused.c" },
        Variant { name: "tiled_step", source: "kernels/common/rnn/tiled.c" },
        Variant { name: PORTABLE, source: "kernels/common/rnn/rnn.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<StepsPlan, Reason> {
        match (variant, self.cell, self.dtype) {
            (3, ..) => Ok(StepsPlan::Products),
            (_, RnnCell::Lstm | RnnCell::Gru, DType::F64) => Err("there is no f64 unit".into()),
            (0, RnnCell::Lstm | RnnCell::Gru, _) => Ok(StepsPlan::Persistent(self.persistent(caps)?)),
            (1, RnnCell::Lstm | RnnCell::Gru, _) => {
                Ok(StepsPlan::Fused { blocks: self.blocks([ROWS, UNITS])? })
            }
            (_, RnnCell::Lstm | RnnCell::Gru, _) => self.tiled(caps),
            _ => Err("only LSTM and GRU have such a kernel".into()),
        }
    }

    /// The fused step where a product takes less time than its launch. Sums over lanes are slow on devices without shuffles.
    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        let exchange = !caps.is_cpu && caps.id.kind != BackendKind::OpenCl;
        match variant {
            0 => self.prefers_one_kernel(caps),
            1 => self.batch <= 32 && self.hidden <= 512 && exchange,
            2 => self.prefers_tiles(caps),
            _ => true,
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceId, MatrixCores};
    use crate::engine::geometry::tests::{chosen, cpu, gpu};

    fn problem(batch: usize, hidden: usize) -> StepsProblem {
        let (cell, dtype) = (RnnCell::Lstm, DType::F32);
        StepsProblem { cell, dtype, batch, hidden, aligned: true, backward: false, long: false }
    }

    fn hopper() -> Caps {
        Caps { matrix_cores: Some(MatrixCores::Ptx), shared_bytes: 227 << 10, ..gpu() }
    }

    #[test]
    fn small_steps_are_fused() {
        let p = problem(16, 256);
        assert_eq!(chosen(&p, &gpu()), "fused_step");
        assert_eq!(chosen(&p, &hopper()), "fused_step");
        assert_eq!(chosen(&p, &cpu()), "portable");
        for other in [
            StepsProblem { cell: RnnCell::Tanh, ..p },
            StepsProblem { dtype: DType::F64, ..p },
            StepsProblem { batch: 33, ..p },
            StepsProblem { hidden: 513, ..p },
        ] {
            assert_eq!(chosen(&other, &gpu()), "portable");
        }
    }

    #[test]
    fn larger_steps_run_in_tiles() {
        let p = problem(64, 512);
        let back = StepsProblem { backward: true, ..p };
        let wide = StepsProblem { cell: RnnCell::Gru, ..problem(128, 1024) };
        for p in [p, back, StepsProblem { cell: RnnCell::Gru, ..p }, problem(16, 1024), wide] {
            assert_eq!(chosen(&p, &hopper()), "tiled_step", "{p:?}");
            assert_eq!(chosen(&p, &cpu()), "portable");
        }
        for other in [
            StepsProblem { aligned: false, ..p },
            StepsProblem { cell: RnnCell::GruResetBefore, ..p },
            problem(128, 1024),
            StepsProblem { dtype: DType::Bf16, ..back },
            StepsProblem { hidden: 1024, ..back },
        ] {
            assert_eq!(chosen(&other, &hopper()), "portable", "{other:?}");
        }
        // Without clusters few blocks would make a gradient.
        let ampere = Caps { cluster: 1, ..hopper() };
        assert_eq!((chosen(&p, &ampere), chosen(&back, &ampere)), ("tiled_step", "portable"));
        assert_eq!(p.plan(2, &hopper()), Ok(StepsPlan::Tiled { blocks: [64, 2], local: 64 << 10 }));
        assert_eq!(back.plan(2, &hopper()), Ok(StepsPlan::Tiled { blocks: [128, 1], local: 56 << 10 }));
        let odd = StepsProblem { batch: 65, hidden: 33, ..back };
        assert_eq!(odd.plan(2, &ampere), Ok(StepsPlan::Tiled { blocks: [2, 2], local: 56 << 10 }));
    }

    #[test]
    fn tiles_fit_the_local_memory() {
        let (p, back) = (problem(64, 512), StepsProblem { backward: true, ..problem(64, 512) });
        let local = |p: StepsProblem, caps: &Caps| match p.plan(2, caps) {
            Ok(StepsPlan::Tiled { local, .. }) => local >> 10,
            _ => 0,
        };
        // NVIDIA's OpenCL has 48 KiB.
        let id = DeviceId::new(BackendKind::OpenCl, 0);
        let opencl = Caps { id, shared_bytes: 48 << 10, cluster: 1, ..hopper() };
        assert_eq!((local(p, &opencl), local(back, &opencl)), (48, 44));
        assert_eq!((local(p, &cpu()), local(back, &cpu())), (32, 0));
        assert!(back.plan(2, &cpu()).is_err_and(|e| e.contains("local memory")));
    }

    #[test]
    fn a_pinned_step_takes_what_fits_its_grid() {
        let caps = cpu();
        let p = StepsProblem { cell: RnnCell::Gru, ..problem(4096, 4096) };
        assert_eq!(p.plan(1, &caps), Ok(StepsPlan::Fused { blocks: [512, 512] }));
        for (variant, rows) in [(1, ROWS), (2, TILE[0][0])] {
            let huge = StepsProblem { batch: rows * MAX_GRID_YZ + 1, ..p };
            assert!(huge.plan(variant, &caps).is_err_and(|e| e.contains("grid")));
        }
        let odd = StepsProblem { aligned: false, ..p };
        assert!(odd.plan(1, &caps).is_ok() && odd.plan(2, &caps).is_err_and(|e| e.contains("16 bytes")));
        let plain = StepsProblem { cell: RnnCell::Relu, ..p };
        assert!(plain.plan(1, &caps).is_err_and(|e| e.contains("LSTM and GRU")));
    }

    /// A device whose blocks can wait for each other.
    fn waiting() -> Caps {
        Caps { cooperative: true, warp_groups: true, ..hopper() }
    }

    #[test]
    fn all_steps_are_one_kernel_where_blocks_can_wait() {
        let (p, caps) = (problem(64, 512), waiting());
        let of = |p: StepsProblem| p.plan(0, &caps).ok().and_then(StepsPlan::persistent);
        let shape = |p| of(p).map(|p| (p.blocks, p.columns, p.rows));
        assert_eq!(chosen(&p, &caps), "persistent");
        assert_eq!(shape(p), Some(([32, 4], 16, 16)));
        let back = StepsProblem { backward: true, ..p };
        assert_eq!(shape(back), Some(([32, 4], 16, 16)));
        assert_eq!(of(back).map(|p| p.exchanged), Some(2 * 4 * 32 * 32 * 16 * 16));
        // Rows that are no whole items of 16 bytes, and a tile that is not whole.
        assert_eq!(shape(StepsProblem { aligned: false, ..problem(70, 130) }), Some(([17, 5], 8, 16)));
        // Weights that fit a block with half the columns only; then there are rows for two tiles.
        assert_eq!(shape(problem(32, 650)), Some(([82, 1], 8, 32)));
        assert_eq!(shape(problem(128, 1024)), Some(([128, 1], 8, 128)));
        assert_eq!(chosen(&problem(128, 1024), &caps), "portable");
    }

    #[test]
    fn steps_are_kernels_of_their_own_where_they_must() {
        let (p, caps) = (problem(64, 512), waiting());
        let why = |p: StepsProblem, caps: &Caps| p.plan(0, caps).err().unwrap_or_default();
        for lacking in [Caps { cooperative: false, ..waiting() }, Caps { warp_groups: false, ..waiting() }] {
            assert!(why(p, &lacking).contains("wait for each other"));
        }
        assert!(why(StepsProblem { long: true, ..p }, &caps).contains("268435456 steps"));
        assert!(why(problem(1, 4096), &caps).contains("more blocks"));
        assert!(
            why(problem(1, 1056), &Caps { shared_bytes: 64 << 10, ..waiting() }).contains("local memory")
        );
        let wide = StepsProblem { backward: true, ..problem(128, 1024) };
        assert!(why(wide, &caps).contains("exchange 128 MiB"), "{}", why(wide, &caps));
        assert!(why(StepsProblem { cell: RnnCell::Tanh, ..p }, &caps).contains("LSTM and GRU"));
        assert!(why(StepsProblem { dtype: DType::F64, ..p }, &caps).contains("f64"));
    }
}
