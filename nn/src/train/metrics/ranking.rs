//! Area under the receiver operating characteristic.

use trefoil::DType;
use trefoil::ops::reduce::Reduce;
use trefoil::ops::scan::CumSum;
use trefoil::ops::sort::SortIo;

use super::Metric;
use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};

/// Probability that a positive item scores above a negative one, ties counted half; `sklearn.metrics.roc_auc_score`. Scores `[N]` or `[N, 1]`
/// (logits or probabilities) with targets of 0 and 1, or logits `[N, 2]` with class ids. Scores are kept until they are read.
#[derive(Debug)]
pub struct Auc {
    scores: Tensor,
    targets: Tensor,
    items: usize,
}

impl Auc {
    /// Room for `capacity` items on a device, 12 bytes each. Errors: no capacity.
    pub fn new(device: &Device, capacity: usize) -> Result<Self> {
        if capacity == 0 {
            return Err(invalid("Auc", "capacity", "at least 1 item", "0"));
        }
        Ok(Auc {
            scores: Tensor::zeros(device, DType::F32, &[capacity])?,
            targets: Tensor::zeros(device, DType::I64, &[capacity])?,
            items: 0,
        })
    }
}

impl Metric for Auc {
    fn name(&self) -> String {
        "auc".into()
    }

    /// Takes a batch. Errors: `Invalid` for other shapes, or more items than there is room for.
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let n = target.numel();
        let room = self.scores.numel() - self.items;
        if n > room {
            return Err(invalid("Auc", "output", format!("at most {room} further items"), format!("{n}")));
        }
        no_grad(|| {
            let scores = match output.shape() {
                &[rows, 2] if rows == n => output.select(1, 1)?.sub(&output.select(1, 0)?)?,
                s if s.iter().product::<usize>() == n => output.detach().reshape(&[n])?,
                s => {
                    let want = format!("shape [{n}], [{n}, 1] or [{n}, 2]");
                    return Err(invalid("Auc", "output", want, format!("{s:?}")));
                }
            };
            self.scores.narrow(0, self.items, n)?.assign(&scores.to_dtype(DType::F32)?)?;
            self.targets.narrow(0, self.items, n)?.assign(&target.reshape(&[n])?.to_dtype(DType::I64)?)
        })?;
        self.items += n;
        Ok(())
    }

    fn read(&self) -> Result<f64> {
        let n = self.items;
        if n == 0 {
            return Ok(f64::NAN);
        }
        no_grad(|| {
            let d = self.scores.device();
            let scores = self.scores.narrow(0, 0, n)?.contiguous()?;
            let (sorted, order) = (scores.like(&[n])?, Tensor::empty(d, DType::I64, &[n])?);
            let (s, o, x) = (sorted.operand(), order.operand(), scores.operand());
            d.sort(0, false, SortIo::new(x.view()?).y(s.view_mut()?).index(o.view_mut()?))?;
            let positive = self.targets.narrow(0, 0, n)?.contiguous()?.index_select(0, &order)?;
            let negative = Tensor::ones(d, DType::I64, &[n])?.sub(&positive)?;
            // below[i]: negatives among the i smallest scores.
            let sums = negative.like(&[n])?;
            d.cumsum(CumSum::new(), 0, negative.operand().view()?, sums.operand().grad(false)?)?;
            let below = Tensor::concat(0, &[&Tensor::zeros(d, DType::I64, &[1])?, &sums])?;
            let count = |right: bool| -> Result<Tensor> {
                let at = Tensor::empty(d, DType::I64, &[n])?;
                d.search_sorted(right, s.view()?, s.view()?, at.operand().view_mut()?)?;
                below.index_select(0, &at)
            };
            // Negatives below a score, and those not above it: twice the wins, ties once.
            let wins = positive.mul(&count(false)?.add(&count(true)?)?)?.reduce(Reduce::Sum, &[0], true)?;
            let positives = positive.reduce(Reduce::Sum, &[0], true)?;
            let all = Tensor::concat(0, &[&wins, &positives])?.to_vec::<i64>()?;
            let (p, q) = (all[1] as f64, n as f64 - all[1] as f64);
            Ok(all[0] as f64 / (2.0 * p * q))
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.items = 0;
        Ok(())
    }
}
