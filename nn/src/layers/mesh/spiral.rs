//! Convolution along spirals.

use trefoil::ops::activation::Activation;
use trefoil::ops::mesh::MeshConv;

use super::filter::{Filter, MeshCache, pair, without_mesh};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Mesh;
use crate::module::{Init, InitContext, Layer, Visitor};

const OP: &str = "SpiralConv";

/// Convolution of SpiralNet++ (Gong et al., 2019): act(z W^T + b) with the features z of the vertices along the spiral of each vertex side
/// by side, `torch.nn.Linear` of indexed features. Features `[V, in]` or `[B, V, in]` of B samples on one mesh become `[.., out]`; the
/// spirals are integers `[V, length]`, each beginning with its vertex, and -1, behind the end of a shorter one, stands for zeros.
///
/// State: `weight [out, length * in]`, spiral position by spiral position, from U(-a, a) of Glorot and Bengio; `bias [out]` = 0.
#[derive(Debug)]
pub struct SpiralConv {
    length: usize,
    filter: Filter,
    meshes: MeshCache,
}

impl SpiralConv {
    /// `in_channels -> out_channels` along spirals of this length, with bias and relu. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        out_channels: usize,
        spiral_length: usize,
    ) -> Result<Self> {
        let (sizes, blocks) = ([in_channels, out_channels], ("spiral_length", spiral_length));
        let filter = Filter::new(cx, OP, sizes, blocks, [Init::Glorot, Init::Zeros])?;
        Ok(SpiralConv { length: spiral_length, filter, meshes: MeshCache::default() })
    }

    setters! {
        /// Sets the activation.
        activation: Activation => filter.act;
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.filter.bias = None;
        self
    }

    /// The features of the vertices of a mesh of [`MeshConv::Spiral`]. Gradients flow to features and parameters. Errors: `Invalid` for
    /// spirals of another length, shapes and dtypes that do not fit.
    pub fn forward_on(&self, mesh: &Mesh, x: &Tensor) -> Result<Tensor> {
        self.check_length(mesh.neighbors())?;
        self.filter.conv(mesh, MeshConv::Spiral, x, &self.filter.weight.get())
    }

    fn check_length(&self, indices: &Tensor) -> Result<()> {
        match *indices.shape() {
            [_, n] if n == self.length => Ok(()),
            _ => {
                let expected = format!("shape [V, {}]", self.length);
                Err(invalid(OP, "indices", expected, format!("shape {:?}", indices.shape())))
            }
        }
    }
}

impl Layer for SpiralConv {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_mesh(OP, "indices")
    }

    /// `[x, indices]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [x, indices] = pair(OP, "indices", inputs)?;
        self.check_length(indices)?;
        let mesh = self.meshes.mesh(indices, || Mesh::new(MeshConv::Spiral, indices))?;
        Ok(vec![self.forward_on(&mesh, x)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.filter.visit(v);
    }
}
