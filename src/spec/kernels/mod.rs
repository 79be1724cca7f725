//! The table of kernels and their texts.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use super::KernelSpec;

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod distance;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod field;
pub(crate) mod fourier;
pub(crate) mod gemm;
pub(crate) mod graph;
pub(crate) mod index;
pub(crate) mod language_model;
pub(crate) mod linalg;
pub(crate) mod loss;
pub(crate) mod mesh;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod pool;
pub(crate) mod quantized;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod resample;
pub(crate) mod rnn;
pub(crate) mod scan;
pub(crate) mod shape;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod state_space;

/// The kernels of each family.
pub(super) static FAMILIES: &[&[&KernelSpec]] = &[
    activation::KERNELS,
    attention::KERNELS,
    conv::KERNELS,
    distance::KERNELS,
    elementwise::KERNELS,
    embedding::KERNELS,
    field::KERNELS,
    fourier::KERNELS,
    gemm::KERNELS,
    graph::KERNELS,
    index::KERNELS,
    language_model::KERNELS,
    linalg::KERNELS,
    loss::KERNELS,
    mesh::KERNELS,
    moe::KERNELS,
    norm::KERNELS,
    optimizer::KERNELS,
    pool::KERNELS,
    quantized::KERNELS,
    random::KERNELS,
    reduce::KERNELS,
    resample::KERNELS,
    rnn::KERNELS,
    scan::KERNELS,
    shape::KERNELS,
    softmax::KERNELS,
    sort::KERNELS,
    state_space::KERNELS,
];

macro_rules! texts {
    ($($path:literal,)*) => {
        &[$(($path, include_str!(concat!("../../../kernels/", $path)))),*]
    };
}

/// Every text of a kernel or header, by its path under `kernels/`.
pub(crate) static SOURCES: &[(&str, &str)] = texts![
    "common/activation/activation_ops.h",
    "common/activation/fused.h",
    "common/activation/gated.c",
    "common/attention/attention.c",
    "common/attention/backward.c",
    "common/attention/decode.c",
    "common/attention/decode.h",
    "common/attention/decode_matrix.c",
    "common/attention/matrix.c",
    "common/attention/matrix_backward.c",
    "common/attention/matrix_specialized.c",
    "common/attention/matrix_tile.h",
    "common/attention/rope.c",
    "common/attention/rule.h",
    "common/attention/scores.c",
    "common/attention/tile.h",
    "common/conv/causal.c",
    "common/conv/columns.c",
    "common/conv/conv.c",
    "common/conv/deformable.c",
    "common/conv/depthwise.c",
    "common/conv/direct.c",
    "common/conv/matrix.c",
    "common/conv/tile.h",
    "common/conv/weight.c",
    "common/conv/weight_tile.h",
    "common/conv/window_table.h",
    "common/distance/distance.c",
    "common/distance/search.c",
    "common/elementwise/binary.c",
    "common/elementwise/binary_ops.h",
    "common/elementwise/binary_special.c",
    "common/elementwise/cast.c",
    "common/elementwise/functions.h",
    "common/elementwise/mixed_dtype.c",
    "common/elementwise/ternary.c",
    "common/elementwise/ternary_ops.h",
    "common/elementwise/unary.c",
    "common/elementwise/unary_airy.c",
    "common/elementwise/unary_ops.h",
    "common/elementwise/unary_special.c",
    "common/elementwise/unary_special_ops.h",
    "common/embedding/embedding.c",
    "common/field/gaussians.c",
    "common/field/grid.c",
    "common/field/harmonics.c",
    "common/field/rays.c",
    "common/field/splatting.c",
    "common/fourier/fourier.c",
    "common/gemm/epilogue.h",
    "common/gemm/gemm.c",
    "common/gemm/groups.h",
    "common/gemm/matrix.c",
    "common/gemm/matrix_specialized.c",
    "common/gemm/matrix_tile.h",
    "common/gemm/operands.h",
    "common/gemm/pad.c",
    "common/gemm/parts.c",
    "common/gemm/ragged.c",
    "common/gemm/ragged_bwd.c",
    "common/gemm/ragged_matrix.c",
    "common/gemm/tile.h",
    "common/graph/aggregate.c",
    "common/graph/attention.c",
    "common/graph/csr.c",
    "common/graph/edges.c",
    "common/graph/graph.h",
    "common/index/index.c",
    "common/language_model/histogram.c",
    "common/language_model/linear_cross_entropy.c",
    "common/language_model/sampling.c",
    "common/language_model/sampling.h",
    "common/linalg/block.h",
    "common/linalg/cholesky.c",
    "common/linalg/jacobi.c",
    "common/linalg/ldl.c",
    "common/linalg/lu.c",
    "common/linalg/newton_schulz.c",
    "common/linalg/qr.c",
    "common/linalg/svd.c",
    "common/linalg/triangle.c",
    "common/loss/batch.c",
    "common/loss/ctc.c",
    "common/loss/loss.c",
    "common/loss/loss_ops.h",
    "common/loss/margin.c",
    "common/loss/row_ops.h",
    "common/loss/row_ops_structured.h",
    "common/loss/rows.c",
    "common/loss/stft.c",
    "common/loss/stft_frames.h",
    "common/mesh/diffusion.c",
    "common/mesh/mesh.c",
    "common/mesh/pool.c",
    "common/moe/moe.c",
    "common/moe/order.c",
    "common/norm/aligned.c",
    "common/norm/backward.c",
    "common/norm/backward_aligned.c",
    "common/norm/channels_last.c",
    "common/norm/l2.c",
    "common/norm/norm.c",
    "common/norm/norm.h",
    "common/optimizer/adaptive.c",
    "common/optimizer/adaptive_memory.c",
    "common/optimizer/adaptive_rules.h",
    "common/optimizer/gradient_norm.c",
    "common/optimizer/optimizer.c",
    "common/optimizer/packed.c",
    "common/optimizer/rules.h",
    "common/optimizer/sparse.c",
    "common/pool/halving.c",
    "common/pool/pool.c",
    "common/prelude/coordinates.h",
    "common/prelude/matrix.h",
    "common/prelude/matrix_mma.h",
    "common/prelude/matrix_portable.h",
    "common/prelude/matrix_ptx.h",
    "common/prelude/matrix_registers.h",
    "common/prelude/matrix_wgmma.h",
    "common/prelude/prelude.h",
    "common/prelude/register_tile.h",
    "common/prelude/rows.h",
    "common/prelude/slot.h",
    "common/prelude/special.h",
    "common/prelude/strided.h",
    "common/prelude/tile.h",
    "common/prelude/window.h",
    "common/quantized/quantized.c",
    "common/random/random.c",
    "common/reduce/backward.c",
    "common/reduce/reduce.c",
    "common/reduce/reduce_ops.h",
    "common/resample/grid_sample.c",
    "common/resample/nms.c",
    "common/resample/resample.c",
    "common/resample/roi_align.c",
    "common/rnn/conv.c",
    "common/rnn/fused.c",
    "common/rnn/gates.h",
    "common/rnn/rnn.c",
    "common/rnn/step.h",
    "common/rnn/tiled.c",
    "common/scan/scan.c",
    "common/scan/scan.h",
    "common/scan/segment.c",
    "common/shape/shape.c",
    "common/softmax/masked.c",
    "common/softmax/softmax.c",
    "common/sort/assignment.c",
    "common/sort/radix.c",
    "common/sort/sort.c",
    "common/state_space/backward.c",
    "common/state_space/chunk.h",
    "common/state_space/chunk_backward.c",
    "common/state_space/linear_backward.c",
    "common/state_space/recurrence.c",
    "common/state_space/scan.c",
    "common/state_space/state.h",
    "common/state_space/steps.h",
    "cuda/dialect.h",
    "cuda/tensor_map.h",
    "hip/dialect.h",
    "hip/matrix.h",
    "lint/dialect.h",
    "opencl/dialect.h",
    "opencl/matrix.h",
];
