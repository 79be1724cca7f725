//! Meshes: validation and launch.

use crate::engine::Engine;
use crate::ops::MeshOps;

impl MeshOps for Engine {}
