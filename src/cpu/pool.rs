//! Pooling on the CPU.

use super::CpuBackend;
use crate::ops::PoolOps;

impl PoolOps for CpuBackend {}
