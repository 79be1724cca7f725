//! Graphs: checks of attention and heat diffusion.

use super::check;
use super::gnn::*;
use super::gnn_check::{Checker, Inputs, stat_dtype};
use crate::buffer::View;
use crate::error::Result;

/// Sizes of a checked attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatShape {
    pub(crate) edges: usize,
    pub(crate) sources: usize,
    pub(crate) targets: usize,
    pub(crate) heads: usize,
    pub(crate) features: usize,
}

fn gat_shape(
    c: &Checker,
    slope: f64,
    [src, dst, x, score_src, score_dst]: [&View<'_>; 5],
    y: (&'static str, &View<'_>),
) -> Result<GatShape> {
    if !slope.is_finite() {
        return c.wrong("slope", "a finite number", slope);
    }
    let edges = c.ends(src, dst)?;
    c.float("x", x)?;
    let &[sources, heads, features] = x.shape() else { return c.wrong("x", "[U, H, F]", x.shape()) };
    c.like("score_src", score_src, x)?;
    c.shape("score_src", score_src, &[sources, heads])?;
    c.like("score_dst", score_dst, x)?;
    let targets = c.rows("score_dst", score_dst)?;
    c.shape("score_dst", score_dst, &[targets, heads])?;
    c.like(y.0, y.1, x)?;
    c.shape(y.0, y.1, &[targets, heads, features])?;
    c.small(&[edges, sources, targets, heads * features])?;
    Ok(GatShape { edges, sources, targets, heads, features })
}

/// Checks of [`GnnOps::gat`].
pub(crate) fn check_gat(slope: f64, io: &Gat<'_>) -> Result<GatShape> {
    let c = Checker::new("gat");
    let all = [&io.src, &io.dst, &io.x, &io.score_src, &io.score_dst];
    let s = gat_shape(&c, slope, all, ("y", &io.y.as_view()))?;
    let mut inputs = Inputs::new(&[
        ("src", io.src),
        ("dst", io.dst),
        ("x", io.x),
        ("score_src", io.score_src),
        ("score_dst", io.score_dst),
    ]);
    c.opt_groups("by_dst", &io.by_dst, s.targets, &io.dst, &mut inputs)?;
    c.out("y", Some(&io.y), io.x.dtype(), io.y.shape(), &mut inputs)?;
    c.out("lse", io.lse.as_ref(), stat_dtype(io.x.dtype()), &[s.targets, s.heads], &mut inputs)?;
    Ok(s)
}

/// Checks of [`GnnOps::gat_bwd`].
pub(crate) fn check_gat_bwd(slope: f64, io: &GatBwd<'_>) -> Result<GatShape> {
    let c = Checker::new("gat_bwd");
    let all = [&io.src, &io.dst, &io.x, &io.score_src, &io.score_dst];
    let s = gat_shape(&c, slope, all, ("dy", &io.dy))?;
    check::dtype(c.op, "lse", &io.lse, stat_dtype(io.x.dtype()))?;
    check::contiguous(c.op, "lse", &io.lse)?;
    c.shape("lse", &io.lse, &[s.targets, s.heads])?;
    let mut inputs = Inputs::new(&[
        ("dy", io.dy),
        ("src", io.src),
        ("dst", io.dst),
        ("x", io.x),
        ("score_src", io.score_src),
        ("score_dst", io.score_dst),
        ("lse", io.lse),
    ]);
    c.opt_groups("by_src", &io.by_src, s.sources, &io.src, &mut inputs)?;
    c.opt_groups("by_dst", &io.by_dst, s.targets, &io.dst, &mut inputs)?;
    c.grad("dx", io.dx.as_ref(), &io.x, io.x.shape(), &mut inputs)?;
    c.grad("dscore_src", io.dscore_src.as_ref(), &io.x, io.score_src.shape(), &mut inputs)?;
    c.grad("dscore_dst", io.dscore_dst.as_ref(), &io.x, io.score_dst.shape(), &mut inputs)?;
    Ok(s)
}

/// Sizes of a checked diffusion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeatShape {
    pub(crate) batch: usize,
    pub(crate) nodes: usize,
    pub(crate) channels: usize,
    pub(crate) scales: usize,
    pub(crate) outputs: usize,
    /// Eigenvectors; 0 without.
    pub(crate) comps: usize,
    pub(crate) per_channel: bool,
}

impl HeatShape {
    /// Shape of the saved coefficients for an input of this rank.
    fn s_hat(&self, rank: usize) -> Vec<usize> {
        [self.batch, self.comps, self.channels][3 - rank..].to_vec()
    }
}

fn heat_shape<'a>(
    c: &Checker,
    (x, heat, t, w): (&View<'a>, &Heat<'a>, &View<'a>, &View<'a>),
    y: (&'static str, &View<'_>),
) -> Result<(HeatShape, Inputs<'a>)> {
    c.float("x", x)?;
    let (batch, nodes, channels) = match *x.shape() {
        [v, k] => (1, v, k),
        [b, v, k] => (b, v, k),
        _ => return c.wrong("x", "[V, C] or [B, V, C]", x.shape()),
    };
    let mut inputs = Inputs::new(&[("x", *x), ("t", *t), ("w", *w)]);
    let comps = match heat {
        Heat::Eigen { phi, lam, mass } => {
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
        Heat::Direct { laplacian } => {
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
    Ok((HeatShape { batch, nodes, channels, scales, outputs, comps, per_channel }, inputs))
}

/// Checks of [`GnnOps::diffusion_conv`].
pub(crate) fn check_diffusion(io: &Diffusion<'_>) -> Result<HeatShape> {
    let c = Checker::new("diffusion_conv");
    let (s, inputs) = heat_shape(&c, (&io.x, &io.heat, &io.t, &io.w), ("y", &io.y.as_view()))?;
    let mut inputs = inputs.opt("b", &io.b);
    if let Some(b) = &io.b {
        c.like("b", b, &io.x)?;
        c.shape("b", b, &[s.outputs])?;
    }
    if io.s_hat.is_some() && matches!(io.heat, Heat::Direct { .. }) {
        return c.wrong("s_hat", "none without eigenvectors", "one");
    }
    c.out("y", Some(&io.y), io.x.dtype(), io.y.shape(), &mut inputs)?;
    c.out("s_hat", io.s_hat.as_ref(), io.x.dtype(), &s.s_hat(io.x.shape().len()), &mut inputs)?;
    Ok(s)
}

/// Checks of [`GnnOps::diffusion_conv_bwd`].
pub(crate) fn check_diffusion_bwd(io: &DiffusionBwd<'_>) -> Result<HeatShape> {
    let c = Checker::new("diffusion_conv_bwd");
    let (s, inputs) = heat_shape(&c, (&io.x, &io.heat, &io.t, &io.w), ("dy", &io.dy))?;
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
