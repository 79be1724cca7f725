//! Meshes on the CPU.

use super::CpuBackend;
use crate::ops::MeshOps;

impl MeshOps for CpuBackend {}
