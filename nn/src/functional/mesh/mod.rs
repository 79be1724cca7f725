//! Convolution on meshes, and heat diffusion on surfaces.

mod pool;
mod triangles;

use std::collections::HashMap;
use std::sync::Arc;

use trefoil::ops::graph::EdgeGroups;
use trefoil::ops::mesh::{Diffusion, DiffusionBwd, DiffusionOperator, MeshBwd, MeshConv, MeshIo};

use crate::core::autograd::{BackwardCtx, Saved, grad_enabled, out};
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Device, Operand, Tensor, same_device, same_dtype};
use crate::functional::index::range::{check_index, check_range};
use crate::functional::operand::{Inputs, operand, save, saved, view, view_mut, whole};

pub use self::triangles::{LaplacianWeights, TriangleMesh};

const OP: &str = "Mesh";

#[derive(Debug)]
struct Lists {
    kind: MeshConv,
    list: Tensor,
    rowptr: Tensor,
    perm: Tensor,
    edges: Option<Tensor>,
}

/// The elements (edges or vertices) of a mesh on a device with the list of neighbours that a convolution sees of each, and where each element
/// occurs in that list, sorted once at construction. Clones share it.
#[derive(Debug, Clone)]
pub struct Mesh {
    lists: Arc<Lists>,
}

impl Mesh {
    /// From the neighbours of each of N elements, i32 or i64 `[N, n]`, -1 for none: of edges for [`MeshConv::Concat`] and
    /// [`MeshConv::Symmetric`] (n = 4), the spiral of each vertex, which begins with it, for [`MeshConv::Spiral`]. Waits for the device
    /// once, to examine them. Errors: `Invalid` for other dtypes and shapes; [`NnError::OutOfRange`] with the first neighbour that is
    /// neither -1 nor an element.
    pub fn new(kind: MeshConv, neighbors: &Tensor) -> Result<Mesh> {
        check_index(OP, "neighbors", neighbors)?;
        let &[elements, ways] = neighbors.shape() else {
            return Err(invalid(OP, "neighbors", "shape [N, n]", format!("{:?}", neighbors.shape())));
        };
        let place = |at: usize| format!("row {}, position {}", at / ways.max(1), at % ways.max(1));
        check_range(OP, neighbors, elements, Some(-1), place)?;
        Self::build(kind, neighbors.detach().copy()?, None)
    }

    /// The edges of a mesh of triangles, each three of `vertices` vertices: an edge is an unordered pair of vertices, numbered by its first
    /// appearance, the edges of a face being those of its corners 0 and 1, 1 and 2, 2 and 0. The neighbours of an edge are the next and
    /// next but one edges of its first face, then those of its second, -1 where there is none; convolution is [`MeshConv::Symmetric`].
    /// Source MeshCNN (Hanocka et al., 2019). Errors: `Invalid` for a face with a repeated vertex and for an edge of three faces;
    /// [`NnError::OutOfRange`] for a vertex that the mesh does not have.
    pub fn from_faces(device: &Device, vertices: usize, faces: &[[usize; 3]]) -> Result<Mesh> {
        let (ends, neighbors) = edges_of(vertices, faces)?;
        let edges = Tensor::from_slice(device, &ends, &[ends.len() / 2, 2])?;
        let list = Tensor::from_slice(device, &neighbors, &[ends.len() / 2, 4])?;
        Self::build(MeshConv::Symmetric, list, Some(edges))
    }

    fn build(kind: MeshConv, list: Tensor, edges: Option<Tensor>) -> Result<Mesh> {
        let (device, n) = (list.device(), list.shape()[0]);
        let ways = list.shape()[1] + usize::from(kind != MeshConv::Spiral);
        let Some(places) = n.checked_mul(ways).filter(|&p| p < i32::MAX as usize) else {
            return Err(invalid(OP, "neighbors", "fewer than 2^31 places", format!("{:?}", list.shape())));
        };
        let make = |n: usize| Tensor::empty(device, list.dtype(), &[n]);
        let (rowptr, perm) = (make(n + 1)?, make(places)?);
        let (lo, ro, po) = (list.operand(), rowptr.operand(), perm.operand());
        device.mesh_plan(kind, lo.view()?, ro.view_mut()?, po.view_mut()?)?;
        Ok(Mesh { lists: Arc::new(Lists { kind, list, rowptr, perm, edges }) })
    }

    /// What a convolution sees of an element and its neighbours.
    pub fn kind(&self) -> MeshConv {
        self.lists.kind
    }

    /// The neighbours of each element, `[N, n]`.
    pub fn neighbors(&self) -> &Tensor {
        &self.lists.list
    }

    /// The vertices of each edge, i64 `[N, 2]`, where the mesh was made from faces.
    pub fn edges(&self) -> Option<&Tensor> {
        self.lists.edges.as_ref()
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.neighbors().shape()[0]
    }

    /// Blocks of channels that a convolution sees of each element: its weight is `[O, blocks * C]`.
    pub fn blocks(&self) -> usize {
        match self.kind() {
            MeshConv::Symmetric => 5,
            MeshConv::Spiral => self.neighbors().shape()[1],
            _ => self.neighbors().shape()[1] + 1,
        }
    }

    /// f W^T + b with the features f of each element and its neighbours, block by block: x `[N, C]` or `[B, N, C]`, weight `[O, blocks *
    /// C]`, bias `[O]`, floats `-> [N, O]` or `[B, N, O]`. A missing neighbour counts as zeros. The blocks of [`MeshConv::Symmetric`] are
    /// x, |a - c|, a + c, |b - d|, b + d. Source `F.linear` of indexed features; MeshCNN, SpiralNet++ (Gong et al., 2019). Errors:
    /// `Invalid` for shapes and dtypes that do not fit.
    pub fn conv(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        const OP: &str = "mesh_conv";
        for t in [Some(x), Some(weight), bias].into_iter().flatten() {
            same_device(OP, self.neighbors(), t)?;
        }
        same_dtype(OP, x, weight)?;
        let (x, w, b) = (x.contiguous()?, weight.contiguous()?, whole(bias)?);
        let Some((_, lead)) = x.shape().split_last() else {
            return Err(invalid(OP, "x", "shape [N, C] or [B, N, C]", "a scalar"));
        };
        let y = x.like(&[lead, &[w.shape().first().copied().unwrap_or(0)]].concat())?;
        let mut inputs = Inputs { list: vec![&x, &w] };
        let ib = inputs.push(b.as_ref());
        let (xo, lo, wo, yo) = (x.operand(), self.neighbors().operand(), w.operand(), y.operand());
        let bo = operand(b.as_ref());
        let mut io = MeshIo::new(xo.view()?, lo.view()?, wo.view()?, yo.view_mut()?);
        io.b = view(&bo)?;
        y.device().mesh_conv(self.kind(), io)?;
        Ok(y.record(OP, &inputs.list, || {
            let (mesh, x, w) = (self.clone(), Saved::new(&x), Saved::new(&w));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dw, db) = (cx.target(0)?, cx.target(1)?, cx.target(ib)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, w, dyo) = (x.get(cx)?.operand(), w.get(cx)?.operand(), dy.operand());
                let l = &*mesh.lists;
                let [list, rowptr, perm] = [&l.list, &l.rowptr, &l.perm].map(Tensor::operand);
                let plan = EdgeGroups::new(rowptr.view()?).perm(perm.view()?);
                let mut io = MeshBwd::new(dyo.view()?, x.view()?, list.view()?, w.view()?).plan(plan);
                (io.dx, io.dw, io.db) = (out(&dx)?, out(&dw)?, out(&db)?);
                Ok(dy.device().mesh_conv_bwd(l.kind, io)?)
            }
        }))
    }
}

/// Ends of the edges, two each, and their four neighbours, as [`Mesh::from_faces`] numbers them. Errors: as there.
pub(crate) fn edges_of(vertices: usize, faces: &[[usize; 3]]) -> Result<(Vec<i64>, Vec<i64>)> {
    let (mut numbers, mut ends, mut neighbors) = (HashMap::new(), vec![], vec![]);
    let mut filled: Vec<usize> = vec![];
    for (f, face) in faces.iter().enumerate() {
        if let Some((corner, &v)) = face.iter().enumerate().find(|(_, v)| **v >= vertices) {
            let (place, index) = (format!("face {f}, corner {corner}"), i64::try_from(v).unwrap_or(i64::MAX));
            return Err(NnError::OutOfRange { op: OP, place, index, limit: vertices });
        }
        let [a, b, c] = *face;
        if a == b || b == c || c == a {
            return Err(invalid(
                OP,
                "faces",
                "three different vertices in each face",
                format!("{face:?} in face {f}"),
            ));
        }
        let own = [(a, b), (b, c), (c, a)].map(|(p, q)| {
            let pair = (p.min(q), p.max(q));
            let next = numbers.len();
            *numbers.entry(pair).or_insert_with(|| {
                ends.extend([pair.0 as i64, pair.1 as i64]);
                neighbors.extend([-1; 4]);
                filled.push(0);
                next
            })
        });
        for i in 0..3 {
            let e = own[i];
            if filled[e] == 4 {
                let got = format!(
                    "a third, face {f}, at the edge of vertices {} and {}",
                    ends[2 * e],
                    ends[2 * e + 1]
                );
                return Err(invalid(OP, "faces", "at most two faces at an edge", got));
            }
            for other in [own[(i + 1) % 3], own[(i + 2) % 3]] {
                neighbors[4 * e + filled[e]] = other as i64;
                filled[e] += 1;
            }
        }
    }
    Ok((ends, neighbors))
}

/// The operator whose heat [`Tensor::diffusion_conv`] lets flow. It gets no gradient.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum HeatOperator {
    /// By its eigenvectors: exp(-t L) x = Phi (exp(-lambda t) * (Phi^T (mass * x))).
    Spectral {
        /// Phi, `[V, K]`.
        eigenvectors: Tensor,
        /// lambda, `[K]`.
        eigenvalues: Tensor,
        /// Mass of each vertex `[V]`; 1 where it is absent.
        mass: Option<Tensor>,
    },
    /// The Laplacian itself, `[V, V]`: the exponential by a Taylor series. Times that need more than 65536 steps give NaN.
    Laplacian(Tensor),
}

/// Its memory in row-major order, for a backend call.
// A few hundred bytes per call, on the stack: cheaper than a box.
#[allow(clippy::large_enum_variant)]
enum HeatOperands {
    Spectral { phi: Operand, lam: Operand, mass: Option<Operand> },
    Laplacian(Operand),
}

impl HeatOperands {
    fn operator(&self) -> Result<DiffusionOperator<'_>> {
        Ok(match self {
            HeatOperands::Spectral { phi, lam, mass } => {
                DiffusionOperator::Eigen { phi: phi.view()?, lam: lam.view()?, mass: view(mass)? }
            }
            HeatOperands::Laplacian(l) => DiffusionOperator::Direct { laplacian: l.view()? },
        })
    }
}

impl HeatOperator {
    fn operands(&self) -> HeatOperands {
        match self {
            HeatOperator::Spectral { eigenvectors, eigenvalues, mass } => HeatOperands::Spectral {
                phi: eigenvectors.operand(),
                lam: eigenvalues.operand(),
                mass: operand(mass.as_ref()),
            },
            HeatOperator::Laplacian(l) => HeatOperands::Laplacian(l.operand()),
        }
    }

    /// In row-major order and on the device of `x`.
    fn beside(&self, op: &'static str, x: &Tensor) -> Result<HeatOperator> {
        let own = |t: &Tensor| {
            same_device(op, x, t)?;
            t.detach().contiguous()
        };
        Ok(match self {
            HeatOperator::Spectral { eigenvectors, eigenvalues, mass } => HeatOperator::Spectral {
                eigenvectors: own(eigenvectors)?,
                eigenvalues: own(eigenvalues)?,
                mass: mass.as_ref().map(own).transpose()?,
            },
            HeatOperator::Laplacian(l) => HeatOperator::Laplacian(own(l)?),
        })
    }

    /// Number of eigenvectors.
    fn components(&self) -> Option<usize> {
        match self {
            HeatOperator::Spectral { eigenvalues, .. } => Some(eigenvalues.numel()),
            HeatOperator::Laplacian(_) => None,
        }
    }
}

impl Tensor {
    /// Features after the heat of each of S times has flowed, side by side, times W^T, plus b: this tensor `[V, C]` or `[B, V, C]`, times
    /// `t` `[S]` or `[S, C]` (one per channel), weight `[O, S * C]`, bias `[O]`, floats `-> [V, O]` or `[B, V, O]`. Gradients flow to
    /// features, times, weight and bias. 16-bit data is computed in f32. Source Sharp et al. (2022): DiffusionNet;
    /// `torch.linalg.matrix_exp(-t * L) @ x`. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn diffusion_conv(
        &self,
        operator: &HeatOperator,
        t: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        const OP: &str = "diffusion_conv";
        for other in [Some(t), Some(weight), bias].into_iter().flatten() {
            same_device(OP, self, other)?;
        }
        let operator = operator.beside(OP, self)?;
        let (x, t, w, b) = (self.contiguous()?, t.contiguous()?, weight.contiguous()?, whole(bias)?);
        let &[ref batch @ .., _, channels] = x.shape() else {
            return Err(invalid(OP, "x", "shape [V, C] or [B, V, C]", format!("{:?}", x.shape())));
        };
        let lead = &x.shape()[..x.rank() - 1];
        let y = x.like(&[lead, &[w.shape().first().copied().unwrap_or(0)]].concat())?;
        let mut inputs = Inputs { list: vec![&x, &t, &w] };
        let ib = inputs.push(b.as_ref());
        let tracked = grad_enabled() && inputs.tracked();
        let s_hat = match operator.components().filter(|_| tracked) {
            Some(k) => Some(x.like(&[batch, &[k, channels]].concat())?),
            None => None,
        };
        let (ops, xo, to, wo, yo) = (operator.operands(), x.operand(), t.operand(), w.operand(), y.operand());
        let [bo, so] = [&b, &s_hat].map(|t| operand(t.as_ref()));
        let mut io = Diffusion::new(xo.view()?, ops.operator()?, to.view()?, wo.view()?, yo.view_mut()?);
        (io.b, io.s_hat) = (view(&bo)?, view_mut(&so)?);
        y.device().diffusion_conv(io)?;
        Ok(y.record(OP, &inputs.list, || {
            let ([x, t, w], s_hat) = ([&x, &t, &w].map(Saved::new), save(s_hat.as_ref()));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dt) = (cx.target(0)?, cx.target(1)?);
                let (dw, db) = (cx.target(2)?, cx.target(ib)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, t, w) = (x.get(cx)?.operand(), t.get(cx)?.operand(), w.get(cx)?.operand());
                let (s_hat, ops, dyo) = (saved(cx, &s_hat)?, operator.operands(), dy.operand());
                let mut io = DiffusionBwd::new(dyo.view()?, x.view()?, ops.operator()?, t.view()?, w.view()?);
                io.s_hat = view(&s_hat)?;
                (io.dx, io.dt, io.dw, io.db) = (out(&dx)?, out(&dt)?, out(&dw)?, out(&db)?);
                Ok(dy.device().diffusion_conv_bwd(io)?)
            }
        }))
    }
}
