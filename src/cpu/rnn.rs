//! Recurrent networks on the CPU.

use super::CpuBackend;
use crate::ops::RnnOps;

impl RnnOps for CpuBackend {}
