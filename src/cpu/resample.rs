//! Resampling on the CPU.

use super::CpuBackend;
use crate::ops::ResampleOps;

impl ResampleOps for CpuBackend {}
