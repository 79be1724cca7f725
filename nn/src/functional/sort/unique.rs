//! Distinct elements, and how often they occur.

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis, is_trial, same_device};

/// Distinct elements of a tensor.
#[derive(Debug, Clone)]
pub struct Unique {
    /// The elements, a vector.
    pub values: Tensor,
    /// For each element of the tensor (in its shape) its position among the values, i64.
    pub inverse: Tensor,
    /// How often each value occurs, i64.
    pub counts: Tensor,
}

/// A vector of i64.
fn counters(like: &Tensor, n: usize, value: f64) -> Result<Tensor> {
    Tensor::full(like.device(), DType::I64, &[n], value)
}

/// Runs of equal elements of a vector: values, the run of each element, lengths.
fn runs(x: &Tensor) -> Result<[Tensor; 3]> {
    let n = x.numel();
    if n == 0 {
        return Ok([x.clone(), counters(x, 0, 0.0)?, counters(x, 0, 0.0)?]);
    }
    let changes = x.narrow(0, 1, n - 1)?.ne(&x.narrow(0, 0, n - 1)?)?;
    let starts = Tensor::concat(0, &[&Tensor::ones(x.device(), DType::U8, &[1])?, &changes])?;
    let run = starts.cumsum(0)?.sub_scalar(1.0)?;
    let values = x.masked_select(&starts)?;
    let counts = counters(x, n, 0.0)?.index_add(0, &run, &counters(x, n, 1.0)?)?;
    let counts = counts.narrow(0, 0, values.numel())?.contiguous()?;
    Ok([values, run, counts])
}

/// The rank of each element within its column of a matrix: numbers from 0 in ascending order, equal for equal elements.
fn column_ranks(x: &Tensor) -> Result<Tensor> {
    let (n, columns) = (x.shape()[0], x.shape()[1]);
    let (sorted, order) = x.sort(0, false)?;
    let changes = sorted.narrow(0, 1, n - 1)?.ne(&sorted.narrow(0, 0, n - 1)?)?;
    let first = Tensor::zeros(x.device(), DType::U8, &[1, columns])?;
    let ranks = Tensor::concat(0, &[&first, &changes])?.cumsum(0)?;
    ranks.zeros_like()?.scatter(0, &order, &ranks)
}

/// The rank of each row of a matrix in lexicographic order. Ranks of neighbouring columns make one number, so that half as many columns are left.
fn row_ranks(x: &Tensor) -> Result<Tensor> {
    let n = x.shape()[0];
    if n == 0 || x.shape()[1] == 0 {
        return counters(x, n, 0.0);
    }
    let mut ranks = column_ranks(x)?;
    while ranks.shape()[1] > 1 {
        let columns = ranks.shape()[1];
        let half = columns / 2;
        let pairs = ranks.narrow(1, 0, 2 * half)?.reshape(&[n, half, 2])?;
        let joined = pairs.select(2, 0)?.mul_scalar(n as f64)?.add(&pairs.select(2, 1)?)?;
        let joined = column_ranks(&joined)?;
        ranks = match columns % 2 {
            0 => joined,
            _ => Tensor::concat(1, &[&joined, &ranks.narrow(1, columns - 1, 1)?])?,
        };
    }
    ranks.squeeze(1)
}

impl Tensor {
    /// The distinct slices along an axis, in lexicographic order: `values` has them along that axis, `inverse` (i64 `[size]`) and `counts` are
    /// vectors. Slices with NaN count each for itself. Waits for the device, which alone knows how many they are. No gradient. Source
    /// `torch.unique(dim=.., return_inverse=True, return_counts=True)`. Errors: `Invalid` for an axis out of range.
    pub fn unique_dim(&self, along: isize) -> Result<Unique> {
        let rows = self.slices("unique_dim", along)?;
        let ranks = row_ranks(&rows)?;
        let (sorted, order) = ranks.sort(0, false)?;
        let [_, run, counts] = runs(&sorted)?;
        self.of_runs(along, &run, &order, ranks, counts)
    }

    /// The slices along an axis without those that equal the one before; otherwise as [`unique_dim`](Tensor::unique_dim). Source
    /// `torch.unique_consecutive(dim=..)`.
    pub fn unique_consecutive_dim(&self, along: isize) -> Result<Unique> {
        let rows = self.slices("unique_consecutive_dim", along)?;
        let n = rows.shape()[0];
        let run = if n == 0 || rows.shape()[1] == 0 {
            counters(self, n, 0.0)?
        } else {
            let changes = rows.narrow(0, 1, n - 1)?.ne(&rows.narrow(0, 0, n - 1)?)?.any(&[1], false)?;
            Tensor::concat(0, &[&Tensor::zeros(self.device(), DType::U8, &[1])?, &changes])?.cumsum(0)?
        };
        let [_, _, counts] = runs(&run)?;
        let order = Tensor::arange(self.device(), DType::I64, 0.0, 1.0, n)?;
        self.of_runs(along, &run, &order, run.clone(), counts)
    }

    /// Slices along an axis as the rows of a matrix.
    fn slices(&self, op: &'static str, along: isize) -> Result<Tensor> {
        let at = axis(op, along, self.rank())?;
        let n = self.shape()[at];
        let width = self.numel().checked_div(n).unwrap_or(0);
        self.detach().transpose(0, at as isize)?.reshape(&[n, width])
    }

    /// The first slice of each run, in an order.
    fn of_runs(
        &self,
        along: isize,
        run: &Tensor,
        order: &Tensor,
        inverse: Tensor,
        counts: Tensor,
    ) -> Result<Unique> {
        let first = match run.numel() {
            0 => order.clone(),
            n => {
                let changes = run.narrow(0, 1, n - 1)?.ne(&run.narrow(0, 0, n - 1)?)?;
                let one = Tensor::ones(run.device(), DType::U8, &[1])?;
                order.masked_select(&Tensor::concat(0, &[&one, &changes])?)?
            }
        };
        Ok(Unique { values: self.detach().index_select(along, &first)?, inverse, counts })
    }

    /// The distinct elements in ascending order; every NaN counts for itself. Waits for the device, which alone knows how many they are. No
    /// gradient. Source `torch.unique(sorted=True, return_inverse=True, return_counts=True)`.
    pub fn unique(&self) -> Result<Unique> {
        let (sorted, order) = self.detach().reshape(&[self.numel()])?.sort(0, false)?;
        let [values, run, counts] = runs(&sorted)?;
        let inverse = counters(self, self.numel(), 0.0)?.scatter(0, &order, &run)?;
        Ok(Unique { values, inverse: inverse.reshape(self.shape())?, counts })
    }

    /// The elements in row-major order without those that equal the one before; every NaN counts for itself. Waits for the device, which alone
    /// knows how many they are. No gradient. Source `torch.unique_consecutive(return_inverse=True, return_counts=True)`.
    pub fn unique_consecutive(&self) -> Result<Unique> {
        let [values, run, counts] = runs(&self.detach().reshape(&[self.numel()])?)?;
        Ok(Unique { values, inverse: run.reshape(self.shape())?, counts })
    }

    /// u8 mask: whether each element is (with `invert`: is not) among those of `test`, of the same dtype. NaN is among none. Source
    /// `torch.isin`. Errors: dtypes that differ.
    pub fn isin(&self, test: &Tensor, invert: bool) -> Result<Tensor> {
        same_device("isin", self, test)?;
        let sorted = test.detach().reshape(&[test.numel()])?.sort(0, false)?.0;
        let x = self.detach().contiguous()?;
        let (start, end) = (sorted.search_sorted(&x, false)?, sorted.search_sorted(&x, true)?);
        if invert { end.le(&start) } else { end.gt(&start) }
    }

    /// How often each number from 0 occurs in a vector of integers that are not negative, or the sums of their `weights`: a vector up to the
    /// largest number, of at least `minlength`, i64 or the dtype of the weights. Waits for the device, which alone knows the largest number.
    /// No gradient. Source `torch.bincount`. Errors: other ranks and dtypes, a negative number, another number of weights.
    pub fn bincount(&self, weights: Option<&Tensor>, minlength: usize) -> Result<Tensor> {
        const OP: &str = "bincount";
        if self.rank() != 1 || self.dtype().is_float() {
            let got = format!("{} {:?}", self.dtype(), self.shape());
            return Err(invalid(OP, "self", "a vector of integers", got));
        }
        let weights = match weights {
            Some(w) if w.shape() != self.shape() => {
                let expected = format!("{} weights", self.numel());
                return Err(invalid(OP, "weights", expected, format!("shape {:?}", w.shape())));
            }
            Some(w) => w.detach(),
            None => counters(self, self.numel(), 1.0)?,
        };
        same_device(OP, self, &weights)?;
        let x = self.to_dtype(DType::I64)?;
        let mut size = minlength;
        if x.numel() > 0 && !is_trial(x.device()) {
            let ends = Tensor::stack(0, &[&x.min()?, &x.max()?])?.to_vec::<i64>()?;
            if ends[0] < 0 {
                return Err(invalid(OP, "self", "numbers of at least 0", format!("{}", ends[0])));
            }
            size = size.max(usize::try_from(ends[1]).unwrap_or(usize::MAX).saturating_add(1));
        }
        Tensor::zeros(x.device(), weights.dtype(), &[size])?.index_add(0, &x, &weights)
    }

    /// The numbers of elements in `bins` intervals of equal width between `min` and `max`, the last of which includes its end; between the
    /// smallest and the largest element if both are 0. Elements outside and NaN are not counted. A vector of this tensor's dtype, a float; no
    /// gradient. Source `torch.histc`, which refuses bounds from elements that are not finite: here nothing is counted then. Errors: no bins,
    /// bounds that are not finite or not in order, integers.
    pub fn histc(&self, bins: usize, min: f64, max: f64) -> Result<Tensor> {
        const OP: &str = "histc";
        if bins == 0 {
            return Err(invalid(OP, "bins", "at least 1", "0"));
        }
        if !(min <= max && min.is_finite() && max.is_finite()) {
            return Err(invalid(OP, "max", format!("a finite number of at least {min}"), format!("{max}")));
        }
        let x = self.detach().reshape(&[self.numel()])?;
        let counts = Tensor::zeros(x.device(), x.dtype(), &[bins])?;
        if x.numel() == 0 {
            return Ok(counts);
        }
        let bound = |c: f64| Tensor::full(x.device(), x.dtype(), &[], c);
        let (lo, hi) =
            if min == 0.0 && max == 0.0 { (x.min()?, x.max()?) } else { (bound(min)?, bound(max)?) };
        let widened = lo.eq(&hi)?.to_dtype(x.dtype())?;
        let (lo, hi) = (lo.sub(&widened)?, hi.add(&widened)?);
        let inside = x.ge(&lo)?.logical_and(&x.le(&hi)?)?;
        let bin = x.sub(&lo)?.mul_scalar(bins as f64)?.div(&hi.sub(&lo)?)?;
        let bin = bin.clamp(Some(0.0), Some((bins - 1) as f64))?.to_dtype(DType::I64)?;
        counts.index_add(0, &bin, &inside.to_dtype(x.dtype())?)
    }
}
