//! Meshes of triangles that are the items.

mod features;
mod labels;
mod read;

use std::collections::HashSet;
use std::path::PathBuf;

use trefoil::DType;

pub use self::labels::{MeshLabels, mesh_files};
pub use self::read::{MeshFile, read_mesh};

use self::features::{FEATURES, of_edges};
use super::FixedInputs;
use crate::core::error::{At, NnError, Result};
use crate::core::host_tensor::HostTensor;
use crate::core::limits;
use crate::core::tensor::{Device, Tensor};
use crate::functional::{TriangleMesh, mesh_edges};

/// What is made of the files of meshes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeshOptions {
    /// Whether meshes have an axis of their own, for which all must have as many edges.
    pub stacked: bool,
    /// Vertices of the spirals around each vertex, where there are to be any.
    pub spiral_length: Option<usize>,
    /// Factor of the positions.
    pub scale: f32,
}

impl Default for MeshOptions {
    fn default() -> Self {
        MeshOptions { stacked: false, spiral_length: None, scale: 1.0 }
    }
}

/// Meshes in host memory, numbered from 0: their edges with features, their vertices, their faces. Where they are not stacked, edges and vertices
/// of a mesh are numbered behind those of the meshes before it, so that all together are one mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshData {
    options: MeshOptions,
    meshes: usize,
    /// `[E, 5]`.
    features: HostTensor,
    /// `[E, 4]`.
    gemm: HostTensor,
    /// `[E, 2]`.
    ends: HostTensor,
    /// `[E]`: the mesh of each edge.
    edge_mesh: HostTensor,
    /// `[V, 3]`.
    positions: HostTensor,
    /// `[V]`: the mesh of each vertex.
    vertex_mesh: HostTensor,
    faces: Vec<[usize; 3]>,
}

/// What a mesh adds to the lists of all.
#[derive(Default)]
struct Lists {
    features: Vec<f32>,
    gemm: Vec<i64>,
    ends: Vec<i64>,
    edge_mesh: Vec<i64>,
    positions: Vec<f32>,
    vertex_mesh: Vec<i64>,
    faces: Vec<[usize; 3]>,
}

/// Appends all elements.
fn extend<T>(list: &mut Vec<T>, more: impl ExactSizeIterator<Item = T>) -> Result<()> {
    if list.capacity() - list.len() < more.len() {
        limits::reserve(list, more.len().max(list.len()))?;
    }
    list.extend(more);
    Ok(())
}

impl Lists {
    /// Appends a mesh under its number, with its own numbers of edges and vertices where meshes are stacked.
    fn push(
        &mut self,
        mesh: i64,
        file: &MeshFile,
        ends: &[i64],
        gemm: &[i64],
        o: &MeshOptions,
    ) -> Result<()> {
        let (vertices, edges) = (self.vertex_mesh.len(), self.edge_mesh.len() as i64);
        let (vertex, edge) = if o.stacked { (0, 0) } else { (vertices as i64, edges) };
        extend(&mut self.gemm, gemm.iter().map(|&n| if n < 0 { n } else { n + edge }))?;
        extend(&mut self.ends, ends.iter().map(|&v| v + vertex))?;
        for x in of_edges(file, ends, gemm) {
            extend(&mut self.features, x.into_iter())?;
        }
        for at in &file.positions {
            extend(&mut self.positions, at.map(|x| x as f32 * o.scale).into_iter())?;
        }
        extend(&mut self.faces, file.faces.iter().map(|f| f.map(|v| v + vertices)))?;
        extend(&mut self.edge_mesh, (0..ends.len() / 2).map(|_| mesh))?;
        extend(&mut self.vertex_mesh, (0..file.positions.len()).map(|_| mesh))
    }
}

impl MeshData {
    /// Reads files, see [`read_mesh`]. Errors: of the files; [`NnError::Data`] for a file with an edge of three faces, where spirals are asked for
    /// with faces that are not turned the same way, where meshes are stacked with another number of edges than the first one.
    pub fn read(files: &[PathBuf], options: &MeshOptions) -> Result<Self> {
        let mut all = Lists::default();
        let mut first = None;
        for (path, mesh) in files.iter().zip(0..) {
            let file = read_mesh(path)?;
            let made = mesh_edges(file.positions.len(), &file.faces);
            let (ends, gemm) = made.map_err(|e| {
                NnError::data(path, At::File, "at most two faces at every edge", e.to_string())
            })?;
            let edges = ends.len() / 2;
            if options.stacked && *first.get_or_insert(edges) != edges {
                let expected = format!("{} edges, as many as {} has", first.unwrap_or(0), files[0].display());
                return Err(NnError::data(path, At::File, expected, format!("{edges}")));
            }
            if options.spiral_length.is_some() {
                check_turned(path, &file)?;
            }
            all.push(mesh, &file, &ends, &gemm, options)?;
        }
        let (e, v) = (all.edge_mesh.len(), all.vertex_mesh.len());
        Ok(MeshData {
            options: *options,
            meshes: files.len(),
            features: HostTensor::from_slice(&all.features, &[e, FEATURES])?,
            gemm: HostTensor::from_slice(&all.gemm, &[e, 4])?,
            ends: HostTensor::from_slice(&all.ends, &[e, 2])?,
            edge_mesh: HostTensor::from_slice(&all.edge_mesh, &[e])?,
            positions: HostTensor::from_slice(&all.positions, &[v, 3])?,
            vertex_mesh: HostTensor::from_slice(&all.vertex_mesh, &[v])?,
            faces: all.faces,
        })
    }

    /// Number of meshes.
    pub fn meshes(&self) -> usize {
        self.meshes
    }

    /// Number of edges of all meshes.
    pub fn edges(&self) -> usize {
        self.edge_mesh.numel()
    }

    /// Number of vertices of all meshes, those of no face included.
    pub fn vertices(&self) -> usize {
        self.vertex_mesh.numel()
    }

    /// What a network reads, on a device, floats in `dtype`, for M meshes of E edges and V vertices altogether.
    ///
    /// Of edges: `x [E, 5]`, features by MeshCNN (Hanocka et al., 2019): the angle between the two faces of an edge (pi in a plane), the smaller
    /// and the larger one of the angles opposite to it, the smaller and the larger one of the heights of its faces by its length, an edge at a
    /// boundary with its one face on both sides; `gemm [E, 4]`, their neighbours, and `edges [E, 2]`, their vertices, as
    /// [`Mesh::from_faces`](crate::Mesh::from_faces) has them; `mesh [E]`, the mesh of each. Stacked, these are `[M, E / M, ..]`, numbers are
    /// those within a mesh, and there is nothing else.
    ///
    /// Of vertices: `positions [V, 3]`; `edge_index [2, 2 E]`, the edges in both directions; `vertex_mesh [V]`, the mesh of each; with a length,
    /// `spirals [V, length]`, as [`TriangleMesh::spirals`] has them.
    pub fn inputs(&self, device: &Device, dtype: DType) -> Result<Vec<(&'static str, Tensor)>> {
        let floats = |t: &HostTensor| t.to_device(device)?.to_dtype(dtype);
        let mut all = vec![
            ("x", floats(&self.features)?),
            ("gemm", self.gemm.to_device(device)?),
            ("edges", self.ends.to_device(device)?),
            ("mesh", self.edge_mesh.to_device(device)?),
        ];
        if self.options.stacked {
            all.pop();
            for (_, t) in &mut all {
                *t = t.reshape(&[self.meshes, self.edges() / self.meshes.max(1), t.shape()[1]])?;
            }
            return Ok(all);
        }
        let ends = all[2].1.clone();
        let both = Tensor::concat(0, &[&ends, &ends.flip(&[1])?])?.t()?.contiguous()?;
        all.extend([
            ("positions", floats(&self.positions)?),
            ("edge_index", both),
            ("vertex_mesh", self.vertex_mesh.to_device(device)?),
        ]);
        if let Some(length) = self.options.spiral_length {
            let mesh = TriangleMesh::new(device, self.vertices(), &self.faces)?;
            all.push(("spirals", mesh.spirals(length)?.neighbors().clone()));
        }
        Ok(all)
    }
}

impl FixedInputs for MeshData {
    fn fixed_inputs(&self, device: &Device, dtype: DType) -> Result<Vec<(&'static str, Tensor)>> {
        self.inputs(device, dtype)
    }
}

/// Error for two faces that go along an edge in the same direction.
fn check_turned(path: &std::path::Path, mesh: &MeshFile) -> Result<()> {
    let mut seen = HashSet::new();
    for (f, &[a, b, c]) in mesh.faces.iter().enumerate() {
        for (from, to) in [(a, b), (b, c), (c, a)] {
            if !seen.insert((from, to)) {
                let found = format!("face {f}, a second one from vertex {from} to {to} (from 0)");
                return Err(NnError::data(path, At::File, "faces that are turned the same way", found));
            }
        }
    }
    Ok(())
}
