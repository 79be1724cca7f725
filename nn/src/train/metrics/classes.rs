//! Metrics of class ids.

use trefoil::DType;
use trefoil::ops::elementwise::Binary;
use trefoil::ops::reduce::Reduce;

use super::{Metric, accumulate, check_classes, count_correct, guesses};
use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};

/// Share of rows of logits `[N, C]` whose largest entry is the target's (i64 `[N]`).
#[derive(Debug)]
pub struct Accuracy {
    correct: Tensor,
    items: usize,
}

impl Accuracy {
    /// Zero on a device.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Accuracy { correct: Tensor::zeros(device, DType::I64, &[])?, items: 0 })
    }
}

impl Metric for Accuracy {
    fn name(&self) -> String {
        "accuracy".into()
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        accumulate(&self.correct, Binary::Add { alpha: 1.0 }, &count_correct(&output.detach(), target)?)?;
        self.items += target.numel();
        Ok(())
    }

    fn read(&self) -> Result<f64> {
        Ok(self.correct.item::<i64>()? as f64 / self.items as f64)
    }

    fn reset(&mut self) -> Result<()> {
        self.items = 0;
        self.correct.fill(0.0)
    }
}

/// Share of rows of logits `[N, C]` that have the target (i64 `[N]`) among their k largest entries.
#[derive(Debug)]
pub struct TopK {
    k: usize,
    correct: Tensor,
    items: usize,
}

impl TopK {
    /// Zero on a device. Errors: k = 0.
    pub fn new(device: &Device, k: usize) -> Result<Self> {
        if k == 0 {
            return Err(invalid("TopK", "k", "at least 1", "0"));
        }
        Ok(TopK { k, correct: Tensor::zeros(device, DType::I64, &[])?, items: 0 })
    }
}

impl Metric for TopK {
    fn name(&self) -> String {
        format!("top{}", self.k)
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        check_classes("TopK", output, target)?;
        let (n, c) = (output.shape()[0], output.shape()[1]);
        if self.k > c {
            return Err(invalid("TopK", "output", format!("at least {} classes", self.k), format!("{c}")));
        }
        no_grad(|| {
            let x = output.detach().contiguous()?;
            let (best, index) = (x.like(&[n, self.k])?, Tensor::empty(x.device(), DType::I64, &[n, self.k])?);
            let (xo, b, i) = (x.operand(), best.operand(), index.operand());
            x.device().topk(1, true, xo.view()?, b.view_mut()?, i.view_mut()?)?;
            let hits = index.eq(&target.unsqueeze(1)?)?.reduce(Reduce::Sum, &[0, 1], false)?;
            accumulate(&self.correct, Binary::Add { alpha: 1.0 }, &hits)
        })?;
        self.items += n;
        Ok(())
    }

    fn read(&self) -> Result<f64> {
        Ok(self.correct.item::<i64>()? as f64 / self.items as f64)
    }

    fn reset(&mut self) -> Result<()> {
        self.items = 0;
        self.correct.fill(0.0)
    }
}

/// How scores of classes become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Average {
    /// Mean over the classes, each of the same weight (scikit-learn's `macro`).
    #[default]
    Macro,
    /// Of the counts of all classes together.
    Micro,
    /// Mean over the classes, weighted by their number of items.
    Weighted,
    /// Of one class, as for binary problems.
    Class(usize),
}

/// Counts of a [`ConfusionMatrix`] on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    classes: usize,
    cells: Vec<i64>,
}

impl Counts {
    /// Items per true class (outer) and predicted class (inner).
    pub fn rows(&self) -> Vec<Vec<i64>> {
        self.cells.chunks(self.classes).map(<[i64]>::to_vec).collect()
    }

    /// Items of a class that were recognised, items predicted as the class, items of the class.
    fn of(&self, class: usize) -> [f64; 3] {
        let cell = |t: usize, p: usize| self.cells.get(t * self.classes + p).copied().unwrap_or(0) as f64;
        let all = 0..self.classes;
        [cell(class, class), all.clone().map(|t| cell(t, class)).sum(), all.map(|p| cell(class, p)).sum()]
    }

    fn score(&self, average: Average, f: impl Fn([f64; 3]) -> f64) -> f64 {
        // A class that never occurs or is never predicted scores 0, as in scikit-learn.
        let f = |c: [f64; 3]| Some(f(c)).filter(|x| x.is_finite()).unwrap_or(0.0);
        let all: Vec<[f64; 3]> = (0..self.classes).map(|c| self.of(c)).collect();
        let total: f64 = all.iter().map(|c| c[2]).sum();
        match average {
            Average::Class(c) if c >= self.classes => f64::NAN,
            Average::Class(c) => f(all[c]),
            _ if total == 0.0 => f64::NAN,
            Average::Macro => all.iter().map(|&c| f(c)).sum::<f64>() / self.classes as f64,
            Average::Weighted => all.iter().map(|&c| f(c) * c[2]).sum::<f64>() / total,
            Average::Micro => {
                let sum = |i: usize| all.iter().map(|c| c[i]).sum();
                f([sum(0), sum(1), sum(2)])
            }
        }
    }

    /// Share of right answers.
    pub fn accuracy(&self) -> f64 {
        let right: i64 = (0..self.classes).map(|c| self.cells[c * (self.classes + 1)]).sum();
        right as f64 / self.cells.iter().sum::<i64>() as f64
    }

    /// Share of right ones among the answers "this class".
    pub fn precision(&self, average: Average) -> f64 {
        self.score(average, |[hit, said, _]| hit / said)
    }

    /// Share of a class' items that were recognised.
    pub fn recall(&self, average: Average) -> f64 {
        self.score(average, |[hit, _, is]| hit / is)
    }

    /// Harmonic mean of precision and recall.
    pub fn f1(&self, average: Average) -> f64 {
        self.score(average, |[hit, said, is]| 2.0 * hit / (said + is))
    }
}

/// Items per true and predicted class, from logits `[N, C]` and class ids (i64 `[N]`). As a [`Metric`] its value is the accuracy; for precision,
/// recall and F1 see [`Classification`].
#[derive(Debug)]
pub struct ConfusionMatrix {
    classes: usize,
    cells: Tensor,
}

impl ConfusionMatrix {
    /// Zeros on a device. Errors: no classes.
    pub fn new(device: &Device, classes: usize) -> Result<Self> {
        if classes == 0 {
            return Err(invalid("ConfusionMatrix", "classes", "at least 1", "0"));
        }
        Ok(ConfusionMatrix { classes, cells: Tensor::zeros(device, DType::I64, &[classes * classes])? })
    }

    /// Waits for the device and reads all counts.
    pub fn counts(&self) -> Result<Counts> {
        Ok(Counts { classes: self.classes, cells: self.cells.to_vec()? })
    }
}

impl Metric for ConfusionMatrix {
    fn name(&self) -> String {
        "accuracy".into()
    }

    /// Takes a batch. A class id out of range is reported by the device as `IndexOutOfRange`, at the latest when the counts are read.
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        check_classes("ConfusionMatrix", output, target)?;
        if output.shape()[1] != self.classes {
            let got = format!("{} outputs", output.shape()[1]);
            return Err(invalid("ConfusionMatrix", "output", format!("{} outputs", self.classes), got));
        }
        no_grad(|| {
            let d = output.device();
            let width = Tensor::full(d, DType::I64, &[1], self.classes as f64)?;
            let cell = target.to_dtype(DType::I64)?.mul(&width)?.add(&guesses(&output.detach())?)?;
            let ones = Tensor::ones(d, DType::I64, target.shape())?;
            let (i, s, y) = (cell.operand(), ones.operand(), self.cells.operand());
            Ok(d.index_add(0, 1.0, i.view()?, s.view()?, y.view_mut()?)?)
        })
    }

    fn read(&self) -> Result<f64> {
        Ok(self.counts()?.accuracy())
    }

    fn reset(&mut self) -> Result<()> {
        self.cells.fill(0.0)
    }
}

/// A score that [`Classification`] reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// [`Counts::precision`]
    Precision,
    /// [`Counts::recall`]
    Recall,
    /// [`Counts::f1`]
    F1,
}

/// Precision, recall or F1 of logits `[N, C]` and class ids (i64 `[N]`).
#[derive(Debug)]
pub struct Classification {
    score: Score,
    average: Average,
    matrix: ConfusionMatrix,
}

impl Classification {
    /// Zero on a device. Errors: no classes.
    pub fn new(device: &Device, classes: usize, score: Score, average: Average) -> Result<Self> {
        Ok(Classification { score, average, matrix: ConfusionMatrix::new(device, classes)? })
    }
}

impl Metric for Classification {
    fn name(&self) -> String {
        let score = match self.score {
            Score::Precision => "precision",
            Score::Recall => "recall",
            Score::F1 => "f1",
        };
        match self.average {
            Average::Macro => score.into(),
            Average::Micro => format!("{score}_micro"),
            Average::Weighted => format!("{score}_weighted"),
            Average::Class(c) => format!("{score}_{c}"),
        }
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        self.matrix.update(output, target)
    }

    fn read(&self) -> Result<f64> {
        let counts = self.matrix.counts()?;
        Ok(match self.score {
            Score::Precision => counts.precision(self.average),
            Score::Recall => counts.recall(self.average),
            Score::F1 => counts.f1(self.average),
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.matrix.reset()
    }
}
