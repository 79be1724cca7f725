//! `trefoil explain`: which implementation serves an operation, and why not the others.

use std::io::Write;
use std::path::Path;

use trefoil::ops::all_ops;
use trefoil::ops::core::{Choice, ChosenBy};
use trefoil_nn::Device;

use crate::backend::BackendArg;
use crate::error::{CliError, Result};
use crate::network::{InputArgs, ModelFile, both_passes};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil explain                      list the operations
  trefoil explain gemm                 who serves gemm on the best device
  trefoil explain gemm --backend cpu
  trefoil explain network.json         the operations of a network that have several implementations, forward and backward

A file may be a training run, a network, or a network or bundle of Loom.")]
pub(crate) struct Args {
    /// Name of an operation, or a file with a network; without it the operations are listed
    op: Option<String>,
    #[command(flatten)]
    backend: BackendArg,
    #[command(flatten)]
    inputs: InputArgs,
    /// Items in the batch, for a network
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
}

/// The choices that a network makes, forward and backward, each with how often it was made.
fn choices(a: &Args, path: &Path, device: &Device) -> Result<Vec<(Choice, usize)>> {
    let file = ModelFile::load(path, &a.inputs)?;
    let inputs = file.inputs(device, a.batch as usize)?;
    let model = file.network(device, file.dtype(), &inputs)?;
    let mut done = Ok(());
    let made = device.explain_calls(&mut || {
        done = both_passes(&*model, &inputs);
        Ok(())
    })?;
    done?;
    let mut counted: Vec<(Choice, usize)> = vec![];
    for choice in made {
        match counted.iter_mut().find(|(c, _)| *c == choice) {
            Some((_, n)) => *n += 1,
            None => counted.push((choice, 1)),
        }
    }
    Ok(counted)
}

fn print(out: &mut dyn Write, title: &str, c: &Choice) -> Result<()> {
    let by = if c.by == ChosenBy::Rule { String::new() } else { format!(" ({})", c.by) };
    writeln!(out, "{title}: {}{by}", c.chosen)?;
    writeln!(out, "    from {}", c.source)?;
    for (variant, reason) in &c.rejected {
        writeln!(out, "    not {variant}: {reason}")?;
    }
    if !c.measured.is_empty() {
        let times = c.measured.iter().map(|(name, ns)| format!("{name} {:.1} us", *ns as f64 / 1e3));
        writeln!(out, "    measured: {}", times.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let Some(op) = &a.op else {
        for o in all_ops() {
            writeln!(out, "{:<24} {}", o.name, o.family.name())?;
        }
        return Ok(());
    };
    if Path::new(op).is_file() {
        let device = a.backend.open()?;
        let all = choices(a, Path::new(op), &device)?;
        if all.is_empty() {
            writeln!(out, "no operation of this network has several implementations on {}", device.id())?;
        }
        return all
            .iter()
            .try_for_each(|(c, n)| print(out, &format!("{} on {} ({n} calls)", c.op, device.id()), c));
    }
    if !all_ops().any(|o| o.name == op) {
        let near: Vec<&str> =
            all_ops().map(|o| o.name).filter(|n| n.contains(op.as_str()) || op.contains(n)).collect();
        let near =
            if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) };
        return Err(CliError::Input(format!(
            "there is no operation `{op}`{near} (`trefoil explain` without a name lists all)"
        )));
    }
    let device = a.backend.open()?;
    let c = device.explain(op)?;
    print(out, &format!("{} on {}", c.op, device.id()), &c)
}
