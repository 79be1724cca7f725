//! `trefoil export`: the parameters of a run as a file for other programs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use trefoil::CpuBackend;
use trefoil_nn::state_file::{SaveOptions, save};
use trefoil_nn::{Device, StateDict};

use crate::error::Result;
use crate::saved::{SavedArgs, weights_name};

/// Arguments of `export`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil export runs/digits                          runs/digits/model.safetensors
  trefoil export runs/digits --out model.safetensors

The file has the parameters and buffers alone, under the names that they have in PyTorch's layers (`0.weight`: of the first layer, as in
nn.Sequential; layers with a name of their own have that in front): `model.load_state_dict(safetensors.torch.load_file(\"model.safetensors\"))`.")]
pub(crate) struct Args {
    #[command(flatten)]
    saved: SavedArgs,
    /// The file [default: model.safetensors in the run folder]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let run = a.saved.open()?;
    let device: Device = Arc::new(CpuBackend::new());
    let state = run.state(a.saved.weights())?;
    let state = state.into_iter().map(|(name, t)| Ok((name, t.to_device(&device)?)));
    let state: StateDict = state.collect::<trefoil_nn::Result<BTreeMap<_, _>>>()?;
    let path = a.out.clone().unwrap_or_else(|| run.folder.join("model.safetensors"));
    save(&state, &path, &SaveOptions::new())?;
    let from = weights_name(&run, a.saved.weights());
    writeln!(out, "{} tensors of {from} are in {}", state.len(), path.display())?;
    Ok(())
}
