//! How linear recurrences run: whole sequences, or runs of steps side by side.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::{Grid, LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::ops::state_space::{StateRule, StateSizes};

/// Columns of a state per thread of `backward.c` (`GK_STATE_KEEP`).
const KEEP: usize = 4;
/// Steps between two of its marks (`GK_STATE_CHUNK`), marks within (`GK_STATE_CHUNK / GK_SEGMENT`), and elements of a mark per block.
const CHUNK: usize = 64;
const INNER_MARKS: usize = 8;
const MARK: usize = LANES * KEEP;
/// Fewest threads per row of `chunk.h`; local memory of `chunk_backward.c`, `channels.c` and `linear_backward.c` in bytes, at most.
const CHUNK_LANES: usize = 4;
const CHUNK_LOCAL: usize = 48 << 10;
/// Rows per thread of `chunk_backward.c` and `channels.c`, and of `linear_backward.c`; each has four columns.
const CHUNK_ROWS: usize = 2;
const LINEAR_ROWS: usize = 4;
/// Most states per channel of `chunk_backward.c` and of `channels.c`.
const CHANNEL_WIDTH: usize = 16;
/// Fewest threads per row of `linear_backward.c`, most columns of a state, and chunks between two of its marks (`GK_LINEAR_SPAN`).
const LINEAR_LANES: usize = 8;
const LINEAR_WIDTH: usize = 128;
const LINEAR_SPAN: usize = 8;
/// Rows and columns of a state per block of `chunk_matrix.c`, and its local memory in bytes (`GK_MC_SIDE`, `GK_MC_LOCAL`).
const MATRIX_SIDE: usize = 64;
const MATRIX_LOCAL: usize = 148_992;
/// Most steps of a run there, whose chunks it counts in 32 bits.
const MATRIX_STEPS: usize = i32::MAX as usize;
/// Fewest steps for which it is taken: on an H200, thousands of heads of 16 steps ran slower than step by step, of 128 faster.
const MATRIX_LEAST: usize = 64;
/// Most runs of one sequence.
const SPLITS: usize = 256;

const SCAN: &str = "kernels/common/state_space/scan.c";
const CHANNELS: &str = "kernels/common/state_space/channels.c";
const CHUNKS: &str = "kernels/common/state_space/chunk_backward.c";
const LINEAR: &str = "kernels/common/state_space/linear_backward.c";
const MATRIX: &str = "kernels/common/state_space/chunk_matrix.c";
const RECURRENCE: &str = "kernels/common/state_space/recurrence.c";

/// Blocks along the axis that every device has.
const MAX_BLOCKS: usize = i32::MAX as usize;

/// A scan of matrix states.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) struct StateProblem {
    pub(crate) rule: StateRule,
    pub(crate) size: StateSizes,
    pub(crate) dtype: DType,
    pub(crate) backward: bool,
}

/// The file whose kernel serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateKernel {
    /// `scan.c`, forward.
    Scan,
    /// `channels.c`, forward.
    Channels,
    /// `backward.c`, step by step.
    Steps,
    /// `chunk_backward.c`.
    Chunks,
    /// `linear_backward.c`.
    Linear,
    /// `chunk_matrix.c`, forward on matrix cores.
    Matrix,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatePlan {
    pub(crate) kernel: StateKernel,
    /// Threads per row of a state.
    pub(crate) lanes: usize,
    /// Blocks along the rows.
    pub(crate) tiles: usize,
    /// Steps of a run, and runs.
    pub(crate) split: usize,
    pub(crate) splits: usize,
    /// Blocks in all.
    pub(crate) blocks: usize,
}

impl StatePlan {
    /// Elements of the backward pass's marks.
    pub(crate) fn marks(&self, dtype: DType) -> usize {
        // `GK_CHUNK_STEPS`.
        let chunk = if dtype == DType::F64 { 4 } else { 8 };
        let block = match self.kernel {
            StateKernel::Scan | StateKernel::Channels | StateKernel::Matrix => 0,
            StateKernel::Steps => (self.split.div_ceil(CHUNK) + INNER_MARKS) * MARK,
            StateKernel::Chunks => self.split.div_ceil(chunk) * LANES * CHUNK_ROWS * 4,
            StateKernel::Linear => {
                (self.split.div_ceil(LINEAR_SPAN * chunk) + LINEAR_SPAN) * LANES * LINEAR_ROWS * 4
            }
        };
        self.blocks * block
    }

    /// Blocks, and their local memory where they say how much.
    pub(crate) fn grid(&self) -> Grid {
        match self.kernel {
            StateKernel::Matrix => Grid::BlocksWithLocal([self.blocks, 1, 1], MATRIX_LOCAL),
            _ => Grid::Blocks([self.blocks, 1, 1]),
        }
    }
}

/// Blocks that keep the device busy with recurrences, which wait for memory most of the time.
fn recurrence_blocks(caps: &Caps) -> usize {
    (caps.target_blocks() / 2).max(2)
}

/// Steps of a run so that `blocks` blocks, cut into runs, become `fill`; `None` where so many are there whole.
fn run_length(steps: usize, blocks: usize, fill: usize) -> Option<usize> {
    let splits = fill.div_ceil(blocks.max(1)).min(steps / CHUNK).min(SPLITS);
    (splits > 1).then(|| steps.div_ceil(splits).next_multiple_of(CHUNK))
}

/// Whether a block has so many bytes of local memory.
fn refused_by_local_memory(caps: &Caps, bytes: usize) -> Result<(), Reason> {
    match (caps.shared_bytes as usize) < bytes {
        true => Err(format!("it needs {bytes} bytes of local memory, of {}", caps.shared_bytes).into()),
        false => Ok(()),
    }
}

impl StateProblem {
    /// Threads per row, and blocks along the rows.
    fn lanes(&self, kernel: StateKernel) -> [usize; 2] {
        // `GK_CHUNK_COLUMNS` and `GK_CHUNK_ROWS`.
        let [columns, rows, least] = match kernel {
            StateKernel::Steps => [KEEP, 1, 1],
            StateKernel::Chunks | StateKernel::Channels => [4, CHUNK_ROWS, CHUNK_LANES],
            StateKernel::Linear => [4, LINEAR_ROWS, LINEAR_LANES],
            StateKernel::Scan => match self.rule {
                StateRule::Selective => [4, 1, CHUNK_LANES],
                StateRule::GatedDelta => [8, 2, CHUNK_LANES],
                _ => [4, 2, CHUNK_LANES],
            },
            StateKernel::Matrix => return [LANES, self.size.rows.div_ceil(MATRIX_SIDE)],
        };
        let lanes = pow2(self.size.width.div_ceil(columns), LANES).max(least);
        [lanes, self.size.rows.div_ceil(LANES / lanes * rows)]
    }

    /// Runs of sequences so that the device is busy: where a sequence that is cut is computed twice, that pays only where half of the multiprocessors
    /// would be idle.
    fn run_length(&self, whole: usize, kernel: StateKernel, caps: &Caps) -> Option<usize> {
        let units = caps.target_blocks() / 8;
        match kernel == StateKernel::Steps {
            true => run_length(self.size.steps, whole, recurrence_blocks(caps)),
            false if whole > (units / 2).max(2) => None,
            false => run_length(self.size.steps, whole, (2 * units).max(4)),
        }
    }

    /// The geometry of this pass for the runs of steps of another one's plan.
    pub(crate) fn runs(&self, of: &StatePlan) -> StatePlan {
        let kernel = StateKernel::Scan;
        let [lanes, tiles] = self.lanes(kernel);
        let blocks = self.size.batch * self.size.heads * tiles * of.splits;
        StatePlan { kernel, lanes, tiles, blocks, ..*of }
    }

    /// Why `chunk_backward.c` does not serve.
    fn refused_by_chunks(&self, caps: &Caps) -> Result<(), Reason> {
        match self.backward {
            true => self.refused_by_selective(caps),
            false => Err("forward has other kernels".into()),
        }
    }

    /// Why `channels.c` does not serve.
    fn refused_by_channels(&self, caps: &Caps) -> Result<(), Reason> {
        match self.backward {
            true => Err("gradients have other kernels".into()),
            false => self.refused_by_selective(caps),
        }
    }

    /// Why neither of them does.
    fn refused_by_selective(&self, caps: &Caps) -> Result<(), Reason> {
        match self.size.width {
            _ if self.rule != StateRule::Selective => Err("it is made for selective scans".into()),
            n if n > CHANNEL_WIDTH => Err(format!("{n} states per channel are above {CHANNEL_WIDTH}").into()),
            _ if !caps.lane_exchange => Err("threads of a warp cannot exchange values".into()),
            _ => refused_by_local_memory(caps, CHUNK_LOCAL),
        }
    }

    /// Why `chunk_matrix.c` does not serve.
    fn refused_by_matrix(&self, caps: &Caps) -> Result<(), Reason> {
        match self.rule {
            _ if self.backward => Err("gradients have other kernels".into()),
            StateRule::Selective | StateRule::GlaPerKey => Err("factors of its steps are per head".into()),
            _ if self.dtype == DType::F64 => Err("matrix cores have no products of f64 here".into()),
            _ if !caps.ptx() => Err("the device has no matrix cores that the kernel uses".into()),
            _ if self.size.width > MATRIX_SIDE => {
                Err(format!("{} columns of a state are above {MATRIX_SIDE}", self.size.width).into())
            }
            _ if self.size.steps > MATRIX_STEPS => {
                Err(format!("{} steps are above {MATRIX_STEPS}", self.size.steps).into())
            }
            _ => refused_by_local_memory(caps, MATRIX_LOCAL),
        }
    }

    /// Why `linear_backward.c` does not serve.
    fn refused_by_linear(&self, caps: &Caps) -> Result<(), Reason> {
        match () {
            () if !self.backward => Err("forward has other kernels".into()),
            () if self.rule == StateRule::Selective => {
                Err("factors of a selective scan are per state".into())
            }
            () if self.size.width > LINEAR_WIDTH => {
                Err(format!("{} columns of a state are above {LINEAR_WIDTH}", self.size.width).into())
            }
            () => refused_by_local_memory(caps, CHUNK_LOCAL),
        }
    }
}

impl Problem for StateProblem {
    type Plan = StatePlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "chunks", source: CHUNKS },
        Variant { name: "linear_chunks", source: LINEAR },
        Variant { name: "matrix_chunks", source: MATRIX },
        Variant { name: "channels", source: CHANNELS },
        Variant { name: "steps_split", source: SCAN },
        Variant { name: "sequences", source: SCAN },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<StatePlan, Reason> {
        let n = self.size;
        let kernel = match variant {
            0 => StateKernel::Chunks,
            1 => StateKernel::Linear,
            2 => StateKernel::Matrix,
            3 => StateKernel::Channels,
            _ if self.backward => StateKernel::Steps,
            _ => StateKernel::Scan,
        };
        let [lanes, tiles] = self.lanes(kernel);
        let whole = n.batch * n.heads * tiles;
        let run = self.run_length(whole, kernel, caps);
        let split = match variant {
            0 => {
                self.refused_by_chunks(caps)?;
                run.unwrap_or(n.steps)
            }
            1 => {
                self.refused_by_linear(caps)?;
                run.filter(|_| self.rule != StateRule::GatedDelta).unwrap_or(n.steps)
            }
            2 => {
                self.refused_by_matrix(caps)?;
                run.filter(|_| self.rule != StateRule::GatedDelta).unwrap_or(n.steps)
            }
            3 => {
                self.refused_by_channels(caps)?;
                run.unwrap_or(n.steps)
            }
            4 if self.rule == StateRule::GatedDelta => {
                return Err("a step of the delta rule is no factor per column".into());
            }
            4 => run.ok_or_else(|| -> Reason {
                format!("{whole} blocks over {} steps keep the device busy whole", n.steps).into()
            })?,
            _ => n.steps,
        };
        let split = split.max(1);
        let splits = n.steps.div_ceil(split).max(1);
        let blocks = whole * splits;
        if blocks > MAX_BLOCKS {
            return Err(format!("{blocks} blocks exceed the grid").into());
        }
        Ok(StatePlan { kernel, lanes, tiles, split, splits, blocks })
    }

    fn prefers(&self, variant: usize, _caps: &Caps) -> bool {
        variant != 2 || self.size.steps >= MATRIX_LEAST
    }
}

/// A recurrence over `steps` of contiguous operands `[outer, steps, inner]`.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) struct RecurrenceProblem {
    pub(crate) outer: usize,
    pub(crate) steps: usize,
    pub(crate) inner: usize,
}

/// How it runs: a thread has a column, or one of its runs of `split` steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecurrencePlan {
    pub(crate) split: usize,
    pub(crate) splits: usize,
    /// Threads in all.
    pub(crate) threads: usize,
}

impl Problem for RecurrenceProblem {
    type Plan = RecurrencePlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "steps_split", source: RECURRENCE },
        Variant { name: "sequences", source: RECURRENCE },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<RecurrencePlan, Reason> {
        let columns = self.outer * self.inner;
        let split = match variant {
            0 => run_length(self.steps, columns.div_ceil(LANES), recurrence_blocks(caps)).ok_or_else(
                || -> Reason {
                    format!("{columns} columns of {} steps keep the device busy whole", self.steps).into()
                },
            )?,
            _ => self.steps.max(1),
        };
        let splits = self.steps.div_ceil(split).max(1);
        let threads = columns * splits;
        if threads.div_ceil(LANES) > MAX_BLOCKS {
            return Err(format!("{threads} threads exceed the grid").into());
        }
        Ok(RecurrencePlan { split, splits, threads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MatrixCores;
    use crate::engine::geometry::tests::{applicable, chosen, gpu};

    fn selective(batch: usize, steps: usize, rows: usize, backward: bool) -> StateProblem {
        let size = StateSizes { batch, steps, heads: 1, rows, width: 16, groups: 1 };
        StateProblem { rule: StateRule::Selective, size, dtype: DType::F32, backward }
    }

    #[test]
    fn few_long_sequences_are_cut() {
        for (p, want) in [
            (selective(1, 4096, 256, false), "steps_split"),
            (selective(1, 100, 256, false), "sequences"),
            (selective(4096, 4096, 256, false), "sequences"),
        ] {
            assert_eq!(chosen(&p, &gpu()), want, "{p:?}");
        }
        let delta = StateProblem { rule: StateRule::GatedDelta, ..selective(1, 4096, 256, false) };
        assert_eq!(applicable(&delta, &gpu()), ["sequences"]);
        let column = RecurrenceProblem { outer: 1, steps: 1 << 16, inner: 3 };
        assert_eq!(chosen(&column, &gpu()), "steps_split");
    }

    #[test]
    fn gradients_of_selective_scans_take_chunks_where_warps_exchange_values() {
        let hopper = Caps { lane_exchange: true, shared_bytes: 227 << 10, ..gpu() };
        let p = selective(8, 2048, 2048, true);
        assert_eq!(chosen(&p, &hopper), "chunks");
        // 16 tiles of 128 channels for each of 8 sequences; two runs of four numbers for each thread and 8 steps.
        let plan = p.plan(0, &hopper).unwrap();
        assert_eq!((plan.blocks, plan.splits, plan.marks(DType::F32)), (128, 1, 128 * 256 * 8 * 256));
        assert_eq!(plan.marks(DType::F64), 128 * 512 * 8 * 256);
        assert!(p.plan(0, &gpu()).is_err_and(|e| e.contains("exchange")));
        let local = Caps { shared_bytes: 32 << 10, ..hopper.clone() };
        assert!(p.plan(0, &local).is_err_and(|e| e.contains("local memory")));
        let wide = StateProblem { size: StateSizes { width: 17, ..p.size }, ..p };
        assert!(wide.plan(0, &hopper).is_err_and(|e| e.contains("above 16")));
        let ssd = StateProblem { rule: StateRule::Ssd, ..p };
        assert!(ssd.plan(0, &hopper).is_err_and(|e| e.contains("selective")));
        assert!(selective(8, 2048, 2048, false).plan(0, &hopper).is_err_and(|e| e.contains("forward")));
        assert!(selective(1, 1 << 14, 128, true).plan(0, &hopper).is_ok_and(|p| p.splits > 100));
    }

    #[test]
    fn selective_scans_keep_states_in_registers_where_warps_exchange_values() {
        let caps = Caps { lane_exchange: true, shared_bytes: 48 << 10, ..gpu() };
        let p = selective(8, 2048, 2000, false);
        assert_eq!(chosen(&p, &caps), "channels");
        // 16 tiles of 128 channels for each of 8 sequences.
        let plan = p.plan(3, &caps).unwrap();
        assert_eq!((plan.blocks, plan.splits, plan.marks(DType::F32)), (128, 1, 0));
        assert!(selective(1, 1 << 14, 128, false).plan(3, &caps).is_ok_and(|p| p.splits > 100));
        let refused = |p: StateProblem, caps: &Caps, why: &str| {
            assert!(p.plan(3, caps).is_err_and(|e| e.contains(why)), "{why}");
        };
        refused(p, &gpu(), "exchange");
        refused(StateProblem { backward: true, ..p }, &caps, "gradients");
        refused(StateProblem { rule: StateRule::Ssd, ..p }, &caps, "selective");
        refused(StateProblem { size: StateSizes { width: 17, ..p.size }, ..p }, &caps, "above 16");
        refused(p, &Caps { shared_bytes: 32 << 10, ..caps.clone() }, "local memory");
    }

    #[test]
    fn gradients_of_other_scans_take_chunks_up_to_128_columns() {
        let caps = Caps { shared_bytes: 48 << 10, ..gpu() };
        let size = StateSizes { batch: 8, steps: 2048, heads: 16, rows: 64, width: 64, groups: 16 };
        for rule in [StateRule::Gla, StateRule::GlaPerKey, StateRule::GatedDelta, StateRule::Ssd] {
            let p = StateProblem { rule, size, dtype: DType::F32, backward: true };
            assert_eq!(chosen(&p, &caps), "linear_chunks");
            // A tile of 64 rows for each of 128 heads; 32 spans of 64 steps and 8 chunks of the last, 16 numbers for each thread.
            let plan = p.plan(1, &caps).unwrap();
            assert_eq!((plan.blocks, plan.tiles, plan.splits), (128, 1, 1));
            assert_eq!(plan.marks(DType::F32), 128 * (32 + 8) * 16 * 256);
            assert_eq!(plan.marks(DType::F64), 128 * (64 + 8) * 16 * 256);
            let wide = StateProblem { size: StateSizes { width: 129, ..size }, ..p };
            assert!(wide.plan(1, &caps).is_err_and(|e| e.contains("above 128")));
            assert!(StateProblem { backward: false, ..p }.plan(1, &caps).is_err());
            let local = Caps { shared_bytes: 32 << 10, ..caps.clone() };
            assert!(p.plan(1, &local).is_err_and(|e| e.contains("local memory")));
            let few = StateProblem { size: StateSizes { batch: 1, heads: 1, groups: 1, ..size }, ..p };
            assert_eq!(few.plan(1, &caps).unwrap().splits > 1, rule != StateRule::GatedDelta);
        }
        assert!(selective(8, 2048, 2048, true).plan(1, &caps).is_err_and(|e| e.contains("per state")));
    }

    #[test]
    fn factors_per_head_take_matrix_cores_up_to_64_columns() {
        let caps = Caps { matrix_cores: Some(MatrixCores::Ptx), shared_bytes: 227 << 10, ..gpu() };
        let size = StateSizes { batch: 8, steps: 2048, heads: 16, rows: 65, width: 64, groups: 1 };
        for rule in [StateRule::Gla, StateRule::GatedDelta, StateRule::Ssd] {
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                let p = StateProblem { rule, size, dtype, backward: false };
                assert_eq!(chosen(&p, &caps), "matrix_chunks");
                let plan = p.plan(2, &caps).unwrap();
                assert_eq!((plan.blocks, plan.tiles, plan.splits), (256, 2, 1));
                assert_eq!(plan.grid(), Grid::BlocksWithLocal([256, 1, 1], 148_992));
                assert_eq!(chosen(&p, &gpu()), "sequences");
                let short = StateProblem { size: StateSizes { steps: 63, ..size }, ..p };
                assert_eq!(chosen(&short, &caps), "sequences");
                assert!(applicable(&short, &caps).contains(&"matrix_chunks"));
            }
            let p = StateProblem { rule, size, dtype: DType::F32, backward: false };
            let refused = |p: StateProblem, caps: &Caps, why: &str| {
                assert!(p.plan(2, caps).is_err_and(|e| e.contains(why)), "{why}");
            };
            refused(p, &gpu(), "matrix cores");
            refused(p, &Caps { shared_bytes: 99 << 10, ..caps.clone() }, "local memory");
            refused(StateProblem { dtype: DType::F64, ..p }, &caps, "f64");
            refused(StateProblem { backward: true, ..p }, &caps, "gradients");
            refused(StateProblem { size: StateSizes { width: 65, ..size }, ..p }, &caps, "above 64");
            refused(StateProblem { size: StateSizes { steps: 1 << 31, ..size }, ..p }, &caps, "steps");
            let few = StateProblem { size: StateSizes { batch: 1, heads: 1, ..size }, ..p };
            assert_eq!(few.plan(2, &caps).unwrap().splits > 1, rule != StateRule::GatedDelta);
        }
        for rule in [StateRule::Selective, StateRule::GlaPerKey] {
            let p = StateProblem { rule, size, dtype: DType::F32, backward: false };
            assert!(p.plan(2, &caps).is_err_and(|e| e.contains("per head")));
        }
    }

    #[test]
    fn runs_cover_the_steps_and_none_is_empty() {
        let caps = Caps { lane_exchange: true, shared_bytes: 48 << 10, ..gpu() };
        for steps in [1, 63, 64, 127, 128, 130, 1000, 4096, 100_001] {
            for backward in [false, true] {
                for variant in 0..StateProblem::VARIANTS.len() {
                    let Ok(p) = selective(2, steps, 100, backward).plan(variant, &caps) else { continue };
                    assert!(
                        p.split * p.splits >= steps && p.split * (p.splits - 1) < steps,
                        "{steps}: {p:?}"
                    );
                    assert_eq!(p.blocks, 2 * p.tiles * p.splits);
                    assert_eq!(p.lanes, 4);
                }
            }
        }
    }
}
