//! Kernels of `kernels/common/scan`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{ALL, FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `scan_partial`.
    ScanPartialArgs {
        x: In("gk_t"),
        part: Out("gk_s"),
        cols: I64,
        chunk: I64,
        splits: I32,
        reverse: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `scan_rows`.
    ScanRowsArgs {
        x: In("gk_t"),
        part: In("gk_s"),
        y: Out("gk_t"),
        rows: I64,
        cols: I64,
        per: I32,
        chunk: I64,
        splits: I32,
        exclusive: I32,
        reverse: I32,
        mode: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `scan_partial_columns`.
    ScanPartialColumnsArgs {
        x: In("gk_t"),
        part: Out("gk_s"),
        size: I64,
        inner: I64,
        tx: I32,
        chunk: I64,
        splits: I32,
        reverse: I32,
    }
}

kernel_args! {
    /// Arguments of `scan_columns`.
    ScanColumnsArgs {
        x: In("gk_t"),
        part: In("gk_s"),
        y: Out("gk_t"),
        size: I64,
        inner: I64,
        tx: I32,
        chunk: I64,
        splits: I32,
        exclusive: I32,
        reverse: I32,
        mode: I32,
    }
}

kernel_args! {
    /// Arguments of `segment_reduce`.
    SegmentReduceArgs {
        x: In("gk_t"),
        offsets: In("int"),
        y: Out("gk_t"),
        state: Out("gk_f"),
        part: Out("gk_f"),
        err: Out("int"),
        dims: Dims,
        mode: I32,
        eps: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `segment_combine`.
    SegmentCombineArgs {
        part: In("gk_f"),
        offsets: In("int"),
        y: Out("gk_t"),
        state: Out("gk_f"),
        dims: Dims,
        mode: I32,
        eps: Real,
    }
}

kernel_args! {
    /// Arguments of `segment_spread`.
    SegmentSpreadArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        offsets: In("int"),
        state: In("gk_f"),
        dx: Out("gk_t"),
        err: Out("int"),
        dims: Dims,
        mode: I32,
        eps: Real,
        accumulate: I32,
        code: I32,
    }
}

kernel_table! {
    Scan;
    SCAN_PARTIAL: ScanPartialArgs = "scan/scan.c" "scan_partial" [(ALL, &[])];
    SCAN_ROWS: ScanRowsArgs = "scan/scan.c" "scan_rows" [(ALL, &[])];
    SCAN_PARTIAL_COLUMNS: ScanPartialColumnsArgs = "scan/scan.c" "scan_partial_columns" [(ALL, &[])];
    SCAN_COLUMNS: ScanColumnsArgs = "scan/scan.c" "scan_columns" [(ALL, &[])];
    SEGMENT_REDUCE: SegmentReduceArgs = "scan/segment.c" "segment_reduce" [(FLOATS64, &[])];
    SEGMENT_COMBINE: SegmentCombineArgs = "scan/segment.c" "segment_combine" [(FLOATS64, &[])];
    SEGMENT_SPREAD: SegmentSpreadArgs = "scan/segment.c" "segment_spread" [(FLOATS64, &[])];
}
