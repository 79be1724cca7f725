//! `record`: puts reports of parity runs into the records of their backends.

use std::path::PathBuf;

use parity_tests::record::{Ran, Record, folder};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Reports that `TREFOIL_PARITY_REPORT` had written, `parity-BACKEND.json`, of any number of backends and runs.
    #[arg(required = true)]
    reports: Vec<PathBuf>,
}

/// `record`
pub(crate) fn run(args: &Args) -> Result<(), String> {
    for path in &args.reports {
        let ran = Ran::read(path)?;
        let backend = ran.backend();
        let mut record = match Record::path(&folder(), backend).exists() {
            true => Record::read(&folder(), backend)?,
            false => Record::new(backend),
        };
        let taken = record.take(&ran)?;
        record.write(&folder())?;
        println!("{}: {taken} kernels, of {} on {backend}", path.display(), record.kernels.len());
    }
    println!("`cargo xtask status` writes KERNEL_STATUS.md from the records");
    Ok(())
}
