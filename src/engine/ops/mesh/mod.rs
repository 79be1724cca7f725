//! Meshes: features side by side in scratch memory, then one product.

pub(super) mod diffusion;
mod pool;

use crate::buffer::{Buffer, View, ViewMut};
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ, code_of_op};
use crate::engine::ops::graph::aggregate::{Aggregate, Red, To, grad_view, wide_rows};
use crate::engine::ops::graph::csr::Edges;
use crate::engine::ops::graph::plan::{NodePlan, NodeProblem};
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::ops::elementwise::ElementwiseOps;
use crate::ops::gemm::{Gemm, GemmIo, GemmOps};
use crate::ops::graph::EdgeGroups;
use crate::ops::mesh::*;
use crate::ops::reduce::ReduceOps;
use crate::ops::shape::ShapeOps;
use crate::spec::BLOCK;
use crate::spec::kernels::mesh::*;

fn mode(kind: MeshConv) -> i32 {
    match kind {
        MeshConv::Concat => 0,
        MeshConv::Symmetric => 1,
        MeshConv::Spiral => 2,
    }
}

/// The plan over elements whose rows are those of x.
fn nodes(m: &MeshShape, x: &View<'_>) -> NodePlan {
    let (dtype, columns) = (x.dtype(), m.channels);
    NodeProblem { dtype, columns, edges: 0, wide: wide_rows(dtype, columns, [*x]) }.whole()
}

fn grid(m: &MeshShape, w: &NodePlan) -> Grid {
    let rows = m.elements.div_ceil(BLOCK as usize / w.lanes);
    Grid::Blocks([rows, w.vecs.div_ceil(w.lanes), m.batch.min(MAX_GRID_YZ)])
}

impl Engine {
    /// The features of every element side by side: [B * N, blocks * C].
    fn mesh_features(
        &self,
        op: &'static str,
        kind: MeshConv,
        m: &MeshShape,
        x: &View<'_>,
        list: &View<'_>,
    ) -> Result<Buffer> {
        let dt = x.dtype();
        let f = self.scratch(dt, m.batch * m.elements * m.blocks * m.channels)?;
        let w = nodes(m, x);
        let args = MeshGatherArgs {
            x: self.arg_in(x),
            list: self.arg_in(list),
            f: self.arg_in(&f.view()),
            err: self.arg_error(),
            elements: m.elements as i64,
            width: m.channels as i64,
            ways: m.ways as i32,
            batch: m.batch as i64,
            mode: mode(kind),
            lanes: w.lanes as i32,
            wide_index: wide_index(list),
            wide: i32::from(w.wide),
            code: code_of_op(op),
        };
        self.launch(&MESH_GATHER, dt, "", grid(m, &w), &args)?;
        Ok(f)
    }

    fn make_mesh_plan(
        &self,
        op: &'static str,
        kind: MeshConv,
        list: &View<'_>,
        rowptr: &View<'_>,
        perm: &View<'_>,
    ) -> Result<()> {
        if !kind.with_self() {
            return self.inverse_list(op, list, rowptr, perm);
        }
        let (n, ways) = (list.shape()[0], list.shape()[1]);
        let (own, all) = (self.scratch(list.dtype(), n)?, self.scratch(list.dtype(), n * (ways + 1))?);
        self.arange(0.0, 1.0, own.alias_mut())?;
        let parts = [own.shaped(&[n, 1])?, *list];
        self.concat(1, &parts, all.alias_mut().reshape(&[n, ways + 1])?)?;
        self.inverse_list(op, &all.view(), rowptr, perm)
    }

    /// The gradients of the symmetric features become those of the element and its four neighbours.
    fn mesh_unfold(&self, m: &MeshShape, io: &MeshBwd<'_>, df: &Buffer) -> Result<()> {
        let dt = io.x.dtype();
        let w = nodes(m, &io.x);
        let args = MeshUnfoldArgs {
            x: self.arg_in(&io.x),
            list: self.arg_in(&io.list),
            df: self.arg_in(&df.view()),
            err: self.arg_error(),
            elements: m.elements as i64,
            width: m.channels as i64,
            batch: m.batch as i64,
            lanes: w.lanes as i32,
            wide_index: wide_index(&io.list),
            wide: i32::from(w.wide),
            code: code_of_op("mesh_conv_bwd"),
        };
        self.launch(&MESH_UNFOLD, dt, "", grid(m, &w), &args)
    }
}

impl MeshOps for Engine {
    fn mesh_conv(&self, kind: MeshConv, io: MeshIo<'_>) -> Result<()> {
        const OP: &str = "mesh_conv";
        let m = check_mesh_conv(kind, &io)?;
        let views = [
            ("x", Some(io.x)),
            ("list", Some(io.list)),
            ("w", Some(io.w)),
            ("b", io.b),
            ("y", Some(io.y.as_view())),
        ];
        self.check_owner_all(OP, &views)?;
        let rows = m.batch * m.elements;
        let f = self.mesh_features(OP, kind, &m, &io.x, &io.list)?;
        let y = io.y.reshape(&[rows, m.outputs])?;
        let product =
            GemmIo { bias: io.b, ..GemmIo::new(f.shaped(&[rows, m.blocks * m.channels])?, io.w, y) };
        self.gemm(&Gemm::new().trans(false, true), product)
    }

    fn mesh_conv_bwd(&self, kind: MeshConv, mut io: MeshBwd<'_>) -> Result<()> {
        const OP: &str = "mesh_conv_bwd";
        let m = check_mesh_conv_bwd(kind, &io)?;
        let views = [
            ("dy", Some(io.dy)),
            ("x", Some(io.x)),
            ("list", Some(io.list)),
            ("w", Some(io.w)),
            ("dx", grad_view(&io.dx)),
            ("dw", grad_view(&io.dw)),
            ("db", grad_view(&io.db)),
        ];
        self.own_graph(OP, &views, &[&io.plan])?;
        let (dt, rows, width) = (io.x.dtype(), m.batch * m.elements, m.blocks * m.channels);
        let dy = io.dy.reshape(&[rows, m.outputs])?;
        if let Some(g) = io.dx.take() {
            // In f32 for 16-bit data too: terms are not rounded before they are summed over the places of an element.
            let real = dt.accumulator();
            let df = self.scratch(real, rows * width)?;
            self.gemm(&Gemm::new(), GemmIo::new(dy, io.w, df.alias_mut().reshape(&[rows, width])?))?;
            if kind == MeshConv::Symmetric {
                self.mesh_unfold(&m, &io, &df)?;
            }
            let places = m.elements * (m.ways + kind.with_self() as usize);
            let made;
            let plan = match io.plan {
                Some(p) => p,
                None => {
                    let new = |n| self.scratch(io.list.dtype(), n);
                    made = (new(m.elements + 1)?, new(places)?);
                    self.make_mesh_plan(OP, kind, &io.list, &made.0.view(), &made.1.view())?;
                    EdgeGroups::new(made.0.view()).perm(made.1.view())
                }
            };
            let edges = Edges::given(&EdgeGroups { col: None, ..plan }, m.elements, places, false);
            let p = Aggregate::new(OP, real, &edges, m.elements, m.channels).at_edges(df.view());
            let p = Aggregate { outer: m.batch, ..p };
            if dt == real {
                self.aggregate(&p, Red::Sum, To::Tensor(g.out.as_view(), g.accumulate))?;
            } else {
                let sums = self.scratch(real, g.out.numel())?;
                if g.accumulate {
                    self.cast(g.out.as_view(), sums.alias_mut().reshape(g.out.shape())?)?;
                }
                self.aggregate(&p, Red::Sum, To::Tensor(sums.view(), g.accumulate))?;
                self.cast(sums.shaped(g.out.shape())?, g.out)?;
            }
        }
        if let Some(g) = io.dw {
            let f = self.mesh_features(OP, kind, &m, &io.x, &io.list)?;
            let beta = if g.accumulate { 1.0 } else { 0.0 };
            let c = Some(g.out.as_view()).filter(|_| g.accumulate);
            let product = GemmIo { c, ..GemmIo::new(dy, f.shaped(&[rows, width])?, g.out) };
            self.gemm(&Gemm::new().trans(true, false).scaled(1.0, beta), product)?;
        }
        match io.db {
            Some(g) => self.sum_to_shape(dy, g),
            None => Ok(()),
        }
    }

    fn mesh_plan(
        &self,
        kind: MeshConv,
        list: View<'_>,
        rowptr: ViewMut<'_>,
        perm: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "mesh_plan";
        check_mesh_plan(kind, &list, &rowptr, &perm)?;
        let (rowptr, perm) = (rowptr.as_view(), perm.as_view());
        self.check_owner_all(OP, &[("list", list), ("rowptr", rowptr), ("perm", perm)])?;
        self.make_mesh_plan(OP, kind, &list, &rowptr, &perm)
    }
}
