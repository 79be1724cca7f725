//! Kernels of `kernels/common/rnn_conv.c`.

use super::{FLOATS64, kernels};

kernels! {
    family: Rnn;
    CONV_LSTM_UNFOLD = "rnn/conv.c" "conv_lstm_unfold", dtypes: FLOATS64, ops: &[],
        args: [images: In("gk_t"), col: Out("gk_t"), count: I64, channels: I32, height: I32, width: I32, kh: I32, kw: I32];
    CONV_LSTM_FOLD = "rnn/conv.c" "conv_lstm_fold", dtypes: FLOATS64, ops: &[],
        args: [col: In("gk_f"), grad: Out("gk_t"), carry: Out("gk_f"), count: I64, channels: I32, height: I32, width: I32, kh: I32, kw: I32, accumulate: I32];
    CONV_LSTM_STEP = "rnn/conv.c" "conv_lstm_step", dtypes: FLOATS64, ops: &[],
        args: [z: In("gk_f"), c: In("gk_t"), peep: In("gk_t"), h_next: Out("gk_t"), c_next: Out("gk_t"), y: Out("gk_t"), gates: Out("gk_t"), h_last: Out("gk_t"), c_last: Out("gk_t"), n: I64, hidden: I64, pixels: I64, shared: I32];
    CONV_LSTM_STEP_BWD = "rnn/conv.c" "conv_lstm_step_bwd", dtypes: FLOATS64, ops: &[],
        args: [gates: In("gk_t"), c: In("gk_t"), c_next: In("gk_t"), peep: In("gk_t"), dy: In("gk_t"), dh_last: In("gk_t"), dc_last: In("gk_t"), dh: In("gk_f"), dc: Out("gk_f"), dz: Out("gk_t"), n: I64, hidden: I64, pixels: I64, shared: I32, first: I32];
    CONV_LSTM_PEEP = "rnn/conv.c" "conv_lstm_peep", dtypes: FLOATS64, ops: &[],
        args: [dz: In("gk_t"), c: In("gk_t"), dp: Out("gk_t"), weights: I64, steps: I64, count: I64, hidden: I64, pixels: I64, lanes: I32, accumulate: I32];
}
