//! Kernels of `kernels/common/mesh`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{FLOATS64, REALS, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `diffusion_spread`.
    DiffusionSpreadArgs {
        x: In("gk_t"),
        lam: In("gk_t"),
        t: In("gk_t"),
        out: Out("gk_t"),
        n: I64,
        comps: I64,
        scales: I32,
        channels: I32,
        per_channel: I32,
    }
}

kernel_args! {
    /// Arguments of `diffusion_fold`.
    DiffusionFoldArgs {
        d: In("gk_t"),
        lam: In("gk_t"),
        t: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        comps: I64,
        scales: I32,
        channels: I32,
        per_channel: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `diffusion_times`.
    DiffusionTimesArgs {
        p: In("gk_t"),
        q: In("gk_t"),
        lam: In("gk_t"),
        dt: Out("gk_t"),
        rows: I64,
        comps: I64,
        scales: I32,
        channels: I32,
        per_channel: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `diffusion_flow`.
    DiffusionFlowArgs {
        m: In("gk_t"),
        x: In("gk_t"),
        t: In("gk_t"),
        out: Out("gk_t"),
        room: Out("gk_f"),
        nodes: I64,
        scales: I32,
        channels: I32,
        per_channel: I32,
        x_has_scales: I32,
    }
}

kernel_args! {
    /// Arguments of `mesh_gather`.
    MeshGatherArgs {
        x: In("gk_t"),
        list: In("int"),
        f: Out("gk_t"),
        err: Out("int"),
        elements: I64,
        width: I64,
        ways: I32,
        batch: I64,
        mode: I32,
        lanes: I32,
        wide_index: I32,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `mesh_unfold`.
    MeshUnfoldArgs {
        x: In("gk_t"),
        list: In("int"),
        df: Out("gk_f"),
        err: Out("int"),
        elements: I64,
        width: I64,
        batch: I64,
        lanes: I32,
        wide_index: I32,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `mesh_pool_scores`.
    MeshPoolScoresArgs {
        x: In("gk_t"),
        w: In("gk_t"),
        score: Out("gk_f"),
        elements: I64,
        width: I64,
        lanes: I32,
        scale: Real,
    }
}

kernel_args! {
    /// Arguments of `mesh_pool_gather`.
    MeshPoolGatherArgs {
        x: In("gk_t"),
        share: In("gk_f"),
        kept: In("int"),
        y: Out("gk_t"),
        n: I64,
        width: I64,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `mesh_pool_dshare`.
    MeshPoolDshareArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        kept: In("int"),
        dshare: Out("gk_f"),
        place: Out("int"),
        err: Out("int"),
        count: I64,
        elements: I64,
        width: I64,
        lanes: I32,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `mesh_pool_dx`.
    MeshPoolDxArgs {
        dy: In("gk_t"),
        w: In("gk_t"),
        share: In("gk_f"),
        ds: In("gk_f"),
        place: In("int"),
        dx: Out("gk_t"),
        n: I64,
        width: I64,
        scale: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `mesh_pool_dw`.
    MeshPoolDwArgs {
        x: In("gk_t"),
        ds: In("gk_f"),
        part: Out("gk_f"),
        n: I64,
        elements: I64,
        width: I64,
        chunk: I64,
    }
}

kernel_args! {
    /// Arguments of `mesh_pool_dw_combine`.
    MeshPoolDwCombineArgs {
        part: In("gk_f"),
        dw: Out("gk_t"),
        width: I64,
        chunks: I64,
        scale: Real,
        accumulate: I32,
    }
}

kernel_table! {
    Mesh;
    DIFFUSION_SPREAD: DiffusionSpreadArgs = "mesh/diffusion.c" "diffusion_spread" [(REALS, &[])];
    DIFFUSION_FOLD: DiffusionFoldArgs = "mesh/diffusion.c" "diffusion_fold" [(REALS, &[])];
    DIFFUSION_TIMES: DiffusionTimesArgs = "mesh/diffusion.c" "diffusion_times" [(REALS, &[])];
    DIFFUSION_FLOW: DiffusionFlowArgs = "mesh/diffusion.c" "diffusion_flow" [(REALS, &[])];
    MESH_GATHER: MeshGatherArgs = "mesh/mesh.c" "mesh_gather" [(FLOATS64, &[])];
    MESH_UNFOLD: MeshUnfoldArgs = "mesh/mesh.c" "mesh_unfold" [(FLOATS64, &[])];
    MESH_POOL_SCORES: MeshPoolScoresArgs = "mesh/pool.c" "mesh_pool_scores" [(FLOATS64, &[])];
    MESH_POOL_GATHER: MeshPoolGatherArgs = "mesh/pool.c" "mesh_pool_gather" [(FLOATS64, &[])];
    MESH_POOL_DSHARE: MeshPoolDshareArgs = "mesh/pool.c" "mesh_pool_dshare" [(FLOATS64, &[])];
    MESH_POOL_DX: MeshPoolDxArgs = "mesh/pool.c" "mesh_pool_dx" [(FLOATS64, &[])];
    MESH_POOL_DW: MeshPoolDwArgs = "mesh/pool.c" "mesh_pool_dw" [(FLOATS64, &[])];
    MESH_POOL_DW_COMBINE: MeshPoolDwCombineArgs = "mesh/pool.c" "mesh_pool_dw_combine" [(FLOATS64, &[])];
}
