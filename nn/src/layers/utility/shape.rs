//! Flatten and reshape.

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::named;
use crate::module::Layer;

/// Merges axes `start..=end` (default 1..=-1), `torch.nn.Flatten`.
#[derive(Debug, Clone, Copy)]
pub struct Flatten {
    start: isize,
    end: isize,
}

impl Flatten {
    /// Merges axes `start..=end`.
    pub fn new(start: isize, end: isize) -> Self {
        Flatten { start, end }
    }
}

impl Default for Flatten {
    fn default() -> Self {
        Flatten::new(1, -1)
    }
}

impl Layer for Flatten {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        named("Flatten", x.flatten(self.start, self.end))
    }
}

/// Gives all axes but the first another shape with at most one -1, Keras' `Reshape`.
#[derive(Debug, Clone)]
pub struct Reshape {
    target: Vec<isize>,
}

impl Reshape {
    /// `[B, ..] -> [B, target..]`. Errors: more than one -1, or another negative size.
    pub fn new(target_shape: &[isize]) -> Result<Self> {
        if target_shape.iter().any(|&n| n < -1) || target_shape.iter().filter(|&&n| n == -1).count() > 1 {
            let got = format!("{target_shape:?}");
            return Err(invalid("Reshape", "target_shape", "sizes of at least 0 with at most one -1", got));
        }
        Ok(Reshape { target: target_shape.to_vec() })
    }

    /// Shape of an item behind the layer. Errors: sizes that do not agree.
    pub(crate) fn item(&self, item: &[usize]) -> Result<Vec<usize>> {
        // A product that is too large agrees with none.
        let product = |sizes: &mut dyn Iterator<Item = usize>| sizes.fold(1, usize::saturating_mul);
        let all = product(&mut item.iter().copied());
        let known = product(&mut self.target.iter().filter(|&&n| n >= 0).map(|&n| n as usize));
        let open = self.target.contains(&-1);
        if (open && (known == 0 || !all.is_multiple_of(known))) || (!open && all != known) {
            let expected = format!("{all} elements per item, as in {item:?}");
            return Err(invalid("Reshape", "target_shape", expected, format!("{:?}", self.target)));
        }
        Ok(self.target.iter().map(|&n| if n < 0 { all / known } else { n as usize }).collect())
    }
}

impl Layer for Reshape {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some((&batch, rest)) = x.shape().split_first() else {
            return Err(invalid("Reshape", "x", "shape [B, ..]", "a scalar"));
        };
        x.reshape(&[&[batch], self.item(rest)?.as_slice()].concat())
    }
}
