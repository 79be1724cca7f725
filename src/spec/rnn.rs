//! Kernels of `kernels/common/rnn.c`.

use super::{FLOATS64, kernels};

kernels! {
    family: Rnn;
    LSTM_STEP = "rnn/rnn.c" "lstm_step", dtypes: FLOATS64, ops: &[],
        args: [u: In("gk_f"), a: In("gk_f"), bias: In("gk_t"), h: In("gk_t"), c: In("gk_t"), lengths: In("int"), h_next: Out("gk_t"), c_next: Out("gk_t"), y: Out("gk_t"), gates: Out("gk_t"), h_last: Out("gk_t"), c_last: Out("gk_t"), n: I64, hidden: I64, row_a: I64, row_y: I64, t: I32];
    GRU_RESET = "rnn/rnn.c" "gru_reset", dtypes: FLOATS64, ops: &[],
        args: [u: In("gk_f"), a: In("gk_f"), bias: In("gk_t"), h: In("gk_t"), rh: Out("gk_t"), n: I64, hidden: I64, row_a: I64];
    GRU_STEP = "rnn/rnn.c" "gru_step", dtypes: FLOATS64, ops: &[],
        args: [u: In("gk_f"), un: In("gk_f"), a: In("gk_f"), bias: In("gk_t"), h: In("gk_t"), lengths: In("int"), h_next: Out("gk_t"), y: Out("gk_t"), save_r: Out("gk_t"), save_z: Out("gk_t"), save_n: Out("gk_t"), save_u: Out("gk_t"), h_last: Out("gk_t"), n: I64, hidden: I64, row_u: I64, row_n: I64, row_a: I64, row_y: I64, t: I32, before: I32];
    PLAIN_STEP = "rnn/rnn.c" "plain_step", dtypes: FLOATS64, ops: &[],
        args: [u: In("gk_f"), a: In("gk_f"), bias: In("gk_t"), h: In("gk_t"), lengths: In("int"), h_next: Out("gk_t"), y: Out("gk_t"), h_last: Out("gk_t"), n: I64, hidden: I64, row_a: I64, row_y: I64, t: I32, relu: I32];
    LSTM_STEP_BWD = "rnn/rnn.c" "lstm_step_bwd", dtypes: FLOATS64, ops: &[],
        args: [gates: In("gk_t"), c: In("gk_t"), c_next: In("gk_t"), dy: In("gk_t"), dh_last: In("gk_t"), dc_last: In("gk_t"), lengths: In("int"), dh: Out("gk_f"), dc: Out("gk_f"), dz: Out("gk_t"), dx: Out("gk_t"), n: I64, hidden: I64, row_y: I64, row_x: I64, t: I32, first: I32, keep: I32];
    GRU_STEP_BWD = "rnn/rnn.c" "gru_step_bwd", dtypes: FLOATS64, ops: &[],
        args: [r: In("gk_t"), z: In("gk_t"), m: In("gk_t"), un: In("gk_t"), h: In("gk_t"), dy: In("gk_t"), dh_last: In("gk_t"), lengths: In("int"), dh: Out("gk_f"), dz: Out("gk_t"), dx: Out("gk_t"), n: I64, hidden: I64, row_y: I64, row_x: I64, t: I32, first: I32, before: I32];
    GRU_RESET_BWD = "rnn/rnn.c" "gru_reset_bwd", dtypes: FLOATS64, ops: &[],
        args: [drh: In("gk_f"), r: In("gk_t"), h: In("gk_t"), lengths: In("int"), dh: Out("gk_f"), dz: Out("gk_t"), dx: Out("gk_t"), rh: Out("gk_t"), n: I64, hidden: I64, row_x: I64, t: I32];
    PLAIN_STEP_BWD = "rnn/rnn.c" "plain_step_bwd", dtypes: FLOATS64, ops: &[],
        args: [h_next: In("gk_t"), dy: In("gk_t"), dh_last: In("gk_t"), lengths: In("int"), dh: Out("gk_f"), dz: Out("gk_t"), dx: Out("gk_t"), n: I64, hidden: I64, row_y: I64, row_x: I64, t: I32, first: I32, keep: I32, relu: I32];
    RNN_STORE = "rnn/rnn.c" "rnn_store", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_f"), y: Out("gk_t"), n: I64, accumulate: I32];
    LSTM_CELL = "rnn/rnn.c" "lstm_cell", dtypes: FLOATS64, ops: &[],
        args: [z: In("gk_t"), c: In("gk_t"), h_next: Out("gk_t"), c_next: Out("gk_t"), gates: Out("gk_t"), n: I64, hidden: I64];
    LSTM_CELL_BWD = "rnn/rnn.c" "lstm_cell_bwd", dtypes: FLOATS64, ops: &[],
        args: [dh: In("gk_t"), dc_next: In("gk_t"), gates: In("gk_t"), c: In("gk_t"), c_next: In("gk_t"), dz: Out("gk_t"), dc: Out("gk_t"), n: I64, hidden: I64, flags: I32];
    GRU_CELL = "rnn/rnn.c" "gru_cell", dtypes: FLOATS64, ops: &[],
        args: [a: In("gk_t"), u: In("gk_t"), h: In("gk_t"), h_next: Out("gk_t"), save_r: Out("gk_t"), save_z: Out("gk_t"), save_n: Out("gk_t"), n: I64, hidden: I64];
    GRU_CELL_BWD = "rnn/rnn.c" "gru_cell_bwd", dtypes: FLOATS64, ops: &[],
        args: [dh_next: In("gk_t"), r: In("gk_t"), z: In("gk_t"), m: In("gk_t"), un: In("gk_t"), h: In("gk_t"), da: Out("gk_t"), du: Out("gk_t"), dh: Out("gk_t"), n: I64, hidden: I64, row_n: I64, flags: I32];
}
