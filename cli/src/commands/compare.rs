//! `trefoil compare`: every layer of a network on two devices.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::json;
use trefoil::{Registry, Selector};
use trefoil_nn::compare::{Gate, LayerError, compare_models};
use trefoil_nn::{DType, LayerExt};

use crate::error::{CliError, Result};
use crate::network::ModelArgs;

/// Arguments of `compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil compare examples/digits.json --backend opencl         every layer against the CPU
  trefoil compare network.json --backend cuda --double          against the CPU in f64
  trefoil compare network.json --backend cuda --against opencl --json

Both devices get the same weights, the same inputs (the first items of a run's data; random numbers for a network alone) and the same
gradient at the outputs. Every tensor is compared as it is: outputs, buffers, gradients at the outputs, gradients of parameters and of the
inputs. The error is the largest difference over the largest element. A gradient that is nothing but rounding (the bias in front of a batch
normalization) passes if it differs by less than 1e-6 of the network's largest gradient. The exit status is 1 if a tensor fails.")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The device to compare with
    #[arg(long, value_name = "SEL", default_value = "cpu")]
    against: String,
    /// Compute the other side in f64, to see errors of one side alone
    #[arg(long)]
    double: bool,
    /// Items in the batch
    #[arg(long, value_name = "N", default_value_t = 4)]
    batch: usize,
    /// Compare the network in evaluation mode
    #[arg(long)]
    eval: bool,
    /// Largest error of outputs; ten times as much for gradients [default: 1e-5, f16 1e-2, bf16 5e-2]
    #[arg(long, value_name = "X")]
    tolerance: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A comparison and its verdict.
struct Row {
    error: LayerError,
    tolerance: f64,
    ok: bool,
}

/// Errors with verdicts, layer by layer in the order of the forward.
fn judge(errors: Vec<LayerError>, gate: &Gate) -> Vec<Row> {
    // The largest element that a comparison saw.
    let scale = |e: &LayerError| if e.max_rel > 0.0 { e.max_abs / e.max_rel } else { 0.0 };
    let gradients = errors.iter().filter(|e| e.quantity.is_gradient()).map(scale);
    let noise = 1e-6 * gradients.filter(|s| s.is_finite()).fold(0.0, f64::max);
    let mut order = BTreeMap::new();
    for e in &errors {
        let next = order.len();
        order.entry(e.layer.clone()).or_insert(next);
    }
    let mut rows: Vec<Row> = errors
        .into_iter()
        .map(|error| {
            let gradient = error.quantity.is_gradient();
            let tolerance = if gradient { gate.gradient } else { gate.forward };
            let ok = error.passes(gate) || (gradient && error.max_abs <= noise);
            Row { error, tolerance, ok }
        })
        .collect();
    rows.sort_by_key(|r| (order.get(&r.error.layer).copied(), r.error.quantity));
    rows
}

fn text(out: &mut dyn Write, rows: &[Row]) -> Result<()> {
    let head = ["layer", "tensor", "shape", "max abs", "error", "tolerance", ""].map(String::from);
    let mut lines = vec![head];
    let mut last = None;
    for r in rows {
        let e = &r.error;
        let title = if e.layer.is_empty() { e.kind.clone() } else { format!("{} ({})", e.layer, e.kind) };
        let shown = if last == Some(&e.layer) { String::new() } else { title };
        last = Some(&e.layer);
        lines.push([
            shown,
            format!("{} {}", e.quantity, e.name),
            format!("{:?}", e.shape),
            format!("{:.1e}", e.max_abs),
            format!("{:.1e}", e.max_rel),
            format!("{:.0e}", r.tolerance),
            if r.ok { "ok".into() } else { "FAIL".into() },
        ]);
    }
    let width = |i: usize| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3, 4, 5, 6].map(width);
    for l in &lines {
        let cells = l.iter().zip(widths).enumerate().map(|(i, (cell, w))| match i {
            3..=5 => format!("{cell:>w$}"),
            _ => format!("{cell:<w$}"),
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    if a.batch == 0 {
        return Err(CliError::Input("--batch: expected at least 1, got 0".into()));
    }
    if let Some(t) = a.tolerance.filter(|t| !(*t >= 0.0 && t.is_finite())) {
        return Err(CliError::Input(format!("--tolerance: expected a number of at least 0, got {t}")));
    }
    let file = a.model.load()?;
    let device = a.model.backend.open()?;
    let other = Registry::default().open(&a.against.parse::<Selector>()?)?;
    let dtype = file.dtype();
    let forward = a.tolerance.unwrap_or(match dtype {
        DType::F16 => 1e-2,
        DType::Bf16 => 5e-2,
        _ => 1e-5,
    });
    let gate = Gate { forward, gradient: 10.0 * forward };
    let inputs = file.inputs(&other, a.batch)?;
    let reference = file.network(&other, if a.double { DType::F64 } else { DType::F32 }, &inputs)?;
    let model = file.network(&device, dtype, &inputs)?;
    if a.eval {
        reference.eval();
        model.eval();
    }
    let rows = judge(compare_models(&*reference, &*model, &inputs)?, &gate);
    let failed = rows.iter().filter(|r| !r.ok).count();
    if a.json {
        let list: Vec<_> = rows
            .iter()
            .map(|r| {
                let e = &r.error;
                json!({ "layer": e.layer, "type": e.kind, "tensor": e.quantity.to_string(), "name": e.name,
                        "shape": e.shape, "max_abs": e.max_abs, "error": e.max_rel, "tolerance": r.tolerance,
                        "ok": r.ok })
            })
            .collect();
        let all = json!({ "device": device.id().to_string(), "against": other.id().to_string(),
            "batch": a.batch, "failed": failed, "tensors": list });
        writeln!(out, "{all:#}")?;
    } else {
        writeln!(out, "{} ({}) against {}", device.id(), device.caps().name, other.id())?;
        text(out, &rows)?;
        writeln!(out, "{} tensors compared, {failed} failed", rows.len())?;
    }
    match failed {
        0 => Ok(()),
        n => Err(CliError::Input(format!(
            "{n} of {} tensors differ by more than their tolerance (--double compares with f64, to see which side is off)",
            rows.len()
        ))),
    }
}
