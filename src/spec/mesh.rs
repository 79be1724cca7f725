//! Kernels of meshes.

use super::{FLOATS64, kernels};

kernels! {
    family: Mesh;
    MESH_GATHER = "mesh/mesh.c" "mesh_gather", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), list: In("int"), f: Out("gk_t"), err: Out("int"), elements: I64, width: I64, ways: I32, batch: I64, mode: I32, lanes: I32, wide_index: I32, wide: I32, code: I32];
    MESH_UNFOLD = "mesh/mesh.c" "mesh_unfold", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), list: In("int"), df: Out("gk_f"), err: Out("int"), elements: I64, width: I64, batch: I64, lanes: I32, wide_index: I32, wide: I32, code: I32];
}
