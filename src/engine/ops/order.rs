//! Order: validation and launch.

use crate::engine::Engine;
use crate::ops::SortOps;

impl SortOps for Engine {}
