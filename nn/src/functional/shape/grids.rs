//! Grids, products of sets, and series.

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};

impl Tensor {
    /// The coordinates of a grid from those of its axes, vectors or scalars: for n of them n views of one shape, the sizes of the vectors in
    /// order; with `xy` the first two axes of the grid are exchanged. Source `torch.meshgrid(indexing="ij")`, `"xy"`. Errors: other ranks.
    pub fn meshgrid(parts: &[&Tensor], xy: bool) -> Result<Vec<Tensor>> {
        if let Some(p) = parts.iter().find(|p| p.rank() > 1) {
            let got = format!("shape {:?}", p.shape());
            return Err(invalid("meshgrid", "parts", "vectors or scalars", got));
        }
        let mut shape: Vec<usize> = parts.iter().map(|p| p.numel()).collect();
        let exchanged = xy && parts.len() > 1;
        if exchanged {
            shape.swap(0, 1);
        }
        let axis_of = |i: usize| if exchanged && i < 2 { 1 - i } else { i };
        let coordinates = |(i, p): (usize, &&Tensor)| {
            let mut own = vec![1; parts.len()];
            own[axis_of(i)] = p.numel();
            p.reshape(&own)?.expand(&shape)
        };
        parts.iter().enumerate().map(coordinates).collect()
    }

    /// All tuples of elements of the vectors, in lexicographic order of positions: `[n, number of vectors]`; of one vector that itself. Source
    /// `torch.cartesian_prod`. Errors: no vectors, other ranks.
    pub fn cartesian_prod(parts: &[&Tensor]) -> Result<Tensor> {
        if let Some(p) = parts.iter().find(|p| p.rank() != 1) {
            return Err(invalid("cartesian_prod", "parts", "vectors", format!("shape {:?}", p.shape())));
        }
        if let [one] = parts {
            return Ok((*one).clone());
        }
        let grid = Tensor::meshgrid(parts, false)?;
        let columns = grid.iter().map(|g| g.reshape(&[g.numel()])).collect::<Result<Vec<_>>>()?;
        Tensor::stack(1, &columns.iter().collect::<Vec<_>>())
    }

    /// `base` to the powers of `n` numbers from `start` to `end` in equal steps. Source `torch.logspace`.
    pub fn logspace(
        device: &Device,
        dtype: DType,
        start: f64,
        end: f64,
        n: usize,
        base: f64,
    ) -> Result<Tensor> {
        let powers = Tensor::linspace(device, dtype, start, end, n)?;
        Tensor::full(device, dtype, &[], base)?.pow(&powers)
    }

    /// Vandermonde matrices `[.., m, n]` of vectors `[.., m]`: columns of the powers n - 1 to 0, or with `increasing` 0 to n - 1; n is m unless
    /// it is given. Source `torch.vander`, `torch.linalg.vander` (which increases). Errors: a scalar.
    pub fn vander(&self, n: Option<usize>, increasing: bool) -> Result<Tensor> {
        let Some(&m) = self.shape().last() else {
            return Err(invalid("vander", "self", "at least one axis", "a scalar"));
        };
        let n = n.unwrap_or(m);
        let column = self.unsqueeze(-1)?;
        let one = column.detach().ones_like()?;
        if n == 0 {
            return one.narrow(-1, 0, 0);
        }
        let others = column.expand(&[self.shape(), &[n - 1]].concat())?;
        let powers = Tensor::concat(-1, &[&one, &others])?.cumprod(-1)?;
        if increasing { Ok(powers) } else { powers.flip(&[-1]) }
    }
}
