//! Grids, products and choices of sets, and series.

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};

/// How many choices of r of n elements there are, if fewer than 2^31.
fn number_of_choices(n: usize, r: usize, repeated: bool) -> Option<usize> {
    let n = if repeated && r > 0 { n.saturating_add(r - 1) } else { n };
    if r > n {
        return Some(0);
    }
    let mut count: usize = 1;
    // Each partial product is a number of choices itself.
    for i in 0..r.min(n - r) {
        count = count.checked_mul(n - i)? / (i + 1);
    }
    (count < 1 << 31).then_some(count)
}

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

    /// All choices of `r` elements of a vector in lexicographic order of positions, `[n, r]`; with `repeated` an element can be chosen several
    /// times. Source `torch.combinations`. Errors: another rank, more than 2^26
    /// elements.
    pub fn combinations(&self, r: usize, repeated: bool) -> Result<Tensor> {
        const OP: &str = "combinations";
        let &[n] = self.shape() else {
            return Err(invalid(OP, "self", "a vector", format!("shape {:?}", self.shape())));
        };
        let rows = number_of_choices(n, r, repeated).filter(|rows| rows.saturating_mul(r) <= 1 << 26);
        let Some(rows) = rows else {
            return Err(invalid(OP, "r", "choices of at most 2^26 elements in all", format!("{r} of {n}")));
        };
        let mut places: Vec<i64> = vec![];
        let mut choice: Vec<usize> = if repeated { vec![0; r] } else { (0..r).collect() };
        for _ in 0..rows {
            places.extend(choice.iter().map(|&c| c as i64));
            // The last position that can move does; those behind it follow closely.
            let most = |i: usize| if repeated { n - 1 } else { n - r + i };
            if let Some(i) = (0..r).rev().find(|&i| choice[i] < most(i)) {
                let next = choice[i] + 1;
                (i..r).for_each(|j| choice[j] = if repeated { next } else { next + j - i });
            }
        }
        let places = Tensor::from_slice(self.device(), &places, &[rows * r])?;
        self.index_select(0, &places)?.reshape(&[rows, r])
    }

    /// Row-major positions (integers) in a shape as positions along each of its axes. Source `torch.unravel_index`. Errors: floats.
    pub fn unravel_index(&self, shape: &[usize]) -> Result<Vec<Tensor>> {
        if self.dtype().is_float() {
            return Err(invalid("unravel_index", "self", "integers", self.dtype().name()));
        }
        let mut rest = self.to_dtype(DType::I64)?;
        let mut places = vec![];
        for &n in shape.iter().rev() {
            let size = Tensor::full(self.device(), DType::I64, &[], n.max(1) as f64)?;
            let whole = rest.div_floor(&size)?;
            places.push(rest.sub(&whole.mul(&size)?)?);
            rest = whole;
        }
        places.reverse();
        Ok(places)
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
