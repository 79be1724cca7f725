//! Distances on the CPU.

use super::CpuBackend;
use crate::ops::DistanceOps;

impl DistanceOps for CpuBackend {}
