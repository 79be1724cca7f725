//! Attention on the CPU.

use super::CpuBackend;
use crate::ops::AttentionOps;

impl AttentionOps for CpuBackend {}
