//! Normalization on the CPU.

use super::CpuBackend;
use crate::ops::NormOps;

impl NormOps for CpuBackend {}
