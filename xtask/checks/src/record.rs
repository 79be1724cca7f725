//! `record`: puts reports of parity runs into the records of their backends.

use std::collections::BTreeMap;
use std::path::PathBuf;

use parity_tests::record::{Ran, Record, folder};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Reports that `TREFOIL_PARITY_REPORT` had written, `parity-BACKEND.json`, of any number of backends and runs.
    #[arg(required = true)]
    reports: Vec<PathBuf>,
}

/// `record`. Nothing is written where one of the reports cannot be read.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let mut records: BTreeMap<String, Record> = BTreeMap::new();
    for path in &args.reports {
        let ran = Ran::read(path)?;
        let backend = ran.backend();
        if !records.contains_key(backend) {
            let exists = Record::path(&folder(), backend).exists();
            let record = if exists { Record::read(&folder(), backend)? } else { Record::new(backend) };
            records.insert(backend.into(), record);
        }
        let taken = records.get_mut(backend).map_or(Ok(0), |record| record.take(&ran))?;
        println!("{}: {taken} kernels on {backend}", path.display());
    }
    for record in records.values() {
        record.write(&folder())?;
    }
    println!("`cargo xtask status` writes KERNEL_STATUS.md from the records");
    Ok(())
}
