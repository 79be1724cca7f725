//! Layers. Shapes, parameters and names follow `torch.nn`.

mod activation;
mod checkpointed;
mod conv;
mod deconv;
mod deform_conv;
mod dense;
mod dropout;
mod image;
mod locally_connected;
mod padding;
mod patch_embedding;
mod pixel_shuffle;
mod pool;
mod separable;
mod sequential;
mod shape;
mod upsample;

pub use activation::{Activate, LogSoftmax, Softmax, activation_from_name};
pub use checkpointed::Checkpointed;
pub use conv::{Conv3D, ConvNd, Convolutional, DilatedConvolutional};
pub use deconv::{DeconvNd, Deconvolutional};
pub use deform_conv::DeformableConvolutional;
pub use dense::Dense;
pub use dropout::Dropout;
pub use image::PerAxis;
pub use locally_connected::LocallyConnected;
pub use padding::{Cropping, Padding};
pub use patch_embedding::PatchEmbedding;
pub use pixel_shuffle::{PixelShuffle, PixelUnshuffle, SubpixelConvolutional};
pub use pool::{
    AdaptiveAveragePooling, AdaptiveAvgPoolNd, AveragePooling, AvgPoolNd, GlobalPooling, MaxPool3D,
    MaxPoolNd, MaxPooling,
};
pub use separable::{DepthwiseSeparableConvolutional, SeparableBlock, SeparableConvolutional};
pub use sequential::Sequential;
pub use shape::{Flatten, Reshape};
pub use upsample::{Upsample3D, UpsampleNd, Upsampling};
