//! Scans and segments on the CPU.

use super::CpuBackend;
use crate::ops::ScanOps;

impl ScanOps for CpuBackend {}
