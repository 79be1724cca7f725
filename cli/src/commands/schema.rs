//! `trefoil schema`: a JSON Schema of training runs, for editors.

use std::io::Write;

use trefoil_nn::config::json_schema;

use crate::error::Result;

/// Arguments of `schema`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil schema > run.schema.json      then \"$schema\" of an editor's settings for run files

It is made from the tables that read the files: sections, types of losses, optimizers, layers and so on, their options and defaults.")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{:#}", json_schema())?;
    Ok(())
}
