//! Convolutions on meshes with the sizes of a body scan, and diffusion on surfaces.

use trefoil::ops::graph::EdgeGroups;
use trefoil::ops::mesh::{
    Diffusion, DiffusionBwd, DiffusionOperator, MeshBwd, MeshConv, MeshIo, MeshPoolBwd, MeshPoolIo,
};
use trefoil::{Buffer, DType, Result};

use crate::case::{Case, CaseError, Operation, both};
use crate::{Context, F32, Prepared, Problem, bytes, flops, prepared, problem};

/// Sizes of a spiral convolution: batch, vertices, length of a spiral, channels in and out.
#[derive(Clone, Copy)]
struct Spiral {
    n: usize,
    v: usize,
    len: usize,
    c: usize,
    k: usize,
}

impl Spiral {
    fn of_table(cx: &Context<'_>) -> Self {
        let c = cx.pick(8, 16, 64);
        Spiral { n: cx.pick(2, 2, 16), v: cx.pick(40, 500, 6_890), len: 9, c, k: c }
    }

    fn of_case(c: &Case) -> Result<Self, CaseError> {
        let [n, v, len, width, k] = c.sizes(["n", "v", "s", "c", "k"])?;
        Ok(Spiral { n, v, len, c: width, k })
    }

    /// Vertices of the spirals: random ones.
    fn list(self, cx: &Context<'_>) -> Result<Buffer> {
        cx.ids(self.v * self.len, self.v)
    }

    /// Bytes of input and result.
    fn bytes(self, dt: DType) -> usize {
        self.n * self.v * (self.c + self.k) * dt.size()
    }

    /// Operations of the forward; the backward has twice as many.
    fn flops(self) -> usize {
        2 * self.n * self.v * self.len * self.c * self.k
    }

    fn forward(self, cx: &Context<'_>, dt: DType) -> Result<Prepared> {
        let Spiral { n, v, len, c, k } = self;
        let x = cx.normal_sets(dt, n * v * c, cx.sets(self.bytes(dt)))?;
        let (w, list, mut y) =
            (cx.normal_std(dt, k * len * c, 0.05)?, self.list(cx)?, cx.empty(dt, n * v * k)?);
        prepared(self.bytes(dt), self.flops(), move |g, i| {
            let (x, w) = (x.at(i).shaped(&[n, v, c])?, w.shaped(&[k, len * c])?);
            let (list, y) = (list.shaped(&[v, len])?, y.shaped_mut(&[n, v, k])?);
            g.mesh_conv(MeshConv::Spiral, MeshIo::new(x, list, w, y))
        })
    }

    /// The plan of the mesh is made once and is not part of the time.
    fn backward(self, cx: &Context<'_>, dt: DType) -> Result<Prepared> {
        let Spiral { n, v, len, c, k } = self;
        let sets = cx.sets(self.bytes(dt));
        let (x, dy) = (cx.normal_sets(dt, n * v * c, sets)?, cx.normal_sets(dt, n * v * k, sets)?);
        let (w, list) = (cx.normal_std(dt, k * len * c, 0.05)?, self.list(cx)?);
        let (mut dx, mut dw) = (cx.empty(dt, n * v * c)?, cx.empty(dt, k * len * c)?);
        let (mut rowptr, mut perm) = (cx.empty(DType::I64, v + 1)?, cx.empty(DType::I64, v * len)?);
        let spirals = list.shaped(&[v, len])?;
        cx.gpu.mesh_plan(MeshConv::Spiral, spirals, rowptr.view_mut(), perm.view_mut())?;
        prepared(2 * self.bytes(dt), 2 * self.flops(), move |g, i| {
            let (dy, x) = (dy.at(i).shaped(&[n, v, k])?, x.at(i).shaped(&[n, v, c])?);
            let (list, w) = (list.shaped(&[v, len])?, w.shaped(&[k, len * c])?);
            let plan = Some(EdgeGroups::new(rowptr.view()).perm(perm.view()));
            let dx = Some(dx.shaped_mut(&[n, v, c])?.into());
            let dw = Some(dw.shaped_mut(&[k, len * c])?.into());
            g.mesh_conv_bwd(MeshConv::Spiral, MeshBwd::new(dy, x, list, w).plan(plan).dx(dx).dw(dw))
        })
    }
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("mesh_conv", "spiral", F32, |cx, dt| Spiral::of_table(cx).forward(cx, dt)),
    problem("mesh_conv_bwd", "spiral", F32, |cx, dt| Spiral::of_table(cx).backward(cx, dt)),
    problem("mesh_conv_bwd", "symmetric", F32, |cx, dt| {
        let Spiral { n, v, c, .. } = Spiral::of_table(cx);
        let (x, w, dy) = (cx.normal(dt, n * v * c)?, cx.normal(dt, c * 5 * c)?, cx.normal(dt, n * v * c)?);
        let (list, mut dx) = (cx.ids(v * 4, v)?, cx.empty(dt, n * v * c)?);
        flops(2 * n * v * 5 * c * c, move |gpu| {
            let s = [n, v, c];
            let dx = Some(dx.shaped_mut(&s)?.into());
            let (dy, x, w) = (dy.shaped(&s)?, x.shaped(&s)?, w.shaped(&[c, 5 * c])?);
            let io = MeshBwd::new(dy, x, list.shaped(&[v, 4])?, w).dx(dx);
            gpu.mesh_conv_bwd(MeshConv::Symmetric, io)
        })
    }),
    problem("mesh_plan", "spiral", F32, |cx, _| {
        let s @ Spiral { v, len, .. } = Spiral::of_table(cx);
        let list = s.list(cx)?;
        let (mut rowptr, mut perm) = (cx.empty(DType::I64, v + 1)?, cx.empty(DType::I64, v * len)?);
        bytes(3 * 8 * v * len, move |gpu| {
            gpu.mesh_plan(MeshConv::Spiral, list.shaped(&[v, len])?, rowptr.view_mut(), perm.view_mut())
        })
    }),
    problem("mesh_pool", "half", F32, |cx, dt| {
        let (n, c) = (cx.pick(40, 500, 100_000), cx.pick(4, 16, 64));
        let (x, w, mut y) = (cx.normal(dt, n * c)?, cx.normal(dt, c)?, cx.empty(dt, n / 2 * c)?);
        let (mut kept, mut share) = (cx.empty(DType::I64, n / 2)?, cx.empty(dt, n)?);
        bytes(3 * n * c * dt.size() / 2, move |gpu| {
            let (x, y) = (x.shaped(&[n, c])?, y.shaped_mut(&[n / 2, c])?);
            gpu.mesh_pool(1.0, MeshPoolIo::new(x, w.view(), y, kept.view_mut(), share.view_mut()))
        })
    }),
    problem("mesh_pool_bwd", "half", F32, |cx, dt| {
        let (n, c) = (cx.pick(40, 500, 100_000), cx.pick(4, 16, 64));
        let (x, w, dy) = (cx.normal(dt, n * c)?, cx.normal(dt, c)?, cx.normal(dt, n / 2 * c)?);
        let (mut kept, share) = (cx.empty(DType::I64, n / 2)?, cx.positive(dt, n)?);
        let (mut dx, mut dw) = (cx.empty(dt, n * c)?, cx.empty(dt, c)?);
        cx.gpu.arange(0.0, 2.0, kept.view_mut())?;
        bytes(5 * n * c * dt.size() / 2, move |gpu| {
            let (dy, x) = (dy.shaped(&[n / 2, c])?, x.shaped(&[n, c])?);
            let io = MeshPoolBwd::new(dy, x, w.view(), kept.view(), share.view());
            let (dx, dw) = (dx.shaped_mut(&[n, c])?, dw.view_mut());
            gpu.mesh_pool_bwd(1.0, io.dx(Some(dx.into())).dw(Some(dw.into())))
        })
    }),
    problem("diffusion_conv", "eigen", F32, |cx, dt| {
        let (v, k, c) = (cx.pick(50, 500, 100_000), cx.pick(8, 32, 128), cx.pick(8, 32, 128));
        let (x, phi, lam) = (cx.normal(dt, v * c)?, cx.normal(dt, v * k)?, cx.positive(dt, k)?);
        let (m, t, w, mut y) =
            (cx.positive(dt, v)?, cx.positive(dt, 1)?, cx.normal(dt, c * c)?, cx.empty(dt, v * c)?);
        bytes((2 * v * c + 2 * v * k) * dt.size(), move |gpu| {
            let operator =
                DiffusionOperator::Eigen { phi: phi.shaped(&[v, k])?, lam: lam.view(), mass: Some(m.view()) };
            let (x, w) = (x.shaped(&[v, c])?, w.shaped(&[c, c])?);
            let y = y.shaped_mut(&[v, c])?;
            gpu.diffusion_conv(Diffusion::new(x, operator, t.view(), w, y))
        })
    }),
    problem("diffusion_conv", "direct", F32, |cx, dt| {
        let (v, c) = (cx.pick(30, 100, 1_000), cx.pick(4, 8, 64));
        let (x, l, t) = (cx.normal(dt, v * c)?, cx.zeros(dt, v * v)?, cx.positive(dt, 1)?);
        let (w, mut y) = (cx.normal(dt, c * c)?, cx.empty(dt, v * c)?);
        bytes((v * v + 2 * v * c) * dt.size(), move |gpu| {
            let operator = DiffusionOperator::Direct { laplacian: l.shaped(&[v, v])? };
            let (x, w, y) = (x.shaped(&[v, c])?, w.shaped(&[c, c])?, y.shaped_mut(&[v, c])?);
            gpu.diffusion_conv(Diffusion::new(x, operator, t.view(), w, y))
        })
    }),
    problem("diffusion_conv_bwd", "eigen", F32, |cx, dt| {
        let (v, k, c) = (cx.pick(50, 500, 100_000), cx.pick(8, 32, 128), cx.pick(8, 32, 128));
        let (x, phi, lam) = (cx.normal(dt, v * c)?, cx.normal(dt, v * k)?, cx.positive(dt, k)?);
        let (m, t, w, dy) =
            (cx.positive(dt, v)?, cx.positive(dt, 1)?, cx.normal(dt, c * c)?, cx.normal(dt, v * c)?);
        let (mut dx, mut dw, mut times) = (cx.empty(dt, v * c)?, cx.empty(dt, c * c)?, cx.empty(dt, 1)?);
        bytes((3 * v * c + 3 * v * k) * dt.size(), move |gpu| {
            let operator =
                DiffusionOperator::Eigen { phi: phi.shaped(&[v, k])?, lam: lam.view(), mass: Some(m.view()) };
            let (dx, dw) = (Some(dx.shaped_mut(&[v, c])?.into()), Some(dw.shaped_mut(&[c, c])?.into()));
            gpu.diffusion_conv_bwd(
                DiffusionBwd::new(
                    dy.shaped(&[v, c])?,
                    x.shaped(&[v, c])?,
                    operator,
                    t.view(),
                    w.shaped(&[c, c])?,
                )
                .dx(dx)
                .dt(times.view_mut())
                .dw(dw),
            )
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[both(
    "spiral_conv",
    |cx, c| Ok(Spiral::of_case(c)?.forward(cx, c.dtype()?)?),
    |cx, c| Ok(Spiral::of_case(c)?.backward(cx, c.dtype()?)?),
)];
