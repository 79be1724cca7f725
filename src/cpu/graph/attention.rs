//! Softmax over edges and graph attention on the CPU, written out from their definitions.

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::graph::store_opt;
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::graph::*;

/// Softmax of [E, columns] over the edges of each node, with the logarithm of the sums.
fn softmax(dst: &[Option<usize>], nodes: usize, columns: usize, l: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
    let cells = || {
        let here = dst.iter().enumerate().filter_map(|(e, v)| v.map(|v| (e, v)));
        here.flat_map(|(e, v)| (0..columns).map(move |c| (e * columns + c, v * columns + c)))
    };
    let mut top = filled(nodes * columns, f64::NEG_INFINITY)?;
    for (i, v) in cells() {
        top[v] = if l[i].is_nan() || l[i] > top[v] { l[i] } else { top[v] };
    }
    let mut sum = filled(nodes * columns, 0.0)?;
    cells().for_each(|(i, v)| sum[v] += (l[i] - top[v]).exp());
    let mut a = filled(l.len(), 0.0)?;
    cells().for_each(|(i, v)| a[i] = (l[i] - top[v]).exp() / sum[v]);
    let lse = |(t, s): (&f64, &f64)| if *t == f64::NEG_INFINITY { *t } else { t + s.ln() };
    Ok((a, top.iter().zip(&sum).map(lse).try_vec()?))
}

fn leaky(z: f64, slope: f64) -> f64 {
    if z > 0.0 || z.is_nan() { z } else { slope * z }
}

/// Edges of which both ends exist.
fn both_ends(src: &[Option<usize>], dst: &[Option<usize>]) -> Result<Vec<Option<(usize, usize)>>> {
    src.iter().zip(dst).map(|(u, v)| u.zip(*v)).try_vec()
}

impl GraphAttentionOps for Kernels {
    fn edge_softmax(
        &self,
        nodes: usize,
        dst: View<'_>,
        groups: Option<EdgeGroups<'_>>,
        logits: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "edge_softmax";
        let (_, columns) = check_edge_softmax(OP, nodes, &dst, &groups, &[("logits", logits)], ("y", &y))?;
        let _timed = self.count("edge_softmax");
        let dst = self.nodes(OP, dst, nodes)?;
        store_f64(OP, &y, &softmax(&dst, nodes, columns, &gather_f64(OP, logits)?)?.0)
    }

    fn edge_softmax_bwd(
        &self,
        nodes: usize,
        dst: View<'_>,
        groups: Option<EdgeGroups<'_>>,
        dy: View<'_>,
        y: View<'_>,
        dlogits: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "edge_softmax_bwd";
        let given = [("dy", dy), ("y", y)];
        let (_, columns) = check_edge_softmax(OP, nodes, &dst, &groups, &given, ("dlogits", &dlogits.out))?;
        let _timed = self.count("edge_softmax_bwd");
        let dst = self.nodes(OP, dst, nodes)?;
        let (dy, y) = (gather_f64(OP, dy)?, gather_f64(OP, y)?);
        let mut sum = filled(nodes * columns, 0.0)?;
        for (i, (g, a)) in dy.iter().zip(&y).enumerate() {
            if let Some(v) = dst[i / columns] {
                sum[v * columns + i % columns] += g * a;
            }
        }
        let d = |i: usize| dst[i / columns].map_or(0.0, |v| y[i] * (dy[i] - sum[v * columns + i % columns]));
        store_grad(OP, &dlogits, &(0..y.len()).map(d).try_vec()?)
    }

    fn gat(&self, slope: f64, io: Gat<'_>) -> Result<()> {
        const OP: &str = "gat";
        let s = check_gat(slope, &io)?;
        let _timed = self.count("gat");
        let (src, dst) = (self.nodes(OP, io.src, s.sources)?, self.nodes(OP, io.dst, s.targets)?);
        let (x, su, sv) =
            (gather_f64(OP, io.x)?, gather_f64(OP, io.score_src)?, gather_f64(OP, io.score_dst)?);
        let both = both_ends(&src, &dst)?;
        let h = s.heads;
        let logits: Vec<f64> = (0..s.edges * h)
            .map(|i| both[i / h].map_or(0.0, |(u, v)| leaky(su[u * h + i % h] + sv[v * h + i % h], slope)))
            .try_vec()?;
        let dst: Vec<_> = both.iter().map(|b| b.map(|b| b.1)).try_vec()?;
        let (a, mut lse) = softmax(&dst, s.targets, h, &logits)?;
        let mut y = filled(s.targets * h * s.features, 0.0)?;
        let mut met = filled(s.targets, false)?;
        for (e, (u, v)) in both.iter().enumerate().filter_map(|(e, b)| b.map(|b| (e, b))) {
            met[v] = true;
            for c in 0..h * s.features {
                y[v * h * s.features + c] += a[e * h + c / s.features] * x[u * h * s.features + c];
            }
        }
        lse.iter_mut().enumerate().filter(|(i, _)| !met[i / h]).for_each(|(_, l)| *l = 0.0);
        if let Some(out) = &io.lse {
            store_f64(OP, out, &lse)?;
        }
        store_f64(OP, &io.y, &y)
    }

    fn gat_bwd(&self, slope: f64, io: GatBwd<'_>) -> Result<()> {
        const OP: &str = "gat_bwd";
        let s = check_gat_bwd(slope, &io)?;
        let _timed = self.count("gat_bwd");
        let (src, dst) = (self.nodes(OP, io.src, s.sources)?, self.nodes(OP, io.dst, s.targets)?);
        let (x, dy) = (gather_f64(OP, io.x)?, gather_f64(OP, io.dy)?);
        let (su, sv) = (gather_f64(OP, io.score_src)?, gather_f64(OP, io.score_dst)?);
        let both = both_ends(&src, &dst)?;
        let (h, f) = (s.heads, s.features);
        let z = |u: usize, v: usize, k: usize| su[u * h + k] + sv[v * h + k];
        let logits: Vec<f64> = (0..s.edges * h)
            .map(|i| both[i / h].map_or(0.0, |(u, v)| leaky(z(u, v, i % h), slope)))
            .try_vec()?;
        let dst: Vec<_> = both.iter().map(|b| b.map(|b| b.1)).try_vec()?;
        let (a, _) = softmax(&dst, s.targets, h, &logits)?;
        let edges = || both.iter().enumerate().filter_map(|(e, b)| b.map(|(u, v)| (e, u, v)));
        let (mut dx, mut da, mut sum) =
            (filled(x.len(), 0.0)?, filled(a.len(), 0.0)?, filled(s.targets * h, 0.0)?);
        for (e, u, v) in edges() {
            for k in 0..h {
                let rows = ((u * h + k) * f, (v * h + k) * f);
                for c in 0..f {
                    da[e * h + k] += dy[rows.1 + c] * x[rows.0 + c];
                    dx[rows.0 + c] += a[e * h + k] * dy[rows.1 + c];
                }
                sum[v * h + k] += a[e * h + k] * da[e * h + k];
            }
        }
        let (mut du, mut dv) = (filled(su.len(), 0.0)?, filled(sv.len(), 0.0)?);
        for (e, u, v) in edges() {
            for k in 0..h {
                let g = a[e * h + k] * (da[e * h + k] - sum[v * h + k]);
                let g = if z(u, v, k) > 0.0 { g } else { slope * g };
                du[u * h + k] += g;
                dv[v * h + k] += g;
            }
        }
        store_opt(OP, &io.dx, &dx)?;
        store_opt(OP, &io.dscore_src, &du)?;
        store_opt(OP, &io.dscore_dst, &dv)
    }
}
