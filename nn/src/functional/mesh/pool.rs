//! Pooling of the elements of a mesh by scores.

use trefoil::DType;
use trefoil::ops::mesh::{MeshPoolBwd, MeshPoolIo};

use crate::core::autograd::{BackwardCtx, Saved, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

impl Tensor {
    /// The `keep` elements of the largest scores x w among these features `[N, C]`, times their shares in the softmax of all scores / `temperature`:
    /// features `[keep, C]` by falling score (of equal ones the first), and the numbers of the elements (i64 `[keep]`), for floats and a weight
    /// `[C]`. Features and weight receive gradients. Source `torch.topk`, `torch.softmax`, indexing. Errors: `Invalid` for shapes and dtypes that do
    /// not fit, more than N elements, a temperature that is not positive.
    pub fn mesh_pool(&self, weight: &Tensor, keep: usize, temperature: f64) -> Result<(Tensor, Tensor)> {
        const OP: &str = "mesh_pool";
        same_device(OP, self, weight)?;
        let &[elements, channels] = self.shape() else {
            return Err(invalid(OP, "x", "shape [N, C]", format!("{:?}", self.shape())));
        };
        if keep > elements {
            return Err(invalid(OP, "keep", format!("at most {elements} elements"), keep.to_string()));
        }
        let (x, w) = (self.contiguous()?, weight.contiguous()?);
        let (y, kept) = (x.like(&[keep, channels])?, Tensor::empty(x.device(), DType::I64, &[keep])?);
        let share = Tensor::empty(x.device(), x.dtype().accumulator(), &[elements])?;
        let [xo, wo, yo, ko, so] = [&x, &w, &y, &kept, &share].map(Tensor::operand);
        let io = MeshPoolIo::new(xo.view()?, wo.view()?, yo.view_mut()?, ko.view_mut()?, so.view_mut()?);
        x.device().mesh_pool(temperature, io)?;
        let y = y.record(OP, &[&x, &w], || {
            let [x, w, kept, share] = [&x, &w, &kept, &share].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dw) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let [x, w, kept, share] =
                    [x.get(cx)?, w.get(cx)?, kept.get(cx)?, share.get(cx)?].map(Tensor::operand);
                let dyo = dy.operand();
                let mut io = MeshPoolBwd::new(dyo.view()?, x.view()?, w.view()?, kept.view()?, share.view()?);
                (io.dx, io.dw) = (out(&dx)?, out(&dw)?);
                Ok(dy.device().mesh_pool_bwd(temperature, io)?)
            }
        });
        Ok((y, kept))
    }
}
