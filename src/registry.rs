//! Stub: owner replaces.
#![allow(missing_docs)]
use crate::backend::IGpuBackend;
use crate::device::*;
use crate::error::*;
use std::sync::Arc;
pub trait BackendFactory: Send + Sync {
    fn kind(&self) -> BackendKind;
    fn probe(&self) -> std::result::Result<Vec<Caps>, Unavailable>;
    fn open(&self, ordinal: u32) -> Result<Arc<dyn IGpuBackend>>;
}
#[derive(Debug)]
pub struct ProbeReport;
#[derive(Debug, Default)]
pub struct Registry;
impl Registry {
    pub fn open(&self, _s: &Selector) -> Result<Arc<dyn IGpuBackend>> {
        Ok(Arc::new(crate::CpuBackend::new()))
    }
}
#[derive(Debug, Clone, Copy)]
pub enum Selector {
    Auto { allow_cpu: bool },
    Exact(DeviceId),
}
impl std::str::FromStr for Selector {
    type Err = GpuError;
    fn from_str(_: &str) -> Result<Self> {
        Ok(Selector::Auto { allow_cpu: true })
    }
}
