//! The training loop.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use trefoil::ops::Reduction;

use crate::autograd::no_grad;
use crate::checkpoint::{Checkpoint, Progress, write_atomic};
use crate::data::{Order, Source};
use crate::error::{NnError, Result, invalid};
use crate::layer::{Layer, LayerExt};
use crate::metrics::{Scores, Totals};
use crate::losses::{CrossEntropyLoss, MseLoss};
use crate::optim::{Optimizer, Plateau, Schedule};
use crate::plot::{Chart, Series, svg};
use crate::tensor::{Device, Tensor};

/// What training minimises.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Objective {
    /// Cross entropy of logits `[N, C]` against class ids; accuracy is reported.
    Classify(CrossEntropyLoss),
    /// Mean squared error of outputs against values.
    Regress(MseLoss),
}

/// Limits on gradients, applied before each step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    /// Euclidean norm over all parameters.
    Norm(f64),
    /// Absolute value.
    Value(f64),
}

/// When to end before the last epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyStopping {
    /// Epochs without improvement of the test loss (training loss without test data) that are tolerated.
    pub patience: u64,
    /// Improvement that counts.
    pub min_delta: f64,
}

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Number of epochs, counted over all resumed parts.
    pub epochs: u64,
    /// Items per batch.
    pub batch_size: usize,
    /// Seed of the data's order.
    pub seed: u64,
    /// New order in every epoch.
    pub shuffle: bool,
    /// Learning rate over optimizer steps.
    pub schedule: Schedule,
    /// Reduction when the test loss stalls.
    pub plateau: Option<Plateau>,
    /// Limits on gradients.
    pub clip: Option<Clip>,
    /// Early end.
    pub early_stopping: Option<EarlyStopping>,
    /// Folder for `checkpoint.safetensors`, `best.safetensors`, `metrics.jsonl` and `curves.svg`.
    pub run: Option<PathBuf>,
    /// Whether to show progress on the terminal.
    pub progress: bool,
}

impl Default for TrainOptions {
    fn default() -> Self {
        TrainOptions {
            epochs: 10,
            batch_size: 32,
            seed: 0,
            shuffle: true,
            schedule: Schedule::Constant,
            plateau: None,
            clip: None,
            early_stopping: None,
            run: None,
            progress: false,
        }
    }
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochStats {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Learning rate of the last step.
    pub lr: f64,
    /// Mean training loss.
    pub train_loss: f64,
    /// Share of right answers on the training data, during the epoch.
    pub train_accuracy: Option<f64>,
    /// Mean test loss after the epoch.
    pub test_loss: Option<f64>,
    /// Share of right answers on the test data after the epoch.
    pub test_accuracy: Option<f64>,
    /// Duration.
    pub seconds: f64,
}

/// Why training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// All epochs are done.
    Finished,
    /// Early stopping.
    Stalled,
    /// The callback asked for it.
    Interrupted,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// All epochs, those before a resumption included.
    pub history: Vec<EpochStats>,
    /// Why it ended.
    pub ended: Ended,
    /// Lowest monitored loss and its epoch.
    pub best: Option<(f64, u64)>,
}

/// Trains a model. Everything between two epochs' metrics stays on the device.
///
/// With a run folder the state is saved after every epoch; a run that was killed and resumed gives the same bytes as one that was not, on
/// the same device, because the order of the data and all random numbers depend on seed, epoch and saved positions only.
#[derive(Debug)]
pub struct Trainer<'a> {
    model: &'a dyn Layer,
    optimizer: Optimizer,
    base_lr: f64,
    objective: Objective,
    device: Device,
    options: TrainOptions,
    epoch: u64,
    best: Option<(f64, u64)>,
    waited: u64,
    history: Vec<EpochStats>,
}

const CHECKPOINT: &str = "checkpoint.safetensors";
const BEST: &str = "best.safetensors";
const METRICS: &str = "metrics.jsonl";
const CURVES: &str = "curves.svg";

impl<'a> Trainer<'a> {
    /// A trainer of `model` on `device`. The optimizer's learning rate is the schedule's base rate. Errors: no epochs, a batch size of 0,
    /// an objective that does not reduce to its mean, a run folder that cannot be made.
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
        let reduction = match &objective {
            Objective::Classify(l) => l.options.reduction,
            Objective::Regress(l) => l.reduction,
        };
        if reduction != Reduction::Mean {
            return Err(invalid(
                "Trainer",
                "objective",
                "a loss that is reduced to its mean",
                format!("{reduction:?}"),
            ));
        }
        if let Some(run) = &options.run {
            std::fs::create_dir_all(run).map_err(NnError::io("create", run))?;
        }
        let base_lr = optimizer.lr();
        Ok(Trainer {
            model,
            optimizer,
            base_lr,
            objective,
            device: device.clone(),
            options,
            epoch: 0,
            best: None,
            waited: 0,
            history: vec![],
        })
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Epochs done.
    pub fn epochs_done(&self) -> u64 {
        self.epoch
    }

    /// Continues from the run folder's checkpoint; false if there is none. Errors: no run folder; [`NnError::Checkpoint`] with the reason
    /// if the file is damaged, belongs to another architecture, or to a run with another seed or batch size.
    pub fn resume(&mut self) -> Result<bool> {
        let Some(run) = self.options.run.clone() else {
            return Err(invalid("resume", "run", "a run folder", "none"));
        };
        let path = run.join(CHECKPOINT);
        if !path.exists() {
            return Ok(false);
        }
        let c = Checkpoint::load(&path)?;
        let p = &c.progress;
        let fail = |what: String| NnError::Checkpoint { path: path.clone(), what, source: None };
        if p.version == 0 {
            return Err(fail("holds no training progress; it was not written by a run".into()));
        }
        for (name, theirs, ours) in [
            ("seed", p.seed, self.options.seed),
            ("batch size", p.batch_size, self.options.batch_size as u64),
        ] {
            if theirs != ours {
                return Err(fail(format!("was written with {name} {theirs}, this run has {ours}")));
            }
        }
        c.restore(self.model, Some(&mut self.optimizer)).map_err(|e| NnError::Checkpoint {
            path: path.clone(),
            what: format!("does not fit the model or the optimizer: {e}"),
            source: Some(Box::new(e)),
        })?;
        self.epoch = p.epoch;
        let number = |key: &str| p.state.get(key).map(|&bits| f64::from_bits(bits));
        self.best = number("best.loss").zip(p.state.get("best.epoch").copied());
        self.waited = p.state.get("waited").copied().unwrap_or(0);
        if let Some(plateau) = &mut self.options.plateau {
            plateau.scale = number("plateau.scale").unwrap_or(plateau.scale);
            plateau.best = number("plateau.best").unwrap_or(plateau.best);
            plateau.waited = p.state.get("plateau.waited").copied().unwrap_or(0);
        }
        // Epochs after the checkpoint will be run again.
        self.history = read_metrics(&run.join(METRICS))?;
        self.history.retain(|s| s.epoch <= self.epoch);
        write_metrics(&run.join(METRICS), &self.history)?;
        Ok(true)
    }

    fn progress(&self) -> Progress {
        let mut state = BTreeMap::from([("waited".to_string(), self.waited)]);
        if let Some((loss, epoch)) = self.best {
            state.insert("best.loss".into(), loss.to_bits());
            state.insert("best.epoch".into(), epoch);
        }
        if let Some(p) = &self.options.plateau {
            state.insert("plateau.scale".into(), p.scale.to_bits());
            state.insert("plateau.best".into(), p.best.to_bits());
            state.insert("plateau.waited".into(), p.waited);
        }
        Progress {
            epoch: self.epoch,
            seed: self.options.seed,
            batch_size: self.options.batch_size as u64,
            state,
            ..Progress::default()
        }
    }

    fn loss(&self, out: &Tensor, y: &Tensor) -> Result<Tensor> {
        match &self.objective {
            Objective::Classify(l) => l.forward(out, y),
            Objective::Regress(l) => l.forward(out, y),
        }
    }

    fn classified<'t>(&self, out: &'t Tensor, y: &'t Tensor) -> Option<(&'t Tensor, &'t Tensor)> {
        let ids = matches!(self.objective, Objective::Classify(_)) && y.rank() == 1 && out.rank() == 2;
        ids.then_some((out, y))
    }

    /// One optimizer step on a batch: forward, loss, backward, clipping, update. Returns loss and output, both on the device; transfers
    /// nothing.
    pub fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut lr = self.options.schedule.lr(self.base_lr, self.optimizer.steps());
        if let Some(p) = &self.options.plateau {
            lr = p.lr(lr);
        }
        self.optimizer.set_lr(lr)?;
        self.optimizer.zero_grad()?;
        let out = self.model.forward(x)?;
        let loss = self.loss(&out, y)?;
        loss.backward()?;
        match self.options.clip {
            Some(Clip::Norm(n)) => drop(self.optimizer.clip_grad_norm(n, 2.0)?),
            Some(Clip::Value(c)) => self.optimizer.clip_grad_value(c)?,
            None => {}
        }
        self.optimizer.step()?;
        Ok((loss.detach(), out.detach()))
    }

    /// Loss and accuracy of the model in evaluation mode.
    pub fn evaluate(&self, data: &dyn Source) -> Result<Scores> {
        self.model.eval();
        let mut totals = Totals::new(&self.device)?;
        let done = no_grad(|| {
            for batch in data.epoch(None, self.options.batch_size)? {
                let b = batch?;
                let out = self.model.forward(&b.x)?;
                self.check_classes(&out, data)?;
                totals.add(&self.loss(&out, &b.y)?, b.len, self.classified(&out, &b.y))?;
            }
            totals.read()
        });
        self.model.train();
        done
    }

    fn check_classes(&self, out: &Tensor, data: &dyn Source) -> Result<()> {
        match out.shape() {
            &[_, c] if matches!(self.objective, Objective::Classify(_)) && data.classes() > c => {
                let expected = format!("at least {} outputs for the data's classes", data.classes());
                Err(invalid("Trainer", "model", expected, format!("{c} outputs")))
            }
            _ => Ok(()),
        }
    }

    fn train_epoch(&mut self, data: &dyn Source, totals: &mut Totals, bar: &ProgressBar) -> Result<Scores> {
        totals.reset()?;
        self.model.train();
        let order = self.options.shuffle.then_some(Order { seed: self.options.seed, epoch: self.epoch });
        for batch in data.epoch(order, self.options.batch_size)? {
            let b = batch?;
            let (loss, out) = self.step(&b.x, &b.y)?;
            self.check_classes(&out, data)?;
            totals.add(&loss, b.len, self.classified(&out, &b.y))?;
            bar.inc(1);
        }
        totals.read()
    }

    /// Trains until the last epoch, early stopping, or `after_epoch` returning false. Errors: of the backend; [`NnError::Diverged`]; a
    /// run folder that cannot be written (the last checkpoint is intact).
    pub fn fit(
        &mut self,
        train: &dyn Source,
        test: Option<&dyn Source>,
        after_epoch: &mut dyn FnMut(&EpochStats) -> bool,
    ) -> Result<Report> {
        let mut totals = Totals::new(&self.device)?;
        let mut ended = Ended::Finished;
        if self.epoch == 0
            && let Some(run) = &self.options.run
        {
            write_metrics(&run.join(METRICS), &[])?;
        }
        if self.stalled() {
            ended = Ended::Stalled;
        }
        while self.epoch < self.options.epochs && ended == Ended::Finished {
            let start = Instant::now();
            let bar = self.bar(train.items().div_ceil(self.options.batch_size) as u64);
            let trained = self.train_epoch(train, &mut totals, &bar)?;
            if !trained.loss.is_finite() {
                return Err(NnError::Diverged { epoch: self.epoch + 1, loss: trained.loss });
            }
            let tested = test.map(|t| self.evaluate(t)).transpose()?;
            bar.finish_and_clear();
            self.epoch += 1;
            let stats = EpochStats {
                epoch: self.epoch,
                step: self.optimizer.steps(),
                lr: self.optimizer.lr(),
                train_loss: trained.loss,
                train_accuracy: trained.accuracy,
                test_loss: tested.map(|t| t.loss),
                test_accuracy: tested.and_then(|t| t.accuracy),
                seconds: start.elapsed().as_secs_f64(),
            };
            let improved = self.observe(stats.test_loss.unwrap_or(stats.train_loss));
            self.history.push(stats.clone());
            self.write_run(&stats, improved)?;
            if !after_epoch(&stats) {
                ended = Ended::Interrupted;
            } else if self.stalled() {
                ended = Ended::Stalled;
            }
        }
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

    fn write_run(&self, stats: &EpochStats, improved: bool) -> Result<()> {
        let Some(run) = &self.options.run else { return Ok(()) };
        let state = Checkpoint::capture(self.model, Some(&self.optimizer), self.progress())?;
        // Metrics first: a resumption drops lines of epochs that the checkpoint does not know.
        let path = run.join(METRICS);
        let mut f =
            OpenOptions::new().append(true).create(true).open(&path).map_err(NnError::io("open", &path))?;
        f.write_all(line(stats)?.as_bytes()).map_err(NnError::io("write", &path))?;
        if improved {
            state.save(run.join(BEST))?;
        }
        state.save(run.join(CHECKPOINT))?;
        write_atomic(&run.join(CURVES), curves(&self.history).as_bytes())
    }

    fn bar(&self, batches: u64) -> ProgressBar {
        let target =
            if self.options.progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(batches), target);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {per_sec}") {
            bar.set_style(style);
        }
        bar.with_prefix(format!("epoch {}/{}", self.epoch + 1, self.options.epochs))
    }
}

fn line(stats: &EpochStats) -> Result<String> {
    let text = serde_json::to_string(stats).map_err(|e| NnError::config("metrics", e.to_string()))?;
    Ok(text + "\n")
}

fn write_metrics(path: &Path, history: &[EpochStats]) -> Result<()> {
    let text = history.iter().map(line).collect::<Result<String>>()?;
    write_atomic(path, text.as_bytes())
}

/// The epochs in a `metrics.jsonl`; a line that was cut off by a kill ends the list. A missing file has none.
pub fn read_metrics(path: &Path) -> Result<Vec<EpochStats>> {
    let file = match File::open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(NnError::io("open", path)(e)),
    };
    let mut out = vec![];
    for text in BufReader::new(file).lines() {
        match serde_json::from_str(&text.map_err(NnError::io("read", path))?) {
            Ok(stats) => out.push(stats),
            Err(_) => break,
        }
    }
    Ok(out)
}

/// Loss and accuracy over epochs as SVG.
pub fn curves(history: &[EpochStats]) -> String {
    let series = |name: &str, f: &dyn Fn(&EpochStats) -> Option<f64>| {
        let points: Vec<_> = history.iter().filter_map(|s| f(s).map(|v| (s.epoch as f64, v))).collect();
        (!points.is_empty()).then(|| Series { name: name.into(), points })
    };
    let chart = |title: &str, series: Vec<Option<Series>>| {
        let series: Vec<_> = series.into_iter().flatten().collect();
        (!series.is_empty()).then(|| Chart { title: title.into(), x: "epoch".into(), series })
    };
    let charts = [
        chart("loss", vec![series("train", &|s| Some(s.train_loss)), series("test", &|s| s.test_loss)]),
        chart("accuracy", vec![series("train", &|s| s.train_accuracy), series("test", &|s| s.test_accuracy)]),
    ];
    svg(&charts.into_iter().flatten().collect::<Vec<_>>())
}
