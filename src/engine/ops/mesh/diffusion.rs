//! Heat diffusion on surfaces. 16-bit data is computed in f32.

use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::engine::ops::graph::aggregate::{grad_view, out_view};
use crate::error::Result;
use crate::ops::elementwise::{Binary, ElementwiseOps};
use crate::ops::gemm::{Gemm, GemmIo, GemmOps};
use crate::ops::mesh::*;
use crate::ops::reduce::ReduceOps;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::mesh::*;

/// Channels per block of `heat_flow` (`GK_COLS`).
const COLS: usize = 4;

/// A tensor of the caller's, with a copy in f32 where it is 16 bits wide.
struct Wide<'a> {
    given: View<'a>,
    copy: Option<Buffer>,
}

impl Wide<'_> {
    fn view(&self) -> Result<View<'_>> {
        self.copy.as_ref().map_or(Ok(self.given), |c| c.shaped(self.given.shape()))
    }
}

/// An output that is computed in f32 and rounded at the end.
struct WideOut<'a> {
    out: ViewMut<'a>,
    accumulate: bool,
    copy: Buffer,
}

impl WideOut<'_> {
    fn grad(&self) -> Result<GradMut<'_>> {
        Ok(self.copy.alias_mut().reshape(self.out.shape())?.grad(self.accumulate))
    }
}

fn matrix<'a>(b: &'a Buffer, shape: &[usize]) -> Result<ViewMut<'a>> {
    b.alias_mut().reshape(shape)
}

/// y (+)= the product.
fn product<'a>(a: View<'a>, b: View<'a>, y: GradMut<'a>, p: Gemm) -> (Gemm, GemmIo<'a>) {
    let beta = if y.accumulate { 1.0 } else { 0.0 };
    let c = Some(y.out.as_view()).filter(|_| y.accumulate);
    (p.scaled(1.0, beta), GemmIo { c, ..GemmIo::new(a, b, y.out) })
}

impl Engine {
    fn widened<'a>(&self, v: View<'a>) -> Result<Wide<'a>> {
        if !v.dtype().is_half() {
            return Ok(Wide { given: v, copy: None });
        }
        let copy = self.scratch(DType::F32, v.numel())?;
        self.cast(v, matrix(&copy, v.shape())?)?;
        Ok(Wide { given: v, copy: Some(copy) })
    }

    fn widened_out<'a>(&self, g: Option<GradMut<'a>>) -> Result<Option<WideOut<'a>>> {
        let Some(GradMut { out, accumulate, .. }) = g else { return Ok(None) };
        let copy = self.scratch(DType::F32, out.numel())?;
        if accumulate {
            self.cast(out.as_view(), matrix(&copy, out.shape())?)?;
        }
        Ok(Some(WideOut { out, accumulate, copy }))
    }

    fn rounded(&self, w: Option<WideOut<'_>>) -> Result<()> {
        match w {
            Some(w) => self.cast(w.copy.shaped(w.out.shape())?, w.out),
            None => Ok(()),
        }
    }

    fn diffusion_product(&self, a: View<'_>, b: View<'_>, y: GradMut<'_>, trans: (bool, bool)) -> Result<()> {
        let (p, io) = product(a, b, y, Gemm::new().trans(trans.0, trans.1));
        self.gemm(&p, io)
    }

    fn check_operator_owner(&self, op: &'static str, operator: &DiffusionOperator<'_>) -> Result<()> {
        match *operator {
            DiffusionOperator::Eigen { phi, lam, mass } => {
                self.check_owner_all(op, &[("phi", Some(phi)), ("lam", Some(lam)), ("mass", mass)])
            }
            DiffusionOperator::Direct { laplacian } => self.check_owner(op, "laplacian", &laplacian),
        }
    }

    fn widened_operator<'a>(&self, operator: &DiffusionOperator<'a>) -> Result<WideOperator<'a>> {
        Ok(match *operator {
            DiffusionOperator::Eigen { phi, lam, mass } => WideOperator::Eigen(
                self.widened(phi)?,
                self.widened(lam)?,
                mass.map(|m| self.widened(m)).transpose()?,
            ),
            DiffusionOperator::Direct { laplacian } => WideOperator::Direct(self.widened(laplacian)?),
        })
    }

    /// m * Phi, or Phi.
    fn weighted(&self, phi: View<'_>, mass: Option<View<'_>>) -> Result<Option<Buffer>> {
        let Some(m) = mass else { return Ok(None) };
        let out = self.scratch(phi.dtype(), phi.numel())?;
        self.binary(Binary::Mul, phi, m.reshape(&[m.numel(), 1])?, matrix(&out, phi.shape())?)?;
        Ok(Some(out))
    }

    /// exp(-lam t_s) * s_hat for all scales: [B * K, S * C].
    fn spread(&self, s: &DiffusionShape, s_hat: &View<'_>, lam: &View<'_>, t: &View<'_>) -> Result<Buffer> {
        let n = s.batch * s.comps * s.scales * s.channels;
        let out = self.scratch(s_hat.dtype(), n)?;
        let args = DiffusionSpreadArgs {
            x: self.arg_in(s_hat),
            lam: self.arg_in(lam),
            t: self.arg_in(t),
            out: self.arg_in(&out.view()),
            n: n as i64,
            comps: s.comps.max(1) as i64,
            scales: s.scales as i32,
            channels: s.channels as i32,
            per_channel: i32::from(s.per_channel),
        };
        self.launch(&DIFFUSION_SPREAD, s_hat.dtype(), "", Grid::Stride(n), &args)?;
        Ok(out)
    }

    /// y (+)= sum over scales, decayed where `lam` is given.
    fn fold(
        &self,
        s: &DiffusionShape,
        d: &View<'_>,
        lam: Option<&View<'_>>,
        t: &View<'_>,
        y: &GradMut<'_>,
    ) -> Result<()> {
        let v = y.out.as_view();
        let args = DiffusionFoldArgs {
            d: self.arg_in(d),
            lam: self.arg_opt(lam),
            t: self.arg_in(t),
            y: self.arg_in(&v),
            n: v.numel() as i64,
            comps: s.comps.max(1) as i64,
            scales: s.scales as i32,
            channels: s.channels as i32,
            per_channel: i32::from(s.per_channel),
            accumulate: i32::from(y.accumulate),
        };
        self.launch(&DIFFUSION_FOLD, v.dtype(), "", Grid::Stride(v.numel()), &args)
    }

    /// dt (+)= - sums of w p q.
    fn diffusion_times(
        &self,
        s: &DiffusionShape,
        p: &View<'_>,
        q: &View<'_>,
        lam: Option<&View<'_>>,
        rows: usize,
        dt: &GradMut<'_>,
    ) -> Result<()> {
        let v = dt.out.as_view();
        // No channels: a time of each scale still has a gradient, which is 0.
        if s.channels == 0 {
            return if dt.accumulate { Ok(()) } else { self.fill_pattern(&[0; 8], &v) };
        }
        let args = DiffusionTimesArgs {
            p: self.arg_in(p),
            q: self.arg_in(q),
            lam: self.arg_opt(lam),
            dt: self.arg_in(&v),
            rows: rows as i64,
            comps: s.comps.max(1) as i64,
            scales: s.scales as i32,
            channels: s.channels as i32,
            per_channel: i32::from(s.per_channel),
            accumulate: i32::from(dt.accumulate),
        };
        self.launch(&DIFFUSION_TIMES, v.dtype(), "", Grid::Blocks([v.numel(), 1, 1]), &args)
    }

    /// exp(-t M^T) of x for all scales: [B, V, S * C].
    fn flow(
        &self,
        s: &DiffusionShape,
        m: &View<'_>,
        x: &View<'_>,
        t: &View<'_>,
        x_has_scales: bool,
    ) -> Result<Buffer> {
        let out = self.scratch(x.dtype(), s.batch * s.nodes * s.scales * s.channels)?;
        let grid = [s.scales, s.channels.div_ceil(COLS), s.batch];
        let blocks: usize = if s.nodes == 0 { 0 } else { grid.iter().product() };
        let room = self.scratch(x.dtype(), blocks * 3 * s.nodes * COLS)?;
        let args = DiffusionFlowArgs {
            m: self.arg_in(m),
            x: self.arg_in(x),
            t: self.arg_in(t),
            out: self.arg_in(&out.view()),
            room: self.arg_in(&room.view()),
            nodes: s.nodes as i64,
            scales: s.scales as i32,
            channels: s.channels as i32,
            per_channel: i32::from(s.per_channel),
            x_has_scales: i32::from(x_has_scales),
        };
        self.launch(
            &DIFFUSION_FLOW,
            x.dtype(),
            "",
            Grid::Blocks(if blocks == 0 { [0; 3] } else { grid }),
            &args,
        )?;
        Ok(out)
    }

    fn transposed(&self, l: &View<'_>) -> Result<Buffer> {
        let out = self.scratch(l.dtype(), l.numel())?;
        let n = l.shape()[0];
        let flipped = l.map("laplacian", |l| l.permute(&[1, 0]))?;
        self.strided_copy(flipped, matrix(&out, &[n, n])?.into())?;
        Ok(out)
    }

    fn diffuse(&self, s: &DiffusionShape, io: Diffusion<'_>) -> Result<()> {
        let dt = io.x.dtype();
        let sc = s.scales * s.channels;
        let (b, v, k, c, o) = (s.batch, s.nodes, s.comps, s.channels, s.outputs);
        match io.operator {
            DiffusionOperator::Eigen { phi, lam, mass } => {
                let weighted = self.weighted(phi, mass)?;
                let phim = weighted.as_ref().map_or(Ok(phi), |w| w.shaped(phi.shape()))?;
                let home;
                let s_hat = match io.s_hat {
                    Some(out) => out.reshape(&[b, k, c])?,
                    None => {
                        home = self.scratch(dt, b * k * c)?;
                        matrix(&home, &[b, k, c])?
                    }
                };
                let saved = s_hat.as_view();
                self.diffusion_product(phim, io.x.reshape(&[b, v, c])?, s_hat.into(), (true, false))?;
                let coef = self.spread(s, &saved, &lam, &io.t)?;
                let mixed = self.scratch(dt, b * k * o)?;
                self.diffusion_product(
                    coef.shaped(&[b * k, sc])?,
                    io.w,
                    matrix(&mixed, &[b * k, o])?.into(),
                    (false, true),
                )?;
                let y = io.y.reshape(&[b, v, o])?;
                let product = GemmIo { bias: io.b, ..GemmIo::new(phi, mixed.shaped(&[b, k, o])?, y) };
                self.gemm(&Gemm::new(), product)
            }
            DiffusionOperator::Direct { laplacian } => {
                let m = self.transposed(&laplacian)?;
                let h = self.flow(s, &m.view(), &io.x, &io.t, false)?;
                let y = io.y.reshape(&[b * v, o])?;
                let product = GemmIo { bias: io.b, ..GemmIo::new(h.shaped(&[b * v, sc])?, io.w, y) };
                self.gemm(&Gemm::new().trans(false, true), product)
            }
        }
    }

    fn diffuse_bwd(&self, s: &DiffusionShape, io: DiffusionBwd<'_>) -> Result<()> {
        let dt = io.x.dtype();
        let sc = s.scales * s.channels;
        let (b, v, k, c, o) = (s.batch, s.nodes, s.comps, s.channels, s.outputs);
        if let Some(db) = io.db {
            self.sum_to_shape(io.dy.reshape(&[b * v, o])?, db)?;
        }
        match io.operator {
            DiffusionOperator::Eigen { phi, lam, mass } => {
                let weighted = self.weighted(phi, mass)?;
                let phim = weighted.as_ref().map_or(Ok(phi), |w| w.shaped(phi.shape()))?;
                let home;
                let s_hat = match io.s_hat {
                    Some(saved) => saved,
                    None => {
                        home = self.scratch(dt, b * k * c)?;
                        let out = matrix(&home, &[b, k, c])?;
                        self.diffusion_product(phim, io.x.reshape(&[b, v, c])?, out.into(), (true, false))?;
                        home.view()
                    }
                };
                let g = self.scratch(dt, b * k * o)?;
                let out = matrix(&g, &[b, k, o])?;
                self.diffusion_product(phi, io.dy.reshape(&[b, v, o])?, out.into(), (true, false))?;
                let coef = self.spread(s, &s_hat, &lam, &io.t)?;
                let g = g.shaped(&[b * k, o])?;
                if let Some(dw) = io.dw {
                    self.diffusion_product(g, coef.shaped(&[b * k, sc])?, dw, (true, false))?;
                }
                let dcoef = self.scratch(dt, b * k * sc)?;
                self.diffusion_product(g, io.w, matrix(&dcoef, &[b * k, sc])?.into(), (false, false))?;
                if let Some(times) = &io.dt {
                    self.diffusion_times(s, &coef.view(), &dcoef.view(), Some(&lam), b * k, times)?;
                }
                if let Some(GradMut { out, accumulate, .. }) = io.dx {
                    let ds = self.scratch(dt, b * k * c)?;
                    self.fold(s, &dcoef.view(), Some(&lam), &io.t, &matrix(&ds, &[b, k, c])?.into())?;
                    let out = out.reshape(&[b, v, c])?.grad(accumulate);
                    self.diffusion_product(phim, ds.shaped(&[b, k, c])?, out, (false, false))?;
                }
                Ok(())
            }
            DiffusionOperator::Direct { laplacian } => {
                let dy = io.dy.reshape(&[b * v, o])?;
                let m = self.transposed(&laplacian)?;
                let h = self.flow(s, &m.view(), &io.x, &io.t, false)?;
                if let Some(dw) = io.dw {
                    self.diffusion_product(dy, h.shaped(&[b * v, sc])?, dw, (true, false))?;
                }
                let dh = self.scratch(dt, b * v * sc)?;
                self.diffusion_product(dy, io.w, matrix(&dh, &[b * v, sc])?.into(), (false, false))?;
                if let Some(times) = &io.dt {
                    let lh = self.scratch(dt, b * v * sc)?;
                    let out = matrix(&lh, &[b, v, sc])?;
                    self.diffusion_product(laplacian, h.shaped(&[b, v, sc])?, out.into(), (false, false))?;
                    self.diffusion_times(s, &dh.view(), &lh.view(), None, b * v, times)?;
                }
                if let Some(dx) = &io.dx {
                    let back = self.flow(s, &laplacian, &dh.view(), &io.t, true)?;
                    self.fold(s, &back.view(), None, &io.t, dx)?;
                }
                Ok(())
            }
        }
    }
}

/// The operator in f32.
#[allow(clippy::large_enum_variant)] // lives on the stack of one call
enum WideOperator<'a> {
    Eigen(Wide<'a>, Wide<'a>, Option<Wide<'a>>),
    Direct(Wide<'a>),
}

impl WideOperator<'_> {
    fn operator(&self) -> Result<DiffusionOperator<'_>> {
        Ok(match self {
            WideOperator::Eigen(phi, lam, mass) => DiffusionOperator::Eigen {
                phi: phi.view()?,
                lam: lam.view()?,
                mass: mass.as_ref().map(Wide::view).transpose()?,
            },
            WideOperator::Direct(l) => DiffusionOperator::Direct { laplacian: l.view()? },
        })
    }
}

impl DiffusionOps for Engine {
    fn diffusion_conv(&self, io: Diffusion<'_>) -> Result<()> {
        let s = check_diffusion(&io)?;
        self.check_operator_owner("diffusion_conv", &io.operator)?;
        let views = [
            ("x", Some(io.x)),
            ("t", Some(io.t)),
            ("w", Some(io.w)),
            ("b", io.b),
            ("y", Some(io.y.as_view())),
            ("s_hat", out_view(&io.s_hat)),
        ];
        self.check_owner_all("diffusion_conv", &views)?;
        if !io.x.dtype().is_half() {
            return self.diffuse(&s, io);
        }
        let (x, t, w) = (self.widened(io.x)?, self.widened(io.t)?, self.widened(io.w)?);
        let b = io.b.map(|b| self.widened(b)).transpose()?;
        let operator = self.widened_operator(&io.operator)?;
        let (y, s_hat) =
            (self.widened_out(Some(io.y.into()))?, self.widened_out(io.s_hat.map(GradMut::from))?);
        if let Some(y) = &y {
            let s_hat = s_hat.as_ref().map(WideOut::grad).transpose()?.map(|g| g.out);
            let b = b.as_ref().map(Wide::view).transpose()?;
            let (x, t, w, y) = (x.view()?, t.view()?, w.view()?, y.grad()?.out);
            self.diffuse(&s, Diffusion { x, operator: operator.operator()?, t, w, b, y, s_hat })?;
        }
        self.rounded(y)?;
        self.rounded(s_hat)
    }

    fn diffusion_conv_bwd(&self, io: DiffusionBwd<'_>) -> Result<()> {
        const OP: &str = "diffusion_conv_bwd";
        let s = check_diffusion_bwd(&io)?;
        self.check_operator_owner(OP, &io.operator)?;
        let views = [
            ("dy", Some(io.dy)),
            ("x", Some(io.x)),
            ("t", Some(io.t)),
            ("w", Some(io.w)),
            ("s_hat", io.s_hat),
            ("dx", grad_view(&io.dx)),
            ("dt", grad_view(&io.dt)),
            ("dw", grad_view(&io.dw)),
            ("db", grad_view(&io.db)),
        ];
        self.check_owner_all(OP, &views)?;
        if !io.x.dtype().is_half() {
            return self.diffuse_bwd(&s, io);
        }
        let (dy, x, t, w) =
            (self.widened(io.dy)?, self.widened(io.x)?, self.widened(io.t)?, self.widened(io.w)?);
        let s_hat = io.s_hat.map(|v| self.widened(v)).transpose()?;
        let operator = self.widened_operator(&io.operator)?;
        let outs = [io.dx, io.dt, io.dw, io.db];
        let mut wide = Vec::with_capacity(4);
        for g in outs {
            wide.push(self.widened_out(g)?);
        }
        let grad = |i: usize| wide[i].as_ref().map(WideOut::grad).transpose();
        self.diffuse_bwd(
            &s,
            DiffusionBwd {
                dy: dy.view()?,
                x: x.view()?,
                operator: operator.operator()?,
                t: t.view()?,
                w: w.view()?,
                s_hat: s_hat.as_ref().map(Wide::view).transpose()?,
                dx: grad(0)?,
                dt: grad(1)?,
                dw: grad(2)?,
                db: grad(3)?,
            },
        )?;
        wide.into_iter().try_for_each(|w| self.rounded(w))
    }
}
