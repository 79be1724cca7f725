//! What a handle shares with other libraries of the process, and the choice of variants.

use std::sync::{Arc, Mutex};

use crate::buffer::{Block, Buffer, Mem, Owner, View};
use crate::driver::{RawMem, RawStream};
use crate::dtype::DType;
use crate::engine::{Engine, checked_bytes};
use crate::error::{GpuError, Result};
use crate::ops::IGpuBackend;
use crate::ops::core::{Choice, CoreOps, InteropOps, RawView, Tuned};

impl InteropOps for Engine {
    unsafe fn import(
        &self,
        memory: RawMem,
        dtype: DType,
        len: usize,
        owner: Option<Owner>,
    ) -> Result<Buffer> {
        let bytes = checked_bytes("import", dtype, len)?;
        let (memory, pool) = (Mem::Foreign(memory, Mutex::new(owner)), self.inner.pool.clone());
        let block = Block::new(self.id(), self.inner.stream_id, bytes, memory, Some(pool));
        Ok(Buffer::new(Arc::new(block), dtype, len))
    }

    fn export(&self, v: View<'_>) -> Result<RawView> {
        let id = self.id();
        match v.block().raw().filter(|_| v.device() == id) {
            Some(memory) => Ok(RawView::new(memory, (v.layout().offset() * v.dtype().size()) as u64)),
            None => {
                let got = format!("one on {}", v.device());
                Err(GpuError::invalid("export", "v", format!("a view on {id}"), got))
            }
        }
    }

    fn raw_stream(&self) -> Result<RawStream> {
        Ok(self.inner.stream)
    }

    unsafe fn adopt_stream(&self, stream: RawStream) -> Result<Arc<dyn IGpuBackend>> {
        let choices = self.inner.choices.fork();
        Ok(Arc::new(Engine::on(self.inner.device.clone(), Some(stream), choices)?))
    }

    fn pin_variant(&self, op: &str, variant: Option<&str>) -> Result<()> {
        self.inner.choices.pin_known(&self.explain(op)?, variant)
    }

    fn explain_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Choice>> {
        self.inner.choices.made_by(calls)
    }

    fn tune_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Tuned>> {
        self.tune(calls)
    }
}
