//! Scans and segments: validation and launch.

use crate::engine::Engine;
use crate::ops::ScanOps;

impl ScanOps for Engine {}
