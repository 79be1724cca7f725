//! Kernels of `kernels/common/language_model`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{FLOATS, FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `logits_held_count`.
    LogitsHeldCountArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        state: Out("gk_f"),
        numbers: Out("gk_f"),
        vocab: I64,
        scale: Real,
        target: Real,
        whole: I32,
    }
}

kernel_args! {
    /// Arguments of `logits_held_power`.
    LogitsHeldPowerArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        state: Out("gk_f"),
        numbers: Out("gk_f"),
        vocab: I64,
        scale: Real,
        target: Real,
        whole: I32,
        after: I32,
    }
}

kernel_args! {
    /// Arguments of `logits_held_finish`.
    LogitsHeldFinishArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        numbers: In("gk_f"),
        more: In("gk_i64"),
        state: Out("gk_f"),
        ids: Out("gk_i64"),
        vocab: I64,
        top_k: I64,
        seed: I64,
        stream: I64,
        offset: I64,
        scale: Real,
        top_p: Real,
        by: I32,
        whole: I32,
    }
}

kernel_args! {
    /// Arguments of `logits_histogram`.
    LogitsHistogramArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        tops: Out("gk_f"),
        bins: Out("gk_f"),
        vocab: I64,
        parts: I64,
        scale: Real,
        counted: I32,
    }
}

kernel_args! {
    /// Arguments of `logits_threshold`.
    LogitsThresholdArgs {
        tops: In("gk_f"),
        bins: In("gk_f"),
        state: Out("gk_f"),
        above: Out("gk_f"),
        vocab: I64,
        parts: I64,
        scale: Real,
        target: Real,
        by: I32,
        more: I32,
    }
}

kernel_args! {
    /// Arguments of `logits_candidates`.
    LogitsCandidatesArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        state: In("gk_f"),
        list: Out("gk_f"),
        ids: Out("int"),
        found: Out("int"),
        vocab: I64,
        parts: I64,
        scale: Real,
    }
}

kernel_args! {
    /// Arguments of `logits_cut`.
    LogitsCutArgs {
        list: In("gk_f"),
        ids: In("int"),
        found: In("int"),
        above: In("gk_f"),
        state: Out("gk_f"),
        sums: Out("gk_f"),
        vocab: I64,
        parts: I64,
        scale: Real,
        by: I32,
    }
}

kernel_args! {
    /// Arguments of `lm_items`.
    LmItemsArgs {
        z: In("gk_f"),
        ids: In("int"),
        probs: In("gk_t"),
        err: Out("int"),
        size: Dims,
        wide: I32,
        lanes: I32,
        ignore: I64,
        smooth: Real,
        zloss: Real,
        cap: Real,
        code: I32,
        items: Out("gk_f"),
        loss: Out("gk_t"),
        lse: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `lm_counted`.
    LmCountedArgs {
        ids: In("int"),
        err: Out("int"),
        n: I64,
        classes: I64,
        wide: I32,
        ignore: I64,
        code: I32,
        items: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `lm_grad`.
    LmGradArgs {
        z: In("gk_f"),
        ids: In("int"),
        probs: In("gk_t"),
        err: Out("int"),
        size: Dims,
        wide: I32,
        lanes: I32,
        ignore: I64,
        smooth: Real,
        zloss: Real,
        cap: Real,
        code: I32,
        gy: In("gk_t"),
        per_row: I32,
        is_f32: I32,
        den: In("gk_f"),
        factor: Real,
        dz: Out("gk_t"),
    }
}

kernel_args! {
    /// Arguments of `logits_penalize`.
    LogitsPenalizeArgs {
        logits: In("gk_t"),
        prev: In("int"),
        wide: Out("gk_f"),
        err: Out("int"),
        n: I64,
        each: I64,
        vocab: I64,
        penalty: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `logits_process`.
    LogitsProcessArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        state: In("gk_f"),
        y: Out("gk_t"),
        vocab: I64,
        parts: I64,
        scale: Real,
        min_p: Real,
        items: I32,
    }
}

kernel_args! {
    /// Arguments of `logits_sections`.
    LogitsSectionsArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        part: Out("gk_f"),
        vocab: I64,
        scale: Real,
        aligned: I32,
    }
}

kernel_args! {
    /// Arguments of `logits_greedy`.
    LogitsGreedyArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        part: In("gk_f"),
        ids: Out("gk_i64"),
        rows: I64,
        vocab: I64,
    }
}

kernel_args! {
    /// Arguments of `logits_draw`.
    LogitsDrawArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        part: In("gk_f"),
        more: In("gk_i64"),
        ids: Out("gk_i64"),
        rows: I64,
        vocab: I64,
        seed: I64,
        stream: I64,
        offset: I64,
        scale: Real,
    }
}

kernel_args! {
    /// Arguments of `logits_keep`.
    LogitsKeepArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        part: In("gk_f"),
        state: Out("gk_f"),
        rows: I64,
        vocab: I64,
        top_k: I64,
        scale: Real,
        top_p: Real,
        open: I32,
    }
}

kernel_args! {
    /// Arguments of `logits_draw_kept`.
    LogitsDrawKeptArgs {
        logits: In("gk_t"),
        wide: In("gk_f"),
        state: In("gk_f"),
        known: In("gk_f"),
        more: In("gk_i64"),
        ids: Out("gk_i64"),
        rows: I64,
        vocab: I64,
        seed: I64,
        stream: I64,
        offset: I64,
        scale: Real,
        min_p: Real,
    }
}

kernel_table! {
    LanguageModel;
    LOGITS_HELD_COUNT: LogitsHeldCountArgs = "language_model/cluster.c" "logits_held_count" [(FLOATS, &[])];
    LOGITS_HELD_POWER: LogitsHeldPowerArgs = "language_model/cluster.c" "logits_held_power" [(FLOATS, &[])];
    LOGITS_HELD_FINISH: LogitsHeldFinishArgs = "language_model/cluster.c" "logits_held_finish" [(FLOATS, &[])];
    LOGITS_HISTOGRAM: LogitsHistogramArgs = "language_model/histogram.c" "logits_histogram" [(FLOATS, &[])];
    LOGITS_THRESHOLD: LogitsThresholdArgs = "language_model/histogram.c" "logits_threshold" [(FLOATS, &[])];
    LOGITS_CANDIDATES: LogitsCandidatesArgs = "language_model/histogram.c" "logits_candidates" [(FLOATS, &[])];
    LOGITS_CUT: LogitsCutArgs = "language_model/histogram.c" "logits_cut" [(FLOATS, &[])];
    LM_ITEMS: LmItemsArgs = "language_model/linear_cross_entropy.c" "lm_items" [(FLOATS64, &[])];
    LM_COUNTED: LmCountedArgs = "language_model/linear_cross_entropy.c" "lm_counted" [(FLOATS64, &[])];
    LM_GRAD: LmGradArgs = "language_model/linear_cross_entropy.c" "lm_grad" [(FLOATS64, &[])];
    LOGITS_PENALIZE: LogitsPenalizeArgs = "language_model/sampling.c" "logits_penalize" [(FLOATS64, &[])];
    LOGITS_PROCESS: LogitsProcessArgs = "language_model/sampling.c" "logits_process" [(FLOATS64, &[])];
    LOGITS_SECTIONS: LogitsSectionsArgs = "language_model/sampling.c" "logits_sections" [(FLOATS64, &[])];
    LOGITS_GREEDY: LogitsGreedyArgs = "language_model/sampling.c" "logits_greedy" [(FLOATS64, &[])];
    LOGITS_DRAW: LogitsDrawArgs = "language_model/sampling.c" "logits_draw" [(FLOATS64, &[])];
    LOGITS_KEEP: LogitsKeepArgs = "language_model/sampling.c" "logits_keep" [(FLOATS64, &[])];
    LOGITS_DRAW_KEPT: LogitsDrawKeptArgs = "language_model/sampling.c" "logits_draw_kept" [(FLOATS64, &[])];
}
