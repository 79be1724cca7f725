//! Finding AMD's libraries that go with the HIP runtime.

use crate::driver::loader::{self, DynLib};

/// The library that the environment variable `var` names, else the first of `names` that the system's loader finds; the reason if there is none that
/// calls `runtime`.
pub(super) fn beside(
    runtime: &str,
    var: &'static str,
    names: &[&str],
) -> std::result::Result<DynLib, String> {
    let is_named = |var: &str| std::env::var_os(var).is_some_and(|v| !v.is_empty());
    // The library brings AMD's own runtime along, with a compiler that does not go together with everything.
    if is_named(hip_sys::HIP_LIB_VAR) && !is_named(var) {
        return Err(format!("{} names a HIP runtime, and {var} no library for it", hip_sys::HIP_LIB_VAR));
    }
    let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
    let lib = loader::open(var, &names).map_err(|e| e.to_string())?;
    same_runtime(&lib, runtime)?;
    Ok(lib)
}

/// Whether the library calls the runtime that this crate uses: memory of another (one that runs HIP on other hardware) is none of its own.
fn same_runtime(lib: &DynLib, runtime: &str) -> std::result::Result<(), String> {
    const SYMBOL: &str = "hipMalloc";
    let ours = loader::open_named(runtime).and_then(|r| r.address(SYMBOL)).map_err(|e| e.to_string())?;
    // The loader looks in what a library depends on, too; on Windows it does not.
    match lib.address(SYMBOL) {
        Ok(theirs) if theirs == ours => Ok(()),
        Err(_) if cfg!(windows) => Ok(()),
        _ => Err(format!("{} uses another HIP runtime than {runtime}", lib.name)),
    }
}
