//! Pooling: validation and launch.

use crate::engine::Engine;
use crate::ops::PoolOps;

impl PoolOps for Engine {}
