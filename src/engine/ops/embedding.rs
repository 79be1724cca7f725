//! Embedding: validation and launch.

use crate::engine::Engine;
use crate::ops::EmbeddingOps;

impl EmbeddingOps for Engine {}
