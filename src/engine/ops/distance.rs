//! Distances: validation and launch.

use crate::engine::Engine;
use crate::ops::DistanceOps;

impl DistanceOps for Engine {}
