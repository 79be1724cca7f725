//! The training loop.

mod anomaly;
mod callback;
mod captured;
mod closure;
mod folder;
mod options;
mod profile;
mod progress;
mod report;
mod resume;
mod step;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::Value;
use trefoil::DType;
use trefoil::ops::loss::Reduction;

pub use self::callback::{Callback, StepEnd};
pub use self::options::{Clip, EarlyStopping, Objective, TrainOptions};
pub use self::report::{Ended, EpochStats, Report, charts, curves, overlay, overlay_charts, read_metrics};

use self::anomaly::Watch;
use self::callback::Callbacks;
use self::folder::RunFolder;
use self::progress::ProgressBar;
use self::step::Batch;
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result, invalid};
use crate::core::index_check::Range;
use crate::core::span::span;
use crate::core::tensor::{Device, Tensor};
use crate::module::{Layer, LayerExt, has_learning_rule};
use crate::train::capture::Steps;
use crate::train::data::index_check;
use crate::train::data::{Order, Source};
use crate::train::metrics::{Metric, Scores, Totals};
use crate::train::optim::{ClosureOptimizer, Optimizer, Stop};

/// Trains a model. Everything between two epochs' metrics stays on the device.
///
/// With a run folder, which no other trainer can use meanwhile, the state is saved after every epoch, and after a step when
/// [`TrainOptions::stop`] asks for it. A run that was killed or stopped and resumed gives the same bytes as one that was not, on the same
/// device, because the order of the data and all random numbers depend on seed, epoch and saved positions only. (States that stateful
/// recurrent layers carry from batch to batch are not saved; they begin anew.)
#[derive(Debug)]
pub struct Trainer<'a> {
    model: &'a dyn Layer,
    optimizer: Optimizer,
    base_lr: f64,
    objective: Objective,
    device: Device,
    options: TrainOptions,
    folder: Option<RunFolder>,
    /// What defines the run, as it stands in its checkpoints.
    settings: BTreeMap<String, Value>,
    /// Sizes of the data of the run that is resumed.
    written_items: Option<Value>,
    epoch: u64,
    within: Option<Within>,
    norm: LastNorm,
    /// Where steps leave the norm of their gradients, if they measure it.
    last_norm: Option<Tensor>,
    best: Option<(f64, u64)>,
    waited: u64,
    history: Vec<EpochStats>,
    watch: Option<Watch>,
    metrics: Vec<Box<dyn Metric>>,
    callbacks: Callbacks<'a>,
    /// Whether a part of the model has a learning rule of its own.
    learns_locally: bool,
    /// What has the parameters in place of `optimizer`, and what ends its iterations on a batch.
    closure: Option<(ClosureOptimizer, Stop)>,
    /// Recorded steps; absent while one runs.
    steps: Option<Steps>,
    /// Why gradients are cleared, clipped and applied beside them.
    update_apart: Option<String>,
    /// Sums of an epoch, between the runs.
    totals: Option<Totals>,
    /// Whether the last batch's loss and output are a graph's.
    replayed: bool,
}

/// Norm of the gradients of the last step, before they were clipped.
#[derive(Debug, Default)]
enum LastNorm {
    /// No step of this epoch has measured one.
    #[default]
    None,
    /// A scalar that was not read yet.
    Device(Tensor),
    /// Of a run that was stopped within the epoch.
    Host(f64),
}

impl LastNorm {
    /// Waits for the device.
    fn read(&self) -> Result<Option<f64>> {
        Ok(match self {
            LastNorm::None => None,
            LastNorm::Device(t) => Some(t.item::<f32>()?.into()),
            LastNorm::Host(x) => Some(*x),
        })
    }
}

/// A place within an epoch.
#[derive(Debug, Clone, Copy)]
struct Within {
    /// Batches done.
    batches: u64,
    /// [`Totals`] over them.
    sums: [u64; 4],
}

/// Names of the data in errors.
const TRAIN: &str = "training data";
const TEST: &str = "test data";
const CHECKPOINT: &str = "checkpoint.safetensors";
const BEST: &str = "best.safetensors";
const METRICS: &str = "metrics.jsonl";
const CURVES: &str = "curves.svg";

impl<'a> Trainer<'a> {
    /// A trainer of `model` on `device`. The optimizer's learning rate is the schedule's base rate. Errors: no epochs, a batch size of 0,
    /// an objective that does not reduce to its mean, a run folder that cannot be made; [`NnError::Locked`] for one that another trainer
    /// uses. What an earlier run left in the folder stays until this one is resumed or saves its first epoch.
    pub fn new(
        model: &'a dyn Layer,
        optimizer: Optimizer,
        objective: Objective,
        device: &Device,
        options: TrainOptions,
    ) -> Result<Self> {
        if options.epochs == 0 {
            return Err(invalid("Trainer", "epochs", "at least 1", "0"));
        }
        if options.batch_size == 0 {
            return Err(invalid("Trainer", "batch_size", "at least 1", "0"));
        }
        if options.accumulate == 0 {
            return Err(invalid("Trainer", "accumulate", "at least 1 micro-batch", "0"));
        }
        if options.anomaly == Some(0) {
            return Err(invalid("Trainer", "anomaly", "an interval of at least 1 step", "0"));
        }
        let reduction = objective.criterion().reduction();
        if reduction != Reduction::Mean {
            return Err(invalid(
                "Trainer",
                "objective",
                "a loss that is reduced to its mean",
                format!("{reduction:?}"),
            ));
        }
        let folder =
            options.run.as_deref().map(|run| RunFolder::open(run, options.files.clone())).transpose()?;
        let base_lr = optimizer.lr();
        let measured = matches!(options.clip, Some(Clip::Norm(_)));
        let watch = options.anomaly.map(|_| Watch::new(device)).transpose()?;
        let mut trainer = Trainer {
            model,
            optimizer,
            base_lr,
            objective,
            device: device.clone(),
            options,
            folder,
            settings: BTreeMap::new(),
            written_items: None,
            epoch: 0,
            within: None,
            norm: LastNorm::None,
            last_norm: measured.then(|| Tensor::zeros(device, DType::F32, &[])).transpose()?,
            best: None,
            waited: 0,
            history: vec![],
            watch,
            metrics: vec![],
            callbacks: Callbacks::default(),
            learns_locally: has_learning_rule(model),
            closure: None,
            steps: None,
            update_apart: None,
            totals: None,
            replayed: false,
        };
        trainer.update_apart = trainer.optimizer.unrecordable().map(str::to_string);
        trainer.steps = Some(trainer.new_steps());
        trainer.foresee();
        trainer.describe();
        Ok(trainer)
    }

    /// Adds a metric that is measured on the test data after every epoch; see [`metrics`](crate::metrics).
    pub fn metric(mut self, metric: impl Metric + 'static) -> Self {
        self.metrics.push(Box::new(metric));
        self
    }

    /// Adds a callback for every step and epoch.
    pub fn callback(mut self, callback: impl Callback + 'a) -> Self {
        self.callbacks.0.push(Box::new(callback));
        self
    }

    /// Whether to show progress on the terminal.
    pub fn show_progress(&mut self, on: bool) {
        self.options.progress = on;
    }

    /// The optimizer; one without parameters in a run [by closures](Trainer::with_closure).
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Epochs done.
    pub fn epochs_done(&self) -> u64 {
        self.epoch
    }

    /// Batches done of the next epoch, where the run was stopped within it.
    pub fn batches_done(&self) -> u64 {
        self.within.map_or(0, |w| w.batches)
    }

    /// The flag that ends training after the present step, [`TrainOptions::stop`].
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        self.options.stop.clone()
    }

    fn stop_asked(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }

    fn loss(&self, out: &Tensor, y: &Tensor) -> Result<Tensor> {
        self.objective.criterion().loss(out, y)
    }

    fn classified<'t>(&self, out: &'t Tensor, y: &'t Tensor) -> Option<(&'t Tensor, &'t Tensor)> {
        let ids = matches!(self.objective, Objective::Classify(_)) && y.rank() == 1 && out.rank() == 2;
        ids.then_some((out, y))
    }

    /// Loss and accuracy of the model in evaluation mode.
    pub fn evaluate(&self, data: &dyn Source) -> Result<Scores> {
        self.measure(data, &mut []).map_err(|e| self.explain(e, data))
    }

    /// As [`evaluate`](Trainer::evaluate), with the trainer's [metrics](Trainer::metric) by name.
    pub fn evaluate_metrics(&mut self, data: &dyn Source) -> Result<(Scores, BTreeMap<String, f64>)> {
        self.test(data)
    }

    fn explain(&self, e: NnError, data: &dyn Source) -> NnError {
        index_check::explain_source(e, data, self.options.batch_size, TEST)
    }

    fn measure(&self, data: &dyn Source, metrics: &mut [Box<dyn Metric>]) -> Result<Scores> {
        span!("evaluation");
        let average = self.options.evaluate_ema && self.optimizer.has_ema();
        if average {
            self.optimizer.swap_ema()?;
        }
        self.model.eval();
        let done = no_grad(|| {
            let mut totals = Totals::new(&self.device)?;
            metrics.iter_mut().try_for_each(|m| m.reset())?;
            for batch in data.epoch(None, self.options.batch_size)? {
                let b = batch?;
                let out = self.model.forward(&self.in_format(&b.x)?)?;
                self.check_classes(&out, data, TEST)?;
                totals.add(&self.loss(&out, &b.y)?, b.len, self.classified(&out, &b.y))?;
                metrics.iter_mut().try_for_each(|m| m.update(&out, &b.y))?;
            }
            totals.read()
        });
        self.model.train();
        if average {
            self.optimizer.swap_ema()?;
        }
        done
    }

    /// Scores on the test data, and the metrics by name.
    fn test(&mut self, data: &dyn Source) -> Result<(Scores, BTreeMap<String, f64>)> {
        let mut metrics = std::mem::take(&mut self.metrics);
        let done = self.measure(data, &mut metrics).map_err(|e| self.explain(e, data));
        let values = metrics.iter().map(|m| Ok((m.name(), m.read()?))).collect::<Result<_>>();
        self.metrics = metrics;
        Ok((done?, values?))
    }

    fn check_classes(&self, out: &Tensor, data: &dyn Source, what: &str) -> Result<()> {
        match out.shape() {
            &[_, c] if matches!(self.objective, Objective::Classify(_)) && data.classes() > c => {
                let range = Range { op: "cross_entropy", limit: c, ignore: None, labels: true };
                let found = index_check::in_source(data, self.options.batch_size, what, Some(range), None);
                let expected = format!("at least {} outputs for the data's classes", data.classes());
                let unfit = || invalid("Trainer", "model", expected, format!("{c} outputs"));
                Err(found?.unwrap_or_else(unfit))
            }
            _ => Ok(()),
        }
    }

    /// Trains for the rest of an epoch. `None`: training is to stop, and the state is saved.
    fn train_epoch(
        &mut self,
        data: &dyn Source,
        totals: &mut Totals,
        bar: &ProgressBar,
    ) -> Result<Option<Scores>> {
        span!("epoch", epoch = self.epoch + 1);
        totals.reset()?;
        self.model.train();
        self.foresee();
        let order = self.options.shuffle.then_some(Order { seed: self.options.seed, epoch: self.epoch });
        let size = self.options.batch_size;
        let done = self.batches_done();
        if let Some(w) = self.within.take() {
            totals.restore(w.sums)?;
        }
        // Items of the epoch, and of the present step, that are still to come.
        let (mut left, mut open, mut items) = (data.items(), 0, 0);
        let mut last = None;
        for (i, batch) in (1..).zip(data.epoch(order, size)?) {
            let b = batch?;
            bar.advance();
            if i <= done {
                left = left.saturating_sub(b.len);
                continue;
            }
            span!("step", step = self.optimizer.steps() + 1);
            let first = open == 0;
            if first {
                items = left.min(size * self.options.accumulate).max(b.len);
                open = items;
            }
            (left, open) = (left.saturating_sub(b.len), open.saturating_sub(b.len));
            let part = Batch {
                items: b.len,
                weight: b.len as f64 / items as f64,
                first,
                last: open == 0,
                data: Some(data),
                totals: Some(totals),
            };
            let (loss, out) = self.accumulate(&b.x, &b.y, &part)?;
            totals.count(b.len, self.classified(&out, &b.y).is_some());
            if open == 0 {
                self.end_step(&loss, &out)?;
                if self.stop_asked() {
                    self.stop_within(i, totals)?;
                    return Ok(None);
                }
            }
            last = (open > 0).then_some((loss, out));
        }
        // A source that serves fewer items than it has ends within a step.
        if let Some((loss, out)) = last {
            self.update()?;
            self.end_step(&loss, &out)?;
        }
        self.check_anomalies()?;
        totals.read().map(Some)
    }

    /// Saves the state after `batches` of an epoch, unless it is a bad one.
    fn stop_within(&mut self, batches: u64, totals: &Totals) -> Result<()> {
        self.check_anomalies()?;
        self.check_loss(totals.read()?.loss)?;
        self.within = Some(Within { batches, sums: totals.sums()? });
        self.norm = self.norm.read()?.map_or(LastNorm::None, LastNorm::Host);
        self.write_within()
    }

    fn check_loss(&self, loss: f64) -> Result<()> {
        if loss.is_finite() { Ok(()) } else { Err(NnError::Diverged { epoch: self.epoch + 1, loss }) }
    }

    /// Trains until the last epoch, early stopping, `after_epoch` returning false, or [`TrainOptions::stop`]. With a run folder, what an
    /// earlier run left in it is moved aside before the first epoch is saved, unless this run has [resumed](Trainer::resume) it. Errors: of
    /// the backend; [`NnError::Diverged`]; [`NnError::ResumeMismatch`] if the run that was resumed had other numbers of items; a run folder
    /// that cannot be written (the last checkpoint is intact).
    pub fn fit(
        &mut self,
        train: &dyn Source,
        test: Option<&dyn Source>,
        after_epoch: &mut dyn FnMut(&EpochStats) -> bool,
    ) -> Result<Report> {
        let mut totals = match self.totals.take() {
            Some(totals) => totals,
            None => Totals::new(&self.device)?,
        };
        let mut ended = Ended::Finished;
        self.check_items(train, test)?;
        if self.stalled() {
            ended = Ended::Stalled;
        }
        while self.epoch < self.options.epochs && ended == Ended::Finished {
            if self.stop_asked() {
                ended = Ended::Stopped;
                break;
            }
            let start = Instant::now();
            self.callbacks.epoch_begin(self.epoch + 1)?;
            let bar = self.progress_bar(train.items().div_ceil(self.options.batch_size));
            let size = self.options.batch_size;
            let trained = self
                .train_epoch(train, &mut totals, &bar)
                .map_err(|e| index_check::explain_source(e, train, size, TRAIN))?;
            let Some(trained) = trained else {
                ended = Ended::Stopped;
                break;
            };
            self.check_loss(trained.loss)?;
            let (tested, metrics) = match test.map(|t| self.test(t)).transpose()? {
                Some((scores, metrics)) => (Some(scores), metrics),
                None => (None, BTreeMap::new()),
            };
            drop(bar);
            self.epoch += 1;
            let norm = std::mem::take(&mut self.norm).read()?;
            let stats = EpochStats {
                epoch: self.epoch,
                step: self.optimizer.steps(),
                lr: self.optimizer.lr(),
                train_loss: trained.loss,
                train_accuracy: trained.accuracy,
                test_loss: tested.map(|t| t.loss),
                test_accuracy: tested.and_then(|t| t.accuracy),
                metrics,
                grad_norm: norm,
                seconds: start.elapsed().as_secs_f64(),
            };
            let improved = self.observe(stats.test_loss.unwrap_or(stats.train_loss));
            self.history.push(stats.clone());
            self.write_run(improved)?;
            // Every callback sees the epoch, whatever the others answer.
            let go_on = self.callbacks.epoch_end(&stats)?;
            if !after_epoch(&stats) || !go_on {
                ended = Ended::Interrupted;
            } else if self.stalled() {
                ended = Ended::Stalled;
            }
        }
        self.totals = Some(totals);
        Ok(Report { history: self.history.clone(), ended, best: self.best })
    }

    fn observe(&mut self, loss: f64) -> bool {
        if let Some(p) = &mut self.options.plateau {
            p.observe(loss);
        }
        let delta = self.options.early_stopping.map_or(0.0, |e| e.min_delta);
        let improved = self.best.is_none_or(|(best, _)| loss < best - delta);
        if improved {
            (self.best, self.waited) = (Some((loss, self.epoch)), 0);
        } else {
            self.waited += 1;
        }
        improved
    }

    fn stalled(&self) -> bool {
        self.options.early_stopping.is_some_and(|e| self.waited > e.patience)
    }

    fn progress_bar(&self, batches: usize) -> ProgressBar {
        let title = format!("epoch {}/{}", self.epoch + 1, self.options.epochs);
        ProgressBar::new(self.options.progress, batches, title)
    }
}
