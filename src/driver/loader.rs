//! Opening vendor libraries at run time.
//!
//! No backend links against anything: each opens its libraries here, by a list of names or by the one path that an environment variable
//! gives, and resolves every function that it will call before it calls the first. What is missing becomes a typed reason. Libraries stay
//! open for the life of the process: drivers start threads and exit handlers, which do not survive an unload.

use std::mem::ManuallyDrop;

use libloading::Library;

use crate::error::Unavailable;

/// An open library.
#[derive(Debug)]
pub(crate) struct DynLib {
    library: ManuallyDrop<Library>,
    /// The name or path under which it was found.
    pub(crate) name: String,
}

/// Opens the first library of `names` that the system's loader finds. If the environment variable `var` is set and not empty, its value is
/// the only name that is tried.
pub(crate) fn open(var: &'static str, names: &[String]) -> Result<DynLib, Unavailable> {
    let chosen = std::env::var(var).ok().filter(|v| !v.is_empty());
    let names = chosen.as_ref().map_or(names, std::slice::from_ref);
    let mut tried = Vec::with_capacity(names.len());
    let mut last = String::new();
    for name in names {
        // SAFETY: runs the library's constructors; these are the vendors' drivers or what the user named.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                log::debug!("opened {name}");
                return Ok(DynLib { library: ManuallyDrop::new(library), name: name.clone() });
            }
            Err(e) => {
                tried.push(name.clone());
                // The loader's own words are in the source.
                last = std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| s.to_string());
            }
        }
    }
    if let Some(t) = tried.last_mut() {
        *t = if last.starts_with(t.as_str()) { last } else { format!("{t}: {last}") };
    }
    Err(Unavailable::LibraryNotFound { tried, var })
}

/// Opens the library of this name or path.
#[cfg(feature = "driver-hip")]
pub(crate) fn open_named(name: &str) -> Result<DynLib, Unavailable> {
    // SAFETY: as in `open`; the callers name what is open already.
    match unsafe { Library::new(name) } {
        Ok(library) => Ok(DynLib { library: ManuallyDrop::new(library), name: name.to_string() }),
        Err(e) => Err(Unavailable::LibraryNotFound { tried: vec![format!("{name}: {e}")], var: "" }),
    }
}

impl DynLib {
    /// The function `symbol`.
    ///
    /// # Safety
    /// `F` is the type of a function pointer with the function's true prototype.
    pub(crate) unsafe fn function<F: Copy>(&self, symbol: &str) -> Result<F, Unavailable> {
        const { assert!(size_of::<F>() == size_of::<*const ()>()) };
        let f = self.pointer(symbol)?;
        // SAFETY: the caller vouches for the type, which is that of a pointer; the library is never closed, so the copy stays valid.
        Ok(unsafe { std::mem::transmute_copy(&f) })
    }

    /// The address of a symbol. Not generic: the search is compiled once, and not for every prototype.
    fn pointer(&self, symbol: &str) -> Result<*const (), Unavailable> {
        // SAFETY: nothing is called here.
        match unsafe { self.library.get::<*const ()>(symbol) } {
            Ok(f) => Ok(*f),
            Err(_) => {
                Err(Unavailable::SymbolMissing { library: self.name.clone(), symbol: symbol.to_string() })
            }
        }
    }

    /// Address of a symbol, to tell whether two names opened the same library.
    pub(crate) fn address(&self, symbol: &str) -> Result<usize, Unavailable> {
        self.pointer(symbol).map(|p| p as usize)
    }
}

/// Whether the library has all of these symbols; names the first that it lacks.
pub(crate) fn preflight(lib: &DynLib, symbols: &[&str]) -> Result<(), Unavailable> {
    symbols.iter().try_for_each(|s| lib.address(s).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_was_tried() {
        let names = ["libtrefoil-none-1.so".to_string(), "libtrefoil-none-2.so".to_string()];
        match open("TREFOIL_TEST_UNSET_LIB", &names) {
            Err(Unavailable::LibraryNotFound { tried, var }) => {
                assert_eq!(var, "TREFOIL_TEST_UNSET_LIB");
                assert_eq!(tried[0], names[0]);
                assert!(tried[1].starts_with(&names[1]) && tried[1].len() > names[1].len(), "{tried:?}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn names_the_missing_symbol() {
        let lib = open("TREFOIL_TEST_UNSET_LIB", &["libc.so.6".to_string()]).unwrap();
        preflight(&lib, &["malloc", "free"]).unwrap();
        match preflight(&lib, &["malloc", "cuInit"]) {
            Err(Unavailable::SymbolMissing { library, symbol }) => {
                assert_eq!((library.as_str(), symbol.as_str()), ("libc.so.6", "cuInit"));
            }
            other => panic!("{other:?}"),
        }
    }
}
