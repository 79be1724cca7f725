//! Padding and resizing of images.

pub(crate) mod channel_shuffle;
pub(crate) mod padding;
pub(crate) mod pixel_shuffle;
pub(crate) mod upsample;
