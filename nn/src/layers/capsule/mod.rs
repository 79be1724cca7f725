//! Capsules: vectors whose length tells how sure a network is of what their direction describes.

pub(crate) mod digit;
pub(crate) mod layer;
pub(crate) mod primary;
pub(crate) mod reconstruction;
mod routing;
