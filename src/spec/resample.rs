//! Kernels of `kernels/common/resample.c`, `grid_sample.c` and `nms.c`.

use super::{FLOATS64, kernels};

/// Ways of reading between cells.
const MODES: &[&str] = &["gk_sample_nearest", "gk_sample_linear", "gk_sample_cubic"];

kernels! {
    family: Resample;
    NEAREST = "resample/resample.c" "nearest", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, size: Dims, magic: Dims, half_cell: I32, small: I32, wide: I32];
    NEAREST_BWD = "resample/resample.c" "nearest_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), dx: Out("gk_t"), n: I64, size: Dims, magic: Dims, half_cell: I32, small: I32, accumulate: I32];
    NEAREST_TWICE = "resample/resample.c" "nearest_twice", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, runs: I32, rows: I32, by: Dims, fd: I32, fh: I32];
    NEAREST_TWICE_BWD = "resample/resample.c" "nearest_twice_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), dx: Out("gk_t"), n: I64, runs: I32, rows: I32, by: Dims, fd: I32, fh: I32, accumulate: I32];
    RESAMPLE_TAPS = "resample/resample.c" "resample_taps", dtypes: FLOATS64, ops: &[],
        args: [bounds: Out("int"), weights: Out("gk_f"), n: I64, size: Dims, taps: Dims, cubic: I32, align: I32, antialias: I32];
    RESAMPLE_SPANS = "resample/resample.c" "resample_spans", dtypes: FLOATS64, ops: &[],
        args: [bounds: Out("int"), n: I64, size: Dims];
    RESAMPLE = "resample/resample.c" "resample", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), bounds: In("int"), weights: In("gk_f"), y: Out("gk_t"), n: I64, planes: I64, group: I32, size: Dims, magic: Dims, taps: Dims];
    RESAMPLE_BWD = "resample/resample.c" "resample_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), bounds: In("int"), weights: In("gk_f"), dx: Out("gk_t"), n: I64, planes: I64, group: I32, size: Dims, magic: Dims, taps: Dims, accumulate: I32];
    AFFINE_GRID = "resample/resample.c" "affine_grid", dtypes: FLOATS64, ops: &[],
        args: [theta: In("gk_t"), grid: Out("gk_t"), n: I64, axes: I32, size: Dims, magic: Dims, align: I32];
    AFFINE_GRID_SUMS = "resample/resample.c" "affine_grid_sums", dtypes: FLOATS64, ops: &[],
        args: [dgrid: In("gk_t"), part: Out("gk_f"), samples: I64, points: I64, chunk: I64, axes: I32, size: Dims, magic: Dims, align: I32];
    AFFINE_GRID_JOIN = "resample/resample.c" "affine_grid_join", dtypes: FLOATS64, ops: &[],
        args: [part: In("gk_f"), dtheta: Out("gk_t"), n: I64, axes: I32, chunks: I32, accumulate: I32];
    SAMPLE_GATHER = "resample/resample.c" "sample_gather", dtypes: FLOATS64, ops: &[],
        args: [keys: In("int"), positions: In("int"), weights: In("gk_f"), dy: In("gk_t"), dx: Out("gk_t"), n: I64, entries: I64, wide_keys: I32, cells: I64, samples: I64, outputs: I64, all: I64, channels: I64, shift: I32, accumulate: I32];
    GRID_SAMPLE = "resample/grid_sample.c" "grid_sample", dtypes: FLOATS64, ops: MODES,
        args: [x: In("gk_t"), grid: In("gk_t"), y: Out("gk_t"), n: I64, samples: I64, outputs: I64, all: I64, channels: I64, axes: I32, size: Dims, padding: I32, align: I32];
    GRID_SAMPLE_DGRID = "resample/grid_sample.c" "grid_sample_dgrid", dtypes: FLOATS64, ops: MODES,
        args: [dy: In("gk_t"), x: In("gk_t"), grid: In("gk_t"), dgrid: Out("gk_t"), n: I64, outputs: I64, all: I64, axes: I32, size: Dims, padding: I32, align: I32, accumulate: I32];
    GRID_SAMPLE_KEYS = "resample/grid_sample.c" "grid_sample_keys", dtypes: FLOATS64, ops: MODES,
        args: [grid: In("gk_t"), keys: Out("int"), weights: Out("gk_f"), n: I64, outputs: I64, wide_keys: I32, none: I64, per: I32, axes: I32, size: Dims, padding: I32, align: I32];
    NMS_KEYS = "resample/nms.c" "nms_keys", dtypes: FLOATS64, ops: &[],
        args: [scores: In("gk_t"), keys: Out("gk_u8"), n: I64];
    NMS_OVERLAPS = "resample/nms.c" "nms_overlaps", dtypes: FLOATS64, ops: &[],
        args: [boxes: In("gk_t"), groups: In("int"), order: In("int"), bits: Out("gk_u32"), n: I64, words: I64, wide_groups: I32, threshold: Real];
    NMS_PASS = "resample/nms.c" "nms_pass", dtypes: FLOATS64, ops: &[],
        args: [order: In("int"), bits: In("gk_u32"), gone: Out("gk_u32"), keep: Out("gk_i64"), count: Out("gk_i64"), n: I64, words: I64];
}
