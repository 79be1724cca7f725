//! Embedding on the CPU.

use super::CpuBackend;
use crate::ops::EmbeddingOps;

impl EmbeddingOps for CpuBackend {}
