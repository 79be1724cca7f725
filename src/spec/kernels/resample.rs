//! Kernels of `kernels/common/resample`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::resample::SAMPLE_MODES;
use crate::spec::{FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `linear_twice`.
    LinearTwiceArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        size: Dims,
        by: Dims,
    }
}

kernel_args! {
    /// Arguments of `linear_twice_bwd`.
    LinearTwiceBwdArgs {
        dy: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        size: Dims,
        by: Dims,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `grid_sample`.
    GridSampleArgs {
        x: In("gk_t"),
        grid: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        samples: I64,
        outputs: I64,
        all: I64,
        channels: I64,
        axes: I32,
        size: Dims,
        padding: I32,
        align: I32,
    }
}

kernel_args! {
    /// Arguments of `grid_sample_dgrid`.
    GridSampleDgridArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        grid: In("gk_t"),
        dgrid: Out("gk_t"),
        n: I64,
        outputs: I64,
        all: I64,
        axes: I32,
        size: Dims,
        padding: I32,
        align: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `grid_sample_keys`.
    GridSampleKeysArgs {
        grid: In("gk_t"),
        keys: Out("int"),
        weights: Out("gk_f"),
        n: I64,
        outputs: I64,
        wide_keys: I32,
        none: I64,
        per: I32,
        axes: I32,
        size: Dims,
        padding: I32,
        align: I32,
    }
}

kernel_args! {
    /// Arguments of `nms_keys`.
    NmsKeysArgs {
        scores: In("gk_t"),
        keys: Out("gk_u8"),
        n: I64,
    }
}

kernel_args! {
    /// Arguments of `nms_overlaps`.
    NmsOverlapsArgs {
        boxes: In("gk_t"),
        groups: In("int"),
        order: In("int"),
        bits: Out("gk_u32"),
        n: I64,
        words: I64,
        wide_groups: I32,
        threshold: Real,
    }
}

kernel_args! {
    /// Arguments of `nms_pass`.
    NmsPassArgs {
        order: In("int"),
        bits: In("gk_u32"),
        gone: Out("gk_u32"),
        keep: Out("gk_i64"),
        count: Out("gk_i64"),
        n: I64,
        words: I64,
    }
}

kernel_args! {
    /// Arguments of `nearest`.
    NearestArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        size: Dims,
        magic: Dims,
        half_cell: I32,
        small: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `nearest_bwd`.
    NearestBwdArgs {
        dy: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        size: Dims,
        magic: Dims,
        half_cell: I32,
        small: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `nearest_twice`.
    NearestTwiceArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        runs: I32,
        rows: I32,
        by: Dims,
        fd: I32,
        fh: I32,
    }
}

kernel_args! {
    /// Arguments of `nearest_twice_bwd`.
    NearestTwiceBwdArgs {
        dy: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        runs: I32,
        rows: I32,
        by: Dims,
        fd: I32,
        fh: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `resample_taps`.
    ResampleTapsArgs {
        bounds: Out("int"),
        weights: Out("gk_f"),
        n: I64,
        size: Dims,
        taps: Dims,
        cubic: I32,
        align: I32,
        antialias: I32,
    }
}

kernel_args! {
    /// Arguments of `resample_spans`.
    ResampleSpansArgs {
        bounds: Out("int"),
        n: I64,
        size: Dims,
    }
}

kernel_args! {
    /// Arguments of `resample`.
    ResampleArgs {
        x: In("gk_t"),
        bounds: In("int"),
        weights: In("gk_f"),
        y: Out("gk_t"),
        n: I64,
        planes: I64,
        group: I32,
        size: Dims,
        magic: Dims,
        taps: Dims,
    }
}

kernel_args! {
    /// Arguments of `resample_bwd`.
    ResampleBwdArgs {
        dy: In("gk_t"),
        bounds: In("int"),
        weights: In("gk_f"),
        dx: Out("gk_t"),
        n: I64,
        planes: I64,
        group: I32,
        size: Dims,
        magic: Dims,
        taps: Dims,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `affine_grid`.
    AffineGridArgs {
        theta: In("gk_t"),
        grid: Out("gk_t"),
        n: I64,
        axes: I32,
        size: Dims,
        magic: Dims,
        align: I32,
    }
}

kernel_args! {
    /// Arguments of `affine_grid_sums`.
    AffineGridSumsArgs {
        dgrid: In("gk_t"),
        part: Out("gk_f"),
        samples: I64,
        points: I64,
        chunk: I64,
        axes: I32,
        size: Dims,
        magic: Dims,
        align: I32,
    }
}

kernel_args! {
    /// Arguments of `affine_grid_combine`.
    AffineGridCombineArgs {
        part: In("gk_f"),
        dtheta: Out("gk_t"),
        n: I64,
        axes: I32,
        chunks: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `sample_gather`.
    SampleGatherArgs {
        keys: In("int"),
        positions: In("int"),
        weights: In("gk_f"),
        dy: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        entries: I64,
        wide_keys: I32,
        cells: I64,
        samples: I64,
        outputs: I64,
        all: I64,
        channels: I64,
        shift: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `roi_align`.
    RoiAlignArgs {
        x: In("gk_t"),
        boxes: In("gk_t"),
        images: In("int"),
        y: Out("gk_t"),
        err: Out("int"),
        n: I64,
        samples: I64,
        channels: I64,
        groups: I64,
        wide: I32,
        code: I32,
    }
    args {
        scale: Real,
        height: I32,
        width: I32,
        rows: I32,
        columns: I32,
        ratio: I32,
        aligned: I32,
    }
}

kernel_args! {
    /// Arguments of `roi_align_spans`.
    RoiAlignSpansArgs {
        boxes: In("gk_t"),
        images: In("int"),
        spans: Out("gk_f"),
        places: Out("gk_i64"),
        err: Out("int"),
        n: I64,
        samples: I64,
        wide: I32,
        code: I32,
    }
    args {
        scale: Real,
        height: I32,
        width: I32,
        rows: I32,
        columns: I32,
        ratio: I32,
        aligned: I32,
    }
}

kernel_args! {
    /// Arguments of `roi_align_bwd`.
    RoiAlignBwdArgs {
        dy: In("gk_t"),
        spans: In("gk_f"),
        places: In("gk_i64"),
        dx: Out("gk_t"),
        n: I64,
        boxes: I64,
        channels: I64,
        groups: I64,
        accumulate: I32,
    }
    args {
        scale: Real,
        height: I32,
        width: I32,
        rows: I32,
        columns: I32,
        ratio: I32,
        aligned: I32,
    }
}

kernel_table! {
    Resample;
    LINEAR_TWICE: LinearTwiceArgs = "resample/doubling.c" "linear_twice" [(FLOATS64, &[])];
    LINEAR_TWICE_BWD: LinearTwiceBwdArgs = "resample/doubling.c" "linear_twice_bwd" [(FLOATS64, &[])];
    GRID_SAMPLE: GridSampleArgs = "resample/grid_sample.c" "grid_sample" [(FLOATS64, SAMPLE_MODES)];
    GRID_SAMPLE_DGRID: GridSampleDgridArgs = "resample/grid_sample.c" "grid_sample_dgrid" [(FLOATS64, SAMPLE_MODES)];
    GRID_SAMPLE_KEYS: GridSampleKeysArgs = "resample/grid_sample.c" "grid_sample_keys" [(FLOATS64, SAMPLE_MODES)];
    NMS_KEYS: NmsKeysArgs = "resample/nms.c" "nms_keys" [(FLOATS64, &[])];
    NMS_OVERLAPS: NmsOverlapsArgs = "resample/nms.c" "nms_overlaps" [(FLOATS64, &[])];
    NMS_PASS: NmsPassArgs = "resample/nms.c" "nms_pass" [(FLOATS64, &[])];
    NEAREST: NearestArgs = "resample/resample.c" "nearest" [(FLOATS64, &[])];
    NEAREST_BWD: NearestBwdArgs = "resample/resample.c" "nearest_bwd" [(FLOATS64, &[])];
    NEAREST_TWICE: NearestTwiceArgs = "resample/resample.c" "nearest_twice" [(FLOATS64, &[])];
    NEAREST_TWICE_BWD: NearestTwiceBwdArgs = "resample/resample.c" "nearest_twice_bwd" [(FLOATS64, &[])];
    RESAMPLE_TAPS: ResampleTapsArgs = "resample/resample.c" "resample_taps" [(FLOATS64, &[])];
    RESAMPLE_SPANS: ResampleSpansArgs = "resample/resample.c" "resample_spans" [(FLOATS64, &[])];
    RESAMPLE: ResampleArgs = "resample/resample.c" "resample" [(FLOATS64, &[])];
    RESAMPLE_BWD: ResampleBwdArgs = "resample/resample.c" "resample_bwd" [(FLOATS64, &[])];
    AFFINE_GRID: AffineGridArgs = "resample/resample.c" "affine_grid" [(FLOATS64, &[])];
    AFFINE_GRID_SUMS: AffineGridSumsArgs = "resample/resample.c" "affine_grid_sums" [(FLOATS64, &[])];
    AFFINE_GRID_COMBINE: AffineGridCombineArgs = "resample/resample.c" "affine_grid_combine" [(FLOATS64, &[])];
    SAMPLE_GATHER: SampleGatherArgs = "resample/resample.c" "sample_gather" [(FLOATS64, &[])];
    ROI_ALIGN: RoiAlignArgs = "resample/roi_align.c" "roi_align" [(FLOATS64, &[])];
    ROI_ALIGN_SPANS: RoiAlignSpansArgs = "resample/roi_align.c" "roi_align_spans" [(FLOATS64, &[])];
    ROI_ALIGN_BWD: RoiAlignBwdArgs = "resample/roi_align.c" "roi_align_bwd" [(FLOATS64, &[])];
}
