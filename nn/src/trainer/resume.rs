//! The run folder: saving and resuming.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;

use super::report::{curves, line, read_metrics, write_metrics};
use super::{BEST, CHECKPOINT, CURVES, EpochStats, METRICS, Trainer};
use crate::checkpoint::{Checkpoint, Progress, write_atomic};
use crate::error::{NnError, Result, invalid};

/// Name of the number of micro-batches per step in a checkpoint.
const ACCUMULATE: &str = "accumulate";

impl Trainer<'_> {
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
            ("accumulation", p.state.get(ACCUMULATE).copied().unwrap_or(1), self.options.accumulate as u64),
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
            plateau.cooling = p.state.get("plateau.cooling").copied().unwrap_or(0);
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
        if self.options.accumulate != 1 {
            state.insert(ACCUMULATE.into(), self.options.accumulate as u64);
        }
        if let Some(p) = &self.options.plateau {
            state.insert("plateau.scale".into(), p.scale.to_bits());
            state.insert("plateau.best".into(), p.best.to_bits());
            state.insert("plateau.waited".into(), p.waited);
            state.insert("plateau.cooling".into(), p.cooling);
        }
        Progress {
            epoch: self.epoch,
            seed: self.options.seed,
            batch_size: self.options.batch_size as u64,
            state,
            ..Progress::default()
        }
    }

    pub(super) fn write_run(&self, stats: &EpochStats, improved: bool) -> Result<()> {
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
}
