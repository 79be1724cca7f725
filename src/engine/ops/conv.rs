//! Convolution: validation and launch.

use crate::engine::Engine;
use crate::ops::ConvOps;

impl ConvOps for Engine {}
