//! Language models on the CPU.

use super::CpuBackend;
use crate::ops::LmOps;

impl LmOps for CpuBackend {}
