//! Meshes of triangles: their Laplacians, the masses of their vertices, and spirals around these.

use std::collections::{BTreeMap, HashMap, HashSet};

use trefoil::ops::mesh::MeshConv;

use super::{Mesh, edges_of};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_device};
use crate::functional::graph::Graph;

const OP: &str = "TriangleMesh";

/// Weights of the edges in the Laplacian of a [`TriangleMesh`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaplacianWeights {
    /// 1.
    Uniform,
    /// Half the cotangents of the angles that an edge's faces have opposite to it (Pinkall and Polthier, 1993), angles whose sine is below
    /// 1e-6 with that sine.
    Cotangent,
}

/// The triangles of a mesh with its topology, built on the host once. Operations on positions of the vertices run on the device, with gradients.
#[derive(Debug, Clone)]
pub struct TriangleMesh {
    vertices: usize,
    faces: Vec<[usize; 3]>,
    edges: Mesh,
    /// `[E]` each: the vertices of the edges.
    ends: [Tensor; 2],
    /// `[3 F]` each: the corners of the faces, corner by corner, and those behind and two behind them.
    corners: [Tensor; 3],
    /// `[3 F]`: the edge opposite to each corner.
    opposite: Tensor,
    graph: Graph,
}

impl TriangleMesh {
    /// Faces of three of `vertices` vertices each, all turned the same way. Errors: as of [`Mesh::from_faces`].
    pub fn new(device: &Device, vertices: usize, faces: &[[usize; 3]]) -> Result<TriangleMesh> {
        let (ends, _) = edges_of(vertices, faces)?;
        let count = ends.len() / 2;
        let numbers: HashMap<(i64, i64), i64> =
            ends.chunks(2).zip(0..).map(|(e, at)| ((e[0], e[1]), at)).collect();
        let list = |v: &[i64]| Tensor::from_slice(device, v, &[v.len()]);
        let corner = |k: usize| -> Vec<i64> {
            (0..3).flat_map(|c| faces.iter().map(move |f| f[(c + k) % 3] as i64)).collect()
        };
        let [own, next, last] = [0, 1, 2].map(corner);
        let opposite: Vec<i64> = next
            .iter()
            .zip(&last)
            .map(|(&a, &b)| numbers.get(&(a.min(b), a.max(b))).copied().unwrap_or(-1))
            .collect();
        let [a, b]: [Vec<i64>; 2] = [0, 1].map(|k| ends.chunks(2).map(|e| e[k]).collect());
        let loops: Vec<i64> = (0..vertices as i64).collect();
        let index = [&a, &b, &loops, &b, &a, &loops].map(Vec::as_slice).concat();
        let edge_index = Tensor::from_slice(device, &index, &[2, 2 * count + vertices])?;
        Ok(TriangleMesh {
            vertices,
            faces: faces.to_vec(),
            edges: Mesh::from_faces(device, vertices, faces)?,
            ends: [list(&a)?, list(&b)?],
            corners: [list(&own)?, list(&next)?, list(&last)?],
            opposite: list(&opposite)?,
            graph: Graph::new(&edge_index, vertices)?,
        })
    }

    /// Number of vertices V.
    pub fn num_vertices(&self) -> usize {
        self.vertices
    }

    /// The edges with their neighbours, as [`Mesh::from_faces`] numbers them.
    pub fn edges(&self) -> &Mesh {
        &self.edges
    }

    /// Where the Laplacian is not 0: a graph of V nodes with the E edges in one direction, those in the other, and one of each vertex to itself,
    /// in the order of the elements that [`laplacian`](TriangleMesh::laplacian) gives.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Positions `[V, 3]` of floats.
    fn check(&self, positions: &Tensor) -> Result<()> {
        same_device(OP, &self.opposite, positions)?;
        if positions.shape() == [self.vertices, 3] && positions.dtype().is_float() {
            return Ok(());
        }
        let got = format!("shape {:?} of {}", positions.shape(), positions.dtype().name());
        Err(invalid(OP, "positions", format!("floats of shape [{}, 3]", self.vertices), got))
    }

    /// The sides of each corner `[3 F, 3]`, and the squared length of their cross product `[3 F]`.
    fn sides(&self, positions: &Tensor) -> Result<([Tensor; 2], Tensor)> {
        let [own, next, last] = &self.corners;
        let at = positions.index_select(0, own)?;
        let u = positions.index_select(0, next)?.sub(&at)?;
        let v = positions.index_select(0, last)?.sub(&at)?;
        let turned =
            |t: &Tensor, by: usize| Tensor::concat(1, &[&t.narrow(1, by, 3 - by)?, &t.narrow(1, 0, by)?]);
        let cross = turned(&u, 1)?.mul(&turned(&v, 2)?)?.sub(&turned(&u, 2)?.mul(&turned(&v, 1)?)?)?;
        Ok(([u, v], cross.square()?.sum_axes(&[1], false)?))
    }

    /// Elements of L = D - W for positions `[V, 3]`, floats `-> [2 E + V]` in the order of [`graph`](TriangleMesh::graph): -w of the edges twice,
    /// then for each vertex the sum of w of its edges. L is symmetric, its rows sum to 0; as a matrix it multiplies by
    /// [`Graph::spmm`]. Gradients flow to the positions (there are none of uniform weights). Errors: `Invalid` for another shape or dtype.
    pub fn laplacian(&self, positions: &Tensor, weights: LaplacianWeights) -> Result<Tensor> {
        self.check(positions)?;
        let (device, dtype) = (positions.device(), positions.dtype());
        let w = match weights {
            LaplacianWeights::Uniform => Tensor::full(device, dtype, &[self.edges.num_elements()], 1.0)?,
            LaplacianWeights::Cotangent => {
                let ([u, v], cross) = self.sides(positions)?;
                let along = u.mul(&v)?.sum_axes(&[1], false)?;
                let lengths = u.square()?.sum_axes(&[1], false)?.mul(&v.square()?.sum_axes(&[1], false)?)?;
                // A face without area has cotangents too; one without sides has 0.
                let floor = lengths.mul_scalar(1e-12)?.clamp(Some(1e-30), None)?;
                let half = along.div(&cross.maximum(&floor)?.sqrt()?)?.mul_scalar(0.5)?;
                Tensor::zeros(device, dtype, &[self.edges.num_elements()])?.index_add(
                    0,
                    &self.opposite,
                    &half,
                )?
            }
        };
        let mut diagonal = Tensor::zeros(device, dtype, &[self.vertices])?;
        for end in &self.ends {
            diagonal = diagonal.index_add(0, end, &w)?;
        }
        let off = w.neg()?;
        Tensor::concat(0, &[&off, &off, &diagonal])
    }

    /// Masses `[V]` of the vertices at positions `[V, 3]`, floats: a third of the areas of their faces. Gradients flow to the positions.
    /// Errors: `Invalid` for another shape or dtype.
    pub fn mass(&self, positions: &Tensor) -> Result<Tensor> {
        self.check(positions)?;
        let (_, cross) = self.sides(positions)?;
        // Half of the cross product is the area; a face without one has no slope.
        let sixth = cross.clamp(Some(1e-30), None)?.sqrt()?.mul_scalar(1.0 / 6.0)?;
        let zero = Tensor::zeros(positions.device(), positions.dtype(), &[self.vertices])?;
        zero.index_add(0, &self.corners[0], &sixth)
    }

    /// Spirals of `length` vertices around each vertex, as [`MeshConv::Spiral`] takes them: the vertex, its neighbours in the order of its
    /// faces, then the neighbours of these that are left, vertex by vertex, and so on; -1 behind the last. Neighbours begin at the one of
    /// the lowest number, at a border where it begins. Source SpiralNet++ (Gong et al., 2019). Errors: `Invalid` for a length of 0, for
    /// faces that are not all turned the same way.
    pub fn spirals(&self, length: usize) -> Result<Mesh> {
        if length == 0 {
            return Err(invalid(OP, "length", "at least 1", "0"));
        }
        let rings = self.rings()?;
        let mut list = Vec::with_capacity(self.vertices * length);
        for v in 0..self.vertices {
            let (mut spiral, mut begin) = (vec![v], 0);
            let mut seen = HashSet::from([v]);
            while spiral.len() < length && begin < spiral.len() {
                let end = spiral.len();
                for at in begin..end {
                    let more = rings[spiral[at]].iter().filter(|n| seen.insert(**n)).copied();
                    spiral.extend(more.collect::<Vec<_>>());
                }
                begin = end;
            }
            list.extend((0..length).map(|at| spiral.get(at).map_or(-1, |&n| n as i64)));
        }
        let list = Tensor::from_slice(self.opposite.device(), &list, &[self.vertices, length])?;
        Mesh::new(MeshConv::Spiral, &list)
    }

    /// The neighbours of each vertex in the order of its faces.
    fn rings(&self) -> Result<Vec<Vec<usize>>> {
        // Behind each neighbour the one that a face of the vertex names next.
        let mut next = vec![BTreeMap::new(); self.vertices];
        for (f, face) in self.faces.iter().enumerate() {
            for c in 0..3 {
                let [v, a, b] = [0, 1, 2].map(|k| face[(c + k) % 3]);
                if next[v].insert(a, b).is_some() {
                    let got = format!("a second face, {f}, with the edge from {v} to {a}");
                    return Err(invalid(OP, "faces", "faces that are turned the same way", got));
                }
            }
        }
        Ok(next.iter().map(ring).collect())
    }
}

/// The neighbours of a vertex: first the runs that begin at a border, then those that are closed.
fn ring(next: &BTreeMap<usize, usize>) -> Vec<usize> {
    let behind: HashSet<usize> = next.values().copied().collect();
    let mut found: Vec<usize> = vec![];
    let borders = next.keys().filter(|n| !behind.contains(n));
    for &start in borders.chain(next.keys()) {
        let mut at = Some(start);
        while let Some(n) = at.filter(|n| !found.contains(n)) {
            found.push(n);
            at = next.get(&n).copied();
        }
    }
    found
}
