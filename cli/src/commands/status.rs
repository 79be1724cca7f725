//! `trefoil status`: the table of kernels in numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use trefoil::spec::{KernelSpec, all_kernels, all_units};

use crate::error::Result;

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One line per kernel instead of one per family
    #[arg(long)]
    all: bool,
}

fn dtypes(k: &KernelSpec) -> String {
    k.dtypes().map(|d| d.name()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let mut families: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
    if a.all {
        writeln!(out, "{:<12} {:<32} {:<20} dtypes", "family", "kernel", "file")?;
    }
    for k in all_kernels() {
        let f = families.entry(k.family.name()).or_default();
        f.0 += 1;
        f.1.insert(k.file);
        if a.all {
            writeln!(out, "{:<12} {:<32} {:<20} {}", k.family.name(), k.entry, k.file, dtypes(k))?;
        }
    }
    if !a.all {
        writeln!(out, "{:<12} {:>8}  files", "family", "kernels")?;
        for (name, (n, files)) in &families {
            writeln!(out, "{name:<12} {n:>8}  {}", files.iter().copied().collect::<Vec<_>>().join(" "))?;
        }
    }
    writeln!(
        out,
        "{} kernels in {} families, {} compilation units (file, dtype, specialisation)",
        all_kernels().count(),
        families.len(),
        all_units().len()
    )?;
    Ok(())
}
