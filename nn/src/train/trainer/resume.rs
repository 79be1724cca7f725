//! Saving and resuming a run.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::{BEST, CHECKPOINT, LastNorm, Trainer, Within};
use crate::core::error::{NnError, Result, invalid};
use crate::io::checkpoint::{Checkpoint, Progress};
use crate::io::durable;
use crate::train::data::Source;

/// Name of the number of micro-batches per step in a checkpoint.
const ACCUMULATE: &str = "accumulate";
/// Where a checkpoint within an epoch keeps its position: batches done, and the sums over them.
const WITHIN: [&str; 5] = ["epoch.batches", "epoch.loss", "epoch.correct", "epoch.items", "epoch.judged"];
/// Where it keeps the norm of the last step's gradients.
const NORM: &str = "epoch.grad_norm";
/// Settings that are compared apart from the others.
const EPOCHS: &str = "epochs";
const ITEMS: &str = "items";
const SCHEDULE: &str = "schedule";

/// The first place where two values differ, with what is there.
fn difference(at: &str, a: &Value, b: &Value) -> Option<[String; 3]> {
    let join = |key: &str| if key.starts_with('[') { format!("{at}{key}") } else { format!("{at}.{key}") };
    match (a, b) {
        (a, b) if a == b => None,
        (Value::Object(x), Value::Object(y)) => x.keys().chain(y.keys()).find_map(|key| {
            let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
            difference(&join(key), &of(x), &of(y))
        }),
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            let mut pairs = x.iter().zip(y).enumerate();
            pairs.find_map(|(i, (a, b))| difference(&join(&format!("[{i}]")), a, b))
        }
        _ => Some([at.to_string(), a.to_string(), b.to_string()]),
    }
}

impl Trainer<'_> {
    /// What defines this run, beside seed, batch size and accumulation.
    pub(super) fn describe(&mut self) {
        let o = &self.options;
        let text = |t: String| Value::String(t);
        self.settings = o.settings.clone();
        self.settings.extend([
            (EPOCHS.to_string(), json!(o.epochs)),
            (SCHEDULE.into(), text(format!("{:?}", o.schedule))),
            ("plateau".into(), text(format!("{:?}", o.plateau))),
            ("clipping".into(), text(format!("{:?}", o.clip))),
            ("shuffling".into(), json!(o.shuffle)),
            ("learning rate".into(), json!(self.base_lr)),
            ("optimizer".into(), text(self.closure_settings().unwrap_or_else(|| self.optimizer.describe()))),
        ]);
    }

    /// Continues from the run folder's checkpoint, within an epoch where the run was stopped there; false if there is none. Lines of
    /// `metrics.jsonl` that the checkpoint does not cover are removed, with a warning in the log. Errors: no run folder;
    /// [`NnError::Checkpoint`] with the reason if the file is damaged or belongs to another architecture; [`NnError::ResumeMismatch`] if it
    /// belongs to a run with another seed, batch size, accumulation, optimizer, schedule (which may span the number of epochs) or other
    /// settings. What is in the folder is not changed then.
    pub fn resume(&mut self) -> Result<bool> {
        let Some(folder) = &self.folder else {
            return Err(invalid("resume", "run", "a run folder", "none"));
        };
        let path = folder.at(CHECKPOINT);
        if !durable::exists(&path)? {
            return Ok(false);
        }
        let c = Checkpoint::load(&path)?;
        let p = &c.progress;
        let fail = |what: String| NnError::Checkpoint { path: path.clone(), what, source: None };
        if p.version == 0 {
            return Err(fail("holds no training progress; it was not written by a run".into()));
        }
        self.check_settings(&path, p)?;
        c.restore(self.model, Some(&mut self.optimizer)).map_err(|e| NnError::Checkpoint {
            path: path.clone(),
            what: format!("does not fit the model or the optimizer: {e}"),
            source: Some(Box::new(e)),
        })?;
        self.restore_progress(p);
        if let Some(folder) = &mut self.folder {
            self.history = folder.take_over(self.epoch)?;
            // A run that ended between its checkpoint and its curves has older ones.
            folder.write_curves(&self.history)?;
        }
        Ok(true)
    }

    fn check_settings(&self, path: &Path, p: &Progress) -> Result<()> {
        let differs = |setting: &str, written: String, given: String| {
            Err(NnError::ResumeMismatch { path: path.into(), setting: setting.into(), written, given })
        };
        let accumulate = p.state.get(ACCUMULATE).copied().unwrap_or(1);
        for (name, theirs, ours) in [
            ("seed", p.seed, self.options.seed),
            ("batch size", p.batch_size, self.options.batch_size as u64),
            ("accumulation", accumulate, self.options.accumulate as u64),
        ] {
            if theirs != ours {
                return differs(name, theirs.to_string(), ours.to_string());
            }
        }
        for (name, theirs) in p.settings.iter().filter(|(name, _)| ![EPOCHS, ITEMS].contains(&name.as_str()))
        {
            let Some(ours) = self.settings.get(name) else { continue };
            let Some([at, written, given]) = difference(name, theirs, ours) else { continue };
            let epochs = [&p.settings, &self.settings].map(|s| s.get(EPOCHS).cloned().unwrap_or_default());
            if name == SCHEDULE && epochs[0] != epochs[1] {
                let what = "number of epochs under a learning-rate schedule that spans them";
                return differs(what, epochs[0].to_string(), epochs[1].to_string());
            }
            return differs(&at, written, given);
        }
        Ok(())
    }

    fn restore_progress(&mut self, p: &Progress) {
        self.epoch = p.epoch;
        let number = |key: &str| p.state.get(key).map(|&bits| f64::from_bits(bits));
        self.best = number("best.loss").zip(p.state.get("best.epoch").copied());
        self.waited = p.state.get("waited").copied().unwrap_or(0);
        if let Some(plateau) = &mut self.options.plateau {
            plateau.scale = number("plateau.scale").unwrap_or(plateau.scale);
            plateau.best = number("plateau.best").unwrap_or(plateau.best);
            plateau.waited = p.state.get("plateau.waited").copied().unwrap_or(0);
            plateau.cooling = p.state.get("plateau.cooling").copied().unwrap_or(0);
        }
        self.norm = number(NORM).map_or(LastNorm::None, LastNorm::Host);
        let [batches, sums @ ..] = WITHIN.map(|key| p.state.get(key).copied());
        self.within = batches.map(|batches| Within { batches, sums: sums.map(Option::unwrap_or_default) });
        self.written_items = p.settings.get(ITEMS).cloned();
    }

    /// Notes the sizes of the data. Errors: [`NnError::ResumeMismatch`] if the run that is resumed had others.
    pub(super) fn check_items(&mut self, train: &dyn Source, test: Option<&dyn Source>) -> Result<()> {
        let items = json!({ "training": train.items(), "test": test.map_or(0, |t| t.items()) });
        if let (Some(written), Some(folder)) = (&self.written_items, &self.folder)
            && let Some([setting, written, given]) = difference("number of items", written, &items)
        {
            return Err(NnError::ResumeMismatch { path: folder.at(CHECKPOINT), setting, written, given });
        }
        self.settings.insert(ITEMS.into(), items);
        Ok(())
    }

    fn progress(&self) -> Progress {
        let mut state = BTreeMap::from([("waited".to_string(), self.waited)]);
        if let Some((loss, epoch)) = self.best {
            state.insert("best.loss".into(), loss.to_bits());
            state.insert("best.epoch".into(), epoch);
        }
        if self.options.accumulate != 1 {
            state.insert(ACCUMULATE.into(), self.options.accumulate as u64);
        }
        if let Some(p) = &self.options.plateau {
            state.insert("plateau.scale".into(), p.scale.to_bits());
            state.insert("plateau.best".into(), p.best.to_bits());
            state.insert("plateau.waited".into(), p.waited);
            state.insert("plateau.cooling".into(), p.cooling);
        }
        if let Some(Within { batches, sums: [loss, correct, items, judged] }) = self.within {
            let values = [batches, loss, correct, items, judged];
            state.extend(WITHIN.iter().zip(values).map(|(key, v)| (key.to_string(), v)));
            if let LastNorm::Host(norm) = self.norm {
                state.insert(NORM.into(), norm.to_bits());
            }
        }
        Progress {
            epoch: self.epoch,
            seed: self.options.seed,
            batch_size: self.options.batch_size as u64,
            state,
            settings: self.settings.clone(),
            ..Progress::default()
        }
    }

    fn capture(&self) -> Result<Checkpoint> {
        Checkpoint::capture(self.model, Some(&self.optimizer), self.progress())
    }

    /// Saves the state within an epoch.
    pub(super) fn write_within(&mut self) -> Result<()> {
        if self.folder.is_none() {
            return Ok(());
        }
        let state = self.capture()?;
        let Some(folder) = &mut self.folder else { return Ok(()) };
        folder.begin()?;
        state.save(folder.at(CHECKPOINT))
    }

    /// Saves the state after an epoch.
    pub(super) fn write_run(&mut self, improved: bool) -> Result<()> {
        if self.folder.is_none() {
            return Ok(());
        }
        let state = self.capture()?;
        let Some(folder) = &mut self.folder else { return Ok(()) };
        folder.begin()?;
        // Metrics first: a resumption drops lines of epochs that the checkpoint does not know.
        folder.append(&self.history)?;
        if improved {
            state.save(folder.at(BEST))?;
        }
        state.save(folder.at(CHECKPOINT))?;
        folder.write_curves(&self.history)
    }
}
