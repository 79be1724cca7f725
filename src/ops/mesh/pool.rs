//! Pooling of the elements of a mesh by scores: signatures and checks.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::graph::checker::{Checker, Inputs, stat_dtype};

io_struct! {
    /// Operands of [`MeshPoolOps::mesh_pool`].
    #[derive(Debug)]
    pub struct MeshPoolIo<'a> {
        /// Features [N, C].
        pub x: View<'a>,
        /// Weight of the scores \[C\].
        pub w: View<'a>,
        /// The elements that are kept, times their shares: [k, C].
        pub y: ViewMut<'a>,
        /// Their numbers \[k\], i32 or i64.
        pub kept: ViewMut<'a>,
        /// Shares of all elements \[N\], for backward: f32, f64 for f64 data.
        pub share: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`MeshPoolOps::mesh_pool_bwd`].
    #[derive(Debug)]
    pub struct MeshPoolBwd<'a> {
        /// Upstream gradient [k, C].
        pub dy: View<'a>,
        /// Forward's.
        pub x: View<'a>,
        /// Forward's.
        pub w: View<'a>,
        /// Forward's result.
        pub kept: View<'a>,
        /// Forward's result.
        pub share: View<'a>,
        /// Gradient of the features.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the weight.
        pub dw: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Pooling of the elements of a mesh. Operands are contiguous; data is f32, f16, bf16 or f64 of one dtype. Deterministic.
    pub trait MeshPoolOps : Mesh => MESH_POOL_OPS {
        /// Keeps the k elements of the largest scores s = x w: kept lists them by falling score (of equal ones the first), y = share\[kept\] x\[kept\],
        /// share = softmax(s / temperature) over all elements. Oracle `torch.topk` and indexing. Errors: `Invalid` for a temperature that is not
        /// positive and finite, k above N, shapes, dtypes, overlap.
        fn mesh_pool(&self, temperature: f64, io: MeshPoolIo<'_>) -> Result<()>;
        /// Gradients of [`MeshPoolOps::mesh_pool`]: dx = ds w^T, plus share dy where an element was kept; dw = x^T ds with ds = softmax's gradient of
        /// dy . x. The numbers in `kept` are distinct; one outside [0, N) takes no part and is `IndexOutOfRange`.
        fn mesh_pool_bwd(&self, temperature: f64, io: MeshPoolBwd<'_>) -> Result<()>;
    }
}

/// Sizes of a checked pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolSizes {
    pub(crate) elements: usize,
    pub(crate) channels: usize,
    pub(crate) kept: usize,
}

fn pool_sizes(
    c: &Checker,
    temperature: f64,
    [x, w]: [&View<'_>; 2],
    y: (&'static str, &View<'_>),
    [kept, share]: [&View<'_>; 2],
) -> Result<PoolSizes> {
    if !(temperature > 0.0 && temperature.is_finite()) {
        let got = temperature.to_string();
        return Err(GpuError::invalid(c.op, "temperature", "a positive finite number", got));
    }
    c.float("x", x)?;
    let &[elements, channels] = x.shape() else { return c.wrong("x", "[N, C]", x.shape()) };
    c.like("w", w, x)?;
    c.shape("w", w, &[channels])?;
    let count = c.list("kept", kept)?;
    if count > elements {
        return c.wrong("kept", format!("at most {elements} elements"), count);
    }
    c.like(y.0, y.1, x)?;
    c.shape(y.0, y.1, &[count, channels])?;
    c.small(&[elements, channels])?;
    c.shape("share", share, &[elements])?;
    Ok(PoolSizes { elements, channels, kept: count })
}

/// Checks of [`MeshPoolOps::mesh_pool`].
pub(crate) fn check_mesh_pool(temperature: f64, io: &MeshPoolIo<'_>) -> Result<PoolSizes> {
    let c = Checker::new("mesh_pool");
    let (y, kept, share) = (io.y.as_view(), io.kept.as_view(), io.share.as_view());
    let s = pool_sizes(&c, temperature, [&io.x, &io.w], ("y", &y), [&kept, &share])?;
    let mut inputs = Inputs::new(&[("x", io.x), ("w", io.w)]);
    c.out("y", Some(&io.y), io.x.dtype(), y.shape(), &mut inputs)?;
    c.out("kept", Some(&io.kept), kept.dtype(), kept.shape(), &mut inputs)?;
    c.out("share", Some(&io.share), stat_dtype(io.x.dtype()), share.shape(), &mut inputs)?;
    Ok(s)
}

/// Checks of [`MeshPoolOps::mesh_pool_bwd`].
pub(crate) fn check_mesh_pool_bwd(temperature: f64, io: &MeshPoolBwd<'_>) -> Result<PoolSizes> {
    let c = Checker::new("mesh_pool_bwd");
    let s = pool_sizes(&c, temperature, [&io.x, &io.w], ("dy", &io.dy), [&io.kept, &io.share])?;
    crate::ops::check::exact(c.op, "share", &io.share, &[s.elements], stat_dtype(io.x.dtype()))?;
    let operands = [("dy", io.dy), ("x", io.x), ("w", io.w), ("kept", io.kept), ("share", io.share)];
    let mut inputs = Inputs::new(&operands);
    c.grad("dx", io.dx.as_ref(), &io.x, io.x.shape(), &mut inputs)?;
    c.grad("dw", io.dw.as_ref(), &io.x, io.w.shape(), &mut inputs)?;
    Ok(s)
}
