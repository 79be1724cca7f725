//! Heat diffusion on surfaces: signatures and checks.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;
use crate::ops::graph::checker::{Checker, Inputs};

/// The operator of heat diffusion.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::large_enum_variant)] // views; a call makes one
#[non_exhaustive]
pub enum DiffusionOperator<'a> {
    /// By its eigenvectors.
    Eigen {
        /// `[V, K]`.
        phi: View<'a>,
        /// Eigenvalues `[K]`.
        lam: View<'a>,
        /// Mass of each vertex `[V]`; 1 where it is absent.
        mass: Option<View<'a>>,
    },
    /// The Laplacian itself `[V, V]`: a Taylor series of degree 12 in max(1, ceil(|t| |L|)) steps. Times that need more than 65536 steps give NaN.
    Direct {
        /// `[V, V]`.
        laplacian: View<'a>,
    },
}

io_struct! {
    /// Operands of [`DiffusionOps::diffusion_conv`].
    #[derive(Debug)]
    pub struct Diffusion<'a> {
        /// `[V, C]` or `[B, V, C]`.
        pub x: View<'a>,
        /// The operator.
        pub operator: DiffusionOperator<'a>,
        /// Times of S scales: `[S]`, or `[S, C]` one per channel.
        pub t: View<'a>,
        /// `[O, S * C]`.
        pub w: View<'a>,
        /// `[O]`.
        pub b: Option<View<'a>>,
        /// `[V, O]` or `[B, V, O]`.
        pub y: ViewMut<'a>,
        /// With eigenvectors: Phi^T (m * x), `[K, C]` or `[B, K, C]`, for backward.
        pub s_hat: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`DiffusionOps::diffusion_conv_bwd`].
    #[derive(Debug)]
    pub struct DiffusionBwd<'a> {
        /// Upstream gradient.
        pub dy: View<'a>,
        /// Forward's.
        pub x: View<'a>,
        /// Forward's.
        pub operator: DiffusionOperator<'a>,
        /// Forward's.
        pub t: View<'a>,
        /// Forward's.
        pub w: View<'a>,
        /// Saved by forward; computed again where it is absent.
        pub s_hat: Option<View<'a>>,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the times.
        pub dt: Option<GradMut<'a>>,
        /// Gradient of W.
        pub dw: Option<GradMut<'a>>,
        /// Gradient of the bias.
        pub db: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Heat diffusion on surfaces.
    pub trait DiffusionOps : Mesh => DIFFUSION_OPS {
        /// y = concat over s of exp(-t_s L) x, times W^T, plus b (Sharp et al., 2022: DiffusionNet); with eigenvectors exp(-t L) x =
        /// Phi (exp(-lam t) * (Phi^T (m * x))). 16-bit data is computed in f32. Oracle `torch.linalg.matrix_exp(-t * L) @ x`.
        fn diffusion_conv(&self, io: Diffusion<'_>) -> Result<()>;
        /// Gradients of [`DiffusionOps::diffusion_conv`].
        fn diffusion_conv_bwd(&self, io: DiffusionBwd<'_>) -> Result<()>;
    }
}

/// Sizes of a checked diffusion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiffusionShape {
    pub(crate) batch: usize,
    pub(crate) nodes: usize,
    pub(crate) channels: usize,
    pub(crate) scales: usize,
    pub(crate) outputs: usize,
    /// Eigenvectors; 0 without.
    pub(crate) comps: usize,
    pub(crate) per_channel: bool,
}

impl DiffusionShape {
    /// Shape of the saved coefficients for an input of this rank.
    fn s_hat(&self, rank: usize) -> Vec<usize> {
        [self.batch, self.comps, self.channels][3 - rank..].to_vec()
    }
}

fn diffusion_shape<'a>(
    c: &Checker,
    (x, operator, t, w): (&View<'a>, &DiffusionOperator<'a>, &View<'a>, &View<'a>),
    y: (&'static str, &View<'_>),
) -> Result<(DiffusionShape, Inputs<'a>)> {
    c.float("x", x)?;
    let (batch, nodes, channels) = match *x.shape() {
        [v, k] => (1, v, k),
        [b, v, k] => (b, v, k),
        _ => return c.wrong("x", "[V, C] or [B, V, C]", x.shape()),
    };
    let mut inputs = Inputs::new(&[("x", *x), ("t", *t), ("w", *w)]);
    let comps = match operator {
        DiffusionOperator::Eigen { phi, lam, mass } => {
            c.like("phi", phi, x)?;
            c.like("lam", lam, x)?;
            let comps = phi.shape().get(1).copied().unwrap_or(0);
            c.shape("phi", phi, &[nodes, comps])?;
            c.shape("lam", lam, &[comps])?;
            inputs.add("phi", *phi);
            inputs.add("lam", *lam);
            if let Some(m) = mass {
                c.like("mass", m, x)?;
                c.shape("mass", m, &[nodes])?;
                inputs.add("mass", *m);
            }
            comps
        }
        DiffusionOperator::Direct { laplacian } => {
            c.like("laplacian", laplacian, x)?;
            c.shape("laplacian", laplacian, &[nodes, nodes])?;
            inputs.add("laplacian", *laplacian);
            0
        }
    };
    c.like("t", t, x)?;
    let (scales, per_channel) = match *t.shape() {
        [s] => (s, false),
        [s, k] if k == channels => (s, true),
        _ => return c.wrong("t", format!("[S] or [S, {channels}]"), t.shape()),
    };
    c.like("w", w, x)?;
    let outputs = w.shape().first().copied().unwrap_or(0);
    let columns = scales.saturating_mul(channels);
    c.shape("w", w, &[outputs, columns])?;
    c.like(y.0, y.1, x)?;
    c.shape(y.0, y.1, &[batch, nodes, outputs][3 - x.shape().len()..])?;
    c.small(&[nodes, comps, columns, outputs])?;
    Ok((DiffusionShape { batch, nodes, channels, scales, outputs, comps, per_channel }, inputs))
}

/// Checks of [`DiffusionOps::diffusion_conv`].
pub(crate) fn check_diffusion(io: &Diffusion<'_>) -> Result<DiffusionShape> {
    let c = Checker::new("diffusion_conv");
    let (s, inputs) = diffusion_shape(&c, (&io.x, &io.operator, &io.t, &io.w), ("y", &io.y.as_view()))?;
    let mut inputs = inputs.opt("b", &io.b);
    if let Some(b) = &io.b {
        c.like("b", b, &io.x)?;
        c.shape("b", b, &[s.outputs])?;
    }
    if io.s_hat.is_some() && matches!(io.operator, DiffusionOperator::Direct { .. }) {
        return c.wrong("s_hat", "none without eigenvectors", "one");
    }
    c.out("y", Some(&io.y), io.x.dtype(), io.y.shape(), &mut inputs)?;
    c.out("s_hat", io.s_hat.as_ref(), io.x.dtype(), &s.s_hat(io.x.shape().len()), &mut inputs)?;
    Ok(s)
}

/// Checks of [`DiffusionOps::diffusion_conv_bwd`].
pub(crate) fn check_diffusion_bwd(io: &DiffusionBwd<'_>) -> Result<DiffusionShape> {
    let c = Checker::new("diffusion_conv_bwd");
    let (s, inputs) = diffusion_shape(&c, (&io.x, &io.operator, &io.t, &io.w), ("dy", &io.dy))?;
    let mut inputs = inputs.opt("s_hat", &io.s_hat);
    inputs.add("dy", io.dy);
    if let Some(v) = &io.s_hat {
        c.like("s_hat", v, &io.x)?;
        c.shape("s_hat", v, &s.s_hat(io.x.shape().len()))?;
    }
    let bias = [s.outputs];
    c.grad("dx", io.dx.as_ref(), &io.x, io.x.shape(), &mut inputs)?;
    c.grad("dt", io.dt.as_ref(), &io.x, io.t.shape(), &mut inputs)?;
    c.grad("dw", io.dw.as_ref(), &io.x, io.w.shape(), &mut inputs)?;
    c.grad("db", io.db.as_ref(), &io.x, &bias, &mut inputs)?;
    Ok(s)
}
