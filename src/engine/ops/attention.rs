//! Attention: validation and launch.

use crate::engine::Engine;
use crate::ops::AttentionOps;

impl AttentionOps for Engine {}
