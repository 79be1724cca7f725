//! Metrics that accumulate on the device.

use trefoil::DType;
use trefoil::ops::{ArgReduce, Binary, Reduce};

use crate::autograd::no_grad;
use crate::error::{Result, invalid};
use crate::tensor::{Device, Tensor};

/// Sums of losses and of right answers over an epoch, kept on the device and read back once.
#[derive(Debug)]
pub struct Totals {
    loss: Tensor,
    correct: Tensor,
    items: usize,
    judged: usize,
}

/// Results of an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scores {
    /// Mean loss per item.
    pub loss: f64,
    /// Share of right answers, for class ids.
    pub accuracy: Option<f64>,
    /// Number of items.
    pub items: usize,
}

/// Number of rows of logits `[N, C]` whose largest entry is the target's (i64 `[N]`), an i64 scalar on the device.
pub fn count_correct(logits: &Tensor, target: &Tensor) -> Result<Tensor> {
    if logits.rank() != 2 || target.shape() != &logits.shape()[..1] {
        let got = format!("{:?} and {:?}", logits.shape(), target.shape());
        return Err(invalid("count_correct", "logits", "logits [N, C] and targets [N]", got));
    }
    no_grad(|| {
        let guess = Tensor::empty(logits.device(), DType::I64, target.shape())?;
        let (l, g) = (logits.operand(), guess.operand());
        logits.device().arg_reduce(ArgReduce::Max, 1, l.view()?, g.view_mut()?, None)?;
        guess.eq(target)?.reduce(Reduce::Sum, &[0], false)
    })
}

impl Totals {
    /// Zeros on a device.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Totals {
            loss: Tensor::zeros(device, DType::F32, &[])?,
            correct: Tensor::zeros(device, DType::I64, &[])?,
            items: 0,
            judged: 0,
        })
    }

    /// Back to zero.
    pub fn reset(&mut self) -> Result<()> {
        self.loss.fill(0.0)?;
        self.correct.fill(0.0)?;
        (self.items, self.judged) = (0, 0);
        Ok(())
    }

    /// Adds a batch: its mean loss (a scalar) and, for class ids, its right answers.
    pub fn add(&mut self, loss: &Tensor, items: usize, classified: Option<(&Tensor, &Tensor)>) -> Result<()> {
        no_grad(|| {
            let loss = loss.detach().to_dtype(DType::F32)?;
            accumulate(&self.loss, Binary::Add { alpha: items as f64 }, &loss)?;
            if let Some((logits, target)) = classified {
                accumulate(&self.correct, Binary::Add { alpha: 1.0 }, &count_correct(logits, target)?)?;
                self.judged += items;
            }
            self.items += items;
            Ok(())
        })
    }

    /// Waits for the device and reads the sums.
    pub fn read(&self) -> Result<Scores> {
        let loss = f64::from(self.loss.item::<f32>()?) / self.items as f64;
        let accuracy = match self.judged {
            0 => None,
            n => Some(self.correct.item::<i64>()? as f64 / n as f64),
        };
        Ok(Scores { loss, accuracy, items: self.items })
    }
}

fn accumulate(sum: &Tensor, op: Binary, x: &Tensor) -> Result<()> {
    let (s, x) = (sum.operand(), x.operand());
    Ok(sum.device().binary(op, s.view()?, x.view()?, s.view_mut()?)?)
}
