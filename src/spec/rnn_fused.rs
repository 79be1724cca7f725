//! Kernels of `kernels/common/rnn_fused.c`.

use super::{FLOATS, kernels};

kernels! {
    family: Rnn;
    LSTM_FUSED = "rnn/fused.c" "lstm_fused", dtypes: FLOATS, ops: &[],
        args: [w: In("gk_t"), a: In("gk_f"), bias: In("gk_t"), h: In("gk_t"), c: In("gk_t"), lengths: In("int"), h_next: Out("gk_t"), c_next: Out("gk_t"), y: Out("gk_t"), gates: Out("gk_t"), h_last: Out("gk_t"), c_last: Out("gk_t"), n: I64, hidden: I64, row_a: I64, row_y: I64, t: I32];
    GRU_FUSED = "rnn/fused.c" "gru_fused", dtypes: FLOATS, ops: &[],
        args: [w: In("gk_t"), a: In("gk_f"), bias: In("gk_t"), h: In("gk_t"), lengths: In("int"), h_next: Out("gk_t"), y: Out("gk_t"), save_r: Out("gk_t"), save_z: Out("gk_t"), save_n: Out("gk_t"), save_u: Out("gk_t"), h_last: Out("gk_t"), n: I64, hidden: I64, row_a: I64, row_y: I64, t: I32];
    LSTM_FUSED_BWD = "rnn/fused.c" "lstm_fused_bwd", dtypes: FLOATS, ops: &[],
        args: [w: In("gk_t"), dz_next: In("gk_t"), gates: In("gk_t"), c: In("gk_t"), c_next: In("gk_t"), dy: In("gk_t"), lengths: In("int"), dh: Out("gk_f"), dc: Out("gk_f"), dz: Out("gk_t"), dx: Out("gk_t"), n: I64, hidden: I64, row_y: I64, row_x: I64, t: I32, keep: I32];
    GRU_FUSED_BWD = "rnn/fused.c" "gru_fused_bwd", dtypes: FLOATS, ops: &[],
        args: [w: In("gk_t"), dz_next: In("gk_t"), r: In("gk_t"), z: In("gk_t"), m: In("gk_t"), un: In("gk_t"), h: In("gk_t"), dy: In("gk_t"), lengths: In("int"), dh: Out("gk_f"), dz: Out("gk_t"), dx: Out("gk_t"), n: I64, hidden: I64, row_y: I64, row_x: I64, t: I32];
}
