//! Metrics of values and of likelihoods.

use trefoil::DType;
use trefoil::ops::elementwise::Binary;
use trefoil::ops::loss::{CrossEntropy, Reduction};

use super::{Metric, accumulate};
use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};
use crate::train::losses::CrossEntropyLoss;

const ADD: Binary = Binary::Add { alpha: 1.0 };

/// Outputs minus targets in f32, as vectors.
fn errors(op: &'static str, output: &Tensor, target: &Tensor) -> Result<Tensor> {
    if output.numel() != target.numel() {
        let got = format!("{:?} and {:?}", output.shape(), target.shape());
        return Err(invalid(op, "target", "one target per output", got));
    }
    vector(output)?.sub(&vector(target)?)
}

fn vector(t: &Tensor) -> Result<Tensor> {
    t.detach().to_dtype(DType::F32)?.reshape(&[t.numel()])
}

macro_rules! means {
    ($($(#[$doc:meta])* $name:ident $key:literal |$e:ident| $item:expr, |$m:ident| $value:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            sum: Tensor,
            items: usize,
        }

        impl $name {
            /// Zero on a device.
            pub fn new(device: &Device) -> Result<Self> {
                Ok($name { sum: Tensor::zeros(device, DType::F32, &[])?, items: 0 })
            }
        }

        impl Metric for $name {
            fn name(&self) -> String {
                $key.into()
            }

            fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
                no_grad(|| {
                    let $e = errors($key, output, target)?;
                    accumulate(&self.sum, ADD, &$item?.sum()?)
                })?;
                self.items += output.numel();
                Ok(())
            }

            fn read(&self) -> Result<f64> {
                let $m = f64::from(self.sum.item::<f32>()?) / self.items as f64;
                Ok($value)
            }

            fn reset(&mut self) -> Result<()> {
                self.items = 0;
                self.sum.fill(0.0)
            }
        }
    )*};
}
means! {
    /// Mean of |output - target| over all elements.
    MeanAbsoluteError "mae" |e| e.abs(), |m| m;
    /// Square root of the mean of (output - target)^2 over all elements.
    RootMeanSquaredError "rmse" |e| e.square(), |m| m.sqrt();
}

/// Coefficient of determination, 1 - sum of squared errors / sum of squared deviations of the targets from their mean, over all elements;
/// `sklearn.metrics.r2_score` of one output.
#[derive(Debug)]
pub struct R2Score {
    residual: Tensor,
    /// Mean of the targets and sum of their squared deviations from it (Chan et al., 1979).
    mean: Tensor,
    spread: Tensor,
    items: usize,
}

impl R2Score {
    /// Zero on a device.
    pub fn new(device: &Device) -> Result<Self> {
        let zero = || Tensor::zeros(device, DType::F32, &[]);
        Ok(R2Score { residual: zero()?, mean: zero()?, spread: zero()?, items: 0 })
    }
}

impl Metric for R2Score {
    fn name(&self) -> String {
        "r2".into()
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let (a, b) = (self.items as f64, target.numel() as f64);
        if b == 0.0 {
            return Ok(());
        }
        no_grad(|| {
            accumulate(&self.residual, ADD, &errors("R2Score", output, target)?.square()?.sum()?)?;
            let (mean, var) = vector(target)?.mean_var(&[0], 0.0, false)?;
            let delta = mean.sub(&self.mean)?;
            accumulate(&self.mean, Binary::Add { alpha: 1.0 }, &delta.mul_scalar(b / (a + b))?)?;
            let between = delta.square()?.mul_scalar(a * b / (a + b))?;
            accumulate(&self.spread, ADD, &var.mul_scalar(b)?.add(&between)?)
        })?;
        self.items += target.numel();
        Ok(())
    }

    fn read(&self) -> Result<f64> {
        let v = no_grad(|| Tensor::stack(0, &[&self.residual, &self.spread]))?.to_vec::<f32>()?;
        Ok(if self.items == 0 { f64::NAN } else { 1.0 - f64::from(v[0]) / f64::from(v[1]) })
    }

    fn reset(&mut self) -> Result<()> {
        self.items = 0;
        [&self.residual, &self.mean, &self.spread].into_iter().try_for_each(|t| t.fill(0.0))
    }
}

/// e to the mean cross entropy of logits `[N, C, S..]` and class ids `[N, S..]` (i32, i64); ignored ids do not count.
#[derive(Debug)]
pub struct Perplexity {
    ignore_index: i64,
    sum: Tensor,
    items: Tensor,
}

impl Perplexity {
    /// Zero on a device, with PyTorch's ignored id -100.
    pub fn new(device: &Device) -> Result<Self> {
        let (sum, items) = (Tensor::zeros(device, DType::F32, &[])?, Tensor::zeros(device, DType::I64, &[])?);
        Ok(Perplexity { ignore_index: -100, sum, items })
    }

    /// Sets the ignored class id.
    pub fn ignore_index(mut self, id: i64) -> Self {
        self.ignore_index = id;
        self
    }
}

impl Metric for Perplexity {
    fn name(&self) -> String {
        "perplexity".into()
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        no_grad(|| {
            let options = CrossEntropy::new().reduction(Reduction::Sum).ignore_index(self.ignore_index);
            let loss = CrossEntropyLoss { options, weight: None }.forward(&output.detach(), target)?;
            accumulate(&self.sum, ADD, &loss.to_dtype(DType::F32)?)?;
            let ignored = Tensor::full(target.device(), target.dtype(), &[1], self.ignore_index as f64)?;
            let counted = target.reshape(&[target.numel()])?.ne(&ignored)?;
            accumulate(&self.items, ADD, &counted.reduce(trefoil::ops::reduce::Reduce::Sum, &[0], false)?)
        })
    }

    fn read(&self) -> Result<f64> {
        Ok((f64::from(self.sum.item::<f32>()?) / self.items.item::<i64>()? as f64).exp())
    }

    fn reset(&mut self) -> Result<()> {
        self.sum.fill(0.0)?;
        self.items.fill(0.0)
    }
}
