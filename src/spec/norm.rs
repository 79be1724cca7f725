//! Kernels of `kernels/common/norm.c`, `norm_even.c`, `norm_bwd.c`, `norm_bwd_even.c` and `norm_l2.c`.

use super::{FLOATS64, kernels};

/// Units without and with an activation.
pub(crate) const OPS: &[&str] = &["gk_norm_plain", "gk_norm_act"];

kernels! {
    family: Norm;
    ROWS = "norm/norm.c" "norm_rows", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), r: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: Out("gk_t"), s: Out("gk_t"), mean: Out("gk_f"),
               rstd: Out("gk_f"), var: Out("gk_f"), rows: I64, cols: I64, inner: I64, groups: I64, cg: I64, lanes: I32, wide: I32, affine: I32,
               phase: I32, raw: I32, eps: Real, offset: Real, act: I32, p: Real];
    ROWS_LONG = "norm/norm.c" "norm_rows_long", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), r: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: Out("gk_t"), s: Out("gk_t"), mean: Out("gk_f"),
               rstd: Out("gk_f"), var: Out("gk_f"), rows: I64, cols: I64, inner: I64, groups: I64, cg: I64, lanes: I32, wide: I32, affine: I32,
               phase: I32, raw: I32, eps: Real, offset: Real, act: I32, p: Real];
    PART = "norm/norm.c" "norm_part", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), r: In("gk_t"), part: Out("gk_f"), rows: I64, cols: I64, splits: I32, chunk: I64, lanes: I32, wide: I32, phase: I32,
               raw: I32];
    COLS = "norm/norm.c" "norm_cols", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), part: Out("gk_f"), n: I64, cols: I64, chunk: I64, chunks: I32, tx: I32, wide: I32];
    JOIN = "norm/norm.c" "norm_join", dtypes: FLOATS64, ops: OPS,
        args: [part: In("gk_f"), mean: Out("gk_f"), rstd: Out("gk_f"), running_mean: Out("gk_f"), running_var: Out("gk_f"), counter: In("gk_i64"),
               outer: I64, sets: I64, inner: I64, tx: I32, chunk: I64, total: I64, by_outer: I32, n: Real, raw: I32, eps: Real, momentum: Real];
    RUNNING = "norm/norm.c" "norm_running", dtypes: FLOATS64, ops: OPS,
        args: [mean: In("gk_f"), var: In("gk_f"), running_mean: Out("gk_f"), running_var: Out("gk_f"), counter: In("gk_i64"), instances: I64,
               channels: I64, n: Real, momentum: Real];
    GIVEN = "norm/norm.c" "norm_given", dtypes: FLOATS64, ops: OPS,
        args: [running_mean: In("gk_f"), running_var: In("gk_f"), mean: Out("gk_f"), rstd: Out("gk_f"), n: I64, eps: Real];
    COUNT = "norm/norm.c" "norm_count", dtypes: FLOATS64, ops: OPS,
        args: [counter: Out("gk_i64")];
    APPLY = "norm/norm.c" "norm_apply", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), r: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), mean: In("gk_f"), rstd: In("gk_f"), y: Out("gk_t"),
               s: Out("gk_t"), n: I64, cols: I64, inner: I64, groups: I64, cg: I64, by_channel: I32, late: I32, wide: I32, affine: I32,
               offset: Real, act: I32, p: Real];
    ROWS_EVEN = "norm/aligned.c" "norm_rows_even", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), r: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: Out("gk_t"), s: Out("gk_t"), mean: Out("gk_f"),
               rstd: Out("gk_f"), rows: I32, items: I32, bits: I32, raw: I32, eps: Real, offset: Real, act: I32, p: Real];
    ROWS_EVEN_LONG = "norm/aligned.c" "norm_rows_even_long", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), r: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: Out("gk_t"), s: Out("gk_t"), mean: Out("gk_f"),
               rstd: Out("gk_f"), rows: I32, items: I32, bits: I32, raw: I32, eps: Real, offset: Real, act: I32, p: Real];
    ROWS_EVEN_ADD = "norm/aligned.c" "norm_rows_even_add", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), r: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: Out("gk_t"), s: Out("gk_t"), mean: Out("gk_f"),
               rstd: Out("gk_f"), rows: I32, items: I32, bits: I32, raw: I32, eps: Real, offset: Real, act: I32, p: Real];
    PART_EVEN = "norm/aligned.c" "norm_part_even", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), part: Out("gk_f"), runs: I32, items: I32, splits: I32, chunk: I32, bits: I32];
    SETS_EVEN = "norm/aligned.c" "norm_sets_even", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: Out("gk_t"), mean: Out("gk_f"), rstd: Out("gk_f"), sets: I32, share: I32,
               channels: I32, items: I32, bits: I32, eps: Real, act: I32, p: Real];
    APPLY_EVEN = "norm/aligned.c" "norm_apply_even", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), r: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), mean: In("gk_f"), rstd: In("gk_f"), y: Out("gk_t"), runs: I32,
               items: I32, splits: I32, chunk: I32, bits: I32, channels: I32, share: I32, act: I32, p: Real];
    APPLY_EVEN_ADD = "norm/aligned.c" "norm_apply_even_add", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), r: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), mean: In("gk_f"), rstd: In("gk_f"), y: Out("gk_t"), runs: I32,
               items: I32, splits: I32, chunk: I32, bits: I32, channels: I32, share: I32, act: I32, p: Real];
    BWD_ROWS_16 = "norm/backward_aligned.c" "norm_bwd_rows_16", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), x: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: In("gk_t"), mean: In("gk_f"), rstd: In("gk_f"),
               add: In("gk_t"), dx: Out("gk_t"), part: Out("gk_f"), rows: I32, items: I32, bits: I32, second: I64, raw: I32, offset: Real,
               act: I32, p: Real, accumulate: I32];
    BWD_ROWS_32 = "norm/backward_aligned.c" "norm_bwd_rows_32", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), x: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: In("gk_t"), mean: In("gk_f"), rstd: In("gk_f"),
               add: In("gk_t"), dx: Out("gk_t"), part: Out("gk_f"), rows: I32, items: I32, bits: I32, second: I64, raw: I32, offset: Real,
               act: I32, p: Real, accumulate: I32];
    BWD_SETS = "norm/backward_aligned.c" "norm_bwd_sets", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), x: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: In("gk_t"), mean: In("gk_f"), rstd: In("gk_f"),
               add: In("gk_t"), dx: Out("gk_t"), part: Out("gk_f"), sets: I32, share: I32, channels: I32, items: I32, bits: I32, second: I64,
               act: I32, p: Real, accumulate: I32];
    BWD_PART_EVEN = "norm/backward_aligned.c" "norm_bwd_part_even", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), x: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: In("gk_t"), r: In("gk_t"), mean: In("gk_f"),
               rstd: In("gk_f"), part: Out("gk_f"), runs: I32, items: I32, splits: I32, chunk: I32, bits: I32, channels: I32, share: I32,
               second: I64, act: I32, p: Real];
    BWD_APPLY_EVEN = "norm/backward_aligned.c" "norm_bwd_apply_even", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), x: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: In("gk_t"), r: In("gk_t"), mean: In("gk_f"),
               rstd: In("gk_f"), coef: In("gk_f"), add: In("gk_t"), dx: Out("gk_t"), dr: Out("gk_t"), runs: I32, items: I32, splits: I32,
               chunk: I32, bits: I32, channels: I32, share: I32, act: I32, p: Real, accumulate: I32, accumulate_r: I32];
    BWD_PART = "norm/backward.c" "norm_bwd_part", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), x: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: In("gk_t"), r: In("gk_t"), mean: In("gk_f"),
               rstd: In("gk_f"), part: Out("gk_f"), rows: I64, cols: I64, inner: I64, groups: I64, share: I64, splits: I32, chunk: I64,
               second: I64, lanes: I32, wide: I32, affine: I32, phase: I32, offset: Real, act: I32, p: Real];
    BWD_COEF = "norm/backward.c" "norm_bwd_coef", dtypes: FLOATS64, ops: OPS,
        args: [part: In("gk_f"), gamma: In("gk_t"), coef: Out("gk_f"), outer: I64, sets: I64, inner: I64, second: I64, tx: I32, cg: I64,
               splits: I64, groups: I64, n: Real, raw: I32, offset: Real];
    BWD_PARAMS = "norm/backward.c" "norm_bwd_params", dtypes: FLOATS64, ops: OPS,
        args: [part: In("gk_f"), dgamma: Out("gk_t"), dbeta: Out("gk_t"), outer: I64, sets: I64, inner: I64, second: I64, tx: I32,
               accumulate_gamma: I32, accumulate_beta: I32];
    BWD_APPLY = "norm/backward.c" "norm_bwd_apply", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), x: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: In("gk_t"), r: In("gk_t"), mean: In("gk_f"),
               rstd: In("gk_f"), coef: In("gk_f"), add: In("gk_t"), dx: Out("gk_t"), dr: Out("gk_t"), n: I64, cols: I64, inner: I64, groups: I64,
               share: I64, wide: I32, affine: I32, alone: I32, offset: Real, act: I32, p: Real, accumulate: I32, accumulate_r: I32];
    BWD_COLS = "norm/backward.c" "norm_bwd_cols", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), x: In("gk_t"), gamma: In("gk_t"), beta: In("gk_t"), y: In("gk_t"), r: In("gk_t"), mean: In("gk_f"),
               rstd: In("gk_f"), part: Out("gk_f"), n: I64, cols: I64, inner: I64, chunk: I64, chunks: I32, second: I64, tx: I32, wide: I32,
               affine: I32, offset: Real, act: I32, p: Real];
    L2_ROWS = "norm/l2.c" "l2_rows", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), rows: I64, cols: I64, lanes: I32, wide: I32, eps: Real];
    L2_BWD_ROWS = "norm/l2.c" "l2_bwd_rows", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), x: In("gk_t"), dx: Out("gk_t"), rows: I64, cols: I64, lanes: I32, wide: I32, eps: Real, accumulate: I32];
    L2_COLS = "norm/l2.c" "l2_cols", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), x: In("gk_t"), y: Out("gk_t"), outer: I64, cols: I64, inner: I64, tx: I32, wide: I32, eps: Real, accumulate: I32];
}
