//! Heat diffusion on the CPU.

use crate::buffer::View;
use crate::cpu::graph::{store_opt, values};
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64};
use crate::error::Result;
use crate::ops::mesh::*;

const OP: &str = "diffusion_conv";

/// More steps than that give NaN, as on devices.
const MAX_STEPS: f64 = 65_536.0;

/// The operator in f64.
struct Surface {
    phi: Vec<f64>,
    lam: Vec<f64>,
    mass: Vec<f64>,
    laplacian: Vec<f64>,
}

/// Element (r, c) of a matrix with `cols` columns, or of its transpose.
fn matvec(l: &[f64], transpose: bool, x: &[f64]) -> Result<Vec<f64>> {
    let n = x.len();
    let at = |r: usize, c: usize| if transpose { l[c * n + r] } else { l[r * n + c] };
    (0..n).map(|r| (0..n).map(|c| at(r, c) * x[c]).sum()).try_vec()
}

/// exp(-t L) x or exp(-t L^T) x: a Taylor series of degree 20 in steps of norm 1/2.
fn flow(l: &[f64], transpose: bool, t: f64, x: &[f64]) -> Result<Vec<f64>> {
    let n = x.len();
    let rows = (0..n).map(|r| (0..n).map(|c| l[r * n + c].abs()).sum::<f64>());
    let norm = rows.fold(0.0, |a: f64, b| if b.is_nan() || b > a { b } else { a });
    let most = t.abs() * norm;
    let fits = most <= MAX_STEPS;
    if !fits {
        return filled(n, f64::NAN);
    }
    let steps = (2.0 * most).ceil().max(1.0);
    let mut h = x.try_to_vec()?;
    for _ in 0..steps as usize {
        let mut term = h.try_to_vec()?;
        for k in 1..=20 {
            term = matvec(l, transpose, &term)?.iter().map(|v| -t / steps / f64::from(k) * v).try_vec()?;
            h.iter_mut().zip(&term).for_each(|(h, v)| *h += v);
        }
    }
    Ok(h)
}

impl Surface {
    fn new(operator: &DiffusionOperator<'_>) -> Result<Self> {
        Ok(match *operator {
            DiffusionOperator::Eigen { phi, lam, mass } => Surface {
                phi: gather_f64(OP, phi)?,
                lam: gather_f64(OP, lam)?,
                mass: values(OP, &mass)?,
                laplacian: Vec::new(),
            },
            DiffusionOperator::Direct { laplacian } => Surface {
                phi: Vec::new(),
                lam: Vec::new(),
                mass: Vec::new(),
                laplacian: gather_f64(OP, laplacian)?,
            },
        })
    }

    fn mass(&self, v: usize) -> f64 {
        self.mass.get(v).copied().unwrap_or(1.0)
    }

    /// Phi^T x, weighted by the mass where `weighted`.
    fn analyse(&self, x: &[f64], weighted: bool) -> Result<Vec<f64>> {
        let k = self.lam.len();
        let mut out = filled(k, 0.0)?;
        for (v, x) in x.iter().enumerate() {
            let w = if weighted { self.mass(v) } else { 1.0 };
            (0..k).for_each(|i| out[i] += self.phi[v * k + i] * (w * x));
        }
        Ok(out)
    }

    /// One column diffused for a time, or the adjoint of that.
    fn diffuse(&self, adjoint: bool, t: f64, x: &[f64], eigen: bool) -> Result<Vec<f64>> {
        if !eigen {
            return flow(&self.laplacian, adjoint, t, x);
        }
        let k = self.lam.len();
        let mut s = self.analyse(x, !adjoint)?;
        s.iter_mut().zip(&self.lam).for_each(|(s, l)| *s *= (-l * t).exp());
        let at = |v: usize| (0..k).map(|i| self.phi[v * k + i] * s[i]).sum::<f64>();
        (0..x.len()).map(|v| at(v) * if adjoint { self.mass(v) } else { 1.0 }).try_vec()
    }

    /// - <g, d/dt of the diffused column>, h being that column.
    fn time_slope(&self, t: f64, x: &[f64], h: &[f64], g: &[f64], eigen: bool) -> Result<f64> {
        if !eigen {
            return Ok(-matvec(&self.laplacian, false, h)?.iter().zip(g).map(|(a, b)| a * b).sum::<f64>());
        }
        let (s, g) = (self.analyse(x, true)?, self.analyse(g, false)?);
        let term = |i: usize| -self.lam[i] * (-self.lam[i] * t).exp() * s[i] * g[i];
        Ok((0..s.len()).map(term).sum())
    }
}

/// Column c of batch b of [batch, nodes, columns].
fn column(x: &[f64], b: usize, c: usize, nodes: usize, columns: usize) -> Result<Vec<f64>> {
    (0..nodes).map(|v| x[(b * nodes + v) * columns + c]).try_vec()
}

fn time(s: &DiffusionShape, t: &[f64], scale: usize, c: usize) -> f64 {
    t[if s.per_channel { scale * s.channels + c } else { scale }]
}

/// All scales side by side: [batch, nodes, S * C].
fn features(s: &DiffusionShape, surface: &Surface, eigen: bool, x: &[f64], t: &[f64]) -> Result<Vec<f64>> {
    let sc = s.scales * s.channels;
    let mut out = filled(s.batch * s.nodes * sc, 0.0)?;
    for (b, j) in (0..s.batch).flat_map(|b| (0..sc).map(move |j| (b, j))) {
        let (scale, c) = (j / s.channels, j % s.channels);
        let x = column(x, b, c, s.nodes, s.channels)?;
        let h = surface.diffuse(false, time(s, t, scale, c), &x, eigen)?;
        h.iter().enumerate().for_each(|(v, h)| out[(b * s.nodes + v) * sc + j] = *h);
    }
    Ok(out)
}

fn eigen(operator: &DiffusionOperator<'_>) -> bool {
    matches!(operator, DiffusionOperator::Eigen { .. })
}

impl DiffusionOps for Kernels {
    fn diffusion_conv(&self, io: Diffusion<'_>) -> Result<()> {
        let s = check_diffusion(&io)?;
        let _timed = self.count("diffusion_conv");
        let surface = Surface::new(&io.operator)?;
        let load = |v: View<'_>| gather_f64(OP, v);
        let (x, t, w, bias) = (load(io.x)?, load(io.t)?, load(io.w)?, values(OP, &io.b)?);
        let sc = s.scales * s.channels;
        let h = features(&s, &surface, eigen(&io.operator), &x, &t)?;
        let mut y = filled(s.batch * s.nodes * s.outputs, 0.0)?;
        for (i, y) in y.iter_mut().enumerate() {
            let (row, o) = (i / s.outputs, i % s.outputs);
            let dot: f64 = (0..sc).map(|j| h[row * sc + j] * w[o * sc + j]).sum();
            *y = dot + bias.get(o).copied().unwrap_or(0.0);
        }
        store_f64(OP, &io.y, &y)?;
        let Some(out) = &io.s_hat else { return Ok(()) };
        let mut s_hat = filled(s.batch * s.comps * s.channels, 0.0)?;
        for (b, c) in (0..s.batch).flat_map(|b| (0..s.channels).map(move |c| (b, c))) {
            let k = surface.analyse(&column(&x, b, c, s.nodes, s.channels)?, true)?;
            k.iter().enumerate().for_each(|(i, k)| s_hat[(b * s.comps + i) * s.channels + c] = *k);
        }
        store_f64(OP, out, &s_hat)
    }

    fn diffusion_conv_bwd(&self, io: DiffusionBwd<'_>) -> Result<()> {
        let s = check_diffusion_bwd(&io)?;
        let _timed = self.count("diffusion_conv_bwd");
        let surface = Surface::new(&io.operator)?;
        let load = |v: View<'_>| gather_f64(OP, v);
        let (dy, x, t, w) = (load(io.dy)?, load(io.x)?, load(io.t)?, load(io.w)?);
        let eigen = eigen(&io.operator);
        let (sc, rows) = (s.scales * s.channels, s.batch * s.nodes);
        let h = features(&s, &surface, eigen, &x, &t)?;
        let (mut dw, mut db, mut dh) =
            (filled(w.len(), 0.0)?, filled(s.outputs, 0.0)?, filled(rows * sc, 0.0)?);
        for (r, o) in (0..rows).flat_map(|r| (0..s.outputs).map(move |o| (r, o))) {
            let g = dy[r * s.outputs + o];
            db[o] += g;
            for j in 0..sc {
                dw[o * sc + j] += g * h[r * sc + j];
                dh[r * sc + j] += g * w[o * sc + j];
            }
        }
        let (mut dx, mut dt) = (filled(x.len(), 0.0)?, filled(t.len(), 0.0)?);
        for (b, j) in (0..s.batch).flat_map(|b| (0..sc).map(move |j| (b, j))) {
            let (scale, c) = (j / s.channels, j % s.channels);
            let at = time(&s, &t, scale, c);
            let g = column(&dh, b, j, s.nodes, sc)?;
            let (xc, hc) = (column(&x, b, c, s.nodes, s.channels)?, column(&h, b, j, s.nodes, sc)?);
            dt[if s.per_channel { j } else { scale }] += surface.time_slope(at, &xc, &hc, &g, eigen)?;
            let back = surface.diffuse(true, at, &g, eigen)?;
            back.iter().enumerate().for_each(|(v, g)| dx[(b * s.nodes + v) * s.channels + c] += g);
        }
        store_opt(OP, &io.dx, &dx)?;
        store_opt(OP, &io.dt, &dt)?;
        store_opt(OP, &io.dw, &dw)?;
        store_opt(OP, &io.db, &db)
    }
}
