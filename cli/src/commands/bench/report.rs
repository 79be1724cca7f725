//! Results of cases, as lines of a table and as JSON.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};
use trefoil::ops::core::Profile;

use super::timing::HostTimes;
use crate::error::Result;

/// Result of a case.
pub(super) struct Row {
    pub(super) fwd: Timed,
    pub(super) bwd: Option<Timed>,
    /// Of layers and training steps.
    pub(super) host: Option<HostTimes>,
}

/// Result of one direction.
pub(super) struct Timed {
    pub(super) us: f64,
    pub(super) tb_s: f64,
    /// 0 where the arithmetic is not counted.
    pub(super) tflop_s: f64,
    /// Time of a copy of as many bytes divided by this time.
    pub(super) of_copy: Option<f64>,
}

impl Timed {
    fn tflop_s(&self) -> Option<f64> {
        Some(self.tflop_s).filter(|&x| x > 0.0)
    }

    /// Adds the fields of a direction.
    fn write_json(&self, row: &mut Value, direction: &str) {
        row[format!("{direction}_us")] = json!(self.us);
        row[format!("{direction}_tb_s")] = json!(self.tb_s);
        row[format!("{direction}_tflop_s")] = json!(self.tflop_s);
        if let Some(x) = self.of_copy {
            row[format!("{direction}_of_copy")] = json!(x);
        }
    }
}

/// The head of the table; `copy` adds the columns of the comparison with a copy.
pub(super) fn head(out: &mut dyn Write, copy: bool) -> Result<()> {
    let copy = if copy { "  fwd/copy  bwd/copy" } else { "" };
    let [us, bwd_us] = ["fwd_us", "bwd_us"];
    let [tb, bwd_tb, tf, bwd_tf] = ["fwd TB/s", "bwd TB/s", "fwd TF/s", "bwd TF/s"];
    writeln!(out, "{:<32} {us:>11} {bwd_us:>11} {tb:>8} {bwd_tb:>8} {tf:>9} {bwd_tf:>9}{copy}", "id")?;
    Ok(())
}

fn cell(x: Option<f64>, digits: usize) -> String {
    x.map_or("-".into(), |x| format!("{x:.digits$}"))
}

impl Row {
    /// The case's line of the table, and one more for a layer or a training step.
    pub(super) fn write_text(&self, out: &mut dyn Write, id: &str, copy: bool) -> Result<()> {
        let (f, b) = (&self.fwd, self.bwd.as_ref());
        write!(
            out,
            "{id:<32} {:>11} {:>11} {:>8} {:>8} {:>9} {:>9}",
            cell(Some(f.us), 1),
            cell(b.map(|b| b.us), 1),
            cell(Some(f.tb_s), 3),
            cell(b.map(|b| b.tb_s), 3),
            cell(f.tflop_s(), 2),
            cell(b.and_then(Timed::tflop_s), 2)
        )?;
        if copy {
            write!(out, " {:>9} {:>9}", cell(f.of_copy, 3), cell(b.and_then(|b| b.of_copy), 3))?;
        }
        writeln!(out)?;
        if let Some(HostTimes { step_us, queue_us, launches }) = &self.host {
            writeln!(
                out,
                "    {step_us:.1} us per step in a row, {queue_us:.1} us to queue, {launches} launches"
            )?;
        }
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let mut row = json!({});
        self.fwd.write_json(&mut row, "fwd");
        if let Some(b) = &self.bwd {
            b.write_json(&mut row, "bwd");
        }
        if let Some(h) = &self.host {
            row["host_us"] = json!(h.step_us);
            row["queue_us"] = json!(h.queue_us);
            row["launches"] = json!(h.launches);
        }
        row
    }
}

/// The launches of `runs` equal runs by name, those that take most time first.
pub(super) fn profile(out: &mut dyn Write, p: &Profile, runs: usize) -> Result<()> {
    let mut by_name = BTreeMap::<&str, (u64, usize)>::new();
    for launch in &p.launches {
        let (ns, count) = by_name.entry(&launch.name).or_default();
        (*ns, *count) = (*ns + launch.ns, *count + 1);
    }
    let mut rows: Vec<_> = by_name.into_iter().collect();
    rows.sort_by_key(|(_, (ns, _))| std::cmp::Reverse(*ns));
    let per_run = |ns: u64| ns as f64 / runs as f64 / 1e3;
    for (name, (ns, count)) in rows.iter().filter(|(_, (ns, _))| ns * 100 >= p.host_ns) {
        writeln!(out, "    {name:<28} {:>12.1} us {:>8} calls", per_run(*ns), count / runs)?;
    }
    let all = rows.iter().map(|(_, (ns, _))| ns).sum();
    writeln!(out, "    {:<28} {:>12.1} us of {:.1}", "all", per_run(all), per_run(p.host_ns))?;
    Ok(())
}
