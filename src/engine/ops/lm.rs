//! Language models: validation and launch.

use crate::engine::Engine;
use crate::ops::LmOps;

impl LmOps for Engine {}
