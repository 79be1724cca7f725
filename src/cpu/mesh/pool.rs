//! Pooling of the elements of a mesh by scores, in f64.

use std::cmp::Ordering;

use crate::cpu::graph::csr::signed_ids;
use crate::cpu::graph::store_ids;
use crate::cpu::scratch::*;
use crate::cpu::values::sort_positions;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::mesh::*;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The order of falling scores, NaN first.
fn falling(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
        (a, b) => b.cmp(&a),
    }
}

fn softmax(s: &[f64]) -> Result<Vec<f64>> {
    let most = s.iter().fold(f64::NEG_INFINITY, |m, &s| if s > m || s.is_nan() { s } else { m });
    let powers: Vec<f64> = s.iter().map(|s| (s - most).exp()).try_vec()?;
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).try_vec()
}

impl MeshPoolOps for Kernels {
    fn mesh_pool(&self, temperature: f64, io: MeshPoolIo<'_>) -> Result<()> {
        const OP: &str = "mesh_pool";
        let n = check_mesh_pool(temperature, &io)?;
        let _timed = self.count(OP);
        let (x, w) = (gather_f64(OP, io.x)?, gather_f64(OP, io.w)?);
        let row = |e: usize| &x[e * n.channels..][..n.channels];
        let scores: Vec<f64> = (0..n.elements).map(|e| dot(row(e), &w) / temperature).try_vec()?;
        let share = softmax(&scores)?;
        let mut order: Vec<usize> = (0..n.elements).try_vec()?;
        sort_positions(&mut order, &|a, b| falling(scores[a], scores[b]).then(a.cmp(&b)));
        order.truncate(n.kept);
        let mut y = with_capacity(n.kept * n.channels)?;
        for &e in &order {
            y.try_extend(row(e).iter().map(|x| share[e] * x))?;
        }
        store_f64(OP, &io.y, &y)?;
        store_f64(OP, &io.share, &share)?;
        store_ids(OP, &Some(io.kept), &order.iter().map(|&e| e as i64).try_vec()?)
    }

    fn mesh_pool_bwd(&self, temperature: f64, io: MeshPoolBwd<'_>) -> Result<()> {
        const OP: &str = "mesh_pool_bwd";
        let n = check_mesh_pool_bwd(temperature, &io)?;
        let _timed = self.count(OP);
        let (dy, x, w) = (gather_f64(OP, io.dy)?, gather_f64(OP, io.x)?, gather_f64(OP, io.w)?);
        let (share, c) = (gather_f64(OP, io.share)?, n.channels);
        let (mut dshare, mut dx) = (filled(n.elements, 0.0)?, filled(x.len(), 0.0)?);
        for (j, e) in signed_ids(OP, io.kept)?.into_iter().enumerate() {
            let Some(e) = usize::try_from(e).ok().filter(|&e| e < n.elements) else {
                self.flag_index_error(OP);
                continue;
            };
            let dy = &dy[j * c..][..c];
            dshare[e] = dot(dy, &x[e * c..][..c]);
            dx[e * c..][..c].iter_mut().zip(dy).for_each(|(d, g)| *d = share[e] * g);
        }
        let mean = dot(&dshare, &share);
        let mut dw = filled(c, 0.0)?;
        for e in 0..n.elements {
            let ds = share[e] * (dshare[e] - mean) / temperature;
            for k in 0..c {
                dx[e * c + k] += ds * w[k];
                dw[k] += ds * x[e * c + k];
            }
        }
        io.dx.map_or(Ok(()), |g| store_grad(OP, &g, &dx))?;
        io.dw.map_or(Ok(()), |g| store_grad(OP, &g, &dw))
    }
}
