//! Kernels of graphs: `kernels/common/{aggregate,edges,gat,heat,graph_plan}.c`.

use super::{FLOATS64, kernels};
use crate::dtype::DType;

/// Lists of indices.
const INDEX: &[DType] = &[DType::I32];
/// Heat diffusion computes 16-bit data in f32.
const REAL: &[DType] = &[DType::F32, DType::F64];

/// What a message of `aggregate` can be, from the general one to those known when the unit is compiled.
pub(crate) const AGGREGATES: &[&str] = &["gk_agg_any", "gk_agg_copy", "gk_agg_scaled", "gk_agg_shared"];
/// Those of extremes, which have no degrees.
const EXTREMES: &[&str] = &["gk_agg_any", "gk_agg_copy", "gk_agg_scaled"];

kernels! {
    family: Graph;
    AGGREGATE = "graph/aggregate.c" "aggregate", dtypes: FLOATS64, ops: AGGREGATES,
        args: [rowptr: In("int"), met: In("int"), col: In("int"), perm: In("int"), a: In("gk_t"), b: In("gk_t"), self: In("gk_t"), self_stat: In("gk_f"), degree: In("int"), mask: In("int"), base: In("gk_f"), bias: In("gk_t"), y: Out("gk_t"), stat: Out("gk_f"), parts: Out("gk_f"), err: Out("int"), size: Dims, how: Dims, b_span: I64, b_row: I64, bias_span: I64, act: I32, slope: Real, alpha: Real, code: I32];
    AGGREGATE_JOIN = "graph/aggregate.c" "aggregate_join", dtypes: FLOATS64, ops: &["gk_agg_any"],
        args: [rowptr: In("int"), met: In("int"), parts: In("gk_f"), base: In("gk_f"), bias: In("gk_t"), y: Out("gk_t"), stat: Out("gk_f"), size: Dims, how: Dims, bias_span: I64, act: I32, slope: Real, alpha: Real];
    AGGREGATE_BEST = "graph/aggregate.c" "aggregate_best", dtypes: FLOATS64, ops: EXTREMES,
        args: [rowptr: In("int"), met: In("int"), col: In("int"), perm: In("int"), a: In("gk_t"), b: In("gk_t"), self: In("gk_t"), y: Out("gk_t"), arg: Out("int"), parts: Out("gk_f"), ids: Out("int"), err: Out("int"), size: Dims, how: Dims, b_span: I64, b_row: I64, least: I32, wide_arg: I32, none: Real, code: I32];
    AGGREGATE_BEST_JOIN = "graph/aggregate.c" "aggregate_best_join", dtypes: FLOATS64, ops: &["gk_agg_any"],
        args: [rowptr: In("int"), met: In("int"), parts: In("gk_f"), ids: In("int"), y: Out("gk_t"), arg: Out("int"), size: Dims, how: Dims, least: I32, wide_arg: I32, none: Real];
    EDGE_MAP = "graph/edges.c" "edge_map", dtypes: FLOATS64, ops: &[],
        args: [left: In("int"), right: In("int"), a: In("gk_t"), b: In("gk_t"), degree: In("int"), mask: In("int"), out: Out("gk_t"), err: Out("int"), size: Dims, op: I32, alpha: Real, wide_index: I32, wide_saved: I32, wide: I32, accumulate: I32, code: I32];
    GROUP_SPREAD = "graph/edges.c" "group_spread", dtypes: FLOATS64, ops: &[],
        args: [rowptr: In("int"), met: In("int"), perm: In("int"), dy: In("gk_t"), arg: In("int"), count: In("int"), out: Out("gk_t"), err: Out("int"), size: Dims, flags: I32, wide: I32, code: I32];
    EDGE_DOT = "graph/edges.c" "edge_dot", dtypes: FLOATS64, ops: &[],
        args: [left: In("int"), right: In("int"), a: In("gk_t"), b: In("gk_t"), degree: In("int"), mask: In("int"), out: Out("gk_t"), stat: Out("gk_f"), err: Out("int"), size: Dims, wide_index: I32, wide_saved: I32, wide: I32, accumulate: I32, code: I32];
    EDGE_NORM = "graph/edges.c" "edge_norm", dtypes: FLOATS64, ops: &[],
        args: [rowptr: In("int"), met: In("int"), perm: In("int"), x: In("gk_t"), z: In("gk_t"), top: Out("gk_f"), sum: Out("gk_f"), parts: Out("gk_f"), err: Out("int"), size: Dims, flags: I32, wide: I32, code: I32];
    EDGE_NORM_JOIN = "graph/edges.c" "edge_norm_join", dtypes: FLOATS64, ops: &[],
        args: [rowptr: In("int"), met: In("int"), parts: In("gk_f"), top: Out("gk_f"), sum: Out("gk_f"), size: Dims, flags: I32];
    EDGE_APPLY = "graph/edges.c" "edge_apply", dtypes: FLOATS64, ops: &[],
        args: [node: In("int"), x: In("gk_t"), z: In("gk_t"), s: In("gk_f"), t: In("gk_f"), u: In("gk_t"), y: In("gk_t"), rowptr: In("int"), out: Out("gk_t"), err: Out("int"), size: Dims, what: I32, wide_index: I32, wide_rowptr: I32, wide: I32, accumulate: I32, code: I32];
    GROUP_STD = "graph/edges.c" "group_std", dtypes: FLOATS64, ops: &[],
        args: [rowptr: In("int"), sum: In("gk_f"), y: Out("gk_t"), n: I64, nodes: I64, inner: I64, wide_index: I32, correction: I32, eps: Real];
    ARG_SPREAD = "graph/edges.c" "arg_spread", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), arg: In("int"), dsrc: Out("gk_t"), err: Out("int"), n: I64, nodes: I64, inner: I64, edges: I64, wide_index: I32, accumulate: I32, code: I32];
    SYM_SCALE = "graph/edges.c" "sym_scale", dtypes: FLOATS64, ops: &[],
        args: [row: In("int"), col: In("int"), value: In("gk_t"), d: In("gk_f"), out: Out("gk_t"), err: Out("int"), n: I64, nodes: I32, wide_index: I32, code: I32];
    GAT = "graph/attention.c" "gat", dtypes: FLOATS64, ops: &[],
        args: [rowptr: In("int"), met: In("int"), col: In("int"), x: In("gk_t"), score_src: In("gk_t"), score_dst: In("gk_t"), y: Out("gk_t"), lse: Out("gk_f"), parts: Out("gk_f"), norms: Out("gk_f"), err: Out("int"), size: Dims, slope: Real, wide: I32, code: I32];
    GAT_JOIN = "graph/attention.c" "gat_join", dtypes: FLOATS64, ops: &[],
        args: [rowptr: In("int"), met: In("int"), parts: In("gk_f"), norms: In("gk_f"), y: Out("gk_t"), lse: Out("gk_f"), size: Dims, wide: I32];
    GAT_BWD = "graph/attention.c" "gat_bwd", dtypes: FLOATS64, ops: &[],
        args: [rowptr: In("int"), met: In("int"), col: In("int"), row: In("gk_t"), own: In("gk_t"), score_own: In("gk_t"), score_other: In("gk_t"), lse: In("gk_f"), delta: In("gk_f"), dx: Out("gk_t"), pa: Out("gk_f"), pb: Out("gk_f"), ps: Out("gk_f"), parts: Out("gk_f"), sums: Out("gk_f"), err: Out("int"), size: Dims, slope: Real, wide: I32, accumulate: I32, code: I32];
    GAT_BWD_JOIN = "graph/attention.c" "gat_bwd_join", dtypes: FLOATS64, ops: &[],
        args: [rowptr: In("int"), met: In("int"), own: In("gk_t"), parts: In("gk_f"), sums: In("gk_f"), dx: Out("gk_t"), pa: Out("gk_f"), pb: Out("gk_f"), ps: Out("gk_f"), size: Dims, wide: I32, accumulate: I32];
    GAT_SCORES = "graph/attention.c" "gat_scores", dtypes: FLOATS64, ops: &[],
        args: [pa: In("gk_f"), pb: In("gk_f"), ps: In("gk_f"), delta: Out("gk_f"), dscore: Out("gk_t"), n: I64, run: I64, accumulate: I32];
    PLAN_KEYS = "graph/csr.c" "plan_keys", dtypes: INDEX, ops: &[],
        args: [index: In("int"), keys: Out("int"), err: Out("int"), n: I64, limit: I64, wide: I32, pad: I32, code: I32];
    PLAN_OFFSETS = "graph/csr.c" "plan_offsets", dtypes: INDEX, ops: &[],
        args: [keys: In("int"), rowptr: Out("int"), n: I64, nodes: I64, wide: I32];
    PLAN_GATHER = "graph/csr.c" "plan_gather", dtypes: INDEX, ops: &[],
        args: [x: In("int"), at: In("int"), out: Out("int"), err: Out("int"), n: I64, size: I64, wide_x: I32, wide_at: I32, wide_out: I32, code: I32];
    PLAN_ROWS = "graph/csr.c" "plan_rows", dtypes: INDEX, ops: &[],
        args: [rowptr: In("int"), row: Out("int"), err: Out("int"), entries: I64, rows: I64, wide: I32, code: I32];
    PLAN_COUNTS = "graph/csr.c" "plan_counts", dtypes: INDEX, ops: &[],
        args: [rowptr: In("int"), out: Out("int"), nodes: I64, wide: I32, wide_out: I32];
    PLAN_CUTS = "graph/csr.c" "plan_cuts", dtypes: INDEX, ops: &[],
        args: [rowptr: In("int"), met: Out("int"), rows: I64, entries: I64, cut_bits: I32, n: I64, wide: I32];
    HEAT_SPREAD = "mesh/diffusion.c" "heat_spread", dtypes: REAL, ops: &[],
        args: [x: In("gk_t"), lam: In("gk_t"), t: In("gk_t"), out: Out("gk_t"), n: I64, comps: I64, scales: I32, channels: I32, per_channel: I32];
    HEAT_FOLD = "mesh/diffusion.c" "heat_fold", dtypes: REAL, ops: &[],
        args: [d: In("gk_t"), lam: In("gk_t"), t: In("gk_t"), y: Out("gk_t"), n: I64, comps: I64, scales: I32, channels: I32, per_channel: I32, accumulate: I32];
    HEAT_TIMES = "mesh/diffusion.c" "heat_times", dtypes: REAL, ops: &[],
        args: [p: In("gk_t"), q: In("gk_t"), lam: In("gk_t"), dt: Out("gk_t"), rows: I64, comps: I64, scales: I32, channels: I32, per_channel: I32, accumulate: I32];
    HEAT_FLOW = "mesh/diffusion.c" "heat_flow", dtypes: REAL, ops: &[],
        args: [m: In("gk_t"), x: In("gk_t"), t: In("gk_t"), out: Out("gk_t"), room: Out("gk_f"), nodes: I64, scales: I32, channels: I32, per_channel: I32, x_has_scales: I32];
}
