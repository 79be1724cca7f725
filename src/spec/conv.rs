//! Kernels of convolution: `kernels/common/conv*.c`.

use super::{FLOATS, FLOATS64, kernels};

kernels! {
    family: Conv;
    CONV_PLAN = "conv/conv.c" "conv_plan", dtypes: FLOATS64, ops: &[],
        args: [w: In("gk_t"), plan: Out("int"), wt: Out("gk_f"), back: I32, m: I32, mpad: I32, r: I32, groups: I32, win: Dims, geo: Dims, img: Dims];
    CONV_TILE128 = "conv/conv.c" "conv_tile128", dtypes: FLOATS, ops: &[],
        args: [x: In("gk_t"), wt: In("gk_f"), plan: In("int"), scale: In("gk_t"), bias: In("gk_t"), residual: In("gk_t"), y: Out("gk_t"), z: Out("gk_t"), part: Out("gk_f"), img: Dims, out: Dims, step: Dims, phase: Dims, accumulate: I32, act: I32, q_act: Real];
    CONV_TILE64W = "conv/conv.c" "conv_tile64w", dtypes: FLOATS, ops: &[],
        args: [x: In("gk_t"), wt: In("gk_f"), plan: In("int"), scale: In("gk_t"), bias: In("gk_t"), residual: In("gk_t"), y: Out("gk_t"), z: Out("gk_t"), part: Out("gk_f"), img: Dims, out: Dims, step: Dims, phase: Dims, accumulate: I32, act: I32, q_act: Real];
    CONV_TILE32 = "conv/conv.c" "conv_tile32", dtypes: FLOATS, ops: &[],
        args: [x: In("gk_t"), wt: In("gk_f"), plan: In("int"), scale: In("gk_t"), bias: In("gk_t"), residual: In("gk_t"), y: Out("gk_t"), z: Out("gk_t"), part: Out("gk_f"), img: Dims, out: Dims, step: Dims, phase: Dims, accumulate: I32, act: I32, q_act: Real];
    CONV_TILE16 = "conv/conv.c" "conv_tile16", dtypes: FLOATS, ops: &[],
        args: [x: In("gk_t"), wt: In("gk_f"), plan: In("int"), scale: In("gk_t"), bias: In("gk_t"), residual: In("gk_t"), y: Out("gk_t"), z: Out("gk_t"), part: Out("gk_f"), img: Dims, out: Dims, step: Dims, phase: Dims, accumulate: I32, act: I32, q_act: Real];
    CONV_TILE64 = "conv/conv.c" "conv_tile64", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), wt: In("gk_f"), plan: In("int"), scale: In("gk_t"), bias: In("gk_t"), residual: In("gk_t"), y: Out("gk_t"), z: Out("gk_t"), part: Out("gk_f"), img: Dims, out: Dims, step: Dims, phase: Dims, accumulate: I32, act: I32, q_act: Real];
    CONV_SPLIT = "conv/conv.c" "conv_split", dtypes: FLOATS64, ops: &[],
        args: [part: In("gk_f"), scale: In("gk_t"), bias: In("gk_t"), residual: In("gk_t"), y: Out("gk_t"), z: Out("gk_t"), out: Dims, phase: Dims, accumulate: I32, act: I32, q_act: Real];
    CONV_WEIGHT128 = "conv/weight.c" "conv_weight128", dtypes: FLOATS, ops: &[],
        args: [x: In("gk_t"), dy: In("gk_t"), plan: In("int"), part: Out("gk_f"), img: Dims, out: Dims, step: Dims, size: Dims];
    CONV_WEIGHT64 = "conv/weight.c" "conv_weight64", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), dy: In("gk_t"), plan: In("int"), part: Out("gk_f"), img: Dims, out: Dims, step: Dims, size: Dims];
    CONV_JOIN = "conv/weight.c" "conv_join", dtypes: FLOATS64, ops: &[],
        args: [part: In("gk_f"), dw: Out("gk_t"), n: I64, splits: I32, accumulate: I32];
    CONV_DIRECT = "conv/direct.c" "conv_direct", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), w: In("gk_t"), scale: In("gk_t"), bias: In("gk_t"), residual: In("gk_t"), y: Out("gk_t"), z: Out("gk_t"), img: Dims, out: Dims, win: Dims, geo: Dims, back: I32, accumulate: I32, act: I32, p: Real];
    CONV_ROWS = "conv/direct.c" "conv_rows", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), w: In("gk_t"), scale: In("gk_t"), bias: In("gk_t"), residual: In("gk_t"), y: Out("gk_t"), z: Out("gk_t"), img: Dims, out: Dims, win: Dims, geo: Dims, back: I32, accumulate: I32, act: I32, p: Real];
    CONV_DIRECT_WEIGHT = "conv/direct.c" "conv_direct_weight", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), dy: In("gk_t"), part: Out("gk_f"), img: Dims, out: Dims, win: Dims, geo: Dims, splits: I32, per: I64];
    CONV_DEPTHWISE = "conv/depthwise.c" "conv_depthwise", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), w: In("gk_t"), scale: In("gk_t"), bias: In("gk_t"), residual: In("gk_t"), y: Out("gk_t"), z: Out("gk_t"), n: I64, size: Dims, by: Dims, wide: I32, back: I32, accumulate: I32, act: I32, p: Real];
    CONV_DEPTHWISE_WEIGHT = "conv/depthwise.c" "conv_depthwise_weight", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), dy: In("gk_t"), part: Out("gk_f"), n: I64, per: I64, size: Dims, by: Dims, wide: I32];
    IM2COL = "conv/columns.c" "im2col", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), col: Out("gk_t"), n: I64, img: Dims, out: Dims, win: Dims, geo: Dims, accumulate: I32];
    COL2IM = "conv/columns.c" "col2im", dtypes: FLOATS64, ops: &[],
        args: [col: In("gk_t"), x: Out("gk_t"), n: I64, img: Dims, out: Dims, win: Dims, geo: Dims, accumulate: I32];
    CAUSAL_CONV = "conv/causal.c" "causal_conv", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), w: In("gk_t"), bias: In("gk_t"), state: In("gk_t"), y: Out("gk_t"), n: I64, len: I64, channels: I64, k: I32, act: I32, p: Real];
    CAUSAL_STATE = "conv/causal.c" "causal_state", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), state: In("gk_t"), out: Out("gk_t"), rows: I64, len: I64, k: I32, same: I32];
    CAUSAL_SLOPE = "conv/causal.c" "causal_slope", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), x: In("gk_t"), w: In("gk_t"), bias: In("gk_t"), state: In("gk_t"), dz: Out("gk_f"), n: I64, len: I64, channels: I64, k: I32, act: I32, p: Real];
    CAUSAL_INPUT = "conv/causal.c" "causal_input", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), dz: In("gk_f"), w: In("gk_t"), dx: Out("gk_t"), n: I64, len: I64, channels: I64, k: I32, accumulate: I32];
    CAUSAL_WEIGHT = "conv/causal.c" "causal_weight", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), dz: In("gk_f"), x: In("gk_t"), state: In("gk_t"), part: Out("gk_f"), images: I64, len: I64, channels: I64, k: I32, per: I64];
    CAUSAL_JOIN = "conv/causal.c" "causal_join", dtypes: FLOATS64, ops: &[],
        args: [part: In("gk_f"), dw: Out("gk_t"), dbias: Out("gk_t"), channels: I64, k: I32, splits: I32, accumulate_w: I32, accumulate_b: I32];
    DEFORM_COLUMNS = "conv/deformable.c" "deform_columns", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), offset: In("gk_t"), mask: In("gk_t"), col: Out("gk_t"), n: I64, geo: Dims, img: Dims, out: Dims];
    DEFORM_SHIFTS = "conv/deformable.c" "deform_shifts", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), offset: In("gk_t"), mask: In("gk_t"), dcol: In("gk_f"), doffset: Out("gk_t"), dmask: Out("gk_t"), n: I64, geo: Dims, img: Dims, out: Dims, add_offset: I32, add_mask: I32];
    DEFORM_KEYS = "conv/deformable.c" "deform_keys", dtypes: FLOATS64, ops: &[],
        args: [offset: In("gk_t"), mask: In("gk_t"), keys: Out("int"), weight: Out("gk_f"), n: I64, limit: I32, geo: Dims, img: Dims, out: Dims];
    DEFORM_STARTS = "conv/deformable.c" "deform_starts", dtypes: FLOATS64, ops: &[],
        args: [keys: In("int"), start: Out("gk_i64"), n: I64, limit: I32];
    DEFORM_INPUT = "conv/deformable.c" "deform_input", dtypes: FLOATS64, ops: &[],
        args: [start: In("gk_i64"), positions: In("int"), weight: In("gk_f"), dcol: In("gk_f"), dx: Out("gk_t"), n: I64, img: Dims, out: Dims, accumulate: I32];
}
