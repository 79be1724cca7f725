//! Kernels of `kernels/common/attention`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::attention::{DECODE_WIDTHS, HEAD_WIDTHS, MATRIX_HEADS, NARROW_HEADS};
use crate::spec::{F32, FLOATS, FLOATS64, HALVES, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `attention_fwd`, `attention_fwd_matrix`, `attention_fwd_specialized`.
    AttentionFwdArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        bias: In("gk_t"),
        mask: In("gk_u8"),
        lengths: In("int"),
        cu_q: In("int"),
        cu_k: In("int"),
        more: In("gk_i64"),
        err: Out("int"),
        code: I32,
        v: In("gk_t"),
        o: Out("gk_t"),
        lse: Out("gk_f"),
    }
    args {
        size: Dims,
        sq: Dims,
        sm: Dims,
        sv: Dims,
        sl: Dims,
        seed: I64,
        stream: I64,
        offset: I64,
        scale: Real,
        cap: Real,
        kept: Real,
        keep: F32,
        tiles: I32,
        left: I32,
        right: I32,
        bottom: I32,
    }
}

kernel_args! {
    /// Arguments of `attention_dkv`, `attention_dkv_matrix`.
    AttentionDkvArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        bias: In("gk_t"),
        mask: In("gk_u8"),
        lengths: In("int"),
        cu_q: In("int"),
        cu_k: In("int"),
        more: In("gk_i64"),
        err: Out("int"),
        code: I32,
        v: In("gk_t"),
        dout: In("gk_t"),
        lse: In("gk_f"),
        delta: In("gk_f"),
        dk: Out("gk_t"),
        dv: Out("gk_t"),
    }
    args {
        size: Dims,
        sq: Dims,
        sm: Dims,
        sv: Dims,
        sl: Dims,
        sg: Dims,
        seed: I64,
        stream: I64,
        offset: I64,
        scale: Real,
        cap: Real,
        kept: Real,
        keep: F32,
        tiles: I32,
        left: I32,
        right: I32,
        bottom: I32,
    }
}

kernel_args! {
    /// Arguments of `attention_dq`, `attention_dq_matrix`.
    AttentionDqArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        bias: In("gk_t"),
        mask: In("gk_u8"),
        lengths: In("int"),
        cu_q: In("int"),
        cu_k: In("int"),
        more: In("gk_i64"),
        err: Out("int"),
        code: I32,
        v: In("gk_t"),
        dout: In("gk_t"),
        lse: In("gk_f"),
        delta: In("gk_f"),
        dq: Out("gk_t"),
    }
    args {
        size: Dims,
        sq: Dims,
        sm: Dims,
        sv: Dims,
        sl: Dims,
        sg: Dims,
        seed: I64,
        stream: I64,
        offset: I64,
        scale: Real,
        cap: Real,
        kept: Real,
        keep: F32,
        tiles: I32,
        left: I32,
        right: I32,
        bottom: I32,
    }
}

kernel_args! {
    /// Arguments of `decode`, `decode_one`.
    DecodeArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        v: In("gk_t"),
        table: In("int"),
        lens: In("int"),
        cu: In("int"),
        o: Out("gk_t"),
        lse: Out("gk_f"),
        part: Out("gk_f"),
        err: Out("int"),
        size: Dims,
        sequences: I64,
        lanes: I32,
        heads: I32,
        tiles: I32,
        splits: I32,
        wide: I32,
        scale: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `decode_combine`.
    DecodeCombineArgs {
        part: In("gk_f"),
        o: Out("gk_t"),
        lse: Out("gk_f"),
        rows: I64,
        d: I64,
        splits: I32,
    }
}

kernel_args! {
    /// Arguments of `cache_append`.
    CacheAppendArgs {
        k: In("gk_t"),
        v: In("gk_t"),
        slots: In("int"),
        k_cache: Out("gk_t"),
        v_cache: Out("gk_t"),
        err: Out("int"),
        n: I64,
        row: I64,
        count: I64,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `decode_matrix`.
    DecodeMatrixArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        v: In("gk_t"),
        table: In("int"),
        lens: In("int"),
        cu: In("int"),
        o: Out("gk_t"),
        lse: Out("gk_f"),
        part: Out("gk_f"),
        err: Out("int"),
        size: Dims,
        sequences: I64,
        heads: I32,
        tiles: I32,
        splits: I32,
        scale: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `attention_bwd_fused`.
    AttentionBwdFusedArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        bias: In("gk_t"),
        mask: In("gk_u8"),
        lengths: In("int"),
        cu_q: In("int"),
        cu_k: In("int"),
        more: In("gk_i64"),
        err: Out("int"),
        code: I32,
        v: In("gk_t"),
        dout: In("gk_t"),
        lse: In("gk_f"),
        delta: In("gk_f"),
        dq: Out("gk_t"),
        dk: Out("gk_t"),
        dv: Out("gk_t"),
        sums: Out("float"),
        turns: Out("gk_u32"),
    }
    args {
        size: Dims,
        sq: Dims,
        sm: Dims,
        sv: Dims,
        sl: Dims,
        sg: Dims,
        sd: Dims,
        seed: I64,
        stream: I64,
        offset: I64,
        scale: Real,
        cap: Real,
        kept: Real,
        keep: F32,
        tiles: I32,
        left: I32,
        right: I32,
        bottom: I32,
        heads: I32,
    }
}

kernel_args! {
    /// Arguments of `rope`.
    RopeArgs {
        x: In("gk_t"),
        positions: In("int"),
        table: In("gk_i64"),
        y: Out("gk_t"),
        size: Dims,
        sx: Dims,
        offset: I64,
        pairs: I32,
        wide: I32,
        lanes: I32,
        sign: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `attention_delta`.
    AttentionDeltaArgs {
        dout: In("gk_t"),
        o: In("gk_t"),
        delta: Out("gk_f"),
        size: Dims,
        so: Dims,
        n: I64,
    }
}

kernel_args! {
    /// Arguments of `attention_probs`.
    AttentionProbsArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        bias: In("gk_t"),
        mask: In("gk_u8"),
        lengths: In("int"),
        cu_q: In("int"),
        cu_k: In("int"),
        more: In("gk_i64"),
        err: Out("int"),
        code: I32,
        lse: In("gk_f"),
        p: Out("gk_t"),
    }
    args {
        size: Dims,
        sq: Dims,
        sm: Dims,
        sl: Dims,
        seed: I64,
        stream: I64,
        offset: I64,
        scale: Real,
        cap: Real,
        kept: Real,
        keep: F32,
        tiles: I32,
        left: I32,
        right: I32,
        bottom: I32,
    }
}

kernel_args! {
    /// Arguments of `attention_dbias`.
    AttentionDbiasArgs {
        q: In("gk_t"),
        k: In("gk_t"),
        bias: In("gk_t"),
        mask: In("gk_u8"),
        lengths: In("int"),
        cu_q: In("int"),
        cu_k: In("int"),
        more: In("gk_i64"),
        err: Out("int"),
        code: I32,
        v: In("gk_t"),
        dout: In("gk_t"),
        lse: In("gk_f"),
        delta: In("gk_f"),
        dbias: Out("gk_t"),
    }
    args {
        size: Dims,
        sq: Dims,
        sm: Dims,
        sv: Dims,
        sl: Dims,
        sb: Dims,
        seed: I64,
        stream: I64,
        offset: I64,
        scale: Real,
        cap: Real,
        kept: Real,
        keep: F32,
        tiles: I32,
        left: I32,
        right: I32,
        bottom: I32,
        accumulate: I32,
    }
}

kernel_table! {
    Attention;
    ATTENTION_FWD: AttentionFwdArgs = "attention/attention.c" "attention_fwd" [(FLOATS64, HEAD_WIDTHS)];
    ATTENTION_DKV: AttentionDkvArgs = "attention/backward.c" "attention_dkv" [(FLOATS64, HEAD_WIDTHS)];
    ATTENTION_DQ: AttentionDqArgs = "attention/backward.c" "attention_dq" [(FLOATS64, HEAD_WIDTHS)];
    DECODE: DecodeArgs = "attention/decode.c" "decode" [(FLOATS64, &[])];
    DECODE_ONE: DecodeArgs = "attention/decode.c" "decode_one" [(FLOATS64, &[])];
    DECODE_COMBINE: DecodeCombineArgs = "attention/decode.c" "decode_combine" [(FLOATS64, &[])];
    CACHE_APPEND: CacheAppendArgs = "attention/decode.c" "cache_append" [(FLOATS64, &[])];
    DECODE_MATRIX: DecodeMatrixArgs = "attention/decode_matrix.c" "decode_matrix" [(HALVES, DECODE_WIDTHS)];
    ATTENTION_FWD_MATRIX: AttentionFwdArgs = "attention/matrix.c" "attention_fwd_matrix" [(FLOATS, MATRIX_HEADS), (F32, NARROW_HEADS)];
    ATTENTION_DKV_MATRIX: AttentionDkvArgs = "attention/matrix_backward.c" "attention_dkv_matrix" [(FLOATS, MATRIX_HEADS)];
    ATTENTION_DQ_MATRIX: AttentionDqArgs = "attention/matrix_backward.c" "attention_dq_matrix" [(FLOATS, MATRIX_HEADS)];
    ATTENTION_BWD_FUSED: AttentionBwdFusedArgs = "attention/matrix_backward_fused.c" "attention_bwd_fused" [(FLOATS, HEAD_WIDTHS), (F32, NARROW_HEADS)];
    ATTENTION_FWD_SPECIALIZED: AttentionFwdArgs = "attention/matrix_specialized.c" "attention_fwd_specialized" [(HALVES, HEAD_WIDTHS)];
    ROPE: RopeArgs = "attention/rope.c" "rope" [(FLOATS64, &[])];
    ATTENTION_DELTA: AttentionDeltaArgs = "attention/scores.c" "attention_delta" [(FLOATS64, &[])];
    ATTENTION_PROBS: AttentionProbsArgs = "attention/scores.c" "attention_probs" [(FLOATS64, &[])];
    ATTENTION_DBIAS: AttentionDbiasArgs = "attention/scores.c" "attention_dbias" [(FLOATS64, &[])];
}
