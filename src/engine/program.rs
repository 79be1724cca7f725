//! Kernel units: text assembly, compilation on first use, and the two caches in front of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use rustc_hash::FxHashMap;

use super::cache::DiskCache;
use super::include::{Line, flatten};
use super::lock;
use crate::driver::{CompileUnit, Driver, RawFunction, RawModule};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::spec::{BLOCK, KernelSpec, Unit};

fn text(path: &str) -> std::result::Result<&'static str, String> {
    crate::spec::kernels::SOURCES
        .iter()
        .find(|(p, _)| *p == path)
        .map(|(_, t)| *t)
        .ok_or_else(|| format!("no kernel text kernels/{path}"))
}

/// Number of a dtype in kernels (`GK_DTYPE`).
const fn dtype_number(d: DType) -> u32 {
    match d {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Bf16 => 2,
        DType::F64 => 3,
        DType::I32 => 4,
        DType::I64 => 5,
        DType::U8 => 6,
    }
}

/// The defines that precede every unit.
pub(crate) fn header(dtype: DType, op: &str) -> String {
    let mut s = String::new();
    for d in DType::ALL {
        s += &format!("#define GK_{} {}\n", d.name().to_uppercase(), dtype_number(d));
    }
    s += &format!("#define GK_DTYPE {}\n#define GK_BLOCK {BLOCK}\n", dtype_number(dtype));
    if !op.is_empty() {
        s += &format!("#define GK_OP {op}\n");
    }
    // A conversion to f64 needs doubles in the unit of another type.
    if op == "gk_to_f64" {
        s += "#define GK_NEEDS_F64 1\n";
    }
    s
}

/// The language of a driver: the name of its dialect, and the dialect's header where the driver brings one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect<'a> {
    name: &'a str,
    header: Option<&'a str>,
}

impl<'a> Dialect<'a> {
    /// A dialect of `kernels/`.
    pub(crate) fn named(name: &'a str) -> Self {
        Dialect { name, header: None }
    }

    pub(crate) fn of(driver: &'a dyn Driver) -> Self {
        Dialect { name: driver.dialect(), header: driver.dialect_header() }
    }
}

/// Puts header, dialect, prelude and `body` (named `file` in messages) together and resolves includes.
pub(crate) fn assemble_text(
    dtype: DType,
    op: &str,
    dialect: Dialect<'_>,
    file: &str,
    body: &str,
) -> std::result::Result<String, String> {
    let dialect_file = format!("{}/dialect.h", dialect.name);
    let root = format!(
        "{}#include \"{dialect_file}\"\n#include \"common/prelude/prelude.h\"\n#include \"{file}\"\n",
        header(dtype, op)
    );
    let matrix = format!("{}/matrix.h", dialect.name);
    let read = |path: &str| match path {
        "unit" => Some(root.as_str()),
        // What a dialect has beyond its header for `prelude/matrix.h`, if anything.
        "dialect/matrix.h" => Some(text(&matrix).unwrap_or("")),
        // A header of `common` that a dialect may have in its own way.
        _ if path.starts_with("dialect/") => {
            let header = &path["dialect/".len()..];
            text(&format!("{}/{header}", dialect.name)).or_else(|_| text(&format!("common/{header}"))).ok()
        }
        _ if path == file => Some(body),
        _ if path == dialect_file && dialect.header.is_some() => dialect.header,
        _ => text(path).ok(),
    };
    let mut lines = vec![];
    flatten("unit", &read, 0, &mut lines).map_err(|e| format!("{file}: {e}"))?;
    // `#line` where the origin jumps, so that compilers name the real file and line.
    let mut out = String::new();
    let mut expected = None;
    for Line { text, file, number } in lines {
        let origin = Some((file.clone(), number));
        if origin != expected {
            out += &format!("#line {number} \"kernels/{file}\"\n");
        }
        expected = Some((file, number + 1));
        out += text;
        out.push('\n');
    }
    Ok(out)
}

/// The complete text of a table unit.
pub(crate) fn assemble(unit: &Unit, dialect: Dialect<'_>) -> std::result::Result<String, String> {
    let file = format!("common/{}", unit.file);
    assemble_text(unit.dtype, unit.op, dialect, &file, text(&file)?)
}

/// A module that is loaded.
#[derive(Debug, Clone, Copy)]
struct Loaded {
    module: RawModule,
    /// It came from the disk cache, not from the compiler.
    cached: bool,
}

/// A kernel that is ready to be launched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    pub(crate) raw: RawFunction,
    /// Place among the arguments of the code under which the kernel reports an index out of range, if it checks any.
    pub(crate) code_at: Option<usize>,
}

/// Functions of texts that were generated, by unit and text.
type Generated = HashMap<(DType, Box<str>), Vec<RawFunction>>;

/// Compiled units of one device, shared by all its handles.
#[derive(Debug)]
pub(crate) struct Programs {
    functions: RwLock<FxHashMap<(usize, DType, usize, usize), Function>>,
    /// A lock per unit, so that different units compile at the same time and one compiles once.
    modules: Mutex<HashMap<Unit, Arc<Mutex<Option<Loaded>>>>>,
    generated: Mutex<Generated>,
    disk: DiskCache,
    dump: Option<std::path::PathBuf>,
}

impl Programs {
    pub(crate) fn new(disk: DiskCache) -> Self {
        let dump = std::env::var_os("TREFOIL_DUMP_DIR").map(Into::into);
        Programs {
            functions: RwLock::default(),
            modules: Mutex::default(),
            generated: Mutex::default(),
            disk,
            dump,
        }
    }

    /// The function of a table kernel for a dtype and op, compiled if this is its first use. `compiled` counts compilations.
    pub(crate) fn function(
        &self,
        driver: &dyn Driver,
        kernel: &'static KernelSpec,
        dtype: DType,
        op: &'static str,
        compiled: &mut u64,
    ) -> Result<Function> {
        // Rows and op names are statics: their addresses identify them without hashing text on every launch. Address and length both: literals
        // lie next to each other, so that combinations of the two collide.
        let key = (kernel as *const KernelSpec as usize, dtype, op.as_ptr() as usize, op.len());
        if let Some(f) = self.functions.read().unwrap_or_else(|p| p.into_inner()).get(&key) {
            return Ok(*f);
        }
        let unit = Unit { file: kernel.file, dtype, op };
        let raw = self.entry(driver, unit, kernel.entry, compiled)?;
        let reports = kernel.args.iter().any(|a| a.name == "err");
        let code_at = kernel.args.iter().position(|a| a.name == "code").filter(|_| reports);
        let f = Function { raw, code_at };
        self.functions.write().unwrap_or_else(|p| p.into_inner()).insert(key, f);
        Ok(f)
    }

    /// Compiles or loads a unit, unless that has been done.
    pub(crate) fn prepare(&self, driver: &dyn Driver, unit: Unit, compiled: &mut u64) -> Result<()> {
        self.loaded(driver, unit, &mut lock(&self.slot(unit)), compiled).map(|_| ())
    }

    /// The kernel `entry` of a unit. An image of the disk cache that lacks it is replaced.
    fn entry(&self, driver: &dyn Driver, unit: Unit, entry: &str, compiled: &mut u64) -> Result<RawFunction> {
        let slot = self.slot(unit);
        let mut slot = lock(&slot);
        let loaded = self.loaded(driver, unit, &mut slot, compiled)?;
        // SAFETY: the module was loaded by this driver.
        match unsafe { driver.function(loaded.module, entry) } {
            Err(e) if loaded.cached => {
                log::warn!("the cached image of {unit} lacks {entry} and is rebuilt: {e}");
                let text = Text::of(&unit, driver)?;
                let module = *slot.insert(self.compile(driver, &text, compiled)?);
                // SAFETY: as above.
                unsafe { driver.function(module.module, entry) }
            }
            r => r,
        }
    }

    fn slot(&self, unit: Unit) -> Arc<Mutex<Option<Loaded>>> {
        lock(&self.modules).entry(unit).or_default().clone()
    }

    /// The loaded module of a unit, whose slot is given.
    fn loaded(
        &self,
        driver: &dyn Driver,
        unit: Unit,
        slot: &mut Option<Loaded>,
        compiled: &mut u64,
    ) -> Result<Loaded> {
        if let Some(m) = *slot {
            return Ok(m);
        }
        let loaded = match driver.runs_kernels() {
            true => self.build(driver, &Text::of(&unit, driver)?, compiled)?,
            // SAFETY: a driver that runs no kernels reads no image.
            false => Loaded { module: unsafe { driver.load(&[])? }, cached: false },
        };
        Ok(*slot.insert(loaded))
    }

    /// The kernel `entry` of a text that is no unit of the table.
    pub(crate) fn user_function(
        &self,
        driver: &dyn Driver,
        source: &str,
        entry: &str,
        compiled: &mut u64,
    ) -> Result<RawFunction> {
        let text = Text { name: format!("user kernel {entry}"), source: source.into() };
        let loaded = self.build(driver, &text, compiled)?;
        // SAFETY: the module was loaded by this driver.
        match unsafe { driver.function(loaded.module, entry) } {
            Err(_) if loaded.cached => {
                let module = self.compile(driver, &text, compiled)?.module;
                // SAFETY: as above.
                unsafe { driver.function(module, entry) }
            }
            r => r,
        }
    }

    /// The kernels `fused0`, `fused1`, .. of a text that was generated for a storage type.
    pub(crate) fn generated(
        &self,
        driver: &dyn Driver,
        dtype: DType,
        text: &str,
        count: usize,
        compiled: &mut u64,
    ) -> Result<Vec<RawFunction>> {
        let mut known = lock(&self.generated);
        let key = (dtype, text.into());
        if let Some(list) = known.get(&key) {
            return Ok(list.clone());
        }
        let source = assemble_text(dtype, "", Dialect::of(driver), "fused.c", text);
        let source = source.map_err(|e| GpuError::Config(e.into()))?;
        let text = Text { name: format!("fused.c@{dtype}"), source };
        let module = self.build(driver, &text, compiled)?.module;
        // SAFETY: the module was loaded by this driver.
        let find = |i| unsafe { driver.function(module, &format!("fused{i}")) };
        let list = (0..count).map(find).collect::<Result<Vec<_>>>()?;
        known.insert(key, list.clone());
        Ok(list)
    }

    /// Finds a complete text in the disk cache or compiles it, and loads it.
    fn build(&self, driver: &dyn Driver, text: &Text, compiled: &mut u64) -> Result<Loaded> {
        if let Some(dir) = &self.dump {
            let file = dir.join(format!("{}.{}", text.name.replace('/', "_"), driver.dialect()));
            if let Err(e) = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&file, &text.source)) {
                log::warn!("cannot dump {}: {e}", file.display());
            }
        }
        if let Some(image) = self.disk.read(&text.key(driver)) {
            // SAFETY: the cache gives what was written under the hash of text, device, driver and compiler, as its checksum shows.
            match unsafe { driver.load(&image) } {
                Ok(module) => return Ok(Loaded { module, cached: true }),
                Err(e) => log::warn!("the cached image of {} does not load and is rebuilt: {e}", text.name),
            }
        }
        self.compile(driver, text, compiled)
    }

    /// Compiles a complete text, stores the image in the disk cache and loads it.
    fn compile(&self, driver: &dyn Driver, text: &Text, compiled: &mut u64) -> Result<Loaded> {
        log::debug!("compiling {} for {}", text.name, driver.caps().arch);
        *compiled += 1;
        let unit = CompileUnit { name: &text.name, source: &text.source, options: &[] };
        let image = driver.compile(&unit)?;
        self.disk.write(&text.key(driver), &image);
        // SAFETY: the driver has just made the image.
        Ok(Loaded { module: unsafe { driver.load(&image)? }, cached: false })
    }
}

/// A complete text with its name for messages.
struct Text {
    name: String,
    source: String,
}

impl Text {
    fn of(unit: &Unit, driver: &dyn Driver) -> Result<Self> {
        let source = assemble(unit, Dialect::of(driver)).map_err(|e| GpuError::Config(e.into()))?;
        Ok(Text { name: unit.to_string(), source })
    }

    /// Name of its image in the disk cache.
    fn key(&self, driver: &dyn Driver) -> String {
        let caps = driver.caps();
        DiskCache::key(&[&self.source, &caps.arch, &caps.driver_version, &driver.compiler_id()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialect_may_have_a_header_in_its_own_way() {
        let text = |dialect| {
            let file = "common/attention/matrix.c";
            assemble_text(DType::F16, "gk_head64", Dialect::named(dialect), file, text(file).unwrap())
                .unwrap()
        };
        let times = |dialect| text(dialect).matches("void gk_matrix_softmax(").count();
        assert_eq!(["cuda", "opencl", "lint", "hip"].map(times), [1, 1, 1, 2]);
        assert!(text("hip").contains("GK_WMMA") && !text("cuda").contains("GK_WMMA"));
    }

    #[test]
    fn every_unit_assembles_in_every_dialect() {
        for unit in crate::spec::all_units() {
            for dialect in ["cuda", "hip", "opencl", "lint"] {
                let t = assemble(&unit, Dialect::named(dialect)).unwrap();
                assert!(t.contains("GK_DTYPE") && !t.contains("#include \""), "{unit} {dialect}");
            }
        }
    }
}
