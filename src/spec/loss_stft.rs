//! Kernels of `kernels/common/loss_stft.c`.

use super::{FLOATS64, kernels};

kernels! {
    family: Loss;
    STFT_TABLE = "loss/stft.c" "stft_table", dtypes: FLOATS64, ops: &[],
        args: [table: Out("gk_f"), n: I64, win: I64];
    STFT_SUMS = "loss/stft.c" "stft_sums", dtypes: FLOATS64, ops: &[],
        args: [p: In("gk_t"), t: In("gk_t"), table: In("gk_f"), work: Out("gk_f"), partial: Out("gk_f"), total: I64, frames: I64, T: I64, n: I32, hop: I64, win: I32, group: I32];
    STFT_FINISH = "loss/stft.c" "stft_finish", dtypes: FLOATS64, ops: &[],
        args: [partial: In("gk_f"), blocks: I64, count: Real, factor: Real, add: I32, stat: Out("gk_f"), loss: Out("gk_f")];
    STFT_FRAMES = "loss/stft.c" "stft_frames", dtypes: FLOATS64, ops: &[],
        args: [p: In("gk_t"), t: In("gk_t"), table: In("gk_f"), work: Out("gk_f"), stat: In("gk_f"), gy: In("gk_t"), gy_f32: I32, grad: Out("gk_f"), total: I64, frames: I64, T: I64, n: I32, hop: I64, win: I32, group: I32, count: Real, factor: Real];
    STFT_GATHER = "loss/stft.c" "stft_gather", dtypes: FLOATS64, ops: &[],
        args: [grad: In("gk_f"), sum: Out("gk_f"), fresh: I32, dp: Out("gk_t"), accumulate: I32, N: I64, T: I64, frames: I64, n: I64, hop: I64, win: I64];
}
