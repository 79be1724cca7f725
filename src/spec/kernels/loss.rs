//! Kernels of `kernels/common/loss`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::loss::{LOSSES, ROW_LOSSES};
use crate::spec::{FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `batch_pack`.
    BatchPackArgs {
        z: In("gk_t"),
        rows: I64,
        E: I64,
        at: I64,
        normalize: I32,
        packed: Out("gk_f"),
        norm: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `batch_unpack`.
    BatchUnpackArgs {
        grad: In("gk_f"),
        packed: In("gk_f"),
        norm: In("gk_f"),
        rows: I64,
        E: I64,
        at: I64,
        normalize: I32,
        dz: Out("gk_t"),
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `contrast_rows`.
    ContrastRowsArgs {
        q: In("gk_f"),
        k: In("gk_f"),
        ids: In("int"),
        wide: I32,
        N: I64,
        M: I64,
        B: I64,
        E: I64,
        mode: I32,
        scale: Real,
        lse: Out("gk_f"),
        positives: Out("gk_f"),
        item: Out("gk_f"),
        weight: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `contrast_grad`.
    ContrastGradArgs {
        q: In("gk_f"),
        k: In("gk_f"),
        ids: In("int"),
        wide: I32,
        N: I64,
        M: I64,
        B: I64,
        E: I64,
        mode: I32,
        scale: Real,
        lse: In("gk_f"),
        positives: In("gk_f"),
        gy: In("gk_t"),
        gy_f32: I32,
        den: In("gk_f"),
        keys: I32,
        accumulate: I32,
        out: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `barlow_stats`.
    BarlowStatsArgs {
        z: In("gk_t"),
        B: I64,
        E: I64,
        mean: Out("gk_f"),
        rstd: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `barlow_matrix`.
    BarlowMatrixArgs {
        z1: In("gk_t"),
        z2: In("gk_t"),
        mean1: In("gk_f"),
        rstd1: In("gk_f"),
        mean2: In("gk_f"),
        rstd2: In("gk_f"),
        B: I64,
        E: I64,
        lambda: Real,
        slope: Out("gk_f"),
        item: Out("gk_f"),
        weight: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `barlow_rows`.
    BarlowRowsArgs {
        slope: In("gk_f"),
        other: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        B: I64,
        E: I64,
        second: I32,
        grad: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `barlow_columns`.
    BarlowColumnsArgs {
        z: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        grad: In("gk_f"),
        B: I64,
        E: I64,
        gy: In("gk_t"),
        gy_f32: I32,
        dz: Out("gk_t"),
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `rank_items`.
    RankItemsArgs {
        s: In("gk_t"),
        rel: In("gk_t"),
        n: I64,
        item: Out("gk_f"),
        weight: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `rank_grad`.
    RankGradArgs {
        s: In("gk_t"),
        rel: In("gk_t"),
        n: I64,
        gy: In("gk_t"),
        gy_f32: I32,
        den: In("gk_f"),
        ds: Out("gk_t"),
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `balance_items`.
    BalanceItemsArgs {
        probs: In("gk_t"),
        ids: In("int"),
        wide: I32,
        err: Out("int"),
        code: I32,
        N: I64,
        E: I64,
        count: I64,
        share: Out("gk_f"),
        item: Out("gk_f"),
        weight: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `balance_grad`.
    BalanceGradArgs {
        share: In("gk_f"),
        N: I64,
        E: I64,
        gy: In("gk_t"),
        gy_f32: I32,
        dp: Out("gk_t"),
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `lovasz_slope`.
    LovaszSlopeArgs {
        p: In("gk_t"),
        ids: In("int"),
        wide: I32,
        err: Out("int"),
        code: I32,
        N: I64,
        C: I64,
        slope: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `lovasz_items`.
    LovaszItemsArgs {
        p: In("gk_t"),
        ids: In("int"),
        wide: I32,
        N: I64,
        C: I64,
        slope: In("gk_f"),
        item: Out("gk_f"),
        weight: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `lovasz_grad`.
    LovaszGradArgs {
        p: In("gk_t"),
        ids: In("int"),
        wide: I32,
        N: I64,
        C: I64,
        slope: In("gk_f"),
        gy: In("gk_t"),
        gy_f32: I32,
        den: In("gk_f"),
        dp: Out("gk_t"),
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `ctc_lattice`.
    CtcLatticeArgs {
        x: In("gk_t"),
        targets: In("int"),
        wide_t: I32,
        il: In("int"),
        tl: In("int"),
        err: Out("int"),
        code: I32,
        T: I64,
        B: I64,
        C: I64,
        st: I64,
        sb: I64,
        S: I64,
        blank: I64,
        both: I32,
        alpha: Out("gk_f"),
        nll: Out("gk_f"),
        chain: Out("int"),
        samples: Out("gk_i64"),
    }
    args {
        most: I64,
        side: I64,
        wide_il: I32,
        wide_tl: I32,
    }
}

kernel_args! {
    /// Arguments of `ctc_items`.
    CtcItemsArgs {
        nll: In("gk_f"),
        tl: In("int"),
        wide_tl: I32,
        B: I64,
        zero_infinity: I32,
        per_label: I32,
        y: Out("gk_t"),
        item: Out("gk_f"),
        weight: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `ctc_grad`.
    CtcGradArgs {
        targets: In("int"),
        wide_t: I32,
        alpha: In("gk_f"),
        nll: In("gk_f"),
        chain: In("int"),
        samples: In("gk_i64"),
        T: I64,
        B: I64,
        C: I64,
        st: I64,
        sb: I64,
        blank: I64,
        lanes: I32,
        wide: I32,
        accumulate: I32,
        gy: In("gk_t"),
        dx: Out("gk_t"),
    }
    args {
        side: I64,
        factor: Real,
        each: I32,
        gy_f32: I32,
        per_label: I32,
        zero_infinity: I32,
    }
}

kernel_args! {
    /// Arguments of `loss_items`.
    LossItemsArgs {
        p: In("gk_t"),
        t: In("gk_t"),
        weight: In("gk_t"),
        mask: In("gk_u8"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        a: Real,
        b: Real,
        flags: I32,
    }
}

kernel_args! {
    /// Arguments of `loss_partial`.
    LossPartialArgs {
        p: In("gk_t"),
        t: In("gk_t"),
        weight: In("gk_t"),
        mask: In("gk_u8"),
        partial: Out("gk_f"),
        n: I64,
        wide: I32,
        counted: I32,
        pa: Real,
        pb: Real,
        flags: I32,
    }
}

kernel_args! {
    /// Arguments of `loss_bwd`.
    LossBwdArgs {
        p: In("gk_t"),
        t: In("gk_t"),
        weight: In("gk_t"),
        mask: In("gk_u8"),
        gy: In("gk_t"),
        each: I32,
        gy_f32: I32,
        den: In("gk_f"),
        dp: Out("gk_t"),
        dt: Out("gk_t"),
        n: I64,
        wide: I32,
        acc_p: I32,
        acc_t: I32,
        factor: Real,
        pa: Real,
        pb: Real,
        flags: I32,
    }
}

kernel_args! {
    /// Arguments of `pair_partial`.
    PairPartialArgs {
        value: In("gk_f"),
        weight: In("gk_f"),
        partial: Out("gk_f"),
        n: I64,
    }
}

kernel_args! {
    /// Arguments of `weight_partial`.
    WeightPartialArgs {
        weight: In("gk_t"),
        mask: In("gk_u8"),
        partial: Out("gk_f"),
        n: I64,
    }
}

kernel_args! {
    /// Arguments of `pair_finish`.
    PairFinishArgs {
        partial: In("gk_f"),
        n: I64,
        mean: I32,
        fixed: Real,
        least: Real,
        scale: Real,
        accumulate: I32,
        loss: Out("gk_f"),
        den: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `cross_entropy_rows`.
    CrossEntropyRowsArgs {
        x: In("gk_t"),
        ids: In("int"),
        wide_ids: I32,
        prob: In("gk_t"),
        w: In("gk_t"),
        lse: Out("gk_f"),
        y: Out("gk_t"),
        item: Out("gk_f"),
        weight: Out("gk_f"),
        err: Out("int"),
        code: I32,
        N: I64,
        C: I64,
        lanes: I32,
        wide: I32,
        ignore: I64,
        smooth: Real,
    }
}

kernel_args! {
    /// Arguments of `cross_entropy_inner`.
    CrossEntropyInnerArgs {
        x: In("gk_t"),
        ids: In("int"),
        wide_ids: I32,
        prob: In("gk_t"),
        w: In("gk_t"),
        lse: Out("gk_f"),
        y: Out("gk_t"),
        item: Out("gk_f"),
        weight: Out("gk_f"),
        err: Out("int"),
        code: I32,
        N: I64,
        C: I64,
        S: I64,
        tx: I32,
        wide: I32,
        ignore: I64,
        smooth: Real,
    }
}

kernel_args! {
    /// Arguments of `cross_entropy_weight_sum`.
    CrossEntropyWeightSumArgs {
        w: In("gk_t"),
        sum: Out("gk_f"),
        C: I64,
    }
}

kernel_args! {
    /// Arguments of `cross_entropy_bwd_rows`.
    CrossEntropyBwdRowsArgs {
        x: In("gk_t"),
        ids: In("int"),
        wide_ids: I32,
        prob: In("gk_t"),
        w: In("gk_t"),
        wsum: In("gk_f"),
        lse: In("gk_f"),
        gy: In("gk_t"),
        each: I32,
        gy_f32: I32,
        den: In("gk_f"),
        dx: Out("gk_t"),
        err: Out("int"),
        code: I32,
        N: I64,
        C: I64,
        lanes: I32,
        wide: I32,
        ignore: I64,
        smooth: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `cross_entropy_bwd_inner`.
    CrossEntropyBwdInnerArgs {
        x: In("gk_t"),
        ids: In("int"),
        wide_ids: I32,
        prob: In("gk_t"),
        w: In("gk_t"),
        wsum: In("gk_f"),
        lse: In("gk_f"),
        gy: In("gk_t"),
        each: I32,
        gy_f32: I32,
        den: In("gk_f"),
        dx: Out("gk_t"),
        err: Out("int"),
        code: I32,
        N: I64,
        C: I64,
        S: I64,
        tx: I32,
        wide: I32,
        ignore: I64,
        smooth: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `margin_items`.
    MarginItemsArgs {
        x: In("gk_t"),
        y: In("gk_t"),
        reference: In("gk_t"),
        kl: In("gk_t"),
        ids: In("int"),
        wide: I32,
        err: Out("int"),
        code: I32,
        rows: I64,
        len: I64,
        lanes: I32,
        kind: I32,
        p0: Real,
        p1: Real,
        p2: Real,
        loss: Out("gk_t"),
        item: Out("gk_f"),
        weight: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `margin_grad`.
    MarginGradArgs {
        x: In("gk_t"),
        y: In("gk_t"),
        reference: In("gk_t"),
        kl: In("gk_t"),
        ids: In("int"),
        wide: I32,
        err: Out("int"),
        code: I32,
        rows: I64,
        len: I64,
        lanes: I32,
        kind: I32,
        gy: In("gk_t"),
        dx: Out("gk_t"),
        accumulate: I32,
    }
    args {
        p0: Real,
        p1: Real,
        p2: Real,
        factor: Real,
        each: I32,
        narrow: I32,
    }
}

kernel_args! {
    /// Arguments of `row_partial`.
    RowPartialArgs {
        x0: In("gk_t"),
        x1: In("gk_t"),
        x2: In("gk_t"),
        x3: In("gk_t"),
        mask: In("gk_u8"),
        ids: In("int"),
        wide: I32,
        err: Out("int"),
        code: I32,
        rows: I64,
        len: I64,
        width: I64,
        classes: I64,
        ignore: I64,
        roles: I64,
        lanes: I32,
        flags: I32,
        chunks: I64,
        partial: Out("gk_f"),
    }
    args {
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
    }
}

kernel_args! {
    /// Arguments of `row_items`.
    RowItemsArgs {
        x0: In("gk_t"),
        x1: In("gk_t"),
        x2: In("gk_t"),
        x3: In("gk_t"),
        mask: In("gk_u8"),
        ids: In("int"),
        wide: I32,
        err: Out("int"),
        code: I32,
        rows: I64,
        len: I64,
        width: I64,
        classes: I64,
        ignore: I64,
        roles: I64,
        lanes: I32,
        flags: I32,
        chunks: I64,
        partial: In("gk_f"),
        y: Out("gk_t"),
        pairs: Out("gk_f"),
    }
    args {
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
    }
}

kernel_args! {
    /// Arguments of `row_grad`.
    RowGradArgs {
        x0: In("gk_t"),
        x1: In("gk_t"),
        x2: In("gk_t"),
        x3: In("gk_t"),
        mask: In("gk_u8"),
        ids: In("int"),
        wide: I32,
        err: Out("int"),
        code: I32,
        rows: I64,
        len: I64,
        width: I64,
        classes: I64,
        ignore: I64,
        roles: I64,
        lanes: I32,
        flags: I32,
        chunks: I64,
        partial: In("gk_f"),
        gy: In("gk_t"),
        each: I32,
        den: In("gk_f"),
        d0: Out("gk_t"),
        d1: Out("gk_t"),
        d2: Out("gk_t"),
        d3: Out("gk_t"),
    }
    args {
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
        factor: Real,
        gy_f32: I32,
        acc: I32,
    }
}

kernel_args! {
    /// Arguments of `row_shared`.
    RowSharedArgs {
        x0: In("gk_t"),
        x1: In("gk_t"),
        x2: In("gk_t"),
        x3: In("gk_t"),
        mask: In("gk_u8"),
        ids: In("int"),
        wide: I32,
        err: Out("int"),
        code: I32,
        rows: I64,
        len: I64,
        width: I64,
        classes: I64,
        ignore: I64,
        roles: I64,
        lanes: I32,
        flags: I32,
        gy: In("gk_t"),
        each: I32,
        parts: I64,
        sums: Out("gk_f"),
    }
    args {
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
        factor: Real,
        gy_f32: I32,
    }
}

kernel_args! {
    /// Arguments of `row_shared_sum`.
    RowSharedSumArgs {
        sums: In("gk_f"),
        len: I64,
        parts: I64,
        d: Out("gk_t"),
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `stft_table`.
    StftTableArgs {
        table: Out("gk_f"),
        n: I64,
        win: I64,
    }
}

kernel_args! {
    /// Arguments of `stft_sums`.
    StftSumsArgs {
        p: In("gk_t"),
        t: In("gk_t"),
        table: In("gk_f"),
        work: Out("gk_f"),
        partial: Out("gk_f"),
        total: I64,
        frames: I64,
        T: I64,
        n: I32,
        hop: I64,
        win: I32,
        group: I32,
    }
}

kernel_args! {
    /// Arguments of `stft_finish`.
    StftFinishArgs {
        partial: In("gk_f"),
        blocks: I64,
        count: Real,
        factor: Real,
        add: I32,
        stat: Out("gk_f"),
        loss: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `stft_frames`.
    StftFramesArgs {
        p: In("gk_t"),
        t: In("gk_t"),
        table: In("gk_f"),
        work: Out("gk_f"),
        stat: In("gk_f"),
        gy: In("gk_t"),
        gy_f32: I32,
        grad: Out("gk_f"),
        total: I64,
        frames: I64,
        T: I64,
        n: I32,
        hop: I64,
        win: I32,
        group: I32,
        count: Real,
        factor: Real,
    }
}

kernel_args! {
    /// Arguments of `stft_gather`.
    StftGatherArgs {
        grad: In("gk_f"),
        sum: Out("gk_f"),
        fresh: I32,
        dp: Out("gk_t"),
        accumulate: I32,
        N: I64,
        T: I64,
        frames: I64,
        n: I64,
        hop: I64,
        win: I64,
    }
}

kernel_args! {
    /// Arguments of `rnnt_nodes`.
    RnntNodesArgs {
        x: In("gk_t"),
        targets: In("int"),
        wide_t: I32,
        il: In("int"),
        wide_il: I32,
        tl: In("int"),
        wide_tl: I32,
        nodes: I64,
        T: I64,
        U: I64,
        C: I64,
        blank: I64,
        lanes: I32,
        wide: I32,
        lse: Out("gk_f"),
        blanks: Out("gk_f"),
        emits: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `rnnt_lattice`.
    RnntLatticeArgs {
        blanks: In("gk_f"),
        emits: In("gk_f"),
        targets: In("int"),
        wide_t: I32,
        il: In("int"),
        wide_il: I32,
        tl: In("int"),
        wide_tl: I32,
        err: Out("int"),
        code: I32,
        B: I64,
        T: I64,
        U: I64,
        C: I64,
        side: I64,
        both: I32,
        alpha: Out("gk_f"),
        nll: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `rnnt_grad`.
    RnntGradArgs {
        x: In("gk_t"),
        lse: In("gk_f"),
        blanks: In("gk_f"),
        emits: In("gk_f"),
        targets: In("int"),
        il: In("int"),
        tl: In("int"),
        nodes: I64,
        T: I64,
        U: I64,
        C: I64,
        blank: I64,
        lanes: I32,
        wide: I32,
        accumulate: I32,
        alpha: In("gk_f"),
        nll: In("gk_f"),
        gy: In("gk_t"),
        dx: Out("gk_t"),
    }
    args {
        side: I64,
        factor: Real,
        wide_t: I32,
        wide_il: I32,
        wide_tl: I32,
        each: I32,
        gy_f32: I32,
    }
}

kernel_table! {
    Loss;
    BATCH_PACK: BatchPackArgs = "loss/batch.c" "batch_pack" [(FLOATS64, &[])];
    BATCH_UNPACK: BatchUnpackArgs = "loss/batch.c" "batch_unpack" [(FLOATS64, &[])];
    CONTRAST_ROWS: ContrastRowsArgs = "loss/batch.c" "contrast_rows" [(FLOATS64, &[])];
    CONTRAST_GRAD: ContrastGradArgs = "loss/batch.c" "contrast_grad" [(FLOATS64, &[])];
    BARLOW_STATS: BarlowStatsArgs = "loss/batch.c" "barlow_stats" [(FLOATS64, &[])];
    BARLOW_MATRIX: BarlowMatrixArgs = "loss/batch.c" "barlow_matrix" [(FLOATS64, &[])];
    BARLOW_ROWS: BarlowRowsArgs = "loss/batch.c" "barlow_rows" [(FLOATS64, &[])];
    BARLOW_COLUMNS: BarlowColumnsArgs = "loss/batch.c" "barlow_columns" [(FLOATS64, &[])];
    RANK_ITEMS: RankItemsArgs = "loss/batch.c" "rank_items" [(FLOATS64, &[])];
    RANK_GRAD: RankGradArgs = "loss/batch.c" "rank_grad" [(FLOATS64, &[])];
    BALANCE_ITEMS: BalanceItemsArgs = "loss/batch.c" "balance_items" [(FLOATS64, &[])];
    BALANCE_GRAD: BalanceGradArgs = "loss/batch.c" "balance_grad" [(FLOATS64, &[])];
    LOVASZ_SLOPE: LovaszSlopeArgs = "loss/batch.c" "lovasz_slope" [(FLOATS64, &[])];
    LOVASZ_ITEMS: LovaszItemsArgs = "loss/batch.c" "lovasz_items" [(FLOATS64, &[])];
    LOVASZ_GRAD: LovaszGradArgs = "loss/batch.c" "lovasz_grad" [(FLOATS64, &[])];
    CTC_LATTICE: CtcLatticeArgs = "loss/ctc.c" "ctc_lattice" [(FLOATS64, &[])];
    CTC_ITEMS: CtcItemsArgs = "loss/ctc.c" "ctc_items" [(FLOATS64, &[])];
    CTC_GRAD: CtcGradArgs = "loss/ctc.c" "ctc_grad" [(FLOATS64, &[])];
    LOSS_ITEMS: LossItemsArgs = "loss/loss.c" "loss_items" [(FLOATS64, LOSSES)];
    LOSS_PARTIAL: LossPartialArgs = "loss/loss.c" "loss_partial" [(FLOATS64, LOSSES)];
    LOSS_BWD: LossBwdArgs = "loss/loss.c" "loss_bwd" [(FLOATS64, LOSSES)];
    PAIR_PARTIAL: PairPartialArgs = "loss/loss.c" "pair_partial" [(FLOATS64, &[])];
    WEIGHT_PARTIAL: WeightPartialArgs = "loss/loss.c" "weight_partial" [(FLOATS64, &[])];
    PAIR_FINISH: PairFinishArgs = "loss/loss.c" "pair_finish" [(FLOATS64, &[])];
    CROSS_ENTROPY_ROWS: CrossEntropyRowsArgs = "loss/loss.c" "cross_entropy_rows" [(FLOATS64, &[])];
    CROSS_ENTROPY_INNER: CrossEntropyInnerArgs = "loss/loss.c" "cross_entropy_inner" [(FLOATS64, &[])];
    CROSS_ENTROPY_WEIGHT_SUM: CrossEntropyWeightSumArgs = "loss/loss.c" "cross_entropy_weight_sum" [(FLOATS64, &[])];
    CROSS_ENTROPY_BWD_ROWS: CrossEntropyBwdRowsArgs = "loss/loss.c" "cross_entropy_bwd_rows" [(FLOATS64, &[])];
    CROSS_ENTROPY_BWD_INNER: CrossEntropyBwdInnerArgs = "loss/loss.c" "cross_entropy_bwd_inner" [(FLOATS64, &[])];
    MARGIN_ITEMS: MarginItemsArgs = "loss/margin.c" "margin_items" [(FLOATS64, &[])];
    MARGIN_GRAD: MarginGradArgs = "loss/margin.c" "margin_grad" [(FLOATS64, &[])];
    ROW_PARTIAL: RowPartialArgs = "loss/rows.c" "row_partial" [(FLOATS64, ROW_LOSSES)];
    ROW_ITEMS: RowItemsArgs = "loss/rows.c" "row_items" [(FLOATS64, ROW_LOSSES)];
    ROW_GRAD: RowGradArgs = "loss/rows.c" "row_grad" [(FLOATS64, ROW_LOSSES)];
    ROW_SHARED: RowSharedArgs = "loss/rows.c" "row_shared" [(FLOATS64, ROW_LOSSES)];
    ROW_SHARED_SUM: RowSharedSumArgs = "loss/rows.c" "row_shared_sum" [(FLOATS64, &[])];
    STFT_TABLE: StftTableArgs = "loss/stft.c" "stft_table" [(FLOATS64, &[])];
    STFT_SUMS: StftSumsArgs = "loss/stft.c" "stft_sums" [(FLOATS64, &[])];
    STFT_FINISH: StftFinishArgs = "loss/stft.c" "stft_finish" [(FLOATS64, &[])];
    STFT_FRAMES: StftFramesArgs = "loss/stft.c" "stft_frames" [(FLOATS64, &[])];
    STFT_GATHER: StftGatherArgs = "loss/stft.c" "stft_gather" [(FLOATS64, &[])];
    RNNT_NODES: RnntNodesArgs = "loss/transducer.c" "rnnt_nodes" [(FLOATS64, &[])];
    RNNT_LATTICE: RnntLatticeArgs = "loss/transducer.c" "rnnt_lattice" [(FLOATS64, &[])];
    RNNT_GRAD: RnntGradArgs = "loss/transducer.c" "rnnt_grad" [(FLOATS64, &[])];
}
