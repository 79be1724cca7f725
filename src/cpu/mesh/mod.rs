//! Meshes on the CPU.

pub(super) mod diffusion;
mod pool;

use crate::buffer::{View, ViewMut};
use crate::cpu::graph::csr::{counting_sort, signed_ids};
use crate::cpu::graph::{store_ids, store_opt, values};
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64};
use crate::error::Result;
use crate::ops::mesh::*;

/// Neighbours of the elements; absent ones are `None`.
type Lists = Vec<Vec<Option<usize>>>;

impl Kernels {
    fn lists(&self, op: &'static str, list: View<'_>) -> Result<Lists> {
        let (n, ways) = (list.shape()[0], list.shape()[1]);
        let ids = signed_ids(op, list)?;
        if ids.iter().any(|&i| i < -1 || i >= n as i64) {
            self.flag_index_error(op);
        }
        let one = |&i: &i64| usize::try_from(i).ok().filter(|&i| i < n);
        (0..n).map(|e| ids[e * ways..(e + 1) * ways].iter().map(one).try_vec()).try_vec_ok()
    }
}

/// The features of one element of a mesh whose rows start at `base`: blocks of C columns.
fn features(kind: MeshConv, m: &MeshShape, x: &[f64], e: usize, list: &[Option<usize>]) -> Result<Vec<f64>> {
    let c = m.channels;
    let row = |i: Option<usize>, k: usize| i.map_or(0.0, |i| x[i * c + k]);
    let mut f = with_capacity(m.blocks * c)?;
    if kind != MeshConv::Spiral {
        f.try_extend((0..c).map(|k| row(Some(e), k)))?;
    }
    if kind == MeshConv::Symmetric {
        for (p, q) in [(list[0], list[2]), (list[1], list[3])] {
            f.try_extend((0..c).map(|k| (row(p, k) - row(q, k)).abs()))?;
            f.try_extend((0..c).map(|k| row(p, k) + row(q, k)))?;
        }
    } else {
        list.iter().try_for_each(|&i| f.try_extend((0..c).map(|k| row(i, k))))?;
    }
    Ok(f)
}

/// -1, 0 or 1; NaN stays.
fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x.abs() } else { x.signum() }
}

impl MeshOps for Kernels {
    fn mesh_conv(&self, kind: MeshConv, io: MeshIo<'_>) -> Result<()> {
        const OP: &str = "mesh_conv";
        let m = check_mesh_conv(kind, &io)?;
        let _timed = self.count("mesh_conv");
        let lists = self.lists(OP, io.list)?;
        let (x, w, b) = (gather_f64(OP, io.x)?, gather_f64(OP, io.w)?, values(OP, &io.b)?);
        let mut y = with_capacity(io.y.numel())?;
        for mesh in 0..m.batch {
            let x = &x[mesh * m.elements * m.channels..];
            for (e, list) in lists.iter().enumerate() {
                let f = features(kind, &m, x, e, list)?;
                y.try_extend((0..m.outputs).map(|o| {
                    let w = &w[o * f.len()..(o + 1) * f.len()];
                    f.iter().zip(w).map(|(a, b)| a * b).sum::<f64>() + b.get(o).copied().unwrap_or(0.0)
                }))?;
            }
        }
        store_f64(OP, &io.y, &y)
    }

    fn mesh_conv_bwd(&self, kind: MeshConv, io: MeshBwd<'_>) -> Result<()> {
        const OP: &str = "mesh_conv_bwd";
        let m = check_mesh_conv_bwd(kind, &io)?;
        let _timed = self.count("mesh_conv_bwd");
        let lists = self.lists(OP, io.list)?;
        let (dy, x, w) = (gather_f64(OP, io.dy)?, gather_f64(OP, io.x)?, gather_f64(OP, io.w)?);
        let (mut dx, mut dw, mut db) =
            (filled(x.len(), 0.0)?, filled(w.len(), 0.0)?, filled(m.outputs, 0.0)?);
        let c = m.channels;
        for mesh in 0..m.batch {
            let base = mesh * m.elements * c;
            for (e, list) in lists.iter().enumerate() {
                let f = features(kind, &m, &x[base..], e, list)?;
                let n = f.len();
                let dy = &dy[(mesh * m.elements + e) * m.outputs..][..m.outputs];
                let mut df = filled(n, 0.0)?;
                for (o, g) in dy.iter().enumerate() {
                    db[o] += g;
                    for k in 0..n {
                        dw[o * n + k] += g * f[k];
                        df[k] += g * w[o * n + k];
                    }
                }
                let mut add = |i: Option<usize>, block: usize, k: usize, factor: f64| {
                    if let Some(i) = i {
                        dx[base + i * c + k] += factor * df[block * c + k];
                    }
                };
                let at = |i: Option<usize>, k: usize| i.map_or(0.0, |i| x[base + i * c + k]);
                for k in 0..c {
                    if kind.with_self() {
                        add(Some(e), 0, k, 1.0);
                    }
                    if kind != MeshConv::Symmetric {
                        let first = kind.with_self() as usize;
                        list.iter().enumerate().for_each(|(j, &i)| add(i, first + j, k, 1.0));
                        continue;
                    }
                    for half in 0..2 {
                        let (p, q) = (list[half], list[half + 2]);
                        let s = sign(at(p, k) - at(q, k));
                        for (i, s) in [(p, s), (q, -s)] {
                            add(i, 1 + 2 * half, k, s);
                            add(i, 2 + 2 * half, k, 1.0);
                        }
                    }
                }
            }
        }
        store_opt(OP, &io.dx, &dx)?;
        store_opt(OP, &io.dw, &dw)?;
        store_opt(OP, &io.db, &db)
    }

    fn mesh_plan(
        &self,
        kind: MeshConv,
        list: View<'_>,
        rowptr: ViewMut<'_>,
        perm: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "mesh_plan";
        let (n, _) = check_mesh_plan(kind, &list, &rowptr, &perm)?;
        let _timed = self.count("mesh_plan");
        let own = |e: usize| kind.with_self().then_some(Some(e));
        let lists = self.lists(OP, list)?;
        let all: Vec<Option<usize>> =
            lists.into_iter().enumerate().flat_map(|(e, l)| own(e).into_iter().chain(l)).try_vec()?;
        let (offsets, order) = counting_sort(&all, n)?;
        store_ids(OP, &Some(rowptr), &offsets)?;
        store_ids(OP, &Some(perm), &order.iter().map(|&i| i as i64).try_vec()?)
    }
}
