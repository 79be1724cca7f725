//! Graphs on the CPU.

use super::CpuBackend;
use crate::ops::GnnOps;

impl GnnOps for CpuBackend {}
