//! Errors with their causes and with what to do next.

use std::error::Error;
use std::fmt::{self, Write};
use std::io;
use std::path::Path;

use trefoil::GpuError;
use trefoil_bench::CaseError;
use trefoil_nn::NnError;

pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

/// What a command can fail with.
#[derive(Debug)]
pub(crate) enum CliError {
    /// Training or a tensor operation.
    Nn(NnError),
    /// The standard output.
    Output(io::Error),
    /// A file of the user.
    File { what: &'static str, path: String, source: io::Error },
    /// Something the user wrote.
    Input(String),
    /// A signal ended the command: what was saved and how to go on, and the exit code.
    Stopped { text: String, code: u8 },
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Nn(e) => e.fmt(f),
            CliError::Output(_) => f.write_str("cannot write to the standard output"),
            CliError::File { what, path, .. } => write!(f, "cannot {what} {path}"),
            CliError::Input(text) | CliError::Stopped { text, .. } => f.write_str(text),
        }
    }
}

impl Error for CliError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            CliError::Nn(e) => e.source(),
            CliError::Output(e) | CliError::File { source: e, .. } => Some(e),
            CliError::Input(_) | CliError::Stopped { .. } => None,
        }
    }
}

impl From<NnError> for CliError {
    fn from(e: NnError) -> Self {
        CliError::Nn(e)
    }
}

impl From<GpuError> for CliError {
    fn from(e: GpuError) -> Self {
        CliError::Nn(e.into())
    }
}

impl From<CaseError> for CliError {
    fn from(e: CaseError) -> Self {
        match e {
            CaseError::Invalid(text) => CliError::Input(text),
            CaseError::Gpu(e) => e.into(),
        }
    }
}

impl From<io::Error> for CliError {
    fn from(e: io::Error) -> Self {
        CliError::Output(e)
    }
}

impl CliError {
    /// For `map_err`: what could not be done to which file.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |source| CliError::File { what, path, source }
    }

    /// The message, its causes (unless they only repeat it), and advice.
    pub(crate) fn report(&self) -> String {
        let mut text = match self {
            CliError::Stopped { text, .. } => format!("{text}\n"),
            _ => format!("error: {self}\n"),
        };
        let mut said = self.to_string();
        let mut cause = self.source();
        while let Some(e) = cause {
            let words = e.to_string();
            if !said.contains(&words) {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "  caused by: {words}");
            }
            said = words;
            cause = e.source();
        }
        if let Some(advice) = self.advice() {
            let _ = writeln!(text, "  what to do: {advice}");
        }
        text
    }

    /// Exit code of the process.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            CliError::Stopped { code, .. } => *code,
            _ => 1,
        }
    }

    fn advice(&self) -> Option<&'static str> {
        match self {
            CliError::Input(_) | CliError::Stopped { .. } => None,
            CliError::Output(_) => {
                Some("check that the file or pipe that the output goes to is open and has room")
            }
            CliError::File { .. } => Some("check that the path exists and can be used"),
            CliError::Nn(e) => match e.root() {
                NnError::Gpu(GpuError::Unavailable { .. }) => {
                    Some("`trefoil devices` shows what can be used here; `--backend cpu` always works")
                }
                NnError::Gpu(GpuError::Config(what)) if what.starts_with("TREFOIL_TUNE") => {
                    Some("set TREFOIL_TUNE to `use`, or leave it unset")
                }
                NnError::Gpu(GpuError::Config(_)) => Some(
                    "give --backend (or TREFOIL_BACKEND) one of the listed names; `trefoil devices` shows what can be used here",
                ),
                NnError::Gpu(GpuError::OutOfMemory { .. }) => {
                    Some("lower train.batch_size, or use another device")
                }
                NnError::Gpu(GpuError::Poisoned { .. } | GpuError::Driver(_)) => {
                    Some("run again with TREFOIL_SYNC=1 to see which kernel failed")
                }
                NnError::Gpu(GpuError::IndexOutOfRange { op }) | NnError::OutOfRange { op, .. }
                    if op.starts_with("embedding") =>
                {
                    Some(
                        "set num_embeddings of the embedding above the largest id in the data, or correct the data",
                    )
                }
                NnError::Gpu(GpuError::IndexOutOfRange { .. }) | NnError::OutOfRange { .. } => {
                    Some("check that class ids in the data are below the number of outputs of the last layer")
                }
                NnError::Config { .. } => {
                    Some("correct that place in the file; examples/digits.json is a complete example")
                }
                NnError::Table { .. } => Some(
                    "correct that cell, set data.header, data.label, data.target or data.drop in the configuration, or leave such rows out with data.on_error = \"skip\"",
                ),
                NnError::Data { .. } => {
                    Some("correct or remove that file, or leave such items out with data.on_error = \"skip\"")
                }
                NnError::Checkpoint { .. } | NnError::ResumeMismatch { .. } => Some(
                    "leave out --resume to start over (the old run is moved aside), or name another run folder with --run",
                ),
                NnError::Locked { .. } => {
                    Some("wait for the other run, or name another run folder with --run")
                }
                NnError::Diverged { .. } => Some("lower optimizer.lr, or set train.clip_norm"),
                NnError::Io { .. } => {
                    Some("check that the path exists and can be used, and that the disk has room")
                }
                _ => None,
            },
        }
    }
}
