//! Copies of tensors in host memory: the calls that wait for the device, and so report what went wrong on it.

use trefoil::{BackendExt, Element};

use crate::core::error::{Result, invalid};
use crate::core::index_check;
use crate::core::limits;
use crate::core::tensor::Tensor;

impl Tensor {
    /// The elements in row-major order on the host. Waits for the device. Errors: `Invalid` for another dtype; what went wrong on the device
    /// since the last such call, [`NnError::OutOfRange`](crate::NnError::OutOfRange) among it.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let c = self.detach().contiguous()?;
        self.device().download::<T>(c.operand().view()?).map_err(index_check::explain)
    }

    /// The only element. Waits for the device. Errors: `Invalid` for more than one element or another dtype.
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.to_vec::<T>()?.as_slice() {
            [x] => Ok(*x),
            v => Err(invalid(
                "item",
                "self",
                "one element",
                format!("{} of shape {:?}", v.len(), self.shape()),
            )),
        }
    }

    /// The elements as raw bytes in row-major order. Waits for the device.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let c = self.detach().contiguous()?;
        let mut out = limits::zeroed(limits::tensor_bytes(self.dtype(), self.numel())?)?;
        self.device().read_bytes(c.operand().view()?, &mut out).map_err(index_check::explain)?;
        Ok(out)
    }
}
