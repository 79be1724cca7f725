//! Profiles of training steps: which kernels, which layers, forward and backward.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use serde_json::{Value, json};
use trefoil::GpuError;
use trefoil::ops::core::Profile;

use crate::core::error::{NnError, Result};
use crate::core::hooks::{self, OpObserver};
use crate::core::tensor::{Device, Tensor};
use crate::core::timeline::{self, Work};
use crate::report::flops;

pub use crate::core::timeline::Pass;

/// A kernel, a copy on the device or a call of a vendor's library, in a [`StepProfile`]; on the CPU backend an operation. Times and counts are of all
/// steps.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct KernelRow {
    /// Its name.
    pub name: String,
    /// The operation of the backend that it is part of.
    pub op: String,
    /// How often it ran.
    pub calls: usize,
    /// Device time in nanoseconds.
    pub ns: u64,
    /// Bytes of the operands of its operations. Where an operation has several kernels, each has the part of its time.
    pub bytes: Option<u64>,
    /// Arithmetic of forward operations, two per multiply-accumulate, shared out in the same way.
    pub flops: Option<u64>,
}

/// A layer in a [`StepProfile`], its parts left out. Times are of all steps.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerRow {
    /// Its name as in the state dictionary; empty for what is in no layer: the loss, the optimizer.
    pub name: String,
    /// Device time in nanoseconds of the forward, the backward and the optimizer.
    pub ns: [u64; 3],
    /// Kernels, in the same order.
    pub launches: [usize; 3],
}

/// Something on the device, for the trace.
#[derive(Debug, Clone)]
struct Launch {
    name: String,
    /// Place in `work`.
    work: Option<usize>,
    start_ns: u64,
    ns: u64,
}

/// Where the time of training steps goes, from [`Trainer::profile`](crate::Trainer::profile).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StepProfile {
    /// Number of steps.
    pub steps: usize,
    /// Host time of all steps in nanoseconds, the wait for the device at their end left out.
    pub host_ns: u64,
    /// Device time from the beginning of the first kernel to the end of the last, in nanoseconds.
    pub device_ns: u64,
    /// Kernels, those with the most time first.
    pub kernels: Vec<KernelRow>,
    /// Layers in the order of the forward.
    pub layers: Vec<LayerRow>,
    work: Vec<Work>,
    began: Instant,
    launches: Vec<Launch>,
    /// When the device began, in nanoseconds after the host.
    device_start_ns: u64,
}

/// Reports operations to the timeline.
struct Watch;

impl OpObserver for Watch {
    fn op(&self, path: &[String], op: &'static str, inputs: &[&Tensor], outputs: &[Tensor]) {
        timeline::forward(hooks::join(path), op, flops::of(op, inputs, outputs).flops);
    }
}

/// Profiles `steps` runs of `step`, which are plain calls.
pub(crate) fn profile(
    device: &Device,
    steps: usize,
    step: &mut dyn FnMut() -> Result<()>,
) -> Result<StepProfile> {
    let mut failed = None;
    let mut work = vec![];
    let mut calls = || {
        let run = || (0..steps).try_for_each(|_| step());
        let (done, seen) = timeline::record(|| hooks::observe(Rc::new(Watch), run));
        work = seen;
        done.map_err(|e| {
            failed = Some(e);
            GpuError::Config("a step failed".into())
        })
    };
    let profile = device.profile_calls(&mut calls);
    match (failed, profile) {
        (Some(e), _) => Err(e),
        (None, profile) => Ok(StepProfile::new(steps, &profile?, work)),
    }
}

/// `total` in parts like `part` of `whole`.
fn share(total: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(total) * u128::from(part);
    u64::try_from(product / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

impl StepProfile {
    fn new(steps: usize, p: &Profile, work: Vec<Work>) -> Self {
        let at = |t: Instant| t.saturating_duration_since(p.began).as_nanos() as u64;
        // Both lists are in the order of time.
        let work_of = |queued: u64| {
            let i = work.partition_point(|w| at(w.to) < queued);
            work.get(i).filter(|w| at(w.from) <= queued).map(|_| i)
        };
        let launches: Vec<Launch> = p
            .launches
            .iter()
            .map(|l| Launch {
                name: l.name.clone(),
                work: work_of(l.queued_ns),
                start_ns: l.start_ns,
                ns: l.ns,
            })
            .collect();
        let (mut of_op, mut of_work) = (vec![0u64; p.ops.len()], vec![0u64; work.len()]);
        for (l, own) in p.launches.iter().zip(&launches) {
            if let Some(ns) = l.op.and_then(|i| of_op.get_mut(i)) {
                *ns += l.ns;
            }
            if let Some(i) = own.work {
                of_work[i] += l.ns;
            }
        }
        let mut kernels: BTreeMap<(String, String), KernelRow> = BTreeMap::new();
        for (l, own) in p.launches.iter().zip(&launches) {
            let op = l.op.and_then(|i| Some((i, p.ops.get(i)?)));
            let name = op.map_or("", |(_, o)| o.name).to_string();
            let row = kernels.entry((l.name.clone(), name.clone())).or_insert_with(|| KernelRow {
                name: l.name.clone(),
                op: name,
                calls: 0,
                ns: 0,
                bytes: None,
                flops: None,
            });
            row.calls += 1;
            row.ns += l.ns;
            if let Some((bytes, i)) = op.and_then(|(i, o)| Some((o.bytes?, i))) {
                *row.bytes.get_or_insert(0) += share(bytes, l.ns, of_op[i]);
            }
            if let Some((flops, i)) = own.work.map(|i| (work[i].flops, i)).filter(|(n, _)| *n > 0) {
                *row.flops.get_or_insert(0) += share(flops, l.ns, of_work[i]);
            }
        }
        let mut kernels: Vec<_> = kernels.into_values().collect();
        kernels.sort_by_key(|k| std::cmp::Reverse(k.ns));
        let mut profile = StepProfile {
            steps,
            host_ns: p.host_ns,
            device_ns: p.device_ns,
            kernels,
            layers: vec![],
            work,
            began: p.began,
            launches,
            device_start_ns: p.launches.first().map_or(0, |l| l.queued_ns),
        };
        profile.layers = profile.by_layer();
        profile
    }

    fn by_layer(&self) -> Vec<LayerRow> {
        let mut rows: Vec<LayerRow> = vec![];
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for w in &self.work {
            places.entry(&w.layer).or_insert_with(|| {
                rows.push(LayerRow { name: w.layer.clone(), ns: [0; 3], launches: [0; 3] });
                rows.len() - 1
            });
        }
        for l in &self.launches {
            let Some(w) = l.work.map(|i| &self.work[i]) else { continue };
            let row = &mut rows[places[w.layer.as_str()]];
            row.ns[w.pass as usize] += l.ns;
            row.launches[w.pass as usize] += 1;
        }
        rows.retain(|r| r.launches != [0; 3]);
        rows
    }

    /// Device time of all kernels in nanoseconds. The rest of [`device_ns`](StepProfile::device_ns) the device has waited for the host.
    pub fn busy_ns(&self) -> u64 {
        self.launches.iter().map(|l| l.ns).sum()
    }

    /// The steps as a trace of events (Chrome's JSON, which Perfetto reads): one lane for the host, with layers and operations, one for the device. The
    /// clocks are laid together where the first kernel was queued.
    pub fn trace(&self) -> Value {
        let us = |ns: u64| ns as f64 / 1e3;
        let lane = |tid: u8, name: &str| json!({ "name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": { "name": name } });
        let mut events = vec![lane(0, "host"), lane(1, "device")];
        let label = |w: &Work| json!({ "layer": w.layer, "pass": format!("{:?}", w.pass).to_lowercase() });
        for w in &self.work {
            let ts = us(w.from.saturating_duration_since(self.began).as_nanos() as u64);
            let dur = us(w.to.saturating_duration_since(w.from).as_nanos() as u64);
            events.push(json!({
                "name": w.op, "cat": "host", "ph": "X", "pid": 0, "tid": 0, "ts": ts, "dur": dur, "args": label(w)
            }));
        }
        for l in &self.launches {
            let args = l.work.map_or(json!({}), |i| label(&self.work[i]));
            let ts = us(self.device_start_ns + l.start_ns);
            events.push(json!({
                "name": l.name, "cat": "device", "ph": "X", "pid": 0, "tid": 1, "ts": ts, "dur": us(l.ns), "args": args
            }));
        }
        json!({ "displayTimeUnit": "ns", "traceEvents": events })
    }

    /// Writes [`trace`](StepProfile::trace) to a file. Errors: of the file system.
    pub fn write_trace(&self, path: &std::path::Path) -> Result<()> {
        std::fs::write(path, self.trace().to_string()).map_err(NnError::io("write", path))
    }
}

/// A table with columns as wide as their longest cell, the first two to the left.
fn table(f: &mut fmt::Formatter<'_>, lines: &[Vec<String>]) -> fmt::Result {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |i: usize| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (i, line) in lines.iter().enumerate() {
        let cell = |(k, c): (usize, &String)| match k {
            0 | 1 => format!("{c:w$}", w = widths[k]),
            _ => format!("{c:>w$}", w = widths[k]),
        };
        let cells: Vec<String> = line.iter().enumerate().map(cell).collect();
        writeln!(f, "{}", cells.join("  ").trim_end())?;
        if i == 0 {
            writeln!(f, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1)))?;
        }
    }
    Ok(())
}

impl fmt::Display for StepProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.max(1) as f64;
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3 / steps);
        let busy = self.busy_ns();
        let percent = |ns: u64| format!("{:.1}", 100.0 * ns as f64 / busy.max(1) as f64);
        // A byte or an operation per nanosecond is a thousand million per second.
        let rate =
            |n: Option<u64>, ns: u64| n.map_or("-".into(), |n| format!("{:.1}", n as f64 / ns.max(1) as f64));
        let text = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut lines = vec![text(&["Kernel", "Operation", "Calls", "us", "%", "GB/s", "GFLOP/s"])];
        for k in &self.kernels {
            let calls = format!("{:.0}", k.calls as f64 / steps);
            let (bytes, flops) = (rate(k.bytes, k.ns), rate(k.flops, k.ns));
            lines.push(vec![k.name.clone(), k.op.clone(), calls, us(k.ns), percent(k.ns), bytes, flops]);
        }
        table(f, &lines)?;
        writeln!(f)?;
        let mut lines = vec![text(&["Layer", "Kernels", "Forward us", "Backward us", "Optimizer us", "%"])];
        for l in &self.layers {
            let name = if l.name.is_empty() { "(no layer)".into() } else { l.name.clone() };
            let kernels = format!("{:.0}", l.launches.iter().sum::<usize>() as f64 / steps);
            let total = percent(l.ns.iter().sum());
            lines.push(vec![name, kernels, us(l.ns[0]), us(l.ns[1]), us(l.ns[2]), total]);
        }
        table(f, &lines)?;
        let launches = self.launches.len() as f64 / steps;
        write!(
            f,
            "\nper step: {launches:.0} kernels, {} us in kernels, {} us on the device, {} us on the host",
            us(busy),
            us(self.device_ns),
            us(self.host_ns)
        )
    }
}
