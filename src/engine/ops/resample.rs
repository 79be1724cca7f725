//! Resampling: validation and launch.

use crate::engine::Engine;
use crate::ops::ResampleOps;

impl ResampleOps for Engine {}
