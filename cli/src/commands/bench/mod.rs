//! `trefoil bench`: times the cases of a JSON file.
//!
//! The operations are those of `trefoil_bench`; layers are in [`layer`], whole training steps in [`train`].

mod layer;
mod report;
pub(super) mod timing;
mod train;

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use trefoil::GpuError;
use trefoil_bench::{Case, Context, Prepared, operation, operations};
use trefoil_nn::{Device, NnError};

use self::report::{Row, Timed};
use self::timing::Work;
use crate::backend::BackendArg;
use crate::error::{CliError, Result};

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub(crate) struct Args {
    /// The cases, a JSON list
    cases: PathBuf,
    #[command(flatten)]
    backend: BackendArg,
    /// Only cases whose id contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also write the results to this file
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Also time, beside each case, a copy that moves as many bytes as the case must, and say what part of its speed the case reaches
    #[arg(long)]
    copy: bool,
    /// Also say, below each training step and layer, which operations (on a GPU: which kernels) its time goes to
    #[arg(long)]
    profile: bool,
    /// Seconds to spend on each measurement, about
    #[arg(long, value_name = "S", default_value_t = 0.25)]
    budget: f64,
}

/// Names in lines of readable length.
fn wrapped<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut line = 0;
    for name in names {
        if line > 0 {
            text.push(',');
            let full = line + name.len() > 100;
            text.push(if full { '\n' } else { ' ' });
            line = if full { 0 } else { line };
        }
        text.push_str(name);
        line += name.len() + 2;
    }
    text
}

/// What follows the options in `--help`.
fn help() -> String {
    format!(
        "\
Examples:
  trefoil bench cases.json
  trefoil bench cases.json --backend opencl:0 --only softmax
  trefoil bench cases.json --json result.json

A case is {{\"id\": .., \"op\": .., sizes, \"dtype\": \"f32\"|\"f16\"|\"bf16\", \"tf32\": true|false, \"tf32x3\": true|false}}, for example
  [{{\"id\": \"softmax_bf16\", \"op\": \"softmax\", \"rows\": 16384, \"cols\": 4096, \"dtype\": \"bf16\"}}]
Operations:
{}
whole training steps (with \"capture\": true recorded on the device and replayed):
{}
and `layer`, a layer as networks describe it and its inputs:
  {{\"id\": \"glu\", \"op\": \"layer\", \"layer\": {{\"type\": \"swiglu\", \"d_model\": 1024, \"d_ff\": 4096}}, \"inputs\": [{{\"shape\": [4096, 1024]}}]}}
Times are medians of device events over random inputs that rotate, so that caches do not serve them; forward and
backward are timed apart (of a layer both together, less the forward). Layers and training steps also say what many steps in a row take by the clock (`host_us`), what it
takes to queue one (`queue_us`), and how many kernels it launches.",
        wrapped(operations().map(|o| o.name)),
        wrapped(train::OPERATIONS.into_iter())
    )
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    if !(a.budget > 0.0 && a.budget.is_finite()) {
        return Err(CliError::Input(format!(
            "--budget must be a number of seconds above 0, not {}",
            a.budget
        )));
    }
    let mut cases = read(&a.cases)?;
    cases.retain(|c| a.only.as_ref().is_none_or(|t| c.id().contains(t.as_str())));
    // Before the first is timed.
    known(&cases)?;
    let d = a.backend.open()?;
    writeln!(out, "{}: {} ({})", d.id(), d.caps().name, d.caps().arch)?;
    report::head(out, a.copy)?;
    let mut results = Map::new();
    results.insert("_trefoil".into(), json!(env!("CARGO_PKG_VERSION")));
    results.insert("_device".into(), json!(d.caps().name));
    results.insert("_backend".into(), json!(d.id().to_string()));
    for c in &cases {
        results.insert(c.id().to_string(), show(c, &d, a, out)?);
        out.flush()?;
    }
    match &a.json {
        Some(path) => write_json(path, &Value::Object(results)),
        None => Ok(()),
    }
}

/// Whether a file holds a list, as that of cases is.
pub(super) fn is_list(path: &Path) -> Result<bool> {
    let text = std::fs::read(path).map_err(CliError::file("read", path))?;
    Ok(text.trim_ascii_start().starts_with(b"["))
}

/// The cases of a file.
pub(super) fn read(path: &Path) -> Result<Vec<Case>> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(CliError::file("read", path))?;
    let list: Vec<Value> = serde_json::from_str(&text).map_err(|e| {
        CliError::Input(format!(
            "{name}: expected a JSON list of cases: {e} (`trefoil bench --help` shows an example)"
        ))
    })?;
    list.into_iter()
        .enumerate()
        .map(|(i, v)| Case::new(v).map_err(|e| CliError::Input(format!("{name}: case {i}: {e}"))))
        .collect()
}

/// The names of all operations.
fn names() -> impl Iterator<Item = &'static str> {
    operations().map(|o| o.name).chain(train::OPERATIONS).chain([layer::OPERATION])
}

/// Refuses a case whose operation is unknown.
pub(super) fn known(cases: &[Case]) -> Result<()> {
    cases.iter().find(|c| names().all(|name| name != c.op())).map_or(Ok(()), |c| Err(unknown(c)))
}

/// The error of a case whose operation is none of [`names`].
fn unknown(c: &Case) -> CliError {
    let known = wrapped(names());
    CliError::Input(format!("case `{}`: no operation `{}`; the operations are\n{known}", c.id(), c.op()))
}

pub(super) fn write_json(path: &Path, results: &Value) -> Result<()> {
    std::fs::write(path, format!("{results:#}\n")).map_err(CliError::file("write", path))
}

/// Times a case, writes its line and returns its result. A case that does not fit into memory does not end the run; a failed device does.
fn show(c: &Case, d: &Device, a: &Args, out: &mut dyn Write) -> Result<Value> {
    let error = match time(c, d, a) {
        Ok(row) => {
            row.write_text(out, c.id(), a.copy)?;
            if a.profile && train::OPERATIONS.contains(&c.op()) {
                report::profile(out, &train::prepare(c, d)?.profile(d, 10)?, 10)?;
            } else if a.profile && c.op() == layer::OPERATION {
                let [_, mut both] = layer::prepare(c, d)?;
                report::profile(out, &both.profile(d, 10)?, 10)?;
            }
            return Ok(row.json());
        }
        Err(CliError::Nn(NnError::Gpu(
            e @ (GpuError::OutOfMemory { .. } | GpuError::Unsupported { .. }),
        ))) => {
            d.trim()?;
            e.to_string()
        }
        Err(CliError::Nn(e)) if matches!(e.root(), NnError::Gpu(GpuError::Invalid(_))) => {
            return Err(CliError::Input(format!("case `{}`: {e}; correct its sizes", c.id())));
        }
        Err(e) => return Err(e),
    };
    writeln!(out, "{:<32} {error}", c.id())?;
    Ok(json!({ "error": error }))
}

/// What a case repeats, each with its name: both directions of an operation, those of a layer together, a training step.
pub(super) fn works(c: &Case, d: &Device) -> Result<Vec<(&'static str, Work)>> {
    if let Some(op) = operation(c.op()) {
        let cx = Context::rotating(&**d);
        let mut works = vec![("forward", Work::of((op.forward)(&cx, c)?, d))];
        if let Some(prepare) = op.backward {
            works.push(("backward", Work::of(prepare(&cx, c)?, d)));
        }
        return Ok(works);
    }
    if c.op() == layer::OPERATION {
        let [_, both] = layer::prepare(c, d)?;
        return Ok(vec![("both passes", both)]);
    }
    Ok(vec![("a training step", train::prepare(c, d)?)])
}

/// Times both directions of a case.
fn time(c: &Case, d: &Device, a: &Args) -> Result<Row> {
    if let Some(op) = operation(c.op()) {
        let cx = Context::rotating(&**d);
        let direction = |problem: Prepared| timed(&mut Work::of(problem, d), d, a);
        let fwd = direction((op.forward)(&cx, c)?)?;
        let bwd = match op.backward {
            Some(prepare) => Some(direction(prepare(&cx, c)?)?),
            None => None,
        };
        return Ok(Row { fwd, bwd, host: None });
    }
    if c.op() == layer::OPERATION {
        let [mut fwd, mut both] = layer::prepare(c, d)?;
        let (fwd, bwd) = (timed(&mut fwd, d, a)?, timed(&mut both, d, a)?);
        let bwd = Timed { us: (bwd.us - fwd.us).max(0.0), ..bwd };
        return Ok(Row { fwd, bwd: Some(bwd), host: Some(both.host_times(d, a.budget)?) });
    }
    let mut step = train::prepare(c, d)?;
    let fwd = timed(&mut step, d, a)?;
    let host = Some(step.host_times(d, a.budget)?);
    Ok(Row { fwd, bwd: None, host })
}

fn timed(w: &mut Work, d: &Device, a: &Args) -> Result<Timed> {
    let us = w.device_time(d, a.budget)?;
    let of_copy = if a.copy && w.bytes > 0.0 { Some(copy_time(d, w.bytes, a.budget)? / us) } else { None };
    // Bytes per microsecond are MB/s; 1e6 of those are a TB/s.
    Ok(Timed { us, tb_s: w.bytes / us / 1e6, tflop_s: w.flops / us / 1e6, of_copy })
}

/// Time of a copy that reads and writes `bytes` in all.
fn copy_time(d: &Device, bytes: f64, budget: f64) -> Result<f64> {
    let copy = trefoil_bench::copy_of(&Context::rotating(&**d), bytes as u64)?;
    Work::of(copy, d).device_time(d, budget)
}
