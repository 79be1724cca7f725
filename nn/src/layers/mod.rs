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
mod capsule;
mod containers;
mod conv;
mod crf;
mod embedding;
mod experts;
mod graph;
mod image;
mod linear;
mod local_learning;
mod memory;
mod mesh;
mod norm;
mod pool;
mod quantum;
mod recurrent;
mod regularization;
mod residual;
mod spatial;
mod spiking;
mod state_space;
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
pub use self::containers::checkpoint_plan::CheckpointPlan;
pub use self::containers::checkpointed::Checkpointed;
#[cfg(feature = "json")]
pub(crate) use self::containers::lora::Adapters;
pub use self::containers::lora::{Lora, LoraConfig};
pub use self::containers::merge::{Add, Concatenate, Multiply};
pub use self::containers::parallel::{Parallel, ParallelMerge};
pub use self::containers::residual::Residual;
pub use self::containers::sequential::Sequential;
pub use self::conv::convolutional::{Conv1D, Conv3D, ConvNd, Convolutional, DilatedConvolutional};
pub use self::conv::deformable::DeformableConvolutional;
pub use self::conv::locally_connected::LocallyConnected;
pub use self::conv::separable::{DepthwiseSeparableConvolutional, SeparableBlock, SeparableConvolutional};
pub use self::conv::transposed::{DeconvNd, Deconvolutional};
pub use self::crf::TagScheme;
pub use self::crf::field::ConditionalRandomField;
pub use self::embedding::lookup::Embedding;
pub use self::embedding::patch::PatchEmbedding;
pub use self::embedding::positional::{PositionalEmbedding, PositionalEncoding};
pub use self::experts::expert::Expert;
pub use self::experts::mixture::MixtureOfExperts;
pub use self::experts::mlp::ExpertMlp;
pub use self::graph::attention::GraphAttention;
pub use self::graph::convolutional::GraphConvolutional;
pub use self::graph::directional::DirectionalGraph;
pub use self::graph::edge_conditional::EdgeConditionalConvolutional;
pub use self::graph::heterogeneous::HeterogeneousGraph;
pub use self::graph::isomorphism::GraphIsomorphism;
pub use self::graph::message_passing::MessagePassing;
pub use self::graph::principal::{PnaAggregator, PnaScaler, PrincipalNeighbourhoodAggregation};
pub use self::graph::random_walk::RandomWalkConv;
pub use self::graph::readout::{Readout, ReadoutMode};
pub use self::graph::sage::GraphSage;
pub use self::graph::transformer::{GraphAttend, GraphTransformer, GraphTransformerConfig};
pub use self::image::channel_shuffle::ChannelShuffle;
pub use self::image::padding::{Cropping, Padding};
pub use self::image::pixel_shuffle::{PixelShuffle, PixelUnshuffle, SubpixelConvolutional};
pub use self::image::upsample::{Upsample3D, UpsampleNd, Upsampling};
pub use self::linear::dense::{Dense, DenseLayer, FullyConnected};
pub use self::linear::feed_forward::{FeedForward, GatedLinearUnit};
pub use self::linear::hyperbolic::HyperbolicLinear;
pub use self::linear::octonion::OctonionLinear;
pub use self::linear::sparse::SparseLinear;
pub use self::local_learning::anomaly::{AnomalyDetector, AnomalyStatistics};
pub use self::local_learning::continuum::ContinuumMemorySystem;
pub use self::local_learning::rbm::Rbm;
pub use self::local_learning::spatial_pooler::{SpatialPooler, SpatialPoolerOptions};
pub use self::local_learning::synaptic::{StdpOptions, SynapticPlasticity};
pub use self::local_learning::temporal_memory::{TemporalMemory, TemporalMemoryOptions};
pub use self::memory::read::MemoryRead;
pub use self::memory::write::MemoryWrite;
pub use self::mesh::diffusion::{DiffusionConv, DiffusionMethod};
pub use self::mesh::edge_conv::MeshEdgeConv;
pub use self::mesh::pool::{MeshPool, PooledMesh};
pub use self::mesh::spiral::SpiralConv;
pub use self::mesh::surface::Surface;
pub use self::norm::channel_norm::{BatchNormalization, GroupNormalization, InstanceNormalization};
pub use self::norm::layer_norm::{LayerNormalization, RmsNorm};
pub use self::norm::spectral_norm::SpectralNormalization;
pub use self::pool::{
    AdaptiveAveragePooling, AdaptiveAvgPool1D, AdaptiveAvgPoolNd, AveragePooling, AvgPool1D, AvgPoolNd,
    GlobalPooling, MaxPool1D, MaxPool3D, MaxPoolNd, MaxPooling, Pooling,
};
pub use self::recurrent::bidirectional::{Bidirectional, Merge};
pub use self::recurrent::cells::{GruCell, LstmCell, RecurrentCell};
pub use self::recurrent::conv_lstm::ConvLstm;
pub use self::recurrent::reservoir::{Reservoir, ReservoirWeights};
#[cfg(feature = "json")]
pub(crate) use self::recurrent::stack::RecurrentStack;
pub use self::recurrent::stack::{Gru, Lstm, Recurrent, RecurrentLayer, RecurrentOutput};
pub use self::regularization::dropout::Dropout;
pub use self::regularization::noise::GaussianNoise;
pub use self::residual::densenet::{DenseBlock, DenseBlockLayer, Transition};
pub use self::residual::discriminator::UNetDiscriminator;
pub use self::residual::generator::{RrdbNetConfig, RrdbNetGenerator, RrdbUpsampler};
pub use self::residual::highway::Highway;
pub use self::residual::inverted::InvertedResidualBlock;
pub use self::residual::residual_dense::{ResidualDenseBlock, Rrdb};
pub use self::residual::resnet::{BasicBlock, BottleneckBlock};
pub use self::residual::squeeze::SqueezeAndExcitation;
pub use self::residual::unet::{UNetConvBlock, UNetUpBlock};
pub use self::spatial::PerAxis;
pub use self::spiking::layer::{Spiking, SpikingOutput, SpikingState};
pub use self::spiking::neuron::{Neuron, SpikeReset};
pub use self::spiking::surrogate::Surrogate;
pub use self::state_space::gated_delta_net::GatedDeltaNet;
pub use self::state_space::gated_linear_attention::GatedLinearAttention;
pub use self::state_space::mamba::Mamba;
pub use self::state_space::recurrent_block::RecurrentBlock;
pub use self::state_space::rglru::Rglru;
pub use self::state_space::state::RecurrentState;
pub use self::utility::sequence::{Input, Masking, SequenceLast, Split, TimeDistributed};
pub use self::utility::shape::{Flatten, Reshape};
pub use self::utility::statistics::{LogVariance, Mean};

pub use self::capsule::digit::DigitCapsule;
pub use self::capsule::layer::Capsule;
pub use self::capsule::primary::PrimaryCapsule;
pub use self::capsule::reconstruction::Reconstruction;
pub use self::embedding::time::TimeEmbedding;
pub use self::image::spatial_transformer::SpatialTransformer;
pub use self::image::spynet::SpyNet;
pub use self::linear::gated::{BilinearGlu, GatedFeedForward, GeGlu, ReGlu, SwiGlu};
pub use self::linear::rbf::Rbf;
pub use self::quantum::circuit::Quantum;
pub use self::quantum::measurement::Measurement;
pub use self::regularization::reparameterization::RepParameterization;
pub use self::utility::lambda::Lambda;
