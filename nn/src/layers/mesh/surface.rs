//! Surfaces that heat flows on.

use std::collections::HashMap;

use trefoil::ops::graph::GroupReduce;

use super::host::{check_each, floats, integers};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, is_trial};
use crate::functional::{Graph, LaplacianWeights, TriangleMesh};

const OP: &str = "Surface";

/// A surface for [`DiffusionConv`](crate::layers::DiffusionConv): the masses of its V vertices, and its Laplacian or the eigenvectors of it,
/// examined at construction. Nothing of it gets a gradient.
#[derive(Debug, Clone)]
pub struct Surface {
    pub(super) mass: Tensor,
    pub(super) operator: Operator,
}

/// What diffusion is computed with.
#[derive(Debug, Clone)]
pub(super) enum Operator {
    Spectral {
        eigenvalues: Tensor,
        eigenvectors: Tensor,
    },
    /// With the elements of the diagonal.
    Laplacian {
        graph: Graph,
        weight: Tensor,
        diagonal: Tensor,
    },
}

impl Surface {
    /// From masses `[V]`, the smallest eigenvalues `[K]` of the Laplacian in ascending order, and their eigenvectors Phi `[V, K]`, of which
    /// Phi^T diag(mass) Phi = I. Waits for the device once. Errors: `Invalid` for shapes and dtypes that do not fit, a mass that is not above
    /// 0, an eigenvalue below -1e-6.
    pub fn spectral(mass: &Tensor, eigenvalues: &Tensor, eigenvectors: &Tensor) -> Result<Surface> {
        let vertices = check_mass(mass)?;
        let &[pairs] = eigenvalues.shape() else {
            let got = format!("shape {:?}", eigenvalues.shape());
            return Err(invalid(OP, "eigenvalues", "shape [K]", got));
        };
        if eigenvectors.shape() != [vertices, pairs] {
            let got = format!("shape {:?}", eigenvectors.shape());
            return Err(invalid(OP, "eigenvectors", format!("shape [{vertices}, {pairs}]"), got));
        }
        check_each(OP, "eigenvalues", eigenvalues, "numbers that are not negative", |v| v >= -1e-6)?;
        let (eigenvalues, eigenvectors) = (eigenvalues.detach(), eigenvectors.detach());
        Ok(Surface { mass: mass.detach(), operator: Operator::Spectral { eigenvalues, eigenvectors } })
    }

    /// From masses `[V]` and the Laplacian as a sparse matrix: a graph of V nodes whose edge from j to i has the weight `[E]` in row i and
    /// column j (repeated edges add up), as [`Graph::from_dense`] gives it. It is positive semidefinite. Waits for the device once. Errors:
    /// `Invalid` for shapes that do not fit, a mass that is not above 0, a matrix that is not square or not symmetric.
    pub fn laplacian(mass: &Tensor, graph: &Graph, weight: &Tensor) -> Result<Surface> {
        let vertices = check_mass(mass)?;
        if graph.num_src() != vertices || graph.num_dst() != vertices {
            let got = format!("{} rows and {} columns", graph.num_dst(), graph.num_src());
            return Err(invalid(OP, "laplacian", format!("{vertices} rows and columns"), got));
        }
        if weight.shape() != [graph.num_edges()] {
            let got = format!("shape {:?}", weight.shape());
            return Err(invalid(OP, "laplacian", format!("weights of shape [{}]", graph.num_edges()), got));
        }
        check_symmetric(graph, weight)?;
        let weight = weight.detach();
        let loops = weight.mul(&graph.src().eq(graph.dst())?.to_dtype(weight.dtype())?)?;
        let diagonal = loops.group_reduce(GroupReduce::Sum, 0, graph.by_dst())?;
        let operator = Operator::Laplacian { graph: graph.clone(), weight, diagonal };
        Ok(Surface { mass: mass.detach(), operator })
    }

    /// From the triangles of a mesh and the positions `[V, 3]` of its vertices: masses of a third of the areas around each, and the Laplacian.
    /// Waits for the device once. Errors: `Invalid` for another shape, a vertex without area around it.
    pub fn from_triangles(
        mesh: &TriangleMesh,
        positions: &Tensor,
        weights: LaplacianWeights,
    ) -> Result<Surface> {
        let positions = positions.detach();
        Surface::laplacian(&mesh.mass(&positions)?, mesh.graph(), &mesh.laplacian(&positions, weights)?)
    }

    /// Number of vertices.
    pub fn num_vertices(&self) -> usize {
        self.mass.numel()
    }
}

/// The number of vertices.
fn check_mass(mass: &Tensor) -> Result<usize> {
    let &[vertices] = mass.shape() else {
        return Err(invalid(OP, "mass", "shape [V]", format!("shape {:?}", mass.shape())));
    };
    if !mass.dtype().is_float() {
        return Err(invalid(OP, "mass", "floats", mass.dtype().name()));
    }
    check_each(OP, "mass", mass, "numbers above 0", |m| m > 0.0)?;
    Ok(vertices)
}

/// Conjugate gradients are those of a symmetric matrix.
fn check_symmetric(graph: &Graph, weight: &Tensor) -> Result<()> {
    if is_trial(weight.device()) {
        return Ok(());
    }
    let mut elements = HashMap::new();
    let ends = integers(graph.src())?.into_iter().zip(integers(graph.dst())?);
    for ((j, i), w) in ends.zip(floats(weight)?) {
        *elements.entry((i, j)).or_insert(0.0) += w;
    }
    // To what 16 bits resolve.
    let allowed = 2e-3 * elements.values().fold(0.0f64, |m, w: &f64| m.max(w.abs()));
    let differs = |&(&(i, j), w): &(&(i64, i64), &f64)| {
        let other = elements.get(&(j, i)).copied().unwrap_or(0.0);
        let within = (w - other).abs() <= allowed;
        // NaN is never within.
        !within
    };
    match elements.iter().find(differs) {
        Some(((i, j), w)) => {
            Err(invalid(OP, "laplacian", "a symmetric matrix", format!("{w} in row {i} and column {j}")))
        }
        None => Ok(()),
    }
}
