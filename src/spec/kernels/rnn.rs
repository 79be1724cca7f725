//! Kernels of `kernels/common/rnn`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{FLOATS, FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `conv_lstm_unfold`.
    ConvLstmUnfoldArgs {
        images: In("gk_t"),
        col: Out("gk_t"),
        count: I64,
        channels: I32,
        height: I32,
        width: I32,
        kh: I32,
        kw: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_lstm_fold`.
    ConvLstmFoldArgs {
        col: In("gk_f"),
        grad: Out("gk_t"),
        carry: Out("gk_f"),
        count: I64,
        channels: I32,
        height: I32,
        width: I32,
        kh: I32,
        kw: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_lstm_step`.
    ConvLstmStepArgs {
        z: In("gk_f"),
        c: In("gk_t"),
        peep: In("gk_t"),
        h_next: Out("gk_t"),
        c_next: Out("gk_t"),
        y: Out("gk_t"),
        gates: Out("gk_t"),
        h_last: Out("gk_t"),
        c_last: Out("gk_t"),
        n: I64,
        hidden: I64,
        pixels: I64,
        shared: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_lstm_step_bwd`.
    ConvLstmStepBwdArgs {
        gates: In("gk_t"),
        c: In("gk_t"),
        c_next: In("gk_t"),
        peep: In("gk_t"),
        dy: In("gk_t"),
        dh_last: In("gk_t"),
        dc_last: In("gk_t"),
        dh: In("gk_f"),
        dc: Out("gk_f"),
        dz: Out("gk_t"),
        n: I64,
        hidden: I64,
        pixels: I64,
        shared: I32,
        first: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_lstm_peep`.
    ConvLstmPeepArgs {
        dz: In("gk_t"),
        c: In("gk_t"),
        dp: Out("gk_t"),
        weights: I64,
        steps: I64,
        count: I64,
        hidden: I64,
        pixels: I64,
        lanes: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `lstm_fused`, `lstm_tiled`.
    LstmFusedArgs {
        w: In("gk_t"),
        a: In("gk_f"),
        bias: In("gk_t"),
        h: In("gk_t"),
        c: In("gk_t"),
        lengths: In("int"),
        h_next: Out("gk_t"),
        c_next: Out("gk_t"),
        y: Out("gk_t"),
        gates: Out("gk_t"),
        h_last: Out("gk_t"),
        c_last: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_a: I64,
        row_y: I64,
        t: I32,
    }
}

kernel_args! {
    /// Arguments of `gru_fused`, `gru_tiled`.
    GruFusedArgs {
        w: In("gk_t"),
        a: In("gk_f"),
        bias: In("gk_t"),
        h: In("gk_t"),
        lengths: In("int"),
        h_next: Out("gk_t"),
        y: Out("gk_t"),
        save_r: Out("gk_t"),
        save_z: Out("gk_t"),
        save_n: Out("gk_t"),
        save_u: Out("gk_t"),
        h_last: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_a: I64,
        row_y: I64,
        t: I32,
    }
}

kernel_args! {
    /// Arguments of `lstm_fused_bwd`, `lstm_tiled_bwd`.
    LstmFusedBwdArgs {
        w: In("gk_t"),
        dz_next: In("gk_t"),
        gates: In("gk_t"),
        c: In("gk_t"),
        c_next: In("gk_t"),
        dy: In("gk_t"),
        lengths: In("int"),
        dh: Out("gk_f"),
        dc: Out("gk_f"),
        dz: Out("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_y: I64,
        row_x: I64,
        t: I32,
        keep: I32,
    }
}

kernel_args! {
    /// Arguments of `gru_fused_bwd`, `gru_tiled_bwd`.
    GruFusedBwdArgs {
        w: In("gk_t"),
        dz_next: In("gk_t"),
        r: In("gk_t"),
        z: In("gk_t"),
        m: In("gk_t"),
        un: In("gk_t"),
        h: In("gk_t"),
        dy: In("gk_t"),
        lengths: In("int"),
        dh: Out("gk_f"),
        dz: Out("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_y: I64,
        row_x: I64,
        t: I32,
    }
}

kernel_args! {
    /// Arguments of `lstm_persistent`.
    LstmPersistentArgs {
        w: In("gk_t"),
        a: In("gk_f"),
        bias: In("gk_t"),
        lengths: In("int"),
        h: Out("gk_t"),
        c: Out("gk_t"),
        y: Out("gk_t"),
        gates: Out("gk_t"),
        h_last: Out("gk_t"),
        c_last: Out("gk_t"),
        exchange: Out("float"),
        turns: Out("gk_u32"),
        n: I64,
        hidden: I64,
        row_a: I64,
        row_y: I64,
        step_a: I64,
        step_y: I64,
        steps: I32,
        columns: I32,
        rows: I32,
        reverse: I32,
        kept: I32,
    }
}

kernel_args! {
    /// Arguments of `gru_persistent`.
    GruPersistentArgs {
        w: In("gk_t"),
        a: In("gk_f"),
        bias: In("gk_t"),
        lengths: In("int"),
        h: Out("gk_t"),
        y: Out("gk_t"),
        save_r: Out("gk_t"),
        save_z: Out("gk_t"),
        save_n: Out("gk_t"),
        save_u: Out("gk_t"),
        h_last: Out("gk_t"),
        exchange: Out("float"),
        turns: Out("gk_u32"),
        n: I64,
        hidden: I64,
        row_a: I64,
        row_y: I64,
        step_a: I64,
        step_y: I64,
        steps: I32,
        columns: I32,
        rows: I32,
        reverse: I32,
        kept: I32,
    }
}

kernel_args! {
    /// Arguments of `lstm_persistent_bwd`.
    LstmPersistentBwdArgs {
        w: In("gk_t"),
        gates: In("gk_t"),
        c: In("gk_t"),
        dy: In("gk_t"),
        dh_last: In("gk_t"),
        dc_last: In("gk_t"),
        lengths: In("int"),
        dh: Out("gk_f"),
        dc: Out("gk_f"),
        dz: Out("gk_t"),
        dx: Out("gk_t"),
        exchange: Out("float"),
        turns: Out("gk_u32"),
        n: I64,
        hidden: I64,
        row_y: I64,
        row_x: I64,
        step_y: I64,
        step_x: I64,
        steps: I32,
        columns: I32,
        rows: I32,
        reverse: I32,
        keep: I32,
    }
}

kernel_args! {
    /// Arguments of `gru_persistent_bwd`.
    GruPersistentBwdArgs {
        w: In("gk_t"),
        r: In("gk_t"),
        z: In("gk_t"),
        m: In("gk_t"),
        un: In("gk_t"),
        h: In("gk_t"),
        dy: In("gk_t"),
        dh_last: In("gk_t"),
        lengths: In("int"),
        dh: Out("gk_f"),
        dz: Out("gk_t"),
        dx: Out("gk_t"),
        exchange: Out("float"),
        turns: Out("gk_u32"),
        n: I64,
        hidden: I64,
        row_y: I64,
        row_x: I64,
        step_y: I64,
        step_x: I64,
        steps: I32,
        columns: I32,
        rows: I32,
        reverse: I32,
    }
}

kernel_args! {
    /// Arguments of `lstm_step`.
    LstmStepArgs {
        u: In("gk_f"),
        a: In("gk_f"),
        bias: In("gk_t"),
        h: In("gk_t"),
        c: In("gk_t"),
        lengths: In("int"),
        h_next: Out("gk_t"),
        c_next: Out("gk_t"),
        y: Out("gk_t"),
        gates: Out("gk_t"),
        h_last: Out("gk_t"),
        c_last: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_a: I64,
        row_y: I64,
        t: I32,
    }
}

kernel_args! {
    /// Arguments of `gru_reset`.
    GruResetArgs {
        u: In("gk_f"),
        a: In("gk_f"),
        bias: In("gk_t"),
        h: In("gk_t"),
        rh: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_a: I64,
    }
}

kernel_args! {
    /// Arguments of `gru_step`.
    GruStepArgs {
        u: In("gk_f"),
        un: In("gk_f"),
        a: In("gk_f"),
        bias: In("gk_t"),
        h: In("gk_t"),
        lengths: In("int"),
        h_next: Out("gk_t"),
        y: Out("gk_t"),
        save_r: Out("gk_t"),
        save_z: Out("gk_t"),
        save_n: Out("gk_t"),
        save_u: Out("gk_t"),
        h_last: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_u: I64,
        row_n: I64,
        row_a: I64,
        row_y: I64,
        t: I32,
        before: I32,
    }
}

kernel_args! {
    /// Arguments of `plain_step`.
    PlainStepArgs {
        u: In("gk_f"),
        a: In("gk_f"),
        bias: In("gk_t"),
        h: In("gk_t"),
        lengths: In("int"),
        h_next: Out("gk_t"),
        y: Out("gk_t"),
        h_last: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_a: I64,
        row_y: I64,
        t: I32,
        relu: I32,
    }
}

kernel_args! {
    /// Arguments of `lstm_step_bwd`.
    LstmStepBwdArgs {
        gates: In("gk_t"),
        c: In("gk_t"),
        c_next: In("gk_t"),
        dy: In("gk_t"),
        dh_last: In("gk_t"),
        dc_last: In("gk_t"),
        lengths: In("int"),
        dh: Out("gk_f"),
        dc: Out("gk_f"),
        dz: Out("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_y: I64,
        row_x: I64,
        t: I32,
        first: I32,
        keep: I32,
    }
}

kernel_args! {
    /// Arguments of `gru_step_bwd`.
    GruStepBwdArgs {
        r: In("gk_t"),
        z: In("gk_t"),
        m: In("gk_t"),
        un: In("gk_t"),
        h: In("gk_t"),
        dy: In("gk_t"),
        dh_last: In("gk_t"),
        lengths: In("int"),
        dh: Out("gk_f"),
        dz: Out("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_y: I64,
        row_x: I64,
        t: I32,
        first: I32,
        before: I32,
    }
}

kernel_args! {
    /// Arguments of `gru_reset_bwd`.
    GruResetBwdArgs {
        drh: In("gk_f"),
        r: In("gk_t"),
        h: In("gk_t"),
        lengths: In("int"),
        dh: Out("gk_f"),
        dz: Out("gk_t"),
        dx: Out("gk_t"),
        rh: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_x: I64,
        t: I32,
    }
}

kernel_args! {
    /// Arguments of `plain_step_bwd`.
    PlainStepBwdArgs {
        h_next: In("gk_t"),
        dy: In("gk_t"),
        dh_last: In("gk_t"),
        lengths: In("int"),
        dh: Out("gk_f"),
        dz: Out("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_y: I64,
        row_x: I64,
        t: I32,
        first: I32,
        keep: I32,
        relu: I32,
    }
}

kernel_args! {
    /// Arguments of `rnn_store`.
    RnnStoreArgs {
        x: In("gk_f"),
        y: Out("gk_t"),
        n: I64,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `lstm_cell`.
    LstmCellArgs {
        z: In("gk_t"),
        c: In("gk_t"),
        h_next: Out("gk_t"),
        c_next: Out("gk_t"),
        gates: Out("gk_t"),
        n: I64,
        hidden: I64,
    }
}

kernel_args! {
    /// Arguments of `lstm_cell_bwd`.
    LstmCellBwdArgs {
        dh: In("gk_t"),
        dc_next: In("gk_t"),
        gates: In("gk_t"),
        c: In("gk_t"),
        c_next: In("gk_t"),
        dz: Out("gk_t"),
        dc: Out("gk_t"),
        n: I64,
        hidden: I64,
        flags: I32,
    }
}

kernel_args! {
    /// Arguments of `gru_cell`.
    GruCellArgs {
        a: In("gk_t"),
        u: In("gk_t"),
        h: In("gk_t"),
        h_next: Out("gk_t"),
        save_r: Out("gk_t"),
        save_z: Out("gk_t"),
        save_n: Out("gk_t"),
        n: I64,
        hidden: I64,
    }
}

kernel_args! {
    /// Arguments of `gru_cell_bwd`.
    GruCellBwdArgs {
        dh_next: In("gk_t"),
        r: In("gk_t"),
        z: In("gk_t"),
        m: In("gk_t"),
        un: In("gk_t"),
        h: In("gk_t"),
        da: Out("gk_t"),
        du: Out("gk_t"),
        dh: Out("gk_t"),
        n: I64,
        hidden: I64,
        row_n: I64,
        flags: I32,
    }
}

kernel_table! {
    Rnn;
    CONV_LSTM_UNFOLD: ConvLstmUnfoldArgs = "rnn/conv.c" "conv_lstm_unfold" [(FLOATS64, &[])];
    CONV_LSTM_FOLD: ConvLstmFoldArgs = "rnn/conv.c" "conv_lstm_fold" [(FLOATS64, &[])];
    CONV_LSTM_STEP: ConvLstmStepArgs = "rnn/conv.c" "conv_lstm_step" [(FLOATS64, &[])];
    CONV_LSTM_STEP_BWD: ConvLstmStepBwdArgs = "rnn/conv.c" "conv_lstm_step_bwd" [(FLOATS64, &[])];
    CONV_LSTM_PEEP: ConvLstmPeepArgs = "rnn/conv.c" "conv_lstm_peep" [(FLOATS64, &[])];
    LSTM_FUSED: LstmFusedArgs = "rnn/fused.c" "lstm_fused" [(FLOATS, &[])];
    GRU_FUSED: GruFusedArgs = "rnn/fused.c" "gru_fused" [(FLOATS, &[])];
    LSTM_FUSED_BWD: LstmFusedBwdArgs = "rnn/fused.c" "lstm_fused_bwd" [(FLOATS, &[])];
    GRU_FUSED_BWD: GruFusedBwdArgs = "rnn/fused.c" "gru_fused_bwd" [(FLOATS, &[])];
    LSTM_PERSISTENT: LstmPersistentArgs = "rnn/persistent.c" "lstm_persistent" [(FLOATS, &[])];
    GRU_PERSISTENT: GruPersistentArgs = "rnn/persistent.c" "gru_persistent" [(FLOATS, &[])];
    LSTM_PERSISTENT_BWD: LstmPersistentBwdArgs = "rnn/persistent.c" "lstm_persistent_bwd" [(FLOATS, &[])];
    GRU_PERSISTENT_BWD: GruPersistentBwdArgs = "rnn/persistent.c" "gru_persistent_bwd" [(FLOATS, &[])];
    LSTM_STEP: LstmStepArgs = "rnn/rnn.c" "lstm_step" [(FLOATS64, &[])];
    GRU_RESET: GruResetArgs = "rnn/rnn.c" "gru_reset" [(FLOATS64, &[])];
    GRU_STEP: GruStepArgs = "rnn/rnn.c" "gru_step" [(FLOATS64, &[])];
    PLAIN_STEP: PlainStepArgs = "rnn/rnn.c" "plain_step" [(FLOATS64, &[])];
    LSTM_STEP_BWD: LstmStepBwdArgs = "rnn/rnn.c" "lstm_step_bwd" [(FLOATS64, &[])];
    GRU_STEP_BWD: GruStepBwdArgs = "rnn/rnn.c" "gru_step_bwd" [(FLOATS64, &[])];
    GRU_RESET_BWD: GruResetBwdArgs = "rnn/rnn.c" "gru_reset_bwd" [(FLOATS64, &[])];
    PLAIN_STEP_BWD: PlainStepBwdArgs = "rnn/rnn.c" "plain_step_bwd" [(FLOATS64, &[])];
    RNN_STORE: RnnStoreArgs = "rnn/rnn.c" "rnn_store" [(FLOATS64, &[])];
    LSTM_CELL: LstmCellArgs = "rnn/rnn.c" "lstm_cell" [(FLOATS64, &[])];
    LSTM_CELL_BWD: LstmCellBwdArgs = "rnn/rnn.c" "lstm_cell_bwd" [(FLOATS64, &[])];
    GRU_CELL: GruCellArgs = "rnn/rnn.c" "gru_cell" [(FLOATS64, &[])];
    GRU_CELL_BWD: GruCellBwdArgs = "rnn/rnn.c" "gru_cell_bwd" [(FLOATS64, &[])];
    LSTM_TILED: LstmFusedArgs = "rnn/tiled.c" "lstm_tiled" [(FLOATS, &[])];
    GRU_TILED: GruFusedArgs = "rnn/tiled.c" "gru_tiled" [(FLOATS, &[])];
    LSTM_TILED_BWD: LstmFusedBwdArgs = "rnn/tiled.c" "lstm_tiled_bwd" [(FLOATS, &[])];
    GRU_TILED_BWD: GruFusedBwdArgs = "rnn/tiled.c" "gru_tiled_bwd" [(FLOATS, &[])];
}
