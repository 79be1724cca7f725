//! The option `--backend`.

use trefoil::{Registry, Selector};
use trefoil_nn::Device;

use crate::error::Result;

/// Choice of a device, shared by the commands that need one.
#[derive(Debug, clap::Args)]
pub(crate) struct BackendArg {
    /// Device: auto, cuda, hip or opencl (each with :N for a further device) or cpu [default: $TREFOIL_BACKEND, otherwise auto]
    #[arg(long, value_name = "SEL")]
    backend: Option<String>,
}

impl BackendArg {
    pub(crate) fn open(&self) -> Result<Device> {
        let selector = match &self.backend {
            Some(s) => s.parse::<Selector>()?,
            None => Selector::from_env()?,
        };
        Ok(Registry::default().open(&selector)?)
    }
}
