//! Pooling of the edges of a mesh.

use std::sync::Arc;

use trefoil::DType;
use trefoil::ops::activation::Activation;

use super::collapse::{Collapsed, Topology};
use super::filter::without_mesh;
use super::host::{floats, integers};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, is_trial, same_device, same_dtype};
use crate::functional::Graph;
use crate::layers::attention::scores::check_width;
use crate::layers::graph::cache::{Last, Seen};
use crate::layers::graph::convolutional::check_size;
use crate::module::{Init, InitContext, Layer, Param, Visitor};

const OP: &str = "MeshPool";

/// A pooled mesh of E' edges.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PooledMesh {
    /// Features, `[E', C]`.
    pub features: Tensor,
    /// Neighbours of each edge, `[E', 4]`, -1 for none.
    pub gemm: Tensor,
    /// Vertices of each edge, `[E', 2]`, by their old numbers; absent where the layer was not given them.
    pub edges: Option<Tensor>,
    /// The old numbers of the edges, `[E']`.
    pub kept: Tensor,
    /// Where edges have collapsed: the graph from the old edges to those new ones that they are averaged into, and the weights of its edges.
    /// Its [`spmm`](Graph::spmm) is the pooling; that of its [`reverse`](Graph::reverse) takes the features back to the old edges.
    pub averages: Option<(Graph, Tensor)>,
}

/// Pooling of MeshCNN (Hanocka et al., 2019): the edges of the smallest features (by the norm) collapse, until at most `target_edges` are
/// left, or up to two less; what is left holds the means of the features of all edges that went into it. Or else (`topk`) the edges of the
/// largest scores stay, times the tanh of these, `torch_geometric.nn.TopKPooling`. Features `[E, C]` become `[E', C]`; of a batch
/// `[B, E, C]`, whose samples have a mesh each, they become `[B, target_edges, C]`, filled up with zeros.
///
/// The mesh is that of [`MeshEdgeConv`](crate::layers::MeshEdgeConv): `gemm [E, 4]` and the vertices `edges [E, 2]` of its edges, as
/// [`Mesh::from_faces`](crate::Mesh::from_faces) makes them. Edges collapse on the host, so that each call waits for the norms; which ones do
/// has no gradient. `topk` stays on the device.
///
/// State: none; with `topk` the weight of the scores, `weight [C]` from U(-1/sqrt(C), 1/sqrt(C)).
#[derive(Debug)]
pub struct MeshPool {
    target: usize,
    weight: Option<Param>,
    meshes: Last<[Seen; 2], Arc<Vec<Topology>>>,
}

impl MeshPool {
    /// Collapses edges until at most this many are left. Errors: 0.
    pub fn new(target_edges: usize) -> Result<Self> {
        check_size(OP, "target_edges", target_edges)?;
        Ok(MeshPool { target: target_edges, weight: None, meshes: Last::default() })
    }

    /// Keeps this many edges, or all if they are fewer, by their learned scores. Errors: a size of 0.
    pub fn topk(cx: &InitContext, target_edges: usize, in_channels: usize) -> Result<Self> {
        check_size(OP, "in_channels", in_channels)?;
        let weight = Init::Lin.param(cx, &[in_channels], in_channels, 1)?;
        Ok(MeshPool { weight: Some(weight), ..Self::new(target_edges)? })
    }

    /// Pools one mesh: features `[E, C]`, neighbours `[E, 4]` and ends `[E, 2]` of its edges, which `topk` does not need. Gradients flow to
    /// features and weight. Errors: `Invalid` for shapes and dtypes that do not fit, neighbours that do not have each other, edges of which
    /// too few can collapse.
    pub fn pool(&self, x: &Tensor, gemm: &Tensor, edges: Option<&Tensor>) -> Result<PooledMesh> {
        self.check(x, gemm, edges, 2)?;
        match (&self.weight, self.meshes(gemm, edges)?.first()) {
            (None, Some(mesh)) => self.collapse(mesh, x, gemm),
            (None, None) => self.trial(x, gemm),
            (Some(w), _) => self.select(&w.get(), x, gemm, edges),
        }
    }

    fn check(&self, x: &Tensor, gemm: &Tensor, edges: Option<&Tensor>, rank: usize) -> Result<()> {
        let Some((_, lead)) = x.shape().split_last().filter(|_| x.rank() == rank) else {
            let expected = if rank == 2 { "shape [E, C]" } else { "shape [B, E, C]" };
            return Err(invalid(OP, "x", expected, format!("shape {:?}", x.shape())));
        };
        if let Some(w) = &self.weight {
            let w = w.get();
            check_width(OP, "x", x, w.numel())?;
            same_dtype(OP, x, &w)?;
        }
        for (arg, list, width) in [("gemm", Some(gemm), 4), ("edges", edges, 2)] {
            let Some(list) = list else { continue };
            same_device(OP, x, list)?;
            if list.shape() != [lead, &[width]].concat() || !list.dtype().is_index() {
                let got = format!("{} of shape {:?}", list.dtype().name(), list.shape());
                return Err(invalid(
                    OP,
                    arg,
                    format!("integers of shape {:?}", [lead, &[width]].concat()),
                    got,
                ));
            }
        }
        if self.weight.is_none() && edges.is_none() {
            return Err(invalid(OP, "edges", "the vertices of the edges, which collapse", "none"));
        }
        Ok(())
    }

    /// The meshes of the lists that came last; none for `topk`, and where a network runs on trial.
    fn meshes(&self, gemm: &Tensor, edges: Option<&Tensor>) -> Result<Arc<Vec<Topology>>> {
        let Some(edges) = edges.filter(|e| self.weight.is_none() && !is_trial(e.device())) else {
            return Ok(Arc::default());
        };
        let make = || {
            let count = gemm.shape()[gemm.rank() - 2];
            let (lists, ends) = (integers(gemm)?, integers(edges)?);
            let samples = gemm.numel() / (4 * count).max(1);
            let one = |b: usize| {
                Topology::new(&lists[4 * count * b..][..4 * count], &ends[2 * count * b..][..2 * count])
            };
            let all = (0..samples).map(one).collect::<Result<Vec<_>>>()?;
            Ok(([Seen::new(gemm), Seen::new(edges)], Arc::new(all)))
        };
        self.meshes.get(|[g, e]| g.is(gemm) && e.is(edges), make)
    }

    fn collapse(&self, mesh: &Topology, x: &Tensor, gemm: &Tensor) -> Result<PooledMesh> {
        let squares = x.detach().to_dtype(x.dtype().accumulator())?.square()?.sum_axes(&[1], false)?;
        let Collapsed { kept, groups, gemm: neighbors, ends } =
            mesh.collapse(&floats(&squares)?, self.target)?;
        let (device, count) = (x.device(), kept.len());
        let (mut pairs, mut shares): ([Vec<i64>; 2], Vec<f64>) = Default::default();
        for (new, group) in groups.iter().enumerate() {
            pairs[0].extend(group.iter().map(|&old| old as i64));
            pairs[1].extend(group.iter().map(|_| new as i64));
            shares.extend(group.iter().map(|_| 1.0 / group.len() as f64));
        }
        let pairs = Tensor::from_slice(device, &pairs.concat(), &[2, shares.len()])?;
        let graph = Graph::bipartite(&pairs, x.shape()[0], count)?;
        let weight = weights(x, &shares)?;
        let list = |values: &[i64], width| {
            Tensor::from_slice(device, values, &[count, width])?.to_dtype(gemm.dtype())
        };
        let kept: Vec<i64> = kept.into_iter().map(|e| e as i64).collect();
        Ok(PooledMesh {
            features: graph.spmm(x, Some(&weight), None, Activation::Identity)?,
            gemm: list(&neighbors, 4)?,
            edges: Some(list(&ends, 2)?),
            kept: Tensor::from_slice(device, &kept, &[count])?,
            averages: Some((graph, weight)),
        })
    }

    fn select(&self, w: &Tensor, x: &Tensor, gemm: &Tensor, edges: Option<&Tensor>) -> Result<PooledMesh> {
        let count = x.shape()[0];
        let score = x.mul(&w.l2_normalize(0, 1e-12)?)?.sum_axes(&[1], false)?;
        let (_, best) = score.detach().topk(self.target.min(count), 0, true)?;
        let kept = best.sort(0, false)?.0;
        let gate = score.index_select(0, &kept)?.tanh()?;
        // The new number of each edge; one more place for neighbours that are none.
        let new = Tensor::arange(x.device(), gemm.dtype(), 0.0, 1.0, kept.numel())?;
        let numbers =
            Tensor::full(x.device(), gemm.dtype(), &[count + 1], -1.0)?.index_copy(0, &kept, &new)?;
        let old = gemm.index_select(0, &kept)?.flatten(0, 1)?;
        let old = old.masked_fill(&old.lt_scalar(0.0)?, count as f64)?;
        Ok(PooledMesh {
            features: x.index_select(0, &kept)?.mul(&gate.unsqueeze(1)?)?,
            gemm: numbers.index_select(0, &old)?.reshape(&[kept.numel(), 4])?,
            edges: edges.map(|e| e.index_select(0, &kept)).transpose()?,
            kept,
            averages: None,
        })
    }

    /// A result of the largest size that can be.
    fn trial(&self, x: &Tensor, gemm: &Tensor) -> Result<PooledMesh> {
        let count = self.target.min(x.shape()[0]);
        let list = |width| Tensor::zeros(x.device(), gemm.dtype(), &[count, width]);
        Ok(PooledMesh {
            features: x.narrow(0, 0, count)?,
            gemm: list(4)?,
            edges: Some(list(2)?),
            kept: Tensor::zeros(x.device(), DType::I64, &[count])?,
            averages: None,
        })
    }

    /// Pools the samples of a batch, each filled up to `target_edges`.
    fn batch(&self, x: &Tensor, gemm: &Tensor, edges: Option<&Tensor>) -> Result<Vec<Tensor>> {
        self.check(x, gemm, edges, 3)?;
        let meshes = self.meshes(gemm, edges)?;
        let mut columns: [Vec<Tensor>; 3] = Default::default();
        for b in 0..x.shape()[0] {
            let (x, gemm) = (x.select(0, b)?, gemm.select(0, b)?);
            let edges = edges.map(|e| e.select(0, b)).transpose()?;
            let pooled = match (&self.weight, meshes.get(b)) {
                (None, Some(mesh)) => self.collapse(mesh, &x, &gemm)?,
                (None, None) => self.trial(&x, &gemm)?,
                (Some(w), _) => self.select(&w.get(), &x, &gemm, edges.as_ref())?,
            };
            columns[0].push(self.filled(&pooled.features, 0.0)?);
            columns[1].push(self.filled(&pooled.gemm, -1.0)?);
            if let Some(e) = &pooled.edges {
                columns[2].push(self.filled(e, -1.0)?);
            }
        }
        let [features, neighbors, ends] = columns.map(|c| c.iter().map(|t| t.unsqueeze(0)).collect());
        let stack = |rows: Result<Vec<Tensor>>, like: &Tensor| {
            // An empty batch has nothing to stack.
            let none = Tensor::zeros(x.device(), like.dtype(), &[0, self.target, like.shape()[2]])?;
            Tensor::concat(0, &[none].iter().chain(&rows?).collect::<Vec<_>>())
        };
        let mut outputs = vec![stack(features, x)?, stack(neighbors, gemm)?];
        if let Some(e) = edges {
            outputs.push(stack(ends, e)?);
        }
        Ok(outputs)
    }

    /// Rows up to `target_edges`.
    fn filled(&self, t: &Tensor, value: f64) -> Result<Tensor> {
        let missing = self.target.saturating_sub(t.shape()[0]);
        Tensor::concat(0, &[t, &Tensor::full(t.device(), t.dtype(), &[missing, t.shape()[1]], value)?])
    }
}

/// Weights in the dtype of the features.
fn weights(x: &Tensor, values: &[f64]) -> Result<Tensor> {
    match x.dtype() {
        DType::F64 => Tensor::from_slice(x.device(), values, &[values.len()]),
        dtype => {
            let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            Tensor::from_slice(x.device(), &values, &[values.len()])?.to_dtype(dtype)
        }
    }
}

impl Layer for MeshPool {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_mesh(OP, "gemm")
    }

    /// `[x, gemm, edges]` to those of the pooled mesh; with `topk` also without edges.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, gemm, edges) = match inputs {
            [x, gemm] => (x, gemm, None),
            [x, gemm, edges] => (x, gemm, Some(edges)),
            _ => {
                let got = format!("{} tensors", inputs.len());
                return Err(invalid(OP, "inputs", "features, gemm and edges", got));
            }
        };
        if x.rank() == 3 {
            return self.batch(x, gemm, edges);
        }
        let pooled = self.pool(x, gemm, edges)?;
        Ok([pooled.features, pooled.gemm].into_iter().chain(pooled.edges).collect())
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if let Some(w) = &self.weight {
            v.param("weight", w);
        }
    }
}
