//! Kernels of `kernels/common/field`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{FLOATS64, REALS, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `gaussian_covariance`.
    GaussianCovarianceArgs {
        rotation: In("gk_t"),
        scale: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
    }
}

kernel_args! {
    /// Arguments of `gaussian_covariance_bwd`.
    GaussianCovarianceBwdArgs {
        dy: In("gk_t"),
        rotation: In("gk_t"),
        scale: In("gk_t"),
        drotation: Out("gk_t"),
        dscale: Out("gk_t"),
        n: I64,
        add: I32,
    }
}

kernel_args! {
    /// Arguments of `grid_encode`.
    GridEncodeArgs {
        x: In("gk_t"),
        table: In("gk_t"),
        cells: In("gk_i64"),
        y: Out("gk_t"),
        n: I64,
        levels: I64,
        rows: I64,
        width: I64,
        groups: I64,
        axes: I32,
    }
}

kernel_args! {
    /// Arguments of `grid_encode_dx`.
    GridEncodeDxArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        table: In("gk_t"),
        cells: In("gk_i64"),
        dx: Out("gk_t"),
        n: I64,
        levels: I64,
        rows: I64,
        width: I64,
        axes: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `grid_encode_keys`.
    GridEncodeKeysArgs {
        x: In("gk_t"),
        cells: In("gk_i64"),
        keys: Out("int"),
        weights: Out("gk_f"),
        n: I64,
        levels: I64,
        rows: I64,
        none: I64,
        wide_keys: I32,
        axes: I32,
    }
}

kernel_args! {
    /// Arguments of `grid_encode_gather`.
    GridEncodeGatherArgs {
        keys: In("int"),
        positions: In("int"),
        weights: In("gk_f"),
        dy: In("gk_t"),
        dtable: Out("gk_t"),
        n: I64,
        entries: I64,
        width: I64,
        groups: I64,
        wide_keys: I32,
        axes: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `grid_encode_sources`.
    GridEncodeSourcesArgs {
        weights: In("gk_f"),
        dy: In("gk_t"),
        sources: Out("gk_t"),
        n: I64,
        width: I64,
        axes: I32,
    }
}

kernel_args! {
    /// Arguments of `harmonics`.
    HarmonicsArgs {
        r: In("gk_t"),
        coefficients: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        channels: I64,
        count: I32,
    }
}

kernel_args! {
    /// Arguments of `harmonics_dcoefficients`.
    HarmonicsDcoefficientsArgs {
        dy: In("gk_t"),
        r: In("gk_t"),
        dcoefficients: Out("gk_t"),
        n: I64,
        channels: I64,
        count: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `harmonics_dr`.
    HarmonicsDrArgs {
        dy: In("gk_t"),
        r: In("gk_t"),
        coefficients: In("gk_t"),
        dr: Out("gk_t"),
        n: I64,
        channels: I64,
        count: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `ray_sampling`.
    RaySamplingArgs {
        low: In("gk_t"),
        high: In("gk_t"),
        t: Out("gk_t"),
        more: In("gk_i64"),
        n: I64,
        samples: I64,
        seed: I64,
        stream: I64,
        offset: I64,
        middle: I32,
    }
}

kernel_args! {
    /// Arguments of `importance_sums`.
    ImportanceSumsArgs {
        weights: In("gk_t"),
        sums: Out("gk_f"),
        rays: I64,
        intervals: I64,
        padding: Real,
    }
}

kernel_args! {
    /// Arguments of `importance_sampling`.
    ImportanceSamplingArgs {
        edges: In("gk_t"),
        weights: In("gk_t"),
        sums: In("gk_f"),
        t: Out("gk_t"),
        more: In("gk_i64"),
        n: I64,
        samples: I64,
        intervals: I64,
        seed: I64,
        stream: I64,
        offset: I64,
        padding: Real,
        middle: I32,
    }
}

kernel_args! {
    /// Arguments of `volume_render`.
    VolumeRenderArgs {
        density: In("gk_t"),
        color: In("gk_t"),
        delta: In("gk_t"),
        t: In("gk_t"),
        y: Out("gk_t"),
        opacity: Out("gk_t"),
        depth: Out("gk_t"),
        weights: Out("gk_t"),
        n: I64,
        samples: I64,
        channels: I64,
        groups: I64,
    }
}

kernel_args! {
    /// Arguments of `volume_render_block`.
    VolumeRenderBlockArgs {
        density: In("gk_t"),
        color: In("gk_t"),
        delta: In("gk_t"),
        t: In("gk_t"),
        y: Out("gk_t"),
        opacity: Out("gk_t"),
        depth: Out("gk_t"),
        weights: Out("gk_t"),
        rays: I64,
        samples: I64,
        channels: I64,
    }
}

kernel_args! {
    /// Arguments of `volume_render_bwd`.
    VolumeRenderBwdArgs {
        dy: In("gk_t"),
        density: In("gk_t"),
        color: In("gk_t"),
        delta: In("gk_t"),
        t: In("gk_t"),
        dopacity: In("gk_t"),
        ddepth: In("gk_t"),
        dweights: In("gk_t"),
        ddensity: Out("gk_t"),
        dcolor: Out("gk_t"),
        ddelta: Out("gk_t"),
        dt: Out("gk_t"),
        depths: Out("gk_f"),
        rays: I64,
        samples: I64,
        channels: I64,
        add: I32,
    }
}

kernel_args! {
    /// Arguments of `volume_render_bwd_block`.
    VolumeRenderBwdBlockArgs {
        dy: In("gk_t"),
        density: In("gk_t"),
        color: In("gk_t"),
        delta: In("gk_t"),
        t: In("gk_t"),
        dopacity: In("gk_t"),
        ddepth: In("gk_t"),
        dweights: In("gk_t"),
        ddensity: Out("gk_t"),
        dcolor: Out("gk_t"),
        ddelta: Out("gk_t"),
        dt: Out("gk_t"),
        depths: Out("gk_f"),
        slopes: Out("gk_f"),
        rays: I64,
        samples: I64,
        channels: I64,
        add: I32,
    }
}

kernel_args! {
    /// Arguments of `project_gaussians`.
    ProjectGaussiansArgs {
        means: In("gk_t"),
        cov: In("gk_t"),
        view: In("gk_t"),
        camera: In("gk_t"),
        centers: Out("gk_t"),
        conics: Out("gk_t"),
        depths: Out("gk_t"),
        radii: Out("int"),
        n: I64,
        width: Real,
        height: Real,
        close: Real,
        blur: Real,
    }
}

kernel_args! {
    /// Arguments of `project_gaussians_bwd`.
    ProjectGaussiansBwdArgs {
        dcenters: In("gk_t"),
        dconics: In("gk_t"),
        ddepths: In("gk_t"),
        means: In("gk_t"),
        cov: In("gk_t"),
        view: In("gk_t"),
        camera: In("gk_t"),
        radii: In("int"),
        dmeans: Out("gk_t"),
        dcov: Out("gk_t"),
        n: I64,
        width: Real,
        height: Real,
        blur: Real,
        add: I32,
    }
}

kernel_args! {
    /// Arguments of `rasterize_gaussians`.
    RasterizeGaussiansArgs {
        centers: In("gk_t"),
        conics: In("gk_t"),
        colors: In("gk_t"),
        opacities: In("gk_t"),
        radii: In("int"),
        order: In("int"),
        image: Out("gk_t"),
        light: Out("gk_t"),
        last: Out("int"),
        n: I64,
        width: I64,
        height: I64,
        channels: I64,
        groups: I64,
    }
}

kernel_args! {
    /// Arguments of `rasterize_gaussians_bwd`.
    RasterizeGaussiansBwdArgs {
        dy: In("gk_t"),
        centers: In("gk_t"),
        conics: In("gk_t"),
        colors: In("gk_t"),
        opacities: In("gk_t"),
        radii: In("int"),
        order: In("int"),
        last: In("int"),
        light: Out("gk_f"),
        behind: Out("gk_f"),
        part: Out("gk_f"),
        flags: Out("gk_u8"),
        from: I64,
        to: I64,
        width: I64,
        height: I64,
        channels: I64,
    }
}

kernel_args! {
    /// Arguments of `rasterize_gaussians_fold`.
    RasterizeGaussiansFoldArgs {
        part: In("gk_f"),
        flags: In("gk_u8"),
        order: In("int"),
        dcenters: Out("gk_t"),
        dconics: Out("gk_t"),
        dcolors: Out("gk_t"),
        dopacities: Out("gk_t"),
        from: I64,
        count: I64,
        tiles: I64,
        channels: I64,
        add: I32,
    }
}

kernel_args! {
    /// Arguments of `rasterize_gaussians_rest`.
    RasterizeGaussiansRestArgs {
        light: In("gk_t"),
        dlight: In("gk_t"),
        behind: Out("gk_f"),
        n: I64,
    }
}

kernel_table! {
    Field;
    GAUSSIAN_COVARIANCE: GaussianCovarianceArgs = "field/gaussians.c" "gaussian_covariance" [(FLOATS64, &[])];
    GAUSSIAN_COVARIANCE_BWD: GaussianCovarianceBwdArgs = "field/gaussians.c" "gaussian_covariance_bwd" [(FLOATS64, &[])];
    GRID_ENCODE: GridEncodeArgs = "field/grid.c" "grid_encode" [(FLOATS64, &[])];
    GRID_ENCODE_DX: GridEncodeDxArgs = "field/grid.c" "grid_encode_dx" [(FLOATS64, &[])];
    GRID_ENCODE_KEYS: GridEncodeKeysArgs = "field/grid.c" "grid_encode_keys" [(FLOATS64, &[])];
    GRID_ENCODE_GATHER: GridEncodeGatherArgs = "field/grid.c" "grid_encode_gather" [(FLOATS64, &[])];
    GRID_ENCODE_SOURCES: GridEncodeSourcesArgs = "field/grid.c" "grid_encode_sources" [(REALS, &[])];
    HARMONICS: HarmonicsArgs = "field/harmonics.c" "harmonics" [(FLOATS64, &[])];
    HARMONICS_DCOEFFICIENTS: HarmonicsDcoefficientsArgs = "field/harmonics.c" "harmonics_dcoefficients" [(FLOATS64, &[])];
    HARMONICS_DR: HarmonicsDrArgs = "field/harmonics.c" "harmonics_dr" [(FLOATS64, &[])];
    RAY_SAMPLING: RaySamplingArgs = "field/rays.c" "ray_sampling" [(FLOATS64, &[])];
    IMPORTANCE_SUMS: ImportanceSumsArgs = "field/rays.c" "importance_sums" [(FLOATS64, &[])];
    IMPORTANCE_SAMPLING: ImportanceSamplingArgs = "field/rays.c" "importance_sampling" [(FLOATS64, &[])];
    VOLUME_RENDER: VolumeRenderArgs = "field/rays.c" "volume_render" [(FLOATS64, &[])];
    VOLUME_RENDER_BLOCK: VolumeRenderBlockArgs = "field/rays.c" "volume_render_block" [(FLOATS64, &[])];
    VOLUME_RENDER_BWD: VolumeRenderBwdArgs = "field/rays.c" "volume_render_bwd" [(FLOATS64, &[])];
    VOLUME_RENDER_BWD_BLOCK: VolumeRenderBwdBlockArgs = "field/rays.c" "volume_render_bwd_block" [(FLOATS64, &[])];
    PROJECT_GAUSSIANS: ProjectGaussiansArgs = "field/splatting.c" "project_gaussians" [(REALS, &[])];
    PROJECT_GAUSSIANS_BWD: ProjectGaussiansBwdArgs = "field/splatting.c" "project_gaussians_bwd" [(REALS, &[])];
    RASTERIZE_GAUSSIANS: RasterizeGaussiansArgs = "field/splatting.c" "rasterize_gaussians" [(REALS, &[])];
    RASTERIZE_GAUSSIANS_BWD: RasterizeGaussiansBwdArgs = "field/splatting.c" "rasterize_gaussians_bwd" [(REALS, &[])];
    RASTERIZE_GAUSSIANS_FOLD: RasterizeGaussiansFoldArgs = "field/splatting.c" "rasterize_gaussians_fold" [(REALS, &[])];
    RASTERIZE_GAUSSIANS_REST: RasterizeGaussiansRestArgs = "field/splatting.c" "rasterize_gaussians_rest" [(REALS, &[])];
}
