//! `trefoil bench`.

mod attention;
mod case;
mod conv;
mod embedding;
mod gnn;
mod mesh;
mod norm;
mod ops;
mod pool;
mod resample;
mod rnn;
mod timing;
mod train;

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use trefoil::GpuError;
use trefoil_nn::NnError;

use self::case::Case;
use self::timing::{HostTimes, Work, host_times, measure};
use crate::BackendArg;
use crate::error::{CliError, Result};

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil bench cases.json
  trefoil bench cases.json --backend opencl:0 --only softmax
  trefoil bench cases.json --json result.json

A case is {\"id\": .., \"op\": .., sizes, \"dtype\": \"f32\"|\"f16\"|\"bf16\", \"tf32\": true|false}. Operations: copy, activation,
binary_broadcast, reduce_sum, permute, softmax, gemm, linear_act, conv2d, conv_transpose2d, conv3d, layernorm, rmsnorm, batchnorm, groupnorm, maxpool2d,
avgpool2d, upsample3d_nearest, attention, embedding, lstm, gru, scatter_add, scatter_max, spmm, gather_scatter, edge_softmax, gat_layer, spiral_conv, mse,
cross_entropy, optimizer, clip_norm, dropout, and whole training steps: train_mlp, train_gpt, train_resnet, train_lstm_lm, train_gcn. Others are listed as not in this build.
Times are medians of device events over random inputs that rotate, so that caches do not serve them; forward and backward are timed apart. Training
steps also say what many steps in a row take by the clock (`host_us`), what it takes to queue one (`queue_us`), and how many kernels it launches.")]
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
    /// Seconds to spend on each measurement, about
    #[arg(long, value_name = "S", default_value_t = 0.25)]
    budget: f64,
}

/// Results of a case.
struct Row {
    fwd: Timed,
    bwd: Option<Timed>,
    /// Of training steps.
    host: Option<HostTimes>,
}

/// Result of one direction.
struct Timed {
    us: f64,
    tb_s: f64,
    tflop_s: f64,
    /// Time of a copy of as many bytes divided by this time.
    of_copy: Option<f64>,
}

fn timed(d: &trefoil_nn::Device, w: &Work, a: &Args) -> Result<Timed> {
    let us = measure(d, w, a.budget)?;
    let of_copy = if a.copy && w.bytes > 0.0 { Some(copy_time(d, w.bytes, a.budget)? / us) } else { None };
    // Bytes per microsecond are MB/s; 1e6 of those are a TB/s.
    Ok(Timed { us, tb_s: w.bytes / us / 1e6, tflop_s: w.flops / us / 1e6, of_copy })
}

/// Time of a copy that reads and writes `bytes` in all.
fn copy_time(d: &trefoil_nn::Device, bytes: f64, budget: f64) -> Result<f64> {
    let c = Case::new(json!({"id": "copy", "op": "copy", "n": (bytes / 8.0).ceil() as u64}));
    match ops::prepare(&c.map_err(CliError::Input)?, d)? {
        Some(p) => measure(d, &p.fwd, budget),
        None => Err(CliError::Input("no copy to compare with".into())),
    }
}

fn read(path: &std::path::Path) -> Result<Vec<Case>> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| CliError::File {
        what: "read",
        path: name.clone(),
        source,
    })?;
    let list: Vec<Value> = serde_json::from_str(&text)
        .map_err(|e| CliError::Input(format!("{name}: expected a JSON list of cases: {e}")))?;
    list.into_iter()
        .enumerate()
        .map(|(i, v)| Case::new(v).map_err(|e| CliError::Input(format!("{name}: case {i}: {e}"))))
        .collect()
}

fn cell(x: Option<f64>, digits: usize) -> String {
    x.map_or("-".into(), |x| format!("{x:.digits$}"))
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    if !(a.budget > 0.0 && a.budget.is_finite()) {
        return Err(CliError::Input(format!(
            "--budget must be a number of seconds above 0, not {}",
            a.budget
        )));
    }
    let cases = read(&a.cases)?;
    let d = a.backend.open()?;
    writeln!(out, "{}: {} ({})", d.id(), d.caps().name, d.caps().arch)?;
    writeln!(
        out,
        "{:<32} {:>11} {:>11} {:>8} {:>8} {:>9} {:>9}{}",
        "id",
        "fwd_us",
        "bwd_us",
        "fwd TB/s",
        "bwd TB/s",
        "fwd TF/s",
        "bwd TF/s",
        if a.copy { "  fwd/copy  bwd/copy" } else { "" }
    )?;
    let mut results = Map::new();
    results.insert("_trefoil".into(), json!(env!("CARGO_PKG_VERSION")));
    results.insert("_device".into(), json!(d.caps().name));
    results.insert("_backend".into(), json!(d.id().to_string()));
    for c in cases.iter().filter(|c| a.only.as_ref().is_none_or(|t| c.id().contains(t.as_str()))) {
        let row = match one(c, &d, a) {
            Ok(Some(Row { fwd: f, bwd: b, host })) => {
                let (bu, bt, bf) = match &b {
                    Some(b) => (Some(b.us), Some(b.tb_s), Some(b.tflop_s).filter(|&x| x > 0.0)),
                    None => (None, None, None),
                };
                let copy = [f.of_copy, b.as_ref().and_then(|b| b.of_copy)];
                let copy = match a.copy {
                    true => copy.map(|x| format!(" {:>9}", cell(x, 3))).concat(),
                    false => String::new(),
                };
                writeln!(
                    out,
                    "{:<32} {:>11} {:>11} {:>8} {:>8} {:>9} {:>9}{copy}",
                    c.id(),
                    cell(Some(f.us), 1),
                    cell(bu, 1),
                    cell(Some(f.tb_s), 3),
                    cell(bt, 3),
                    cell(Some(f.tflop_s).filter(|&x| x > 0.0), 2),
                    cell(bf, 2)
                )?;
                let mut row = json!({"fwd_us": f.us, "fwd_tb_s": f.tb_s, "fwd_tflop_s": f.tflop_s});
                f.of_copy.iter().for_each(|&x| row["fwd_of_copy"] = json!(x));
                if let Some(b) = b {
                    b.of_copy.iter().for_each(|&x| row["bwd_of_copy"] = json!(x));
                    row["bwd_us"] = json!(b.us);
                    row["bwd_tb_s"] = json!(b.tb_s);
                    row["bwd_tflop_s"] = json!(b.tflop_s);
                }
                if let Some(h) = host {
                    let (step, queue, n) = (h.step_us, h.queue_us, h.launches);
                    writeln!(
                        out,
                        "    {step:.1} us per step in a row, {queue:.1} us to queue, {n} launches"
                    )?;
                    (row["host_us"], row["queue_us"], row["launches"]) =
                        (json!(step), json!(queue), json!(n));
                }
                row
            }
            Ok(None) => {
                writeln!(out, "{:<32} {} is not in this build", c.id(), c.op())?;
                json!({"error": format!("{} is not in this build", c.op())})
            }
            // One case that does not fit must not hide the others; a device that failed ends the run.
            Err(CliError::Nn(NnError::Gpu(
                e @ (GpuError::OutOfMemory { .. } | GpuError::Unsupported { .. }),
            ))) => {
                writeln!(out, "{:<32} {e}", c.id())?;
                d.trim()?;
                json!({"error": e.to_string()})
            }
            Err(e) => return Err(e),
        };
        results.insert(c.id().to_string(), row);
        out.flush()?;
    }
    if let Some(path) = &a.json {
        let name = path.display().to_string();
        let text = serde_json::to_string_pretty(&results).map_err(|e| CliError::Input(e.to_string()))?;
        std::fs::write(path, text + "\n").map_err(|source| CliError::File {
            what: "write",
            path: name,
            source,
        })?;
    }
    Ok(())
}

fn one(c: &Case, d: &trefoil_nn::Device, a: &Args) -> Result<Option<Row>> {
    let Some(p) = ops::prepare(c, d)? else { return Ok(None) };
    let fwd = timed(d, &p.fwd, a)?;
    let bwd = p.bwd.as_ref().map(|w| timed(d, w, a)).transpose()?;
    let step = c.op().starts_with("train_");
    let host = step.then(|| host_times(d, &p.fwd, a.budget)).transpose()?;
    Ok(Some(Row { fwd, bwd, host }))
}
