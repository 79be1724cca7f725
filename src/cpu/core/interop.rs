//! What a handle shares with other libraries of the process.

use std::sync::Arc;

use crate::buffer::{Buffer, Owner, View};
use crate::cpu::{CpuBackend, HostElement, read, with_dtype, wrong_storage};
use crate::driver::{RawMem, RawStream};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::IGpuBackend;
use crate::ops::core::{Choice, CoreOps, InteropOps, RawView, Tuned};

#[allow(unsafe_code, reason = "the trait has unsafe methods; these do nothing unsafe")]
impl InteropOps for CpuBackend {
    unsafe fn import(&self, _: RawMem, _: DType, _: usize, _: Option<Owner>) -> Result<Buffer> {
        Err(self.unsupported("import", "memory of the CPU backend is typed; write_bytes copies"))
    }

    fn export(&self, v: View<'_>) -> Result<RawView> {
        const OP: &str = "export";
        let guard = read(OP, &v)?;
        let start = with_dtype!(v.dtype(), T => {
            let s = <T as HostElement>::slice(&guard).ok_or_else(|| wrong_storage(OP, v.dtype()))?;
            s.as_ptr().addr()
        });
        // SAFETY: the number is the address of live memory of this backend, which is all that the handle says.
        let memory = unsafe { RawMem::from_raw(start as u64) };
        Ok(RawView::new(memory, (v.layout().offset() * v.dtype().size()) as u64))
    }

    fn raw_stream(&self) -> Result<RawStream> {
        Err(self.unsupported("raw_stream", "work on the CPU backend is done before a call returns"))
    }

    unsafe fn adopt_stream(&self, _: RawStream) -> Result<Arc<dyn IGpuBackend>> {
        Err(self.unsupported("adopt_stream", "work on the CPU backend is done before a call returns"))
    }

    fn pin_variant(&self, op: &str, variant: Option<&str>) -> Result<()> {
        self.kernels.choices.pin_known(&self.explain(op)?, variant)
    }

    fn explain_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Choice>> {
        self.kernels.choices.made_by(calls)
    }

    fn tune_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Tuned>> {
        self.not_recorded("tune_calls", "what is recorded does not run, so that nothing can be timed")?;
        calls().map(|()| vec![])
    }
}
