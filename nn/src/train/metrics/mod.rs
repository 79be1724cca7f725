//! Metrics that accumulate on the device and are read back once per interval.
//!
//! [`Totals`] is the trainer's own loss and accuracy; every [`Metric`] can be given to [`Trainer::metric`](crate::Trainer::metric), or used
//! alone:
//!
//! ```
//! use trefoil_nn::{Tensor, metrics::{Average, ConfusionMatrix, Metric}};
//! # let device = trefoil::Registry::default().open(&"cpu".parse::<trefoil::Selector>()?)?;
//! let mut m = ConfusionMatrix::new(&device, 2)?;
//! let logits = Tensor::from_slice(&device, &[2f32, 1.0, 0.0, 3.0, 1.0, 0.0], &[3, 2])?;
//! m.update(&logits, &Tensor::from_slice(&device, &[0i64, 1, 1], &[3])?)?;
//! let counts = m.counts()?;
//! assert_eq!(counts.rows(), [[1, 0], [1, 1]]);
//! assert_eq!(counts.recall(Average::Class(1)), 0.5);
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```

mod classes;
mod ranking;
mod values;

use std::fmt;

use trefoil::DType;
use trefoil::ops::elementwise::Binary;
use trefoil::ops::reduce::{ArgReduce, Reduce};

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};

pub use self::classes::{Accuracy, Average, Classification, ConfusionMatrix, Counts, Score, TopK};
pub use self::ranking::Auc;
pub use self::values::{MeanAbsoluteError, Perplexity, R2Score, RootMeanSquaredError};

/// Something that is measured over many batches. `update` transfers nothing; `read` waits for the device.
pub trait Metric: Send + fmt::Debug {
    /// Its name in reports.
    fn name(&self) -> String;
    /// Takes a batch.
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()>;
    /// The value over all batches since the last reset; NaN where it is not defined.
    fn read(&self) -> Result<f64>;
    /// Forgets all batches.
    fn reset(&mut self) -> Result<()>;
}

impl<T: Metric + ?Sized> Metric for Box<T> {
    fn name(&self) -> String {
        (**self).name()
    }
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        (**self).update(output, target)
    }
    fn read(&self) -> Result<f64> {
        (**self).read()
    }
    fn reset(&mut self) -> Result<()> {
        (**self).reset()
    }
}

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
    check_classes("count_correct", logits, target)?;
    no_grad(|| guesses(logits)?.eq(target)?.reduce(Reduce::Sum, &[0], false))
}

/// Error unless these are logits `[N, C]` and targets `[N]`.
fn check_classes(op: &'static str, logits: &Tensor, target: &Tensor) -> Result<()> {
    if logits.rank() == 2 && target.shape() == &logits.shape()[..1] {
        return Ok(());
    }
    let got = format!("{:?} and {:?}", logits.shape(), target.shape());
    Err(invalid(op, "logits", "logits [N, C] and targets [N]", got))
}

/// The largest entry of each row, i64.
fn guesses(logits: &Tensor) -> Result<Tensor> {
    let guess = Tensor::empty(logits.device(), DType::I64, &logits.shape()[..1])?;
    let (l, g) = (logits.operand(), guess.operand());
    logits.device().arg_reduce(ArgReduce::Max, 1, l.view()?, g.view_mut()?, None)?;
    Ok(guess)
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
        self.accumulate(loss, items, classified)?;
        self.count(items, classified.is_some());
        Ok(())
    }

    /// What [`Totals::add`] does on the device; a recorded step can have it.
    pub(crate) fn accumulate(
        &self,
        loss: &Tensor,
        items: usize,
        classified: Option<(&Tensor, &Tensor)>,
    ) -> Result<()> {
        no_grad(|| {
            let loss = loss.detach().to_dtype(DType::F32)?;
            accumulate(&self.loss, Binary::Add { alpha: items as f64 }, &loss)?;
            match classified {
                Some((logits, target)) => {
                    let right = count_correct(logits, target)?;
                    accumulate(&self.correct, Binary::Add { alpha: 1.0 }, &right)
                }
                None => Ok(()),
            }
        })
    }

    /// What [`Totals::add`] does on the host.
    pub(crate) fn count(&mut self, items: usize, judged: bool) {
        self.items += items;
        self.judged += if judged { items } else { 0 };
    }

    /// The memory of the sums.
    pub(crate) fn memory(&self) -> [&Tensor; 2] {
        [&self.loss, &self.correct]
    }

    /// The sums as they are, for [`Totals::restore`]: bits of the loss's, right answers, items, judged items. Waits for the device.
    pub(crate) fn sums(&self) -> Result<[u64; 4]> {
        let loss = u64::from(self.loss.item::<f32>()?.to_bits());
        Ok([loss, self.correct.item::<i64>()? as u64, self.items as u64, self.judged as u64])
    }

    /// Goes on from sums.
    pub(crate) fn restore(&mut self, [loss, correct, items, judged]: [u64; 4]) -> Result<()> {
        self.loss.write_bytes(&f32::from_bits(loss as u32).to_le_bytes())?;
        self.correct.write_bytes(&(correct as i64).to_le_bytes())?;
        (self.items, self.judged) = (items as usize, judged as usize);
        Ok(())
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
