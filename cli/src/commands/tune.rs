//! `trefoil tune`: measures which variants of operations are fastest on a device, and keeps them.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use trefoil::GpuError;
use trefoil::ops::core::Tuned;
use trefoil_bench::Case;
use trefoil_nn::{Device, LayerExt, NnError, Param};

use super::bench;
use crate::backend::BackendArg;
use crate::error::{CliError, Result};
use crate::network::{InputArgs, ModelFile, both_passes};

/// Arguments of `tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil tune cases.json --backend cuda         cases of `trefoil bench`, forward and backward
  trefoil tune examples/digits.json --batch 64   a training run or a network: both passes, the loss being the sum of the outputs
  trefoil tune cases.json --only gemm --json tuned.json

Each operation with several variants is run with every one that applies, and the fastest is kept in the kernel cache for this device, driver
and version. Programs that start later take it for problems of the same sizes, where no variant is pinned: it computes the same within the
tolerances, but other bits, so a run that is to continue bit by bit is not to be tuned in between. TREFOIL_TUNE=off leaves out what was
measured. Times are those of the launches that serve a problem, as often as a case has it.")]
pub(crate) struct Args {
    /// Cases as for `trefoil bench`, training runs and networks
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    backend: BackendArg,
    #[command(flatten)]
    inputs: InputArgs,
    /// Only cases whose id contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Items in the batch, for a network
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Also write the results to this file
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
}

/// What is measured: calls that can be repeated.
enum Subject {
    Case(Case),
    Network(ModelFile),
}

/// The table as it grows, and its rows.
struct Table<'o> {
    out: &'o mut dyn Write,
    rows: Vec<(String, Tuned)>,
}

impl Table<'_> {
    /// Measures `calls` below a title.
    fn measure(&mut self, d: &Device, title: &str, mut calls: impl FnMut() -> Result<()>) -> Result<()> {
        writeln!(self.out, "{title}")?;
        // Before the first result, which may take a while.
        self.out.flush()?;
        let tuned = d.tune_calls(&mut || calls().map_err(device_error))?;
        for t in tuned {
            write_row(self.out, &t)?;
            self.rows.push((title.into(), t));
        }
        Ok(self.out.flush()?)
    }
}

/// What failed, for the device: a variant for which there is no memory, say, is passed over.
fn device_error(e: CliError) -> GpuError {
    match e {
        CliError::Nn(e) => match e.root() {
            NnError::Gpu(e) => e.clone(),
            _ => GpuError::Config(e.to_string().into()),
        },
        e => GpuError::Config(e.to_string().into()),
    }
}

fn write_row(out: &mut dyn Write, t: &Tuned) -> Result<()> {
    let us = |variant: &str| t.ns(variant).map_or("-".into(), |ns| format!("{:.1}", ns as f64 / 1e3));
    let (chosen, preferred) = (us(&t.chosen), us(&t.preferred));
    writeln!(
        out,
        "  {:<22} {:<18} {chosen:>11}   {:<18} {preferred:>11} {:>6.2}",
        t.op,
        t.chosen,
        t.preferred,
        t.gain()
    )?;
    let times: Vec<_> = t.times.iter().map(|(name, _)| format!("{name} {}", us(name))).collect();
    writeln!(out, "      {}\n      {}", times.join(", "), t.problem)?;
    Ok(())
}

/// The files' cases and networks.
fn subjects(a: &Args) -> Result<Vec<Subject>> {
    let mut all = vec![];
    for path in &a.files {
        if bench::is_list(path)? {
            let mut cases = bench::read(path)?;
            cases.retain(|c| a.only.as_ref().is_none_or(|t| c.id().contains(t.as_str())));
            bench::known(&cases)?;
            all.extend(cases.into_iter().map(Subject::Case));
        } else {
            all.push(Subject::Network(ModelFile::load(path, &a.inputs)?));
        }
    }
    Ok(all)
}

/// Both directions of an operation, a layer or a training step.
fn tune_case(c: &Case, d: &Device, table: &mut Table<'_>) -> Result<()> {
    for (direction, mut work) in bench::works(c, d)? {
        let mut runs = 0..;
        let title = format!("{}, {direction}", c.id());
        let done = table.measure(d, &title, || work.run(runs.next().unwrap_or_default()));
        match done {
            Err(CliError::Nn(NnError::Gpu(
                e @ (GpuError::OutOfMemory { .. } | GpuError::Unsupported { .. }),
            ))) => {
                d.trim()?;
                writeln!(table.out, "  {e}")?;
            }
            done => done?,
        }
    }
    Ok(())
}

fn tune_network(file: &ModelFile, batch: usize, d: &Device, table: &mut Table<'_>) -> Result<()> {
    let inputs = file.inputs(d, batch)?;
    let model = file.network(d, file.dtype(), &inputs)?;
    let parameters: Vec<_> = model.parameters().iter().map(Param::get).collect();
    table.measure(d, "the network, both passes", || {
        parameters.iter().try_for_each(|p| p.zero_grad())?;
        Ok(both_passes(&*model, &inputs)?)
    })
}

/// What was found, in a line.
fn summary(rows: &[(String, Tuned)], d: &Device) -> String {
    if rows.is_empty() {
        return format!(
            "nothing to choose: on {} no operation here has several variants whose times its sizes say",
            d.id()
        );
    }
    let other = rows.iter().filter(|(_, t)| t.chosen != t.preferred).count();
    let kept = match rows.iter().all(|(_, t)| t.kept) {
        true => "kept in the kernel cache",
        false => "not kept: there is no kernel cache (TREFOIL_CACHE, TREFOIL_CACHE_DIR)",
    };
    format!("{} choices, {other} other than by rule; {kept}", rows.len())
}

fn write_json(path: &Path, rows: &[(String, Tuned)], d: &Device) -> Result<()> {
    let row = |(title, t): &(String, Tuned)| {
        let us = |(name, ns): &(String, u64)| (name.clone(), json!(*ns as f64 / 1e3));
        json!({ "case": title, "op": t.op, "problem": t.problem, "chosen": t.chosen, "by_rule": t.preferred,
                "gain": t.gain(), "kept": t.kept, "us": t.times.iter().map(us).collect::<serde_json::Map<_, _>>() })
    };
    let rows: Vec<Value> = rows.iter().map(row).collect();
    bench::write_json(
        path,
        &json!({ "device": d.caps().name, "backend": d.id().to_string(), "choices": rows }),
    )
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let all = subjects(a)?;
    let d = a.backend.open()?;
    writeln!(out, "{}: {} ({})", d.id(), d.caps().name, d.caps().arch)?;
    let [chosen, us, rule, gain] = ["chosen", "us", "by rule", "gain"];
    writeln!(out, "  {:<22} {chosen:<18} {us:>11}   {rule:<18} {us:>11} {gain:>6}", "operation")?;
    let mut table = Table { out, rows: vec![] };
    for subject in &all {
        match subject {
            Subject::Case(c) => tune_case(c, &d, &mut table)?,
            Subject::Network(file) => tune_network(file, a.batch as usize, &d, &mut table)?,
        }
    }
    let Table { out, rows } = table;
    writeln!(out, "{}", summary(&rows, &d))?;
    match &a.json {
        Some(path) => write_json(path, &rows, &d),
        None => Ok(()),
    }
}
