//! Meshes: signatures and checks.

mod diffusion;
mod pool;

pub use self::diffusion::*;
pub use self::pool::*;

use crate::ops::graph::EdgeGroups;
use crate::ops::graph::checker::{Checker, Inputs};
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};

/// Which features of an element and its neighbours a mesh convolution sees; each is a block of C columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeshConv {
    /// x_e, x_n1, .., x_nn for the edges of a mesh and their n neighbours.
    Concat,
    /// x_e, |a - c|, a + c, |b - d|, b + d for the four neighbours a, b, c, d of an edge: does not depend on its direction.
    /// Oracle MeshCNN (Hanocka et al., 2019).
    Symmetric,
    /// x_s0, .., x_s(L-1) along the spiral of a vertex, whose first entry is the vertex. Oracle Gong et al., 2019: SpiralNet++.
    Spiral,
}

impl MeshConv {
    /// Blocks of columns for this many neighbours.
    pub(crate) fn blocks(self, ways: usize) -> usize {
        match self {
            MeshConv::Concat => ways + 1,
            MeshConv::Symmetric => 5,
            MeshConv::Spiral => ways,
        }
    }

    /// Whether the element itself is a block beside those of the list.
    pub(crate) fn with_self(self) -> bool {
        self != MeshConv::Spiral
    }
}

io_struct! {
    /// Operands of [`MeshOps::mesh_conv`].
    #[derive(Debug)]
    pub struct MeshIo<'a> {
        /// `[N, C]` or `[B, N, C]`.
        pub x: View<'a>,
        /// `[N, n]`: neighbours, -1 for none.
        pub list: View<'a>,
        /// `[O, blocks * C]`.
        pub w: View<'a>,
        /// `[O]`.
        pub b: Option<View<'a>>,
        /// `[N, O]` or `[B, N, O]`.
        pub y: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`MeshOps::mesh_conv_bwd`].
    #[derive(Debug)]
    pub struct MeshBwd<'a> {
        /// Upstream gradient.
        pub dy: View<'a>,
        /// Forward's.
        pub x: View<'a>,
        /// Forward's.
        pub list: View<'a>,
        /// Forward's.
        pub w: View<'a>,
        /// Result of [`MeshOps::mesh_plan`] for this list; made for this call where it is absent.
        pub plan: Option<EdgeGroups<'a>>,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of W.
        pub dw: Option<GradMut<'a>>,
        /// Gradient of the bias.
        pub db: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Convolution on meshes. Operands are contiguous; data is f32, f16, bf16 or f64 of one dtype, lists are i32 or i64. A neighbour of -1 counts as
    /// zeros; any other one outside [0, N) does too and is `IndexOutOfRange`. Deterministic.
    pub trait MeshOps : Mesh => MESH_OPS {
        /// y = f W^T + b with the features f of each element and its neighbours. Oracle indexing, then `F.linear`. Errors: `Symmetric` takes four neighbours.
        fn mesh_conv(&self, kind: MeshConv, io: MeshIo<'_>) -> Result<()>;
        /// df = dy W; dW = dy^T f; db = sum dy; dx collects df from all places where an element occurs, sign(0) = 0.
        fn mesh_conv_bwd(&self, kind: MeshConv, io: MeshBwd<'_>) -> Result<()>;
        /// Where each element occurs among the blocks: `rowptr` [N + 1] and `perm` [N * (n + 1)] ([N * n] for `Spiral`), whose entries behind
        /// `rowptr[N]` mean nothing. Built once per mesh. Index dtype of the list.
        fn mesh_plan(&self, kind: MeshConv, list: View<'_>, rowptr: ViewMut<'_>, perm: ViewMut<'_>) -> Result<()>;
    }
}

/// Sizes of a checked mesh convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MeshShape {
    pub(crate) batch: usize,
    pub(crate) elements: usize,
    pub(crate) ways: usize,
    pub(crate) channels: usize,
    pub(crate) outputs: usize,
    pub(crate) blocks: usize,
}

fn mesh_shape(
    c: &Checker,
    kind: MeshConv,
    x: &View<'_>,
    list: &View<'_>,
    w: &View<'_>,
    y: (&'static str, &View<'_>),
) -> Result<MeshShape> {
    c.float("x", x)?;
    c.index("list", list)?;
    let (s, l) = (x.shape(), list.shape());
    if s.len() != 2 && s.len() != 3 {
        return Err(GpuError::invalid(c.op, "x", "[N, C] or [B, N, C]", format!("shape {s:?}")));
    }
    let (batch, elements, channels) = (if s.len() == 3 { s[0] } else { 1 }, s[s.len() - 2], s[s.len() - 1]);
    if l.len() != 2 || l[0] != elements {
        return Err(GpuError::invalid(c.op, "list", format!("[{elements}, n]"), format!("shape {l:?}")));
    }
    if kind == MeshConv::Symmetric && l[1] != 4 {
        return Err(GpuError::invalid(c.op, "list", "four neighbours", format!("{}", l[1])));
    }
    let blocks = kind.blocks(l[1]);
    let columns = blocks.saturating_mul(channels);
    c.like("w", w, x)?;
    if w.shape().len() != 2 || w.shape()[1] != columns {
        let got = format!("shape {:?}", w.shape());
        return Err(GpuError::invalid(c.op, "w", format!("[O, {columns}]"), got));
    }
    let outputs = w.shape()[0];
    let mut want = s.to_vec();
    if let Some(last) = want.last_mut() {
        *last = outputs;
    }
    c.like(y.0, y.1, x)?;
    c.shape(y.0, y.1, &want)?;
    c.small(&[elements.saturating_mul(l[1] + 1)])?;
    Ok(MeshShape { batch, elements, ways: l[1], channels, outputs, blocks })
}

/// Checks of [`MeshOps::mesh_conv`].
pub(crate) fn check_mesh_conv(kind: MeshConv, io: &MeshIo<'_>) -> Result<MeshShape> {
    let c = Checker::new("mesh_conv");
    let m = mesh_shape(&c, kind, &io.x, &io.list, &io.w, ("y", &io.y.as_view()))?;
    let mut inputs = Inputs::new(&[("x", io.x), ("list", io.list), ("w", io.w)]);
    if let Some(b) = &io.b {
        c.like("b", b, &io.x)?;
        c.shape("b", b, &[m.outputs])?;
        inputs.add("b", *b);
    }
    c.output("y", &io.y, &inputs)?;
    Ok(m)
}

/// Checks of [`MeshOps::mesh_conv_bwd`].
pub(crate) fn check_mesh_conv_bwd(kind: MeshConv, io: &MeshBwd<'_>) -> Result<MeshShape> {
    let c = Checker::new("mesh_conv_bwd");
    let m = mesh_shape(&c, kind, &io.x, &io.list, &io.w, ("dy", &io.dy))?;
    let mut inputs = Inputs::new(&[("dy", io.dy), ("x", io.x), ("list", io.list), ("w", io.w)]);
    if let Some(p) = &io.plan {
        let places = m.elements * (m.ways + kind.with_self() as usize);
        c.groups("plan", p, m.elements, places, io.list.dtype(), &mut inputs)?;
        if p.perm.is_none() {
            return Err(GpuError::invalid(c.op, "plan", "a plan with `perm`", "none"));
        }
    }
    let bias = [m.outputs];
    let outs = [
        ("dx", io.dx.as_ref(), io.x.shape()),
        ("dw", io.dw.as_ref(), io.w.shape()),
        ("db", io.db.as_ref(), &bias[..]),
    ];
    for (arg, g, shape) in outs {
        c.grad(arg, g, &io.x, shape, &mut inputs)?;
    }
    Ok(m)
}

/// Checks of [`MeshOps::mesh_plan`]; elements and places.
pub(crate) fn check_mesh_plan(
    kind: MeshConv,
    list: &View<'_>,
    rowptr: &ViewMut<'_>,
    perm: &ViewMut<'_>,
) -> Result<(usize, usize)> {
    let c = Checker::new("mesh_plan");
    c.index("list", list)?;
    let l = list.shape();
    if l.len() != 2 {
        return Err(GpuError::invalid(c.op, "list", "[N, n]", format!("shape {l:?}")));
    }
    if kind == MeshConv::Symmetric && l[1] != 4 {
        return Err(GpuError::invalid(c.op, "list", "four neighbours", format!("{}", l[1])));
    }
    let places = l[0].saturating_mul(l[1] + kind.with_self() as usize);
    c.small(&[places, l[0]])?;
    let mut inputs = Inputs::new(&[("list", *list)]);
    for (arg, v, n) in [("rowptr", rowptr, l[0] + 1), ("perm", perm, places)] {
        c.shape(arg, &v.as_view(), &[n])?;
        c.same_index(arg, &v.as_view(), list.dtype())?;
        c.output(arg, v, &inputs)?;
        inputs.add(arg, v.as_view());
    }
    Ok((l[0], places))
}
