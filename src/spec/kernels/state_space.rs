//! Kernels of `kernels/common/state_space`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::state_space::{LINEAR_RULES, MATRIX_RULES, SELECTIVE_RULE, STATE_RULES};
use crate::spec::{FLOATS, FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `state_backward`.
    StateBackwardArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        v: In("gk_t"),
        gate: In("gk_t"),
        second: In("gk_t"),
        skip: In("gk_t"),
        z: In("gk_t"),
        dy: In("gk_t"),
        initial: In("gk_f"),
        part: In("gk_f"),
        back: In("gk_f"),
        marks: Out("gk_f"),
        dv: Out("gk_t"),
        dz: Out("gk_t"),
        dgate: Out("gk_t"),
        pq: Out("gk_f"),
        pk: Out("gk_f"),
        pg: Out("gk_f"),
        pb: Out("gk_f"),
        pa: Out("gk_f"),
        pd: Out("gk_f"),
        size: Dims,
        lanes: I32,
        softplus: I32,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `state_scan_channels`.
    StateScanChannelsArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        v: In("gk_t"),
        gate: In("gk_t"),
        second: In("gk_t"),
        skip: In("gk_t"),
        z: In("gk_t"),
        initial: In("gk_f"),
        part: In("gk_f"),
        y: Out("gk_t"),
        state: Out("gk_f"),
        size: Dims,
        softplus: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `state_backward_chunks`.
    StateBackwardChunksArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        v: In("gk_t"),
        gate: In("gk_t"),
        second: In("gk_t"),
        skip: In("gk_t"),
        z: In("gk_t"),
        dy: In("gk_t"),
        initial: In("gk_f"),
        part: In("gk_f"),
        back: In("gk_f"),
        marks: Out("gk_f"),
        dv: Out("gk_t"),
        dz: Out("gk_t"),
        dgate: Out("gk_t"),
        pq: Out("gk_f"),
        pk: Out("gk_f"),
        pa: Out("gk_f"),
        pd: Out("gk_f"),
        size: Dims,
        softplus: I32,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `state_scan_matrix`.
    StateScanMatrixArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        v: In("gk_t"),
        gate: In("gk_t"),
        second: In("gk_t"),
        skip: In("gk_t"),
        initial: In("gk_f"),
        part: In("gk_f"),
        y: Out("gk_t"),
        state: Out("gk_f"),
        size: Dims,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `state_backward_linear`.
    StateBackwardLinearArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        v: In("gk_t"),
        gate: In("gk_t"),
        second: In("gk_t"),
        skip: In("gk_t"),
        dy: In("gk_t"),
        initial: In("gk_f"),
        part: In("gk_f"),
        back: In("gk_f"),
        marks: Out("gk_f"),
        dots: Out("gk_f"),
        dv: Out("gk_t"),
        pq: Out("gk_f"),
        pk: Out("gk_f"),
        pg: Out("gk_f"),
        pb: Out("gk_f"),
        pa: Out("gk_f"),
        pd: Out("gk_f"),
        size: Dims,
        lanes: I32,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `recurrence_partial`.
    RecurrencePartialArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        part: Out("gk_f"),
        outer: I64,
        steps: I64,
        inner: I64,
        split: I64,
        splits: I32,
        reverse: I32,
        shift: I32,
    }
}

kernel_args! {
    /// Arguments of `recurrence_scan`.
    RecurrenceScanArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        before: In("gk_t"),
        part: In("gk_f"),
        y: Out("gk_t"),
        da: Out("gk_t"),
        outer: I64,
        steps: I64,
        inner: I64,
        split: I64,
        splits: I32,
        reverse: I32,
        shift: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `state_carry`.
    StateCarryArgs {
        initial: In("gk_f"),
        part: Out("gk_f"),
        n: I64,
        each: I64,
        splits: I32,
        back: I32,
    }
}

kernel_args! {
    /// Arguments of `state_sum`.
    StateSumArgs {
        part: In("gk_f"),
        y: Out("gk_t"),
        outer: I64,
        parts: I64,
        inner: I64,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `state_scan`.
    StateScanArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        v: In("gk_t"),
        gate: In("gk_t"),
        second: In("gk_t"),
        skip: In("gk_t"),
        z: In("gk_t"),
        initial: In("gk_f"),
        part: In("gk_f"),
        y: Out("gk_t"),
        state: Out("gk_f"),
        size: Dims,
        lanes: I32,
        softplus: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `state_partial`.
    StatePartialArgs {
        k: In("gk_t"),
        v: In("gk_t"),
        gate: In("gk_t"),
        second: In("gk_t"),
        part: Out("gk_f"),
        size: Dims,
        lanes: I32,
        softplus: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `state_partial_back`.
    StatePartialBackArgs {
        q: In("gk_t"),
        dy: In("gk_t"),
        z: In("gk_t"),
        gate: In("gk_t"),
        second: In("gk_t"),
        part: Out("gk_f"),
        size: Dims,
        lanes: I32,
        softplus: I32,
        wide: I32,
    }
}

kernel_table! {
    StateSpace;
    STATE_BACKWARD: StateBackwardArgs = "state_space/backward.c" "state_backward" [(FLOATS64, STATE_RULES)];
    STATE_SCAN_CHANNELS: StateScanChannelsArgs = "state_space/channels.c" "state_scan_channels" [(FLOATS64, SELECTIVE_RULE)];
    STATE_BACKWARD_CHUNKS: StateBackwardChunksArgs = "state_space/chunk_backward.c" "state_backward_chunks" [(FLOATS64, SELECTIVE_RULE)];
    STATE_SCAN_MATRIX: StateScanMatrixArgs = "state_space/chunk_matrix.c" "state_scan_matrix" [(FLOATS, MATRIX_RULES)];
    STATE_BACKWARD_LINEAR: StateBackwardLinearArgs = "state_space/linear_backward.c" "state_backward_linear" [(FLOATS64, LINEAR_RULES)];
    RECURRENCE_PARTIAL: RecurrencePartialArgs = "state_space/recurrence.c" "recurrence_partial" [(FLOATS64, &[])];
    RECURRENCE_SCAN: RecurrenceScanArgs = "state_space/recurrence.c" "recurrence_scan" [(FLOATS64, &[])];
    STATE_CARRY: StateCarryArgs = "state_space/recurrence.c" "state_carry" [(FLOATS64, &[])];
    STATE_SUM: StateSumArgs = "state_space/recurrence.c" "state_sum" [(FLOATS64, &[])];
    STATE_SCAN: StateScanArgs = "state_space/scan.c" "state_scan" [(FLOATS64, STATE_RULES)];
    STATE_PARTIAL: StatePartialArgs = "state_space/scan.c" "state_partial" [(FLOATS64, STATE_RULES)];
    STATE_PARTIAL_BACK: StatePartialBackArgs = "state_space/scan.c" "state_partial_back" [(FLOATS64, STATE_RULES)];
}
