//! What an engine compiles for a kernel of the table, and a hash of its text, which ties results to the text that gave them.
//!
//! Cases of the kernel are run on an engine whose driver records what it is asked to compile and launch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use trefoil::driver::Driver;
use trefoil::prelude::InteropOps;
use trefoil::spec::{Unit, all_kernels, all_units, expand};
use trefoil::testing::{Call, MockDriver};
use trefoil::{Caps, DType, Engine, MatrixCores};

use crate::cases::{KERNELS, Kernel};
use crate::device::{Pattern, Placement};
use crate::runner::execute;
use crate::sampler::draw;

/// Small random cases per kernel and type, each with aligned and unaligned operands: enough to meet flat, strided and broadcast kernels.
const DRAWS: usize = 4;
/// Larger ones in bf16 of operations that have kernels for matrix cores.
const LARGE_DRAWS: usize = 12;
const ON_MATRIX_CORES: [&str; 3] = ["attention", "conv", "gemm"];

/// What an engine does for a kernel.
#[derive(Debug, Default, Clone)]
pub struct Served {
    /// Files under `kernels/`.
    pub files: BTreeSet<String>,
    /// Names of the units.
    pub units: BTreeSet<String>,
    /// The driver's own copy was used.
    pub copies: bool,
    /// Storage types.
    pub dtypes: Vec<&'static str>,
}

/// Runs cases of a kernel on a recording driver. The disk cache must be off, or compilations are missed.
pub fn serve(kernel: &Kernel) -> Result<Served, String> {
    // With matrix cores, and local memory for what runs on them: cases that these do not take meet the other kernels.
    let mut caps = MockDriver::default().caps().clone();
    (caps.matrix_cores, caps.warp_groups, caps.tensor_maps, caps.lane_exchange) =
        (Some(MatrixCores::Ptx), true, true, true);
    (caps.max_block, caps.shared_bytes) = (1024, 227 << 10);
    let mut served = serve_on(kernel, caps.clone(), None)?;
    let any = |family: &str| kernel.ops.iter().any(|op| op.starts_with(family));
    // Where all blocks run at a time a recurrence is one kernel; without, it meets those of a step.
    if any("rnn") {
        caps.cooperative = true;
        served.join(serve_on(kernel, caps, None)?);
    } else if any("conv") {
        // Small cases fill no tile, so that no rule takes this variant for them.
        served.join(serve_on(kernel, caps, Some("bf16x6"))?);
    }
    Ok(served)
}

impl Served {
    /// Adds what is compiled for another device, or by another variant.
    fn join(&mut self, other: Served) {
        self.files.extend(other.files);
        self.units.extend(other.units);
        self.copies |= other.copies;
    }
}

/// The same on a device with these capabilities, by a variant where an operation has it.
fn serve_on(kernel: &Kernel, caps: Caps, variant: Option<&'static str>) -> Result<Served, String> {
    let driver = Arc::new(MockDriver::new(caps));
    let engine = Engine::new(driver.clone()).map_err(|e| e.to_string())?;
    if variant.is_some() {
        // Operations without it stay as they are.
        kernel.ops.iter().for_each(|op| drop(engine.pin_variant(op, variant)));
    }
    let mut served = Served::default();
    let mut dtypes = kernel.dtypes.to_vec();
    let mut in_f64 = true;
    // The parity cases stay with the types of deep learning; whether f64 is there too is tried, or known from the table (a case that needs
    // f32 state beside f64 data is refused).
    if dtypes.contains(&DType::F32) {
        dtypes.push(DType::F64);
    }
    let on_matrix_cores =
        kernel.ops.iter().any(|op| ON_MATRIX_CORES.iter().any(|family| op.starts_with(family)));
    for dtype in dtypes {
        let mut runs = false;
        let large = if dtype == DType::Bf16 && on_matrix_cores { LARGE_DRAWS } else { 0 };
        for (index, small) in (0..DRAWS).map(|i| (i, true)).chain((0..large).map(|i| (i, false))) {
            for place in [Placement::Aligned, Placement::Unaligned] {
                let (case, _) = draw(kernel, dtype, index, 1, small)?;
                driver.clear();
                // Nothing is computed, so what comes back is not looked at.
                let run = execute(&engine, kernel, &case, Pattern::Nan, place);
                let calls = driver.calls();
                let launched = calls.iter().any(|c| matches!(c, Call::Launch { .. } | Call::Copy(..)));
                runs |= launched && run.result.is_ok();
                served.copies |= calls.iter().any(|c| matches!(c, Call::Copy(..)));
                for call in &calls {
                    if let Call::Launch { entry, .. } = call {
                        in_f64 &=
                            all_kernels().any(|k| k.entry == entry && k.dtypes().any(|d| d == DType::F64));
                    }
                    if let Call::Compile(unit) = call {
                        served.files.extend(unit.split('@').next().map(String::from));
                        served.units.insert(unit.clone());
                    }
                }
            }
        }
        if runs || (dtype == DType::F64 && in_f64 && !served.units.is_empty()) {
            served.dtypes.push(dtype.name());
        }
    }
    Ok(served)
}

/// C text without comments, line markers and layout.
fn stripped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (end, skip) = match rest.as_bytes().get(at + 1) {
            Some(b'*') => ("*/", 2),
            Some(b'/') => ("\n", 0),
            _ => {
                out.push_str(&rest[..=at]);
                rest = &rest[at + 1..];
                continue;
            }
        };
        out.push_str(&rest[..at]);
        rest = rest[at..].find(end).map_or("", |n| &rest[at + n + skip..]);
        out.push(' ');
    }
    out.push_str(rest);
    let lines = out.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("#line"));
    lines.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
}

/// Hash of the expanded text of a unit in a dialect, comments and layout aside.
pub fn hash(unit: &Unit, dialect: &str) -> Result<String, String> {
    Ok(short(blake3::hash(stripped(&expand(unit, dialect)?).as_bytes())))
}

/// Hashes of texts that have been asked for.
#[derive(Debug, Default)]
pub struct Hashes {
    units: HashMap<(String, &'static str), String>,
    cpu: Option<String>,
}

impl Hashes {
    /// Hash of everything that a backend compiles for a kernel: the expanded text of its units with their headers and defines, comments and layout
    /// aside. For the CPU, of all sources of that backend. Empty where the driver's own copy serves it.
    pub fn of(&mut self, backend: &str, served: &Served) -> Result<String, String> {
        let dialect = match backend {
            "cpu" => return self.cpu(),
            "cuda" => "cuda",
            "hip" => "hip",
            _ => "opencl",
        };
        let mut all = blake3::Hasher::new();
        for name in &served.units {
            let key = (name.clone(), dialect);
            if !self.units.contains_key(&key) {
                let unit = all_units()
                    .into_iter()
                    .find(|u| u.to_string() == *name)
                    .ok_or(format!("no unit {name}"))?;
                self.units.insert(key.clone(), hash(&unit, dialect)?);
            }
            all.update(name.split('/').next_back().unwrap_or(name).as_bytes())
                .update(self.units[&key].as_bytes());
        }
        Ok(short(all.finalize()))
    }

    fn cpu(&mut self) -> Result<String, String> {
        if let Some(h) = &self.cpu {
            return Ok(h.clone());
        }
        let mut files = vec![];
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/cpu"), &mut files)?;
        files.sort();
        let mut all = blake3::Hasher::new();
        files.iter().for_each(|text| {
            all.update(text.as_bytes());
        });
        Ok(self.cpu.insert(short(all.finalize())).clone())
    }
}

/// The texts below a folder, stripped; sorted by content, so that moving one changes nothing.
fn sources(folder: &Path, into: &mut Vec<String>) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.is_dir() {
            sources(&path, into)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(stripped(&std::fs::read_to_string(&path).map_err(fail)?));
        }
    }
    Ok(())
}

fn short(hash: blake3::Hash) -> String {
    hash.to_hex()[..16].to_string()
}

/// Asks a child of this program for hashes: the disk cache is off there, and the environment is read when an engine is made.
const ASK: &str = "TREFOIL_PARITY_HASHES";

/// The hashes of all kernels on a backend. The program must call [`answer`] first.
pub fn hashes(backend: &str) -> Result<BTreeMap<String, String>, String> {
    let mut child = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    child.env(ASK, backend).env("TREFOIL_CACHE", "off");
    for name in ["TREFOIL_VARIANT", "TREFOIL_DUMP_DIR", "TREFOIL_POOL"] {
        child.env_remove(name);
    }
    let out = child.output().map_err(|e| e.to_string())?;
    serde_json::from_slice(&out.stdout).map_err(|e| format!("{e}: {}", String::from_utf8_lossy(&out.stderr)))
}

/// Prints hashes, if this process was started for that; whether it was.
pub fn answer() -> bool {
    let Ok(backend) = std::env::var(ASK) else { return false };
    let mut hashes = Hashes::default();
    let each = KERNELS.iter().map(|k| {
        let served = if backend == "cpu" { Served::default() } else { serve(k)? };
        Ok((k.name, hashes.of(&backend, &served)?))
    });
    match each.collect::<Result<BTreeMap<_, _>, String>>() {
        Ok(all) => println!("{}", serde_json::to_string(&all).unwrap_or_default()),
        Err(e) => eprintln!("{e}"),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::stripped;

    #[test]
    fn comments_and_layout_do_not_count() {
        let (a, b) =
            ("#line 3 \"x\"\nint a; // one\n\n  int /* two */ b = a / 2;\n", "int a;\nint b = a / 2;");
        assert_eq!(stripped(a), stripped(b));
        assert_ne!(stripped("int a = 1;"), stripped("int a = 2;"));
    }
}
