//! Convolution on the CPU.

use super::CpuBackend;
use crate::ops::ConvOps;

impl ConvOps for CpuBackend {}
