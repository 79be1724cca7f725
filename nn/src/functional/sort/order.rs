//! Order statistics: medians, quantiles, modes.

use trefoil::DType;

use crate::core::autograd::{BackwardCtx, Saved};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis};

/// What a quantile between two elements is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum QuantileInterpolation {
    /// The point between them that divides their distance as the quantile does that of their ranks.
    #[default]
    Linear,
    /// The smaller.
    Lower,
    /// The larger.
    Higher,
    /// The one whose rank is nearer; of two equally near the one with an even rank.
    Nearest,
    /// Their mean.
    Midpoint,
}

/// Whether NaN takes part: it makes a result NaN, or is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nan {
    Wins,
    Skipped,
}

/// Error for an axis without elements, which has no such value.
fn filled(op: &'static str, x: &Tensor, at: usize) -> Result<usize> {
    match x.shape()[at] {
        0 => Err(invalid(op, "self", "at least one element on the axis", format!("shape {:?}", x.shape()))),
        n => Ok(n),
    }
}

/// Without the axis `at`, whose size is 1, unless it is kept.
fn kept(x: Tensor, at: usize, keep: bool) -> Result<Tensor> {
    if keep { Ok(x) } else { x.squeeze(at as isize) }
}

impl Tensor {
    /// Numbers (i64) of NaN along an axis, which stays as size 1.
    fn nans(&self, at: usize) -> Result<Tensor> {
        self.detach().ne(&self.detach())?.sum_axes(&[at as isize], true)
    }

    /// The `k`-th smallest value of an axis, from 1, and where it is (i64): of equals the k-th by position. NaN counts as the largest. The
    /// gradient goes to that place. Source `torch.kthvalue`. Errors: `k` outside of 1 to the size of the axis.
    pub fn kthvalue(&self, k: usize, along: isize, keep: bool) -> Result<(Tensor, Tensor)> {
        const OP: &str = "kthvalue";
        let at = axis(OP, along, self.rank())?;
        let n = filled(OP, self, at)?;
        if !(1..=n).contains(&k) {
            return Err(invalid(OP, "k", format!("1 to {n}"), format!("{k}")));
        }
        let (sorted, index) = self.sort(along, false)?;
        let pick = |t: Tensor| kept(t.narrow(along, k - 1, 1)?, at, keep);
        Ok((pick(sorted)?, pick(index)?))
    }

    fn middle(&self, op: &'static str, nan: Nan, along: isize, keep: bool) -> Result<(Tensor, Tensor)> {
        let at = axis(op, along, self.rank())?;
        let n = filled(op, self, at)?;
        let (sorted, index) = self.sort(along, false)?;
        let nans = self.nans(at)?;
        // NaN stands last, the first of them behind the numbers.
        let numbers = nans.rsub_scalar(n as f64)?;
        let rank = match nan {
            Nan::Wins => {
                let middle = nans.full_like(((n - 1) / 2) as f64)?;
                numbers.where_(&nans.gt_scalar(0.0)?, &middle)?
            }
            Nan::Skipped => {
                let one = nans.ones_like()?;
                numbers.maximum(&one)?.sub(&one)?.div_floor(&nans.full_like(2.0)?)?
            }
        };
        let pick = |t: Tensor| kept(t.gather(along, &rank)?, at, keep);
        Ok((pick(sorted)?, pick(index)?))
    }

    /// The middle element of an axis in order, the lower of two, and where it is (i64); NaN where there is one. The gradient goes to that
    /// place. Source `torch.median(dim)`. Errors: an axis without elements.
    pub fn median_with_index(&self, along: isize, keep: bool) -> Result<(Tensor, Tensor)> {
        self.middle("median", Nan::Wins, along, keep)
    }

    /// As [`median_with_index`](Tensor::median_with_index) of the elements that are not NaN; NaN if all are. Source `torch.nanmedian(dim)`.
    pub fn nanmedian_with_index(&self, along: isize, keep: bool) -> Result<(Tensor, Tensor)> {
        self.middle("nanmedian", Nan::Skipped, along, keep)
    }

    /// The middle of all elements in order, the lower of two; NaN if there is one. Elements equal to it share the gradient. Source
    /// `torch.median`. Errors: no elements.
    pub fn median(&self) -> Result<Tensor> {
        self.middle_of_all("median", Nan::Wins)
    }

    /// The middle of all elements that are not NaN, the lower of two; NaN if all are. Elements equal to it share the gradient. Source
    /// `torch.nanmedian`. Errors: no elements.
    pub fn nanmedian(&self) -> Result<Tensor> {
        self.middle_of_all("nanmedian", Nan::Skipped)
    }

    fn middle_of_all(&self, op: &'static str, nan: Nan) -> Result<Tensor> {
        let y = self.detach().reshape(&[self.numel()])?.middle(op, nan, 0, false)?.0;
        let plain = y.clone();
        Ok(y.record(op, &[self], || {
            let (x, y) = (Saved::new(self), Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                let (x, y) = (x.constant(cx)?, y.constant(cx)?);
                let both_nan = x.is_nan()?.logical_and(&y.is_nan()?)?;
                let ties = x.eq(&y)?.logical_or(&both_nan)?.to_dtype(x.dtype())?;
                let dx = cx.dy()?.mul(&ties.div(&ties.sum()?)?)?;
                cx.give(0, dx)
            }
        }))
    }

    /// The values below which a part `q` of the elements of an axis lie, or of all elements without an axis; NaN where there is one. f32 or
    /// f64. Source `torch.quantile`. Errors: `q` outside of [0, 1], no elements, other dtypes.
    pub fn quantile(
        &self,
        q: f64,
        along: Option<isize>,
        keep: bool,
        how: QuantileInterpolation,
    ) -> Result<Tensor> {
        self.ranked("quantile", Nan::Wins, &[q], along, keep, how)?.select(0, 0)
    }

    /// Several [`quantile`](Tensor::quantile)s, along a new first axis.
    pub fn quantiles(
        &self,
        q: &[f64],
        along: Option<isize>,
        keep: bool,
        how: QuantileInterpolation,
    ) -> Result<Tensor> {
        self.ranked("quantile", Nan::Wins, q, along, keep, how)
    }

    /// As [`quantile`](Tensor::quantile) of the elements that are not NaN; NaN where all are. Source `torch.nanquantile`.
    pub fn nanquantile(
        &self,
        q: f64,
        along: Option<isize>,
        keep: bool,
        how: QuantileInterpolation,
    ) -> Result<Tensor> {
        self.ranked("nanquantile", Nan::Skipped, &[q], along, keep, how)?.select(0, 0)
    }

    /// Several [`nanquantile`](Tensor::nanquantile)s, along a new first axis.
    pub fn nanquantiles(
        &self,
        q: &[f64],
        along: Option<isize>,
        keep: bool,
        how: QuantileInterpolation,
    ) -> Result<Tensor> {
        self.ranked("nanquantile", Nan::Skipped, q, along, keep, how)
    }

    fn ranked(
        &self,
        op: &'static str,
        nan: Nan,
        q: &[f64],
        along: Option<isize>,
        keep: bool,
        how: QuantileInterpolation,
    ) -> Result<Tensor> {
        if !matches!(self.dtype(), DType::F32 | DType::F64) {
            return Err(invalid(op, "self", "f32 or f64", self.dtype().name()));
        }
        if let Some(q) = q.iter().find(|q| !(0.0..=1.0).contains(*q)) {
            return Err(invalid(op, "q", "numbers in [0, 1]", format!("{q}")));
        }
        let (x, at) = match along {
            Some(a) => (self.clone(), axis(op, a, self.rank())?),
            None => (self.reshape(&[self.numel()])?, 0),
        };
        let (n, along_x) = (filled(op, &x, at)?, at as isize);
        let sorted = x.sort(along_x, false)?.0;
        let nans = x.nans(at)?;
        let last = nans.rsub_scalar((n - 1) as f64)?.to_dtype(x.dtype())?;
        let rank = |q: f64| match nan {
            // NaN stands last.
            Nan::Wins => {
                let rank = last.full_like((n - 1) as f64)?.mul_scalar(q)?;
                rank.masked_fill(&nans.gt_scalar(0.0)?, (n - 1) as f64)
            }
            Nan::Skipped => last.mul_scalar(q)?.clamp(Some(0.0), None),
        };
        let parts = q.iter().map(|&q| sorted.at_rank(along_x, &rank(q)?, how)).collect::<Result<Vec<_>>>()?;
        if parts.is_empty() {
            return Err(invalid(op, "q", "at least one number", "none"));
        }
        let y = Tensor::stack(0, &parts.iter().collect::<Vec<_>>())?;
        match (along, keep) {
            (None, true) => y.reshape(&[&[q.len()][..], &vec![1; self.rank()]].concat()),
            (_, keep) => kept(y, at + 1, keep),
        }
    }

    /// The elements of a sorted axis at ranks, which may lie between two.
    fn at_rank(&self, along: isize, rank: &Tensor, how: QuantileInterpolation) -> Result<Tensor> {
        use QuantileInterpolation::*;
        let pick = |rank: &Tensor| self.gather(along, &rank.to_dtype(DType::I64)?);
        let (below, above) = (rank.floor()?, rank.ceil()?);
        match how {
            Lower => pick(&below),
            Higher => pick(&above),
            Nearest => pick(&rank.round(0)?),
            Linear => pick(&below)?.lerp_by(&pick(&above)?, &rank.sub(&below)?),
            Midpoint => pick(&below)?.lerp(&pick(&above)?, 0.5),
        }
    }

    /// The most frequent value of an axis, of several the smallest, and where it is last (i64). NaN equals nothing. The gradient goes to that
    /// place. Source `torch.mode`. Errors: an axis without elements.
    pub fn mode(&self, along: isize, keep: bool) -> Result<(Tensor, Tensor)> {
        const OP: &str = "mode";
        let at = axis(OP, along, self.rank())?;
        filled(OP, self, at)?;
        let rows = self.detach().transpose(along, -1)?.contiguous()?;
        let (sorted, order) = rows.sort(-1, false)?;
        let (start, end) = (sorted.search_sorted(&sorted, false)?, sorted.search_sorted(&sorted, true)?);
        let often = end.sub(&start)?.argmax(-1)?.unsqueeze(-1)?;
        let last = order.gather(-1, &end.gather(-1, &often)?.sub_scalar(1.0)?)?;
        let place = last.transpose(along, -1)?.contiguous()?;
        Ok((kept(self.gather(along, &place)?, at, keep)?, kept(place, at, keep)?))
    }
}
