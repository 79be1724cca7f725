//! Run folders as arguments of commands.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use trefoil_nn::config::{Config, SavedRun, Weights};

use crate::error::{CliError, Result};
use crate::run::data_of;

/// A run folder, and which of its parameters.
#[derive(Debug, clap::Args)]
pub(crate) struct SavedArgs {
    /// A run folder, as `trefoil train` writes it
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Parameters after the last epoch, instead of those with the lowest monitored loss
    #[arg(long)]
    last: bool,
}

impl SavedArgs {
    pub(crate) fn open(&self) -> Result<SavedRun> {
        Ok(SavedRun::open(&self.run)?)
    }

    pub(crate) fn weights(&self) -> Weights {
        if self.last { Weights::Last } else { Weights::Best }
    }
}

/// The file of the parameters, without its folder.
pub(crate) fn weights_name(run: &SavedRun, weights: Weights) -> String {
    let file = run.weights_file(weights);
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

/// The run with other data for tests: a file, or JSON as under `data.test`. Errors: data of another kind.
pub(crate) fn with_test(config: &Config, text: &str) -> Result<Config> {
    let given = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|e| CliError::Input(format!("--data: {e}")))?,
        false => data_of(text).unwrap_or_else(|_| json!({ config.data.kind(): text })),
    };
    let kind = config.data.kind();
    if given.get(kind).is_none() {
        return Err(CliError::Input(format!(
            "--data: expected data of the run's kind, `{kind}`, got {given}"
        )));
    }
    let mut json = config.to_json();
    if let Some(Value::Object(data)) = json.get_mut("data") {
        ["test_rows", "test_share", "train_rows"].iter().for_each(|key| drop(data.remove(*key)));
        data.insert("test".into(), given);
    }
    Ok(Config::from_value(json)?)
}

/// Writes a file that must not be there yet.
pub(crate) fn write_new(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    made.and_then(|mut f| f.write_all(text.as_bytes()))
        .map_err(CliError::file("write (it must not be there yet)", path))
}
