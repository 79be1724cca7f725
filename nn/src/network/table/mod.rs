//! The table of layer types.

mod basic;
mod containers;
mod conv;
mod graph;
mod graph_blocks;
mod mesh;
mod pool;
mod sequence;
mod softmax;
mod sparse;
mod special;
mod upsample;
mod utility;

use super::LayerInfo;

/// Every layer type that a network in JSON can have, by family.
pub static LAYERS: &[LayerInfo] = &[
    basic::DENSE,
    basic::FULLY_CONNECTED,
    conv::CONVOLUTIONAL,
    basic::BATCH_NORMALIZATION,
    basic::LAYER_NORMALIZATION,
    basic::EMBEDDING,
    sequence::ATTENTION,
    sequence::MULTI_HEAD_ATTENTION,
    sequence::SELF_ATTENTION,
    sequence::CROSS_ATTENTION,
    sequence::LSTM,
    sequence::GRU,
    sequence::CONV_LSTM,
    sequence::RECURRENT,
    sequence::BIDIRECTIONAL,
    pool::AVERAGE_POOLING,
    pool::AVG_POOL1D,
    pool::MAX_POOLING,
    pool::MAX_POOL1D,
    pool::MAX_POOL3D,
    pool::GLOBAL_POOLING,
    pool::ADAPTIVE_AVERAGE_POOLING,
    pool::ADAPTIVE_AVG_POOL1D,
    basic::INSTANCE_NORMALIZATION,
    basic::GROUP_NORMALIZATION,
    special::SPECTRAL_NORMALIZATION,
    basic::RMS_NORM,
    sequence::TRANSFORMER_ENCODER,
    sequence::TRANSFORMER_DECODER,
    special::DECODER,
    sequence::FEED_FORWARD,
    sequence::SWIGLU,
    sequence::POSITIONAL_ENCODING,
    sequence::POSITIONAL_EMBEDDING,
    conv::PATCH_EMBEDDING,
    conv::CONV1D,
    conv::CONV3D,
    conv::DECONVOLUTIONAL,
    conv::DEFORMABLE_CONVOLUTIONAL,
    conv::DEPTHWISE_SEPARABLE_CONVOLUTIONAL,
    conv::DILATED_CONVOLUTIONAL,
    conv::LOCALLY_CONNECTED,
    conv::SEPARABLE_CONVOLUTIONAL,
    upsample::UPSAMPLE3D,
    upsample::UPSAMPLING,
    upsample::SUBPIXEL_CONVOLUTIONAL,
    upsample::PIXEL_SHUFFLE,
    upsample::PIXEL_UNSHUFFLE,
    upsample::CHANNEL_SHUFFLE,
    utility::ACTIVATION,
    utility::SOFTMAX,
    utility::LOG_SOFTMAX,
    softmax::SOFTMAX_VARIANT,
    utility::ADD,
    utility::CONCATENATE,
    utility::CROPPING,
    utility::DROPOUT,
    utility::FLATTEN,
    utility::GAUSSIAN_NOISE,
    utility::INPUT,
    utility::MASKING,
    utility::MULTIPLY,
    utility::PADDING,
    utility::RESHAPE,
    utility::SEQUENCE_LAST,
    utility::SPLIT,
    utility::TIME_DISTRIBUTED,
    utility::MEAN,
    utility::LOG_VARIANCE,
    special::HYPERBOLIC_LINEAR,
    special::OCTONION_LINEAR,
    basic::GATED_LINEAR_UNIT,
    graph::GRAPH_CONVOLUTIONAL,
    graph::GRAPH_ATTENTION,
    graph::GRAPH_SAGE,
    graph::GRAPH_ISOMORPHISM,
    graph_blocks::MESSAGE_PASSING,
    graph_blocks::GRAPH_TRANSFORMER,
    mesh::SPIRAL_CONV,
    mesh::MESH_EDGE_CONV,
    graph_blocks::DIFFUSION_CONV,
    sparse::SPARSE_LINEAR,
    mesh::MESH_POOL,
    containers::SEQUENTIAL,
    containers::RESIDUAL,
    containers::PARALLEL,
    containers::CHECKPOINTED,
];
