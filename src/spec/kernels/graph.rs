//! Kernels of `kernels/common/graph`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::graph::{AGGREGATES, ANY_AGGREGATE, EXTREME_AGGREGATES};
use crate::spec::{FLOATS64, I32, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `aggregate`.
    AggregateArgs {
        rowptr: In("int"),
        met: In("int"),
        col: In("int"),
        perm: In("int"),
        a: In("gk_t"),
        b: In("gk_t"),
        own: In("gk_t"),
        own_stat: In("gk_f"),
        degree: In("int"),
        mask: In("int"),
        base: In("gk_f"),
        bias: In("gk_t"),
        y: Out("gk_t"),
        stat: Out("gk_f"),
        parts: Out("gk_f"),
        err: Out("int"),
        size: Dims,
        how: Dims,
        b_span: I64,
        b_row: I64,
        bias_span: I64,
        act: I32,
        slope: Real,
        alpha: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `aggregate_combine`.
    AggregateCombineArgs {
        rowptr: In("int"),
        met: In("int"),
        parts: In("gk_f"),
        base: In("gk_f"),
        bias: In("gk_t"),
        y: Out("gk_t"),
        stat: Out("gk_f"),
        size: Dims,
        how: Dims,
        bias_span: I64,
        act: I32,
        slope: Real,
        alpha: Real,
    }
}

kernel_args! {
    /// Arguments of `aggregate_extreme`.
    AggregateExtremeArgs {
        rowptr: In("int"),
        met: In("int"),
        col: In("int"),
        perm: In("int"),
        a: In("gk_t"),
        b: In("gk_t"),
        own: In("gk_t"),
        y: Out("gk_t"),
        arg: Out("int"),
        parts: Out("gk_f"),
        ids: Out("int"),
        err: Out("int"),
        size: Dims,
        how: Dims,
        b_span: I64,
        b_row: I64,
        least: I32,
        wide_arg: I32,
        none: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `aggregate_extreme_combine`.
    AggregateExtremeCombineArgs {
        rowptr: In("int"),
        met: In("int"),
        parts: In("gk_f"),
        ids: In("int"),
        y: Out("gk_t"),
        arg: Out("int"),
        size: Dims,
        how: Dims,
        least: I32,
        wide_arg: I32,
        none: Real,
    }
}

kernel_args! {
    /// Arguments of `gat`.
    GatArgs {
        rowptr: In("int"),
        met: In("int"),
        col: In("int"),
        x: In("gk_t"),
        score_src: In("gk_t"),
        score_dst: In("gk_t"),
        y: Out("gk_t"),
        lse: Out("gk_f"),
        parts: Out("gk_f"),
        norms: Out("gk_f"),
        err: Out("int"),
        size: Dims,
        slope: Real,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gat_combine`.
    GatCombineArgs {
        rowptr: In("int"),
        met: In("int"),
        parts: In("gk_f"),
        norms: In("gk_f"),
        y: Out("gk_t"),
        lse: Out("gk_f"),
        size: Dims,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `gat_bwd`.
    GatBwdArgs {
        rowptr: In("int"),
        met: In("int"),
        col: In("int"),
        row: In("gk_t"),
        own: In("gk_t"),
        score_own: In("gk_t"),
        score_other: In("gk_t"),
        lse: In("gk_f"),
        delta: In("gk_f"),
        dx: Out("gk_t"),
        pa: Out("gk_f"),
        pb: Out("gk_f"),
        ps: Out("gk_f"),
        parts: Out("gk_f"),
        sums: Out("gk_f"),
        err: Out("int"),
        size: Dims,
        slope: Real,
        wide: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gat_bwd_combine`.
    GatBwdCombineArgs {
        rowptr: In("int"),
        met: In("int"),
        own: In("gk_t"),
        parts: In("gk_f"),
        sums: In("gk_f"),
        dx: Out("gk_t"),
        pa: Out("gk_f"),
        pb: Out("gk_f"),
        ps: Out("gk_f"),
        size: Dims,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `gat_scores`.
    GatScoresArgs {
        pa: In("gk_f"),
        pb: In("gk_f"),
        ps: In("gk_f"),
        delta: Out("gk_f"),
        dscore: Out("gk_t"),
        n: I64,
        run: I64,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `plan_keys`.
    PlanKeysArgs {
        index: In("int"),
        keys: Out("int"),
        err: Out("int"),
        n: I64,
        limit: I64,
        wide: I32,
        pad: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `plan_offsets`.
    PlanOffsetsArgs {
        keys: In("int"),
        rowptr: Out("int"),
        n: I64,
        nodes: I64,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `plan_gather`.
    PlanGatherArgs {
        x: In("int"),
        at: In("int"),
        out: Out("int"),
        err: Out("int"),
        n: I64,
        size: I64,
        wide_x: I32,
        wide_at: I32,
        wide_out: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `plan_rows`.
    PlanRowsArgs {
        rowptr: In("int"),
        row: Out("int"),
        err: Out("int"),
        entries: I64,
        rows: I64,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `plan_counts`.
    PlanCountsArgs {
        rowptr: In("int"),
        out: Out("int"),
        nodes: I64,
        wide: I32,
        wide_out: I32,
    }
}

kernel_args! {
    /// Arguments of `plan_cuts`.
    PlanCutsArgs {
        rowptr: In("int"),
        met: Out("int"),
        rows: I64,
        entries: I64,
        cut_bits: I32,
        n: I64,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `edge_map`.
    EdgeMapArgs {
        left: In("int"),
        right: In("int"),
        a: In("gk_t"),
        b: In("gk_t"),
        degree: In("int"),
        mask: In("int"),
        out: Out("gk_t"),
        err: Out("int"),
        size: Dims,
        op: I32,
        alpha: Real,
        wide_index: I32,
        wide_saved: I32,
        wide: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `group_spread`.
    GroupSpreadArgs {
        rowptr: In("int"),
        met: In("int"),
        perm: In("int"),
        dy: In("gk_t"),
        arg: In("int"),
        count: In("int"),
        out: Out("gk_t"),
        err: Out("int"),
        size: Dims,
        flags: I32,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `edge_dot`.
    EdgeDotArgs {
        left: In("int"),
        right: In("int"),
        a: In("gk_t"),
        b: In("gk_t"),
        degree: In("int"),
        mask: In("int"),
        out: Out("gk_t"),
        stat: Out("gk_f"),
        err: Out("int"),
        size: Dims,
        wide_index: I32,
        wide_saved: I32,
        wide: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `edge_norm`.
    EdgeNormArgs {
        rowptr: In("int"),
        met: In("int"),
        perm: In("int"),
        x: In("gk_t"),
        z: In("gk_t"),
        top: Out("gk_f"),
        sum: Out("gk_f"),
        parts: Out("gk_f"),
        err: Out("int"),
        size: Dims,
        flags: I32,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `edge_norm_combine`.
    EdgeNormCombineArgs {
        rowptr: In("int"),
        met: In("int"),
        parts: In("gk_f"),
        top: Out("gk_f"),
        sum: Out("gk_f"),
        size: Dims,
        flags: I32,
    }
}

kernel_args! {
    /// Arguments of `edge_apply`.
    EdgeApplyArgs {
        node: In("int"),
        x: In("gk_t"),
        z: In("gk_t"),
        s: In("gk_f"),
        t: In("gk_f"),
        u: In("gk_t"),
        y: In("gk_t"),
        rowptr: In("int"),
        out: Out("gk_t"),
        err: Out("int"),
        size: Dims,
        what: I32,
        wide_index: I32,
        wide_rowptr: I32,
        wide: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `group_std`.
    GroupStdArgs {
        rowptr: In("int"),
        sum: In("gk_f"),
        y: Out("gk_t"),
        n: I64,
        nodes: I64,
        inner: I64,
        wide_index: I32,
        correction: I32,
        eps: Real,
    }
}

kernel_args! {
    /// Arguments of `arg_spread`.
    ArgSpreadArgs {
        dy: In("gk_t"),
        arg: In("int"),
        dsrc: Out("gk_t"),
        err: Out("int"),
        n: I64,
        nodes: I64,
        inner: I64,
        edges: I64,
        wide_index: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `sym_scale`.
    SymScaleArgs {
        row: In("int"),
        col: In("int"),
        value: In("gk_t"),
        d: In("gk_f"),
        out: Out("gk_t"),
        err: Out("int"),
        n: I64,
        nodes: I32,
        wide_index: I32,
        code: I32,
    }
}

kernel_table! {
    Graph;
    AGGREGATE: AggregateArgs = "graph/aggregate.c" "aggregate" [(FLOATS64, AGGREGATES)];
    AGGREGATE_COMBINE: AggregateCombineArgs = "graph/aggregate.c" "aggregate_combine" [(FLOATS64, ANY_AGGREGATE)];
    AGGREGATE_EXTREME: AggregateExtremeArgs = "graph/aggregate.c" "aggregate_extreme" [(FLOATS64, EXTREME_AGGREGATES)];
    AGGREGATE_EXTREME_COMBINE: AggregateExtremeCombineArgs = "graph/aggregate.c" "aggregate_extreme_combine" [(FLOATS64, ANY_AGGREGATE)];
    GAT: GatArgs = "graph/attention.c" "gat" [(FLOATS64, &[])];
    GAT_COMBINE: GatCombineArgs = "graph/attention.c" "gat_combine" [(FLOATS64, &[])];
    GAT_BWD: GatBwdArgs = "graph/attention.c" "gat_bwd" [(FLOATS64, &[])];
    GAT_BWD_COMBINE: GatBwdCombineArgs = "graph/attention.c" "gat_bwd_combine" [(FLOATS64, &[])];
    GAT_SCORES: GatScoresArgs = "graph/attention.c" "gat_scores" [(FLOATS64, &[])];
    PLAN_KEYS: PlanKeysArgs = "graph/csr.c" "plan_keys" [(I32, &[])];
    PLAN_OFFSETS: PlanOffsetsArgs = "graph/csr.c" "plan_offsets" [(I32, &[])];
    PLAN_GATHER: PlanGatherArgs = "graph/csr.c" "plan_gather" [(I32, &[])];
    PLAN_ROWS: PlanRowsArgs = "graph/csr.c" "plan_rows" [(I32, &[])];
    PLAN_COUNTS: PlanCountsArgs = "graph/csr.c" "plan_counts" [(I32, &[])];
    PLAN_CUTS: PlanCutsArgs = "graph/csr.c" "plan_cuts" [(I32, &[])];
    EDGE_MAP: EdgeMapArgs = "graph/edges.c" "edge_map" [(FLOATS64, &[])];
    GROUP_SPREAD: GroupSpreadArgs = "graph/edges.c" "group_spread" [(FLOATS64, &[])];
    EDGE_DOT: EdgeDotArgs = "graph/edges.c" "edge_dot" [(FLOATS64, &[])];
    EDGE_NORM: EdgeNormArgs = "graph/edges.c" "edge_norm" [(FLOATS64, &[])];
    EDGE_NORM_COMBINE: EdgeNormCombineArgs = "graph/edges.c" "edge_norm_combine" [(FLOATS64, &[])];
    EDGE_APPLY: EdgeApplyArgs = "graph/edges.c" "edge_apply" [(FLOATS64, &[])];
    GROUP_STD: GroupStdArgs = "graph/edges.c" "group_std" [(FLOATS64, &[])];
    ARG_SPREAD: ArgSpreadArgs = "graph/edges.c" "arg_spread" [(FLOATS64, &[])];
    SYM_SCALE: SymScaleArgs = "graph/edges.c" "sym_scale" [(FLOATS64, &[])];
}
