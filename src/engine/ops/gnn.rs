//! Graphs: validation and launch.

use crate::engine::Engine;
use crate::ops::GnnOps;

impl GnnOps for Engine {}
