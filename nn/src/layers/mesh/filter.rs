//! What convolutions on meshes are made of.

use trefoil::ops::activation::Activation;
use trefoil::ops::mesh::MeshConv;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Mesh;
use crate::layers::graph::cache::{Last, Seen};
use crate::layers::graph::convolutional::check_size;
use crate::module::{Init, InitContext, Param, Visitor};

/// Weight `[out, blocks * in]`, bias `[out]` and activation of a convolution.
#[derive(Debug)]
pub(super) struct Filter {
    op: &'static str,
    inputs: usize,
    pub(super) weight: Param,
    pub(super) bias: Option<Param>,
    pub(super) act: Activation,
}

impl Filter {
    /// With a relu. `blocks` is the size of the argument of this name. Errors: a size of 0, sizes whose product is no number.
    pub(super) fn new(
        cx: &InitContext,
        op: &'static str,
        [inputs, outputs]: [usize; 2],
        (arg, blocks): (&'static str, usize),
        [weight, bias]: [Init; 2],
    ) -> Result<Self> {
        for (arg, n) in [("in_channels", inputs), ("out_channels", outputs), (arg, blocks)] {
            check_size(op, arg, n)?;
        }
        let columns = inputs.checked_mul(blocks).ok_or_else(|| {
            invalid(op, "in_channels", "a number of columns that fits", format!("{inputs} * {blocks}"))
        })?;
        Ok(Filter {
            op,
            inputs,
            weight: weight.param(cx, &[outputs, columns], columns, outputs)?,
            bias: Some(bias.param(cx, &[outputs], columns, outputs)?),
            act: Activation::Relu,
        })
    }

    /// The convolution by `weight`, whose columns stand as the mesh has them. Errors: `Invalid` for another mesh and for features that are
    /// not its elements'.
    pub(super) fn conv(&self, mesh: &Mesh, kind: MeshConv, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        if mesh.kind() != kind {
            return Err(invalid(
                self.op,
                "mesh",
                format!("a mesh of {kind:?}"),
                format!("{:?}", mesh.kind()),
            ));
        }
        let (elements, width) = (mesh.num_elements(), self.inputs);
        match *x.shape() {
            [n, c] | [_, n, c] if n == elements && c == width => {}
            _ => {
                let expected = format!("shape [{elements}, {width}] or [B, {elements}, {width}]");
                return Err(invalid(self.op, "x", expected, format!("shape {:?}", x.shape())));
            }
        }
        mesh.conv(x, weight, self.bias.as_ref().map(Param::get).as_ref())?.activation(self.act)
    }

    pub(super) fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}

/// The mesh of the list that came last, so that one which comes again and again is examined once.
#[derive(Debug, Default)]
pub(super) struct MeshCache(Last<Seen, Mesh>);

impl MeshCache {
    /// The mesh of a list of neighbours, made by `make` where it is a new one.
    pub(super) fn mesh(&self, list: &Tensor, make: impl FnOnce() -> Result<Mesh>) -> Result<Mesh> {
        self.0.get(|s| s.is(list), || Ok((Seen::new(list), make()?)))
    }
}

/// Features and the list of neighbours. Errors: another number of inputs.
pub(super) fn pair<'a>(op: &'static str, list: &str, inputs: &'a [Tensor]) -> Result<[&'a Tensor; 2]> {
    match inputs {
        [x, neighbors] => Ok([x, neighbors]),
        _ => Err(invalid(op, "inputs", format!("features and {list}"), format!("{} tensors", inputs.len()))),
    }
}

/// Refuses a call without neighbours.
pub(super) fn without_mesh(op: &'static str, list: &str) -> Result<Tensor> {
    let expected = format!("features and {list} (`forward_all`), or a mesh (`forward_on`)");
    Err(invalid(op, "inputs", expected, "features alone"))
}
