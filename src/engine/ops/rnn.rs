//! Recurrent networks: validation and launch.

use crate::engine::Engine;
use crate::ops::RnnOps;

impl RnnOps for Engine {}
