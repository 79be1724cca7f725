//! Layers. Shapes, parameters and names follow `torch.nn`.

mod activation;
mod attention;
mod bidirectional;
mod cells;
mod channel_norm;
mod checkpointed;
mod conv;
mod conv_lstm;
mod cross_attention;
mod deconv;
mod deform_conv;
mod dense;
mod dropout;
mod embedding;
mod feed_forward;
mod hyperbolic;
mod image;
mod layer_norm;
mod locally_connected;
mod merge;
mod multi_head_attention;
mod noise;
mod octonion;
mod padding;
mod parallel;
mod patch_embedding;
mod pixel_shuffle;
mod pool;
mod positional_encoding;
mod projections;
mod recurrent;
mod residual;
mod separable;
mod sequence;
mod sequential;
mod shape;
mod spectral_norm;
mod statistics;
mod transformer;
mod upsample;

pub use activation::{
    Activate, Activation, ActivationKind, LogSoftmax, Prelu, Softmax, activation_from_name,
};
pub use attention::{Attention, AttentionMasks};
pub use bidirectional::{Bidirectional, Merge};
pub use cells::{GruCell, LstmCell, RecurrentCell};
pub use channel_norm::{BatchNormalization, GroupNormalization, InstanceNormalization};
pub use checkpointed::Checkpointed;
pub use conv::{Conv3D, ConvNd, Convolutional, DilatedConvolutional};
pub use conv_lstm::ConvLstm;
pub use cross_attention::CrossAttention;
pub use deconv::{DeconvNd, Deconvolutional};
pub use deform_conv::DeformableConvolutional;
pub use dense::{Dense, DenseLayer, FullyConnected};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use feed_forward::{FeedForward, GatedLinearUnit};
pub use hyperbolic::HyperbolicLinear;
pub use image::PerAxis;
pub use layer_norm::{LayerNormalization, RmsNorm};
pub use locally_connected::LocallyConnected;
pub use merge::{Add, Concatenate, Multiply};
pub use multi_head_attention::{MultiHeadAttention, SelfAttention};
pub use noise::GaussianNoise;
pub use octonion::OctonionLinear;
pub use padding::{Cropping, Padding};
pub use parallel::{Parallel, ParallelMerge};
pub use patch_embedding::PatchEmbedding;
pub use pixel_shuffle::{PixelShuffle, PixelUnshuffle, SubpixelConvolutional};
pub use pool::{
    AdaptiveAveragePooling, AdaptiveAvgPoolNd, AveragePooling, AvgPoolNd, GlobalPooling, MaxPool3D,
    MaxPoolNd, MaxPooling,
};
pub use positional_encoding::{PositionalEmbedding, PositionalEncoding};
pub(crate) use recurrent::RecurrentStack;
pub use recurrent::{Gru, Lstm, Recurrent, RecurrentLayer, RecurrentOutput};
pub use residual::Residual;
pub use separable::{DepthwiseSeparableConvolutional, SeparableBlock, SeparableConvolutional};
pub use sequence::{Input, Masking, SequenceLast, Split, TimeDistributed};
pub use sequential::Sequential;
pub use shape::{Flatten, Reshape};
pub use spectral_norm::SpectralNormalization;
pub use statistics::{LogVariance, Mean};
pub use transformer::{Decoder, TransformerConfig, TransformerDecoder, TransformerEncoder};
pub use upsample::{Upsample3D, UpsampleNd, Upsampling};
