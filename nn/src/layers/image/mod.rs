//! Padding, resizing and warping of images.

pub(crate) mod channel_shuffle;
pub(crate) mod padding;
pub(crate) mod pixel_shuffle;
pub(crate) mod spatial_transformer;
pub(crate) mod spynet;
pub(crate) mod upsample;
mod warp;
