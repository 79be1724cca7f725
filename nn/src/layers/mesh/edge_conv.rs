//! Convolution on the edges of a mesh.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::mesh::MeshConv;

use super::filter::{Filter, MeshCache, pair, without_mesh};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, is_trial};
use crate::functional::Mesh;
use crate::module::{Init, InitContext, Layer, Visitor};

const OP: &str = "MeshEdgeConv";

/// Blocks that the layer sees of an edge: its own features and those of its neighbours.
const BLOCKS: usize = 5;

/// Convolution of MeshCNN (Hanocka et al., 2019) over an edge and the four other edges a, b, c, d of its two triangles: act(f W^T + b) with
/// f = [x, a + c, b + d, |a - c|, |b - d|], which does not depend on the order of the triangles, or else f = [x, a, b, c, d]. Features
/// `[E, in]`, or `[B, E, in]`, become `[.., out]`.
///
/// The neighbours `gemm` are integers `[E, 4]`, those of the first triangle first, -1 for none (zeros): [`Mesh::from_faces`] makes them. B
/// samples have one mesh in common, or one each, `[B, E, 4]`.
///
/// State: `weight [out, 5 in]` (column 5 blocks of `in`; MeshCNN's `conv.weight [out, in, 1, 5]` with its last axis first) and
/// `bias [out]`, both from U(-1/sqrt(5 in), 1/sqrt(5 in)).
#[derive(Debug)]
pub struct MeshEdgeConv {
    kind: MeshConv,
    filter: Filter,
    /// Of the blocks of the weight, as the convolution has them: x, |a - c|, a + c, |b - d|, b + d.
    order: Tensor,
    meshes: MeshCache,
}

impl MeshEdgeConv {
    /// `in_channels -> out_channels` with bias and relu, whatever the order of the triangles. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_channels: usize, out_channels: usize) -> Result<Self> {
        let sizes = [in_channels, out_channels];
        Ok(MeshEdgeConv {
            kind: MeshConv::Symmetric,
            filter: Filter::new(cx, OP, sizes, ("blocks", BLOCKS), [Init::Lin, Init::Lin])?,
            order: Tensor::from_slice(cx.device(), &[0i64, 3, 1, 4, 2], &[BLOCKS])?,
            meshes: MeshCache::default(),
        })
    }

    setters! {
        /// Sets the activation.
        activation: Activation => filter.act;
    }

    /// Whether the result is the same for both orders of an edge's triangles (default true).
    pub fn symmetric(mut self, symmetric: bool) -> Self {
        self.kind = if symmetric { MeshConv::Symmetric } else { MeshConv::Concat };
        self
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.filter.bias = None;
        self
    }

    /// The features of the edges of a mesh of [`MeshConv::Symmetric`], or of [`MeshConv::Concat`] with four neighbours where the layer is
    /// not symmetric. Gradients flow to features and parameters. Errors: `Invalid` for another mesh, shapes and dtypes that do not fit.
    pub fn forward_on(&self, mesh: &Mesh, x: &Tensor) -> Result<Tensor> {
        let w = self.filter.weight.get();
        let w = match self.kind {
            MeshConv::Symmetric => {
                let blocks = w.reshape(&[w.shape()[0], BLOCKS, w.shape()[1] / BLOCKS])?;
                blocks.index_select(1, &self.order)?.reshape(w.shape())?
            }
            _ => w,
        };
        self.filter.conv(mesh, self.kind, x, &w)
    }

    /// The mesh of the edges of all samples.
    fn mesh(&self, gemm: &Tensor) -> Result<Mesh> {
        check_gemm(gemm)?;
        match *gemm.shape() {
            [samples, edges, _] => {
                // Those of a sample are numbered behind those of the samples before it.
                let ids = Tensor::arange(gemm.device(), gemm.dtype(), 0.0, edges as f64, samples)?;
                let shifted = gemm.add(&ids.reshape(&[samples, 1, 1])?)?;
                let all = gemm.where_(&gemm.lt_scalar(0.0)?, &shifted)?;
                Mesh::new(self.kind, &all.reshape(&[samples * edges, 4])?)
            }
            _ => Mesh::new(self.kind, gemm),
        }
    }
}

impl Layer for MeshEdgeConv {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_mesh(OP, "gemm")
    }

    /// `[x, gemm]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [x, gemm] = pair(OP, "gemm", inputs)?;
        let (rank, mesh) = (gemm.rank(), self.meshes.mesh(gemm, || self.mesh(gemm))?);
        if rank == 2 {
            return Ok(vec![self.forward_on(&mesh, x)?]);
        }
        if x.rank() != 3 || x.shape()[..2] != gemm.shape()[..2] {
            let expected = format!("shape [{}, {}, C]", gemm.shape()[0], gemm.shape()[1]);
            return Err(invalid(OP, "x", expected, format!("shape {:?}", x.shape())));
        }
        let y = self.forward_on(&mesh, &x.flatten(0, 1)?)?;
        let outputs = y.shape()[1];
        Ok(vec![y.reshape(&[x.shape()[0], x.shape()[1], outputs])?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.filter.visit(v);
    }
}

/// Error unless `gemm` is a list of four neighbours, each of them -1 or an edge that has this one among its own. Waits for the device.
fn check_gemm(gemm: &Tensor) -> Result<()> {
    let (&[edges, 4] | &[_, edges, 4]) = gemm.shape() else {
        return Err(invalid(OP, "gemm", "shape [E, 4] or [B, E, 4]", format!("shape {:?}", gemm.shape())));
    };
    if !gemm.dtype().is_index() {
        return Err(invalid(OP, "gemm", "i32 or i64", gemm.dtype().name()));
    }
    if is_trial(gemm.device()) || edges == 0 {
        return Ok(());
    }
    let list = gemm.to_dtype(DType::I64)?.to_vec::<i64>()?;
    for (sample, all) in list.chunks_exact(4 * edges).enumerate() {
        for (at, &n) in all.iter().enumerate().filter(|(_, n)| **n != -1) {
            let edge = at / 4;
            let back = usize::try_from(n).ok().and_then(|n| all.chunks_exact(4).nth(n));
            if back.is_none_or(|back| !back.contains(&(edge as i64))) {
                let expected = format!("-1, or an edge of {edges} that has edge {edge} among its neighbours");
                return Err(invalid(OP, "gemm", expected, format!("{n} (sample {sample}, edge {edge})")));
            }
        }
    }
    Ok(())
}
