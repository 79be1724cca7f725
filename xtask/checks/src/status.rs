//! `status`: writes KERNEL_STATUS.md from the tables and the committed results.
//!
//! Which file serves a kernel is not written down anywhere: cases of the parity table are run on an engine whose driver records what it is
//! asked to compile and launch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use parity_tests::cases::{KERNELS, Kernel, fields, find};
use parity_tests::units::{Hashes, Served, serve};
use trefoil::Engine;
use trefoil::ops::Family;
use trefoil::ops::core::CoreOps;
use trefoil::testing::MockDriver;

use crate::evidence::Evidence;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fail if the file is not what would be written.
    #[arg(long)]
    check: bool,
}

const BACKENDS: [(&str, &str); 4] = [("cpu", "CPU"), ("cuda", "CUDA"), ("hip", "HIP"), ("opencl", "OpenCL")];

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// `status`
pub(crate) fn run(args: &Args) -> Result<(), String> {
    // The recording driver must see every compilation, so no image may come from the disk; the environment is read when an engine is made.
    if std::env::var_os("TREFOIL_CACHE").is_none_or(|v| v != "off") {
        let exe = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut again = Command::new(exe);
        again.arg("status").args(args.check.then_some("--check")).env("TREFOIL_CACHE", "off");
        again.env_remove("TREFOIL_VARIANT").env_remove("TREFOIL_DUMP_DIR").env_remove("TREFOIL_POOL");
        let status = again.status().map_err(|e| e.to_string())?;
        return if status.success() { Ok(()) } else { Err("the status page was not written".into()) };
    }
    let path = root().join("KERNEL_STATUS.md");
    let text = page(&Evidence::read(&root().join("parity-tests/results"))?)?;
    if !args.check {
        return std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()));
    }
    let now = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    match now.lines().zip(text.lines()).position(|(a, b)| a != b) {
        None if now.lines().count() == text.lines().count() => {
            println!("KERNEL_STATUS.md is up to date ({} rows)", KERNELS.len());
            Ok(())
        }
        at => Err(format!(
            "KERNEL_STATUS.md is out of date (line {}); run `cargo xtask status`",
            at.unwrap_or_else(|| now.lines().count().min(text.lines().count())) + 1
        )),
    }
}

/// Storage types as text: those of the data, or of the inputs where these have fixed types.
fn dtypes(kernel: &Kernel, served: &Served) -> String {
    let inputs = fields(kernel.inputs);
    if inputs.iter().any(|f| f.kind == "data") || inputs.is_empty() {
        return served.dtypes.join(" ");
    }
    let kinds: BTreeSet<&str> =
        inputs.iter().map(|f| if f.kind == "idx" { "i32 i64" } else { f.kind }).collect();
    kinds.into_iter().collect::<Vec<_>>().join(" ").replace('/', " ")
}

/// Whether a gradient exists and how it is checked.
fn gradient(kernel: &Kernel) -> String {
    match kernel.forward {
        Some(f) => format!("of `{f}`"),
        None => {
            let of: Vec<_> = KERNELS
                .iter()
                .filter(|k| k.forward == Some(kernel.name))
                .map(|k| format!("`{}`", k.name))
                .collect();
            if of.is_empty() { "none".into() } else { of.join(", ") }
        }
    }
}

/// Implementations beside the portable text, as the engine knows them.
fn variants(engine: &Engine, kernel: &Kernel) -> Result<String, String> {
    let mut all = BTreeSet::new();
    for op in kernel.ops {
        let choice = engine.explain(op).map_err(|e| e.to_string())?;
        let names = choice.rejected.into_iter().map(|(n, _)| n).chain([choice.chosen]);
        all.extend(names.filter(|n| n != "portable").map(|n| format!("{op}:{n}")));
    }
    Ok(if all.is_empty() { "—".into() } else { all.into_iter().collect::<Vec<_>>().join(" ") })
}

/// Every variant of every operation, with the random cases that it passed on each device backend, whether chosen or pinned.
fn variant_table(
    engine: &Engine,
    evidence: &Evidence,
    today: &BTreeMap<&str, BTreeMap<&str, String>>,
) -> Result<String, String> {
    let mut out = VARIANTS.to_string();
    for op in trefoil::ops::all_ops() {
        let choice = engine.explain(op.name).map_err(|e| e.to_string())?;
        if choice.rejected.is_empty() {
            continue;
        }
        let mut names: Vec<String> =
            choice.rejected.into_iter().map(|(n, _)| n).chain([choice.chosen]).collect();
        names.sort();
        for name in names {
            let full = format!("{}:{name}", op.name);
            let cases = |backend: &str| {
                let n = today.get(backend).map_or(0, |hashes| evidence.cases_by(backend, &full, hashes));
                if n == 0 { "—".to_string() } else { n.to_string() }
            };
            let _ = writeln!(
                out,
                "| `{}` | `{name}` | {} | {} | {} |",
                op.name,
                cases("cuda"),
                cases("hip"),
                cases("opencl")
            );
        }
    }
    Ok(out)
}

/// Section letter, section, row.
type RowKey = (char, u32, u32);

/// Orders `S2.10` after `S2.9`.
fn row_key(row: &str) -> RowKey {
    let number =
        |s: &str| s.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    let mut chars = row.chars();
    let letter = chars.next().unwrap_or('Z');
    let (major, minor) = chars.as_str().split_once('.').unwrap_or((chars.as_str(), "0"));
    // The seed's sections first, then tensor basics, products, losses, and what lies beyond.
    let order = "STGOLB".find(letter).map_or('~', |i| (b'a' + i as u8) as char);
    (order, number(major), number(minor))
}

fn page(evidence: &Evidence) -> Result<String, String> {
    let engine = Engine::new(Arc::new(MockDriver::default())).map_err(|e| e.to_string())?;
    let mut rows: Vec<&Kernel> = KERNELS.iter().collect();
    rows.sort_by_key(|k| row_key(k.row));
    let mut counts: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
    let (mut table, mut hashes) = (String::new(), Hashes::default());
    let mut today: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for k in &rows {
        let served = serve(k).map_err(|e| format!("{}: {e}", k.name))?;
        let mut cells = String::new();
        for (backend, title) in BACKENDS {
            // The CPU backend is Rust and the driver's copy is the vendor's: no unit has to compile.
            let hash = hashes.of(backend, &served)?;
            let known = evidence.of(backend, k.name, &served.units, &hash);
            today.entry(backend).or_default().insert(k.name, hash);
            counts.entry(title).or_default()[known.column()] += 1;
            let _ = write!(cells, " {} |", known.cell());
        }
        let _ = writeln!(
            table,
            "| {} | `{}` | {} | {} | {} | {} | {} | {} |{cells}",
            if k.row.is_empty() { "—" } else { k.row },
            k.name,
            format!("{:?}", k.family).to_lowercase(),
            files(&served),
            variants(&engine, k)?,
            dtypes(k, &served),
            gradient(k),
            if k.family == Family::Random { "DR" } else { "D0" },
        );
    }
    let gradients = rows.iter().filter(|k| k.forward.is_some()).count();
    let mut out = format!("{HEAD}{} kernels, {gradients} of them gradients.\n\n", rows.len());
    out += "| backend | verified | outdated | compiles only | no result | failing |\n|---|---|---|---|---|---|\n";
    for (_, title) in BACKENDS {
        let [verified, outdated, compiles, nothing, fails] = counts.get(title).copied().unwrap_or_default();
        let _ = writeln!(out, "| {title} | {verified} | {outdated} | {compiles} | {nothing} | {fails} |");
    }
    let devices: Vec<String> = evidence.devices().into_iter().collect();
    let devices = if devices.is_empty() { "none".into() } else { devices.join("; ") };
    let _ = writeln!(out, "\nDevices with results: {devices}.\n\n{}\n\n{LEGEND}{table}", pending()?);
    out += &variant_table(&engine, evidence, &today)?;
    Ok(out.trim_end().to_string() + "\n")
}

/// The files that serve a kernel.
fn files(served: &Served) -> String {
    let files: Vec<String> = served.files.iter().map(|f| format!("`common/{f}`")).collect();
    match (files.is_empty(), served.copies) {
        (true, true) => "the driver's copy".into(),
        (true, false) => "—".into(),
        _ => files.join(" "),
    }
}

/// One sentence about the rows of the specification that this library does not serve, counted per section from the index of the suites.
fn pending() -> Result<String, String> {
    let path = root().join("parity-tests/golden/INDEX.md");
    let index = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(missing_rows(&index, |name| find(name).is_some()))
}

/// The sentence of [`pending`] for an index of suites (lines `| row | `name` | ...`) and a test of whether a name is served.
fn missing_rows(index: &str, serves: impl Fn(&str) -> bool) -> String {
    let mut sections: BTreeMap<RowKey, (String, BTreeMap<String, bool>)> = BTreeMap::new();
    for line in index.lines().filter(|l| l.starts_with("| ") && l.contains('`')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, row, name, ..] = cells.as_slice() else { continue };
        let (key, section) = match row_key(row) {
            // Single numbers: one section for all products, one for all losses.
            k if row.starts_with(['G', 'L', 'O']) => ((k.0, 0, 0), row[..1].to_string()),
            k => ((k.0, k.1, 0), row.split('.').next().unwrap_or(row).to_string()),
        };
        let rows = &mut sections.entry(key).or_insert_with(|| (section, BTreeMap::new())).1;
        // A row counts as served when all its names are.
        let served = rows.entry(row.to_string()).or_insert(true);
        *served &= serves(name.trim_matches('`'));
    }
    let (mut all, mut missing, mut parts) = (0, 0, Vec::new());
    for (section, rows) in sections.values() {
        let open = rows.values().filter(|served| !**served).count();
        (all, missing) = (all + rows.len(), missing + open);
        if open > 0 {
            parts.push(format!("{} {open} of {}", title(section), rows.len()));
        }
    }
    if missing == 0 {
        return format!(
            "All {all} rows of the specification that the golden suites cover are served under all their names."
        );
    }
    format!(
        "Of the {all} rows of the specification that the golden suites cover, {missing} are not served, or not under all their names: {}.",
        parts.join(", ")
    )
}

/// Title of a section of the specification.
fn title(section: &str) -> String {
    let name = match section {
        "S1" => "activations",
        "S2" => "activation gradients",
        "S3" => "convolution",
        "S4" => "normalisation",
        "S5" => "pooling",
        "S6" => "attention",
        "S7" => "losses of the kernel table",
        "S8" => "optimizer steps",
        "S9" => "embedding",
        "S10" => "recurrent",
        "S11" => "utility",
        "S12" => "fused",
        "S13" => "graph",
        "S14" => "3-D and mesh",
        "T1" => "binary",
        "T2" => "unary",
        "T3" => "reductions",
        "T4" => "movement",
        "T5" => "gather and scatter",
        "T6" => "creation",
        "G" => "matrix products",
        "L" => "further losses",
        "O" => "further optimizers",
        "B1" => "further activations",
        "B2" => "scans and order statistics",
        "B3" => "further normalisation",
        "B4" => "further convolution",
        "B5" => "further pooling",
        "B6" => "resampling",
        "B7" => "language models",
        "B8" => "state-space scans",
        "B9" => "linear algebra",
        "B10" => "Fourier",
        "B11" => "neural fields and mesh topology",
        "B12" => "further graph",
        other => other,
    };
    format!("{name} ({section})")
}

const HEAD: &str = "\
# Kernel status

Generated by `cargo xtask status` from the kernel tables and the results under `parity-tests/results/`; CI fails where it is out of date.

* `verified (device, date)`: all its cases passed there on that day, and the text that ran is today's.
* `outdated (date)`: they passed, but the kernel's text has changed since then, or the result does not say which text ran.
* `compiles (architectures, date)`: all its units compile; no device of that kind has run them.
* `fails`: some of its cases failed. `—`: no result.

";

const VARIANTS: &str = "
## Variants

Operations with several ways to run, and the random cases of today's text that each passed: chosen by the engine, or pinned where it takes the same
problem. A dash is a variant that no committed result covers.

| operation | variant | CUDA | HIP | OpenCL |
|---|---|---|---|---|
";

const LEGEND: &str = "\
## Kernels

One row per kernel name of the parity table (`parity-tests/src/cases`), in the order of the specification's rows.

* **portable text**: the files under `kernels/` that an engine compiles for it, found by running its parity cases on a recording driver. All of
  it is compiled by CUDA, HIP and OpenCL alike; the CPU backend is separate code in `src/cpu`.
* **tuned variants**: other implementations that the engine may choose (`CoreOps::explain` says which and why).
* **dtypes**: storage types of the data (or of the inputs, where those are fixed). f16 and bf16 are computed in f32.
* **gradient**: the kernel that is its gradient, or whose gradient it is. Gradients are held against central differences element by element in f64 on
  the CPU (`parity-tests/tests/gradcheck.rs`), and along a direction in f32 on every backend (`tests/directional.rs`).
* **det**: D0 = the same call on the same device gives the same bits; DR = the same, and drawn from Philox with equal integer streams on
  every backend. Every parity case is run twice and compared bit by bit.
* **backends**: the text that counts is that of the units that the kernel compiles, comments and layout aside; for the CPU, of the whole backend. HIP
  \"through hip-on-cuda\" means that the HIP driver and dialect ran on an NVIDIA device; it says nothing of AMD hardware. PoCL is OpenCL on a CPU.

| row | kernel | family | portable text | tuned variants | dtypes | gradient | det | CPU | CUDA | HIP | OpenCL |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_ordered_by_section_and_number() {
        let mut rows = ["T2.10", "B1.1", "S11.1", "S2.9", "G3", "S2.10", "L7", "T2.4", ""];
        rows.sort_by_key(|r| row_key(r));
        assert_eq!(rows, ["S2.9", "S2.10", "S11.1", "T2.4", "T2.10", "G3", "L7", "B1.1", ""]);
    }

    #[test]
    fn the_files_of_a_kernel_are_seen_on_the_recording_driver() {
        let served = serve(find("neg").unwrap()).unwrap();
        assert!(served.files.contains("elementwise/unary.c") || served.units.is_empty(), "{served:?}");
        assert!(served.dtypes.contains(&"f32"));
        let copied = serve(find("copy_buffer").unwrap()).unwrap();
        assert!(copied.copies, "{copied:?}");
    }

    #[test]
    fn what_is_missing_is_counted() {
        let index = "| row | name |\n| S3.1 | `conv2d` |\n| S3.1 | `conv2d_bwd` |\n| S3.2 | `im2col` |\n| T2.1 | `neg` |\n| G1 | `gemm` |\n";
        let text = missing_rows(index, |name| matches!(name, "conv2d" | "im2col" | "neg"));
        assert!(text.contains("Of the 4 rows") && text.contains(", 2 are not served"), "{text}");
        assert!(text.contains("convolution (S3) 1 of 2"), "a row with one name missing counts once: {text}");
        assert!(!text.contains("unary (T2)"), "{text}");
        assert!(missing_rows(index, |_| true).starts_with("All 4 rows"));
    }
}
