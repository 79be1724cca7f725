//! Order on the CPU.

use super::CpuBackend;
use crate::ops::SortOps;

impl SortOps for CpuBackend {}
