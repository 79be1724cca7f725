//! Normalization: validation and launch.

use crate::engine::Engine;
use crate::ops::NormOps;

impl NormOps for Engine {}
