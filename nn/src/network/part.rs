//! Layers as parts of a network.

use super::{LAYERS, LayerInfo};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{Layer, Visitor};

/// A layer with a fixed number of spatial axes. Inputs of networks have a batch axis, so that `[B, C, L]` must not be read as one image
/// `[C, H, W]`, which the layer alone would do.
#[derive(Debug)]
struct Batched {
    layer: Box<dyn Layer>,
    info: &'static LayerInfo,
    axes: usize,
}

/// The layer of a type as it stands in a network.
pub(super) fn part(info: &'static LayerInfo, layer: Box<dyn Layer>) -> Box<dyn Layer> {
    match info.spatial {
        Some(axes) => Box::new(Batched { layer, info, axes }),
        None => layer,
    }
}

/// The type that does the same over one spatial axis less.
fn with_fewer_axes(info: &LayerInfo, axes: usize) -> Option<&'static LayerInfo> {
    let torch =
        info.torch.split('(').next()?.replace(&format!("{axes}d"), &format!("{}d", axes.checked_sub(1)?));
    LAYERS.iter().find(|l| l.torch == torch && l.name != info.name)
}

impl Batched {
    fn check(&self, x: &Tensor) -> Result<()> {
        if x.rank() != self.axes + 1 {
            return Ok(());
        }
        let batch = |axes: usize| ["[B, C]", "[B, C, L]", "[B, C, H, W]", "[B, C, D, H, W]"][axes];
        let mut expected = format!("rank {}, {}", self.axes + 2, batch(self.axes));
        if let Some(other) = with_fewer_axes(self.info, self.axes) {
            expected += &format!(" (for {} use `{}`)", batch(self.axes - 1), other.name);
        }
        Err(invalid(self.info.kind, "x", expected, format!("rank {}, shape {:?}", x.rank(), x.shape())))
    }
}

impl Layer for Batched {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.check(x)?;
        self.layer.forward(x)
    }

    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        inputs.first().map_or(Ok(()), |x| self.check(x))?;
        self.layer.forward_all(inputs)
    }

    fn kind(&self) -> &'static str {
        self.layer.kind()
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.layer.visit(v);
    }

    fn set_training(&self, on: bool) {
        self.layer.set_training(on);
    }

    fn reset_state(&self) {
        self.layer.reset_state();
    }

    fn no_gradient(&self) -> Option<String> {
        self.layer.no_gradient()
    }
}
