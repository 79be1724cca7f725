//! Cells taken from or added to the borders.

use trefoil::ops::shape::PadMode;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::named;
use crate::module::Layer;

/// Cells cut from the last axes, Keras' `Cropping1D`, `2D` and `3D`; a view.
///
/// Errors of `forward`: more pairs than axes; no cell left.
#[derive(Debug, Clone)]
pub struct Cropping {
    pairs: Vec<(usize, usize)>,
}

impl Cropping {
    /// Cuts (before, after) from each of the last axes, in the order of the axes: `[(top, bottom), (left, right)]`.
    pub fn new(pairs: &[(usize, usize)]) -> Self {
        Cropping { pairs: pairs.to_vec() }
    }
}

impl Layer for Cropping {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let first = first_axis("Cropping", "cropping", x, self.pairs.len(), x.rank())?;
        self.pairs.iter().enumerate().try_fold(x.clone(), |y, (i, &(before, after))| {
            let at = first + i;
            let n = x.shape()[at];
            match n.checked_sub(before).and_then(|n| n.checked_sub(after)) {
                Some(left) if left > 0 => y.narrow(at as isize, before, left),
                _ => {
                    let got = format!("{before} and {after} cells of {n} on axis {at}");
                    Err(invalid("Cropping", "cropping", "a cell left", got))
                }
            }
        })
    }
}

/// Cells added to the last axes, `torch.nn.functional.pad`: constant (0 unless set otherwise), reflected, replicated or wrapped around.
///
/// Errors of `forward`: more pairs than axes (other modes than constant: a pair for the first axis); reflecting padding not below the axis;
/// circular padding above it.
#[derive(Debug, Clone)]
pub struct Padding {
    pairs: Vec<(usize, usize)>,
    mode: PadMode,
}

impl Padding {
    /// Adds (before, after) zeros to each of the last axes, in the order of the axes: `[(top, bottom), (left, right)]`. Errors: numbers from
    /// 2^31 on.
    pub fn new(pairs: &[(usize, usize)]) -> Result<Self> {
        if pairs.iter().any(|&(b, a)| b.max(a) > i32::MAX as usize) {
            return Err(invalid("Padding", "padding", "numbers below 2^31", format!("{pairs:?}")));
        }
        Ok(Padding { pairs: pairs.to_vec(), mode: PadMode::Constant(0.0) })
    }

    setters! {
        /// Sets what the added cells hold.
        mode: PadMode => mode;
    }
}

impl Layer for Padding {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // Modes that read cells are for spatial axes; without a batch axis the first one is the channels.
        let most = match self.mode {
            PadMode::Constant(_) => x.rank(),
            _ => x.rank().saturating_sub(1),
        };
        let first = first_axis("Padding", "padding", x, self.pairs.len(), most)?;
        let mut pads = vec![(0, 0); first];
        pads.extend(self.pairs.iter().map(|&(b, a)| (b as isize, a as isize)));
        named("Padding", x.pad(self.mode, &pads))
    }
}

/// The axis that the first of `pairs` pairs is for. Error for more than `most` pairs.
fn first_axis(
    layer: &'static str,
    arg: &'static str,
    x: &Tensor,
    pairs: usize,
    most: usize,
) -> Result<usize> {
    if pairs <= most {
        return Ok(x.rank() - pairs);
    }
    let got = format!("{pairs} for shape {:?}", x.shape());
    Err(invalid(layer, arg, format!("at most {most} pairs"), got))
}
