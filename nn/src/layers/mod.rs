//! Layers. Shapes, parameters and names follow `torch.nn`.

/// Methods that set a field of a layer: `method: type => field;`. A list `[T; N]` is taken as one value per axis, or one for all.
macro_rules! setters {
    ($($(#[$meta:meta])* $method:ident : $type:tt => $($field:ident).+;)*) => {
        $(setters!(@ [$(#[$meta])*] $method $type [$($field).+]);)*
    };
    (@ [$(#[$meta:meta])*] $method:ident [$type:ty; $axes:expr] [$($field:tt)+]) => {
        $(#[$meta])*
        pub fn $method(mut self, $method: impl $crate::layers::spatial::PerAxis<$type, $axes>) -> Self {
            self.$($field)+ = $method.per_axis();
            self
        }
    };
    (@ [$(#[$meta:meta])*] $method:ident $type:ident [$($field:tt)+]) => {
        $(#[$meta])*
        pub fn $method(mut self, $method: $type) -> Self {
            self.$($field)+ = $method;
            self
        }
    };
}

mod activation;
mod attention;
mod containers;
mod conv;
mod embedding;
mod graph;
mod image;
mod linear;
mod norm;
mod pool;
mod recurrent;
mod regularization;
mod spatial;
mod utility;

pub use self::activation::elementwise::{
    Activate, Activation, ActivationKind, LogSoftmax, Prelu, Softmax, activation_from_name,
};
pub use self::activation::softmax_variant::{SoftmaxKind, SoftmaxVariant};
pub use self::attention::cache::KvCache;
pub use self::attention::cross::CrossAttention;
pub use self::attention::decoder::Decoder;
pub use self::attention::multi_head::{MultiHeadAttention, SelfAttention};
pub use self::attention::rotary::RopeScaling;
pub use self::attention::scores::{Attention, AttentionMasks};
pub use self::attention::transformer::{TransformerConfig, TransformerDecoder, TransformerEncoder};
pub use self::containers::checkpointed::Checkpointed;
pub use self::containers::merge::{Add, Concatenate, Multiply};
pub use self::containers::parallel::{Parallel, ParallelMerge};
pub use self::containers::residual::Residual;
pub use self::containers::sequential::Sequential;
pub use self::conv::convolutional::{Conv1D, Conv3D, ConvNd, Convolutional, DilatedConvolutional};
pub use self::conv::deformable::DeformableConvolutional;
pub use self::conv::locally_connected::LocallyConnected;
pub use self::conv::separable::{DepthwiseSeparableConvolutional, SeparableBlock, SeparableConvolutional};
pub use self::conv::transposed::{DeconvNd, Deconvolutional};
pub use self::embedding::lookup::Embedding;
pub use self::embedding::patch::PatchEmbedding;
pub use self::embedding::positional::{PositionalEmbedding, PositionalEncoding};
pub use self::graph::attention::GraphAttention;
pub use self::graph::convolutional::GraphConvolutional;
pub use self::graph::isomorphism::GraphIsomorphism;
pub use self::graph::sage::GraphSage;
pub use self::image::channel_shuffle::ChannelShuffle;
pub use self::image::padding::{Cropping, Padding};
pub use self::image::pixel_shuffle::{PixelShuffle, PixelUnshuffle, SubpixelConvolutional};
pub use self::image::upsample::{Upsample3D, UpsampleNd, Upsampling};
pub use self::linear::dense::{Dense, DenseLayer, FullyConnected};
pub use self::linear::feed_forward::{FeedForward, GatedLinearUnit};
pub use self::linear::hyperbolic::HyperbolicLinear;
pub use self::linear::octonion::OctonionLinear;
pub use self::linear::swiglu::SwiGlu;
pub use self::norm::channel_norm::{BatchNormalization, GroupNormalization, InstanceNormalization};
pub use self::norm::layer_norm::{LayerNormalization, RmsNorm};
pub use self::norm::spectral_norm::SpectralNormalization;
pub use self::pool::{
    AdaptiveAveragePooling, AdaptiveAvgPool1D, AdaptiveAvgPoolNd, AveragePooling, AvgPool1D, AvgPoolNd,
    GlobalPooling, MaxPool1D, MaxPool3D, MaxPoolNd, MaxPooling,
};
pub use self::recurrent::bidirectional::{Bidirectional, Merge};
pub use self::recurrent::cells::{GruCell, LstmCell, RecurrentCell};
pub use self::recurrent::conv_lstm::ConvLstm;
pub(crate) use self::recurrent::stack::RecurrentStack;
pub use self::recurrent::stack::{Gru, Lstm, Recurrent, RecurrentLayer, RecurrentOutput};
pub use self::regularization::dropout::Dropout;
pub use self::regularization::noise::GaussianNoise;
pub use self::spatial::PerAxis;
pub use self::utility::sequence::{Input, Masking, SequenceLast, Split, TimeDistributed};
pub use self::utility::shape::{Flatten, Reshape};
pub use self::utility::statistics::{LogVariance, Mean};
