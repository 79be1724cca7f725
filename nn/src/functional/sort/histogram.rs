//! Histograms over bins with edges.

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// A histogram, and the edges of its bins along each axis.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// A float for each bin: an axis for each coordinate.
    pub counts: Tensor,
    /// For each axis the edges of its bins, a vector one longer than the axis.
    pub edges: Vec<Tensor>,
}

/// The range of a histogram's axis that ends at the least and the largest element.
type Range = Option<[f64; 2]>;

/// Edges of bins of equal width; where all elements are equal, from 0.5 below to 0.5 above them.
fn equal_bins(op: &'static str, x: &Tensor, bins: usize, range: Range) -> Result<Tensor> {
    if bins == 0 || bins > 1 << 30 {
        return Err(invalid(op, "bins", "1 to 2^30 for each axis", format!("{bins}")));
    }
    let bound = |c: f64| Tensor::full(x.device(), x.dtype(), &[1], c);
    let (lo, hi) = match range {
        Some([lo, hi]) if lo <= hi && lo.is_finite() && hi.is_finite() => (bound(lo)?, bound(hi)?),
        Some(other) => return Err(invalid(op, "range", "finite numbers in order", format!("{other:?}"))),
        None if x.numel() == 0 => (bound(0.0)?, bound(0.0)?),
        None => (x.amin(&[0], true)?, x.amax(&[0], true)?),
    };
    let half = lo.eq(&hi)?.to_dtype(x.dtype())?.mul_scalar(0.5)?;
    let (lo, hi) = (lo.sub(&half)?, hi.add(&half)?);
    // From both ends, which are exact.
    let share = Tensor::arange(x.device(), x.dtype(), 0.0, 1.0 / bins as f64, bins + 1)?;
    let back = Tensor::arange(x.device(), x.dtype(), 1.0, -1.0 / bins as f64, bins)?;
    let back = Tensor::concat(0, &[&back, &Tensor::zeros(x.device(), x.dtype(), &[1])?])?;
    let width = hi.sub(&lo)?;
    let (up, down) = (lo.add(&width.mul(&share)?)?, hi.sub(&width.mul(&back)?)?);
    up.where_(&share.lt_scalar(0.5)?, &down)
}

/// The bin (i64) of each element of a vector, and a u8 mask of those that have one.
fn bins_of(x: &Tensor, edges: &Tensor) -> Result<(Tensor, Tensor)> {
    let last = (edges.numel() - 1) as f64;
    let place = edges.search_sorted(x, true)?;
    let end = x.eq(&edges.narrow(0, edges.numel() - 1, 1)?)?;
    // The last bin holds its end.
    let bin = place.sub_scalar(1.0)?.sub(&end.to_dtype(DType::I64)?)?;
    let inside = bin.ge_scalar(0.0)?.logical_and(&bin.lt_scalar(last)?)?;
    Ok((bin.where_(&inside, &bin.zeros_like()?)?, inside))
}

impl Tensor {
    /// The numbers of elements, or the sums of their `weight` (of this shape), in bins of equal width over a range, by default from the least to the
    /// largest element; a bin has its lower edge, the last one both. With `density` divided by their sum and the bins' width. Elements outside and
    /// NaN are not counted. No gradient. Source `torch.histogram`. Errors: `Invalid` for integers, no bins, a range that is not finite or not in
    /// order, weights of another shape or dtype.
    pub fn histogram(
        &self,
        bins: usize,
        range: Option<[f64; 2]>,
        weight: Option<&Tensor>,
        density: bool,
    ) -> Result<Histogram> {
        const OP: &str = "histogram";
        let x = self.detach().reshape(&[self.numel(), 1])?;
        let edges = equal_bins(OP, &x.squeeze(1)?, bins, range)?;
        x.counted(OP, vec![edges], weight, self.shape(), density)
    }

    /// [`histogram`](Tensor::histogram) over bins between these edges, an ascending vector of two or more.
    pub fn histogram_of_edges(
        &self,
        edges: &Tensor,
        weight: Option<&Tensor>,
        density: bool,
    ) -> Result<Histogram> {
        let x = self.detach().reshape(&[self.numel(), 1])?;
        x.counted("histogram_of_edges", vec![edges.detach()], weight, self.shape(), density)
    }

    /// The histogram of points `[.., D]` over D axes with these numbers of bins, at most 8; `weight` is `[..]`. Otherwise as
    /// [`histogram`](Tensor::histogram). Source `torch.histogramdd`.
    pub fn histogramdd(
        &self,
        bins: &[usize],
        range: Option<&[[f64; 2]]>,
        weight: Option<&Tensor>,
        density: bool,
    ) -> Result<Histogram> {
        const OP: &str = "histogramdd";
        let (x, lead) = self.points(OP, bins.len())?;
        if range.is_some_and(|r| r.len() != bins.len()) {
            return Err(invalid(OP, "range", "a range for each axis", format!("{range:?}")));
        }
        let edge =
            |(i, &n): (usize, &usize)| equal_bins(OP, &x.select(1, i as isize)?, n, range.map(|r| r[i]));
        let edges = bins.iter().enumerate().map(edge).collect::<Result<Vec<_>>>()?;
        x.counted(OP, edges, weight, lead, density)
    }

    /// [`histogramdd`](Tensor::histogramdd) over bins between these edges, for each axis an ascending vector of two or more.
    pub fn histogramdd_of_edges(
        &self,
        edges: &[&Tensor],
        weight: Option<&Tensor>,
        density: bool,
    ) -> Result<Histogram> {
        const OP: &str = "histogramdd_of_edges";
        let (x, lead) = self.points(OP, edges.len())?;
        x.counted(OP, edges.iter().map(|e| e.detach()).collect(), weight, lead, density)
    }

    /// Points [N, D], and the axes before the last.
    fn points(&self, op: &'static str, axes: usize) -> Result<(Tensor, &[usize])> {
        match self.shape().split_last() {
            Some((&d, lead)) if d == axes && (1..=8).contains(&d) => {
                Ok((self.detach().reshape(&[lead.iter().product(), d])?, lead))
            }
            _ => {
                let expected = format!("points [.., D] of as many coordinates as bins (1 to 8), {axes}");
                Err(invalid(op, "self", expected, format!("shape {:?}", self.shape())))
            }
        }
    }

    /// Counts points [N, D].
    fn counted(
        &self,
        op: &'static str,
        edges: Vec<Tensor>,
        weight: Option<&Tensor>,
        lead: &[usize],
        density: bool,
    ) -> Result<Histogram> {
        for e in &edges {
            same_device(op, self, e)?;
            if e.rank() != 1 || e.numel() < 2 || e.dtype() != self.dtype() || !e.dtype().is_float() {
                let expected =
                    format!("vectors of two or more, of floats like the points' ({})", self.dtype());
                return Err(invalid(op, "edges", expected, format!("{} {:?}", e.dtype(), e.shape())));
            }
        }
        let mut amount = match weight {
            Some(w) if w.shape() != lead || w.dtype() != self.dtype() => {
                let expected = format!("{} of shape {lead:?}", self.dtype());
                return Err(invalid(op, "weight", expected, format!("{} {:?}", w.dtype(), w.shape())));
            }
            Some(w) => w.detach().reshape(&[self.shape()[0]])?,
            None => Tensor::ones(self.device(), self.dtype(), &self.shape()[..1])?,
        };
        same_device(op, self, &amount)?;
        let shape: Vec<usize> = edges.iter().map(|e| e.numel() - 1).collect();
        let Some(total) = shape.iter().try_fold(1usize, |n, &b| n.checked_mul(b)).filter(|&n| n < 1 << 40)
        else {
            return Err(invalid(op, "bins", "fewer than 2^40 in all", format!("{shape:?}")));
        };
        let mut bin = Tensor::zeros(self.device(), DType::I64, &self.shape()[..1])?;
        for (i, edges) in edges.iter().enumerate() {
            let (along, inside) = bins_of(&self.select(1, i as isize)?.contiguous()?, edges)?;
            bin = bin.mul_scalar(shape[i] as f64)?.add(&along)?;
            amount = amount.zeros_like()?.where_(&inside.eq_scalar(0.0)?, &amount)?;
        }
        let counts = Tensor::zeros(self.device(), self.dtype(), &[total])?.index_add(0, &bin, &amount)?;
        let mut counts = counts.reshape(&shape)?;
        if density {
            counts = counts.div(&counts.sum()?)?;
            for (i, e) in edges.iter().enumerate() {
                let mut across = vec![1; shape.len()];
                across[i] = shape[i];
                let width = e.narrow(0, 1, shape[i])?.sub(&e.narrow(0, 0, shape[i])?)?;
                counts = counts.div(&width.reshape(&across)?)?;
            }
        }
        Ok(Histogram { counts, edges })
    }
}
