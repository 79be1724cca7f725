//! `trefoil explain`: which implementation serves an operation, and why not the others.

use std::io::Write;

use trefoil::ops::all_ops;

use crate::backend::BackendArg;
use crate::error::{CliError, Result};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil explain                      list the operations
  trefoil explain gemm                 who serves gemm on the best device
  trefoil explain gemm --backend cpu")]
pub(crate) struct Args {
    /// Name of an operation; without it the operations are listed
    op: Option<String>,
    #[command(flatten)]
    backend: BackendArg,
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let Some(op) = &a.op else {
        for o in all_ops() {
            writeln!(out, "{:<24} {}", o.name, o.family.name())?;
        }
        return Ok(());
    };
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
    writeln!(out, "{} on {}: {}", c.op, device.id(), c.chosen)?;
    writeln!(out, "    from {}", c.source)?;
    for (variant, reason) in &c.rejected {
        writeln!(out, "    not {variant}: {reason}")?;
    }
    Ok(())
}
