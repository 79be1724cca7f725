//! Stub.
#![allow(unused_imports, unused_variables)]
use super::*;
use crate::buffer::*;
use crate::device::*;
use crate::ops::*;
use crate::dtype::DType;
use crate::error::Result;
use std::sync::Arc;
use crate::backend::IGpuBackend;

impl CoreOps for Engine {
    fn id(&self) -> DeviceId { todo!() }
    fn caps(&self) -> &Caps { todo!() }
    fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer> { todo!() }
    fn write_bytes(&self, dst: ViewMut<'_>, src: &[u8]) -> Result<()> { todo!() }
    fn read_bytes(&self, src: View<'_>, dst: &mut [u8]) -> Result<()> { todo!() }
    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> { todo!() }
    fn synchronize(&self) -> Result<()> { todo!() }
    fn fork_stream(&self) -> Result<Arc<dyn IGpuBackend>> { todo!() }
    fn record(&self) -> Result<Event> { todo!() }
    fn wait(&self, event: &Event) -> Result<()> { todo!() }
    fn counters(&self) -> Counters { todo!() }
    fn memory(&self) -> MemoryStats { todo!() }
    fn trim(&self) -> Result<()> { todo!() }
    fn warmup(&self, families: &[Family]) -> Result<()> { todo!() }
    fn explain(&self, op: &str) -> Result<Choice> { todo!() }
    fn compile_raw(&self, source: &str, entry: &str, dtype: DType) -> Result<RawKernel> { todo!() }
    fn launch_raw(&self, kernel: &RawKernel, grid: [u32; 3], block: [u32; 3], args: &mut [RawArg<'_>]) -> Result<()> { todo!() }
}
